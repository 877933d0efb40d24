"""The memory provider under the suite: the executable reference must follow its own rules."""

from incumbent.providers.memory import MemoryProvider
from incumbent.testing.clock import FakeClock
from incumbent.testing.conformance import ArchiveConformance, ControlConformance, MailboxConformance


class TestMemory(ControlConformance, MailboxConformance, ArchiveConformance):
    """One process, one lock, a clock of the test's own."""

    def make_provider(self) -> MemoryProvider:
        """A store of its own for each test."""
        self.clock = FakeClock()
        return MemoryProvider(clock=self.clock)

    def pass_time(self, ms: int) -> None:
        """The store's clock is the test's."""
        self.clock.advance(ms)
