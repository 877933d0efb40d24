"""The conformance suite on the store that is verified: pytest collects it from here."""

from collections.abc import Iterator
from typing import Any

import pytest

from incumbent.testing.conformance import ArchiveConformance, ControlConformance, MailboxConformance
from incumbent.verify.store import VerifiedStore


class TestStore(MailboxConformance, ArchiveConformance, ControlConformance):
    """Each test has a prefix of its own, and removes what it has stored."""

    @pytest.fixture(autouse=True)
    def _trial(self, verified_store: VerifiedStore) -> Iterator[None]:
        self.skew_ms, self.slack_ms = verified_store.skew_ms, verified_store.slack_ms
        self.trial = verified_store.begun(verified_store.test_clock())
        yield
        self.trial.end()

    def make_provider(self) -> Any:
        """A provider as a function makes it."""
        return self.trial.provider()

    def make_other(self, provider: Any) -> Any:
        """Another, with connections of its own."""
        return self.trial.provider()

    def pass_time(self, ms: int) -> None:
        """Move the caller's clock, or what the server has stored."""
        self.trial.pass_time(ms)
