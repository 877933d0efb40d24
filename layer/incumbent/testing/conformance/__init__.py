"""The suite that every provider runs: subclass it, say how a provider is made and how its time is moved.

::

    class TestMine(MailboxConformance, ArchiveConformance):
        def make_provider(self) -> MyProvider:
            self.clock = FakeClock()
            return MyProvider(clock=self.clock)

        def pass_time(self, ms: int) -> None:
            self.clock.advance(ms)

Take the classes of what the provider offers: `LeaseConformance` for the five methods of a lease,
`MailboxConformance` (which contains it) for messages, `ArchiveConformance` for dead letters, `ControlConformance` for
what looks at keys and controls them. Nothing is used but the methods of the Protocols in `incumbent.contract`. See
`Subject` for what may be stated besides.
"""

from incumbent.testing.conformance.archive import ArchiveConformance
from incumbent.testing.conformance.control import ControlConformance
from incumbent.testing.conformance.lease import LeaseConformance
from incumbent.testing.conformance.mailbox import MailboxConformance
from incumbent.testing.conformance.subject import ArchiveProvider, ControlProvider, MailboxProvider, Subject

__all__ = [
    "ArchiveConformance",
    "ArchiveProvider",
    "ControlConformance",
    "ControlProvider",
    "LeaseConformance",
    "MailboxConformance",
    "MailboxProvider",
    "Subject",
]
