"""incumbent: one owner per key on AWS Lambda. An invocation that loses the race hands its message to the owner.

All public names are here, except the providers: import these from their modules (``incumbent.providers.redis`` and its
neighbours), so that a function loads only the store that it uses.
"""

from incumbent.contract import (
    Archive,
    LeaseProvider,
    Mailbox,
    NoopLeaseProvider,
    is_archive,
    is_lease_provider,
    is_mailbox,
    resolve_lease_provider,
)
from incumbent.decorators import leased, leased_function
from incumbent.errors import (
    ConfigurationError,
    DuplicateMessage,
    IncumbentError,
    LeaseBusy,
    LeaseKeyMissing,
    LeaseLost,
    LeaseUnavailable,
    MailboxFull,
    MessageInvalid,
    MessageTooLarge,
    ResultRefused,
    RetryLater,
    StoredFormatUnknown,
)
from incumbent.lease import Lease, Stop, current_lease
from incumbent.observe import Fact, Observer
from incumbent.sending import Sent, send, status
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
    Message,
    Origin,
    Orphan,
    Policy,
    Released,
    Routed,
)
from incumbent.wakers import LambdaWaker, Wake, Waker

__version__ = "0.1.0"

__all__ = [
    "Acquisition",
    "Archive",
    "Beat",
    "Busy",
    "Claimed",
    "ConfigurationError",
    "Continued",
    "DeadLetter",
    "Duplicate",
    "DuplicateMessage",
    "Fact",
    "Failure",
    "Idle",
    "IncumbentError",
    "LambdaWaker",
    "Lease",
    "LeaseBusy",
    "LeaseKeyMissing",
    "LeaseLost",
    "LeaseProvider",
    "LeaseUnavailable",
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
    "Stop",
    "StoredFormatUnknown",
    "Wake",
    "Waker",
    "current_lease",
    "is_archive",
    "is_lease_provider",
    "is_mailbox",
    "leased",
    "leased_function",
    "resolve_lease_provider",
    "send",
    "status",
]
