"""incumbent: one owner per key on AWS Lambda. An invocation that loses the race hands its message to the owner.

All public names are here, except the providers: import these from their modules (``incumbent.providers.redis`` and its
neighbours), so that a function loads only the store that it uses.
"""

from incumbent.backends import (
    NoopLeaseProvider,
    is_archive,
    is_control,
    is_lease_provider,
    is_mailbox,
    resolve_lease_provider,
)
from incumbent.contract import Archive, Control, LeaseProvider, Mailbox
from incumbent.controlling import cancel, hold, keys, resume, show, status, stop, wait
from incumbent.decorators import leased, leased_function
from incumbent.errors import (
    ConfigurationError,
    DuplicateMessage,
    IncumbentError,
    LeaseBusy,
    LeaseKeyMissing,
    LeaseLost,
    LeaseUnavailable,
    ListIncomplete,
    MailboxFull,
    MessageInvalid,
    MessageTooLarge,
    ResultRefused,
    RetryLater,
    StoredFormatUnknown,
)
from incumbent.lease import Lease, Stop, current_lease
from incumbent.observe import Fact, Observer
from incumbent.sending import Sent, send
from incumbent.values import (
    Acquisition,
    Beat,
    Busy,
    Claimed,
    Continued,
    DeadLetter,
    Duplicate,
    Failure,
    Idle,
    KeyStatus,
    Message,
    Origin,
    Orphan,
    Policy,
    Released,
    Routed,
    Status,
)
from incumbent.wakers import LambdaWaker, SqsWaker, Wake, Waker

__version__ = "0.1.0"

__all__ = [
    "Acquisition",
    "Archive",
    "Beat",
    "Busy",
    "Claimed",
    "ConfigurationError",
    "Continued",
    "Control",
    "DeadLetter",
    "Duplicate",
    "DuplicateMessage",
    "Fact",
    "Failure",
    "Idle",
    "IncumbentError",
    "KeyStatus",
    "LambdaWaker",
    "Lease",
    "LeaseBusy",
    "LeaseKeyMissing",
    "LeaseLost",
    "LeaseProvider",
    "LeaseUnavailable",
    "ListIncomplete",
    "Mailbox",
    "MailboxFull",
    "Message",
    "MessageInvalid",
    "MessageTooLarge",
    "NoopLeaseProvider",
    "Observer",
    "Origin",
    "Orphan",
    "Policy",
    "Released",
    "ResultRefused",
    "RetryLater",
    "Routed",
    "Sent",
    "SqsWaker",
    "Status",
    "Stop",
    "StoredFormatUnknown",
    "Wake",
    "Waker",
    "cancel",
    "current_lease",
    "hold",
    "is_archive",
    "is_control",
    "is_lease_provider",
    "is_mailbox",
    "keys",
    "leased",
    "leased_function",
    "resolve_lease_provider",
    "resume",
    "send",
    "show",
    "status",
    "stop",
    "wait",
]
