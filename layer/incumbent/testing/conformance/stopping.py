"""How a run is stopped, and what it keeps: its results and its note (M16 to M18)."""
# ruff: noqa: S101 - these are tests: assert is how they say it, and the numbers are the test

from typing import Any

import pytest

from incumbent.backends import is_control
from incumbent.errors import ConfigurationError, LeaseLost, MessageInvalid
from incumbent.testing.conformance.later import LaterConformance
from incumbent.testing.conformance.mail import failure, ids, message
from incumbent.testing.conformance.subject import TTL_MS, ControlProvider
from incumbent.values import (
    Duplicate,
    Policy,
    Released,
    Status,
)

MINUTE_MS = 60_000
KEPT = Policy(result_bytes=64)


class Stopping(LaterConformance):
    """Stops, results, notes."""

    def test_control_is_found_by_its_methods(self, provider: ControlProvider) -> None:
        """The provider is a control by structure."""
        assert is_control(provider)

    # --- M16: stop

    def test_stop_reaches_the_owner_with_every_answer(self, provider: ControlProvider, key: str) -> None:
        """M16: beat, take and settle carry it, and watch reads it."""
        fence = self.claimed(provider, key, "A", 1).fence
        assert provider.watch(key, "A") is None
        assert provider.beat(key, "A", TTL_MS).stop is None
        assert provider.stop(key, reason="the user says so") == fence
        assert provider.watch(key, "A", fence=fence) == "the user says so"
        assert provider.beat(key, "A", TTL_MS).stop == "the user says so"
        assert provider.take(key, "A", TTL_MS, have=["m1"]).stop == "the user says so"
        answer = provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"])
        assert isinstance(answer, Released)
        assert answer.stop == "the user says so"
        assert self.state(provider, key) == "handled"

    def test_stop_without_a_reason_is_a_stop(self, provider: ControlProvider, key: str) -> None:
        """M16: its reason is empty; the first one stands."""
        fence = self.claimed(provider, key, "A", 1).fence
        assert provider.stop(key) == fence
        assert provider.stop(key, reason="later") == fence
        assert provider.beat(key, "A", TTL_MS).stop == ""

    def test_stop_of_a_free_key_does_nothing(self, provider: ControlProvider, key: str) -> None:
        """M16: nothing runs, and the next run is not stopped."""
        assert provider.stop(key) is None
        self.claimed(provider, key, "A", 1)
        assert provider.beat(key, "A", TTL_MS).stop is None

    def test_late_stop_does_not_hit_the_successor(self, provider: ControlProvider, key: str) -> None:
        """M16: with the fence of another tenure it changes nothing."""
        fence = self.claimed(provider, key, "A", 1).fence
        self.routed(provider, key, "B", 2)
        self.continued(provider, key, "A", "A2", handled=["m1"])
        assert provider.stop(key, fence=fence) is None
        assert provider.stop(key, fence=fence + 10**9) is None
        assert provider.beat(key, "A2", TTL_MS).stop is None

    def test_no_grant_inherits_a_mark(self, provider: ControlProvider, key: str) -> None:
        """M16: not a successor, a ticket's owner, a transfer's or a later claim."""
        self.claimed(provider, key, "A", 1)
        for number in (2, 3, 4):
            self.routed(provider, key, f"B{number}", number)
        provider.stop(key)
        following = self.continued(provider, key, "A", "A2", handled=["m1"])
        assert following.stop == ""
        assert provider.beat(key, "A2", TTL_MS).stop is None
        provider.stop(key)
        provider.settle(key, "A2", ttl_ms=TTL_MS, handled=["m2"], ticket="T")
        provider.stop(key, reason="in between")
        self.claimed(provider, key, "A3", None, ticket="T")
        assert provider.beat(key, "A3", TTL_MS).stop is None
        provider.stop(key)
        provider.transfer_lease(key, "A3", "A4", TTL_MS)
        assert provider.beat(key, "A4", TTL_MS).stop is None
        provider.stop(key)
        self.die()
        self.claimed(provider, key, "A5", None)
        assert provider.beat(key, "A5", TTL_MS).stop is None

    def test_stop_ends_with_the_lease(self, provider: ControlProvider, key: str) -> None:
        """M16, R3: an expired tenure is not live."""
        fence = self.claimed(provider, key, "A", 1).fence
        self.expire()
        assert provider.stop(key) is None
        assert provider.stop(key, fence=fence) is None

    def test_watch_of_another_tenure_is_lost(self, provider: ControlProvider, key: str) -> None:
        """M16, R3: a late owner learns that it has lost."""
        fence = self.claimed(provider, key, "A", 1).fence
        with pytest.raises(LeaseLost):
            provider.watch(key, "B")
        with pytest.raises(LeaseLost):
            provider.watch(key, "A", fence=fence + 1)
        self.expire()
        with pytest.raises(LeaseLost):
            provider.watch(key, "A", fence=fence)

    def test_stopped_message_leaves_in_that_state(self, provider: ControlProvider, key: str) -> None:
        """M16, M5: its id is not stored again in the window."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        self.continued(provider, key, "A", "A2", stopped=["m1"])
        assert self.state(provider, key) == "stopped"
        assert provider.claim(key, "C", TTL_MS, message(1)) == Duplicate(state="stopped", owner="A2")

    def test_what_came_with_the_mark_can_run_next(self, provider: ControlProvider, key: str) -> None:
        """M16: one settle stops a message and defers another, which the next grant gets without a mark."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2, interrupt=True)
        assert ids(provider.take(key, "A", TTL_MS, have=["m1"])) == ["m2"]
        following = self.continued(provider, key, "A", "A2", stopped=["m1"], deferred=["m2"])
        assert [(each.id, each.attempt) for each in following.messages] == [("m2", 1)]
        assert self.state(provider, key) == "stopped"
        assert provider.beat(key, "A2", TTL_MS).stop is None

    def test_interrupting_message_marks_the_owner(self, provider: ControlProvider, key: str) -> None:
        """M16: in the step that stores it; on a free key it just runs."""
        self.claimed(provider, key, "A", 1, interrupt=True)
        assert provider.beat(key, "A", TTL_MS).stop is None
        self.routed(provider, key, "B", 2, interrupt=True)
        assert provider.beat(key, "A", TTL_MS).stop
        following = self.continued(provider, key, "A", "A2", stopped=["m1"])
        assert ids(following.messages) == ["m2"]
        assert provider.beat(key, "A2", TTL_MS).stop is None

    def test_retry_does_not_interrupt(self, provider: ControlProvider, key: str) -> None:
        """M16: nothing new was stored, so the run that it would stop may be its own."""
        self.claimed(provider, key, "A", 1)
        assert isinstance(provider.claim(key, "B", TTL_MS, message(1), interrupt=True), Duplicate)
        assert provider.beat(key, "A", TTL_MS).stop is None

    # --- M17: result

    @pytest.mark.parametrize("result", [None, 0, "", {"total": 7}, ["é", 1.5], True], ids=repr)
    def test_result_is_kept_beside_the_handled_id(self, provider: ControlProvider, key: str, result: Any) -> None:
        """M17: as JSON gives it back."""
        self.claimed(provider, key, "A", 1, policy=KEPT)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], results={"m1": result}, policy=KEPT)
        status = provider.find(key, "m1", policy=KEPT)
        assert (status.state, status.result, status.result_is) == ("handled", result, "kept")
        assert status.left_at_ms is not None

    def test_result_is_not_kept_by_default(self, provider: ControlProvider, key: str) -> None:
        """M17: `result_bytes` is 0."""
        self.claimed(provider, key, "A", 1)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], results={"m1": "secret"})
        status = provider.find(key, "m1")
        assert (status.state, status.result, status.result_is) == ("handled", None, "none")

    def test_large_result_is_kept_as_too_large(self, provider: ControlProvider, key: str) -> None:
        """M17: and the run stands; to the byte."""
        for number, length in ((1, 62), (2, 63)):
            self.claimed(provider, key, f"A{number}", number, policy=KEPT)
            results = {f"m{number}": "x" * length}
            provider.settle(key, f"A{number}", ttl_ms=TTL_MS, handled=[f"m{number}"], results=results, policy=KEPT)
        assert provider.find(key, "m1").result == "x" * 62
        assert provider.find(key, "m2") == Status(
            state="handled", left_at_ms=provider.find(key, "m2").left_at_ms, result_is="too large"
        )

    def test_results_of_several_messages_do_not_meet(self, provider: ControlProvider, key: str) -> None:
        """M17: each id has its own, and only the handled ones."""
        self.claimed(provider, key, "A", 1, policy=KEPT)
        for number in (2, 3, 4):
            self.routed(provider, key, f"B{number}", number, policy=KEPT)
        provider.take(key, "A", TTL_MS, have=["m1"])
        results = {"m1": 1, "m2": 2, "m3": 3, "m9": 9}
        provider.settle(
            key,
            "A",
            ttl_ms=TTL_MS,
            handled=["m1", "m2"],
            failed=[failure(3)],
            deferred=["m4"],
            results=results,
            policy=KEPT,
        )
        assert [provider.find(key, f"m{number}").result for number in (1, 2, 3, 4, 9)] == [1, 2, None, None, None]

    def test_result_is_forgotten_with_its_id(self, provider: ControlProvider, key: str) -> None:
        """M17, M5: after the window."""
        self.claimed(provider, key, "A", 1, policy=KEPT)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], results={"m1": 1}, policy=KEPT)
        rest_ms = self.pass_almost(60 * MINUTE_MS)
        assert provider.find(key, "m1", policy=KEPT).result == 1
        self.pass_time(rest_ms)
        assert provider.find(key, "m1", policy=KEPT) == Status(state="unknown")

    def test_result_that_is_not_json_is_refused(self, provider: ControlProvider, key: str) -> None:
        """M17, R10: before any request, so the run can still be settled."""
        self.claimed(provider, key, "A", 1, policy=KEPT)
        with pytest.raises(MessageInvalid):
            provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], results={"m1": object()}, policy=KEPT)
        assert provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"], policy=KEPT) == Released(remaining=0)

    # --- M18: note

    def test_note_is_shown_while_its_run_lasts(self, provider: ControlProvider, key: str) -> None:
        """M18: a beat without one keeps the last."""
        fence = self.claimed(provider, key, "A", 1).fence
        assert provider.find(key, "m1").note is None
        provider.beat(key, "A", TTL_MS, note={"step": 3, "of": 5})
        provider.beat(key, "A", TTL_MS)
        status = provider.find(key, "m1")
        assert (status.state, status.owner, status.fence, status.attempt) == ("running", "A", fence, 1)
        assert status.note == {"step": 3, "of": 5}
        assert provider.show(key).note == {"step": 3, "of": 5}
        self.routed(provider, key, "B", 2)
        self.continued(provider, key, "A", "A2", handled=["m1"])
        assert provider.find(key, "m2").note is None
        assert provider.show(key).note is None

    def test_note_has_a_limit(self, provider: ControlProvider, key: str) -> None:
        """M18: 1,024 bytes of JSON, and nothing that is not JSON."""
        self.claimed(provider, key, "A", 1)
        provider.beat(key, "A", TTL_MS, note="x" * 1_022)
        for note in ("x" * 1_023, object()):
            with pytest.raises(ConfigurationError):
                provider.beat(key, "A", TTL_MS, note=note)
        assert provider.show(key).note == "x" * 1_022
