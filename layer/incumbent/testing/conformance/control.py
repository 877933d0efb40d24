"""What every provider with control does: stop, result, note, cancel, latest (M16 to M21), and all of `later`."""
# ruff: noqa: S101, PLR2004 - these are tests: assert is how they say it, and the numbers are the test

from typing import Any

import pytest

from incumbent.errors import ConfigurationError, LeaseLost
from incumbent.testing.conformance.mail import EVERYTHING, failure, ids, message
from incumbent.testing.conformance.samples import BAD_IDS, BAD_KEYS, table
from incumbent.testing.conformance.stopping import Stopping
from incumbent.testing.conformance.subject import TTL_MS, ControlProvider, at_once
from incumbent.testing.conformance.walks import CONTROL_STEPS, WALKS
from incumbent.values import (
    Debounce,
    Duplicate,
    Idle,
    Policy,
    Routed,
    Status,
)

MINUTE_MS = 60_000
LATEST = Policy(keep="latest")


class ControlConformance(Stopping):
    """Looking at a key, and holding, stopping and delaying what runs there."""

    # --- M19: cancel

    def test_waiting_message_can_be_cancelled(self, provider: ControlProvider, key: str) -> None:
        """M19: it does not run, and its id is not stored again in the window."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        self.routed(provider, key, "C", 3)
        assert provider.cancel(key, "m2").state == "cancelled"
        assert provider.cancel(key, "m2").state == "cancelled"
        assert self.state(provider, key, 2) == "cancelled"
        assert provider.claim(key, "D", TTL_MS, message(2)) == Duplicate(state="cancelled", owner="A")
        assert ids(self.continued(provider, key, "A", "A2", handled=["m1"]).messages) == ["m3"]

    def test_running_message_is_not_cancelled(self, provider: ControlProvider, key: str) -> None:
        """M19: the answer names its run, for a stop."""
        fence = self.claimed(provider, key, "A", 1).fence
        status = provider.cancel(key, "m1")
        assert (status.state, status.owner, status.fence) == ("running", "A", fence)
        provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"])
        assert provider.cancel(key, "m1").state == "handled"
        assert provider.cancel(key, "m9") == Status(state="unknown")

    def test_message_that_pauses_or_is_for_later_can_be_cancelled(self, provider: ControlProvider, key: str) -> None:
        """M19: also the last one of a free key, which is then empty."""
        self.claimed(provider, key, "A", 1)
        provider.claim(key, "B", TTL_MS, message(2), after_ms=MINUTE_MS)
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1)])
        for number in (1, 2):
            assert provider.cancel(key, f"m{number}").state == "cancelled"
        assert provider.peek(key) == ()
        self.pass_time(MINUTE_MS)
        assert self.own_orphans(provider, key) == []
        assert provider.claim(key, "C", TTL_MS, None) == Idle()

    def test_message_of_a_dead_owner_can_be_cancelled(self, provider: ControlProvider, key: str) -> None:
        """M19, R3: its run is over."""
        self.claimed(provider, key, "A", 1)
        self.expire()
        assert provider.cancel(key, "m1").state == "cancelled"
        with pytest.raises(LeaseLost):
            provider.settle(key, "A", ttl_ms=TTL_MS, handled=["m1"])
        assert self.state(provider, key) == "cancelled"

    def test_large_message_can_be_cancelled(self, provider: ControlProvider, key: str) -> None:
        """M19: whatever its body is stored in."""
        self.claimed(provider, key, "A", 1)
        large = message(2)
        provider.claim(key, "B", TTL_MS, type(large)(id="m2", event={"text": "x" * 500_000}))
        assert provider.cancel(key, "m2").state == "cancelled"
        assert ids(provider.peek(key)) == ["m1"]

    # --- M21: latest

    def test_latest_message_replaces_those_that_wait(self, provider: ControlProvider, key: str) -> None:
        """M21: behind an owner; the answer and their state say so."""
        self.claimed(provider, key, "A", 1, policy=LATEST)
        assert self.routed(provider, key, "B", 2, policy=LATEST).superseded == ()
        assert self.routed(provider, key, "C", 3, policy=LATEST).superseded == ("m2",)
        answer = self.routed(provider, key, "D", 4, policy=LATEST)
        assert (answer.superseded, answer.waiting) == (("m3",), 2)
        assert [self.state(provider, key, number) for number in (1, 2, 3, 4)] == [
            "running",
            "superseded",
            "superseded",
            "waiting",
        ]
        assert provider.claim(key, "E", TTL_MS, message(3), policy=LATEST) == Duplicate(state="superseded", owner="A")
        assert ids(self.continued(provider, key, "A", "A2", handled=["m1"], policy=LATEST).messages) == ["m4"]

    def test_latest_message_leaves_what_failed_and_what_is_for_later(self, provider: ControlProvider, key: str) -> None:
        """M21: only due ones that were never delivered."""
        self.claimed(provider, key, "A", 1, policy=LATEST)
        provider.settle(key, "A", ttl_ms=TTL_MS, failed=[failure(1)], policy=LATEST)
        self.claimed(provider, key, "B", 2, policy=LATEST)
        self.routed(provider, key, "C", 3, policy=LATEST, after_ms=MINUTE_MS)
        self.routed(provider, key, "D", 4, policy=LATEST)
        assert self.routed(provider, key, "E", 5, policy=LATEST).superseded == ("m4",)
        assert ids(provider.peek(key)) == ["m1", "m2", "m3", "m5"]

    def test_latest_message_names_what_it_replaces_in_order(self, provider: ControlProvider, key: str) -> None:
        """M14, M21: that in which they would have run, what was for later among them."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        self.routed(provider, key, "C", 3, after_ms=2_000)
        self.routed(provider, key, "D", 4, after_ms=1_000)
        self.pass_time(2_000 + self.slack_ms)
        assert self.routed(provider, key, "E", 5, policy=LATEST).superseded == ("m2", "m4", "m3")
        assert ids(provider.peek(key)) == ["m1", "m5"]

    def test_nothing_is_replaced_by_default(self, provider: ControlProvider, key: str) -> None:
        """M21: it is a choice."""
        self.claimed(provider, key, "A", 1)
        self.routed(provider, key, "B", 2)
        assert self.routed(provider, key, "C", 3).superseded == ()
        assert ids(provider.peek(key)) == ["m1", "m2", "m3"]

    # --- many at once

    @pytest.mark.parametrize("how", ["quiet", "held", "interrupting", "latest", "later"])
    def test_burst_of_many_at_once_is_stored(self, provider: ControlProvider, key: str, how: str) -> None:
        """M3, M14 to M16, M21: however their arrivals exclude one another in the store."""
        options: dict[str, dict[str, Any]] = {
            "quiet": {"debounce": Debounce(quiet_ms=MINUTE_MS, max_ms=MINUTE_MS)},
            "interrupting": {"interrupt": True},
            "latest": {"policy": LATEST},
            "later": {"after_ms": MINUTE_MS, "as_ticket": True},
        }
        more = options.get(how, {})
        if how == "held":
            provider.hold(key)
        elif how in ("interrupting", "latest"):
            self.claimed(provider, key, "A", 99)
        clients = [self.make_other(provider) for _ in range(4)]

        def arrive(number: int) -> object:
            return clients[number % 4].claim(key, f"B{number}", TTL_MS, message(number), **more)

        answers = at_once(20, arrive)
        assert [type(answer) for answer in answers] == [Routed] * 20
        states = [provider.find(key, f"m{number}").state for number in range(20)]
        assert states.count("waiting") == (1 if how == "latest" else 20)

    # --- looking

    def test_show_tells_of_a_running_key(self, provider: ControlProvider, key: str) -> None:
        """Who holds it, since when, and what waits; events only when asked."""
        fence = self.claimed(provider, key, "A", 1).fence
        self.routed(provider, key, "B", 2)
        self.pass_time(5_000)
        provider.stop(key, reason="why")
        status = provider.show(key)
        assert (status.key, status.owner, status.fence, status.stop) == (key, "A", fence, "why")
        assert self.about(status.expires_in_ms, TTL_MS - 5_000)
        assert status.since_ms is not None
        assert (ids(status.running), ids(status.waiting)) == (["m1"], ["m2"])
        assert [each.event for each in (*status.running, *status.waiting)] == [None, None]
        assert [each.event for each in provider.show(key, events=True).waiting] == [message(2).event]

    def test_show_tells_of_a_free_and_of_an_unknown_key(self, provider: ControlProvider, key: str) -> None:
        """What an expired lease was given waits (R3)."""
        unknown = provider.show(key)
        assert (unknown.owner, unknown.fence, unknown.since_ms, unknown.running, unknown.waiting) == (
            None,
            None,
            None,
            (),
            (),
        )
        self.claimed(provider, key, "A", 1)
        self.expire()
        status = provider.show(key)
        assert (status.owner, status.fence, status.expires_in_ms) == (None, None, None)
        assert (ids(status.running), ids(status.waiting)) == ([], ["m1"])

    def test_keys_lists_what_runs_waits_or_is_held(self, provider: ControlProvider, key: str) -> None:
        """And no key that is empty and free."""
        running, waiting, held, empty, done = (
            f"{key}-{name}" for name in ("running", "waiting", "held", "empty", "done")
        )
        self.claimed(provider, running, "A", 1)
        provider.claim(waiting, "B", TTL_MS, message(1), as_ticket=True, after_ms=MINUTE_MS)
        provider.hold(held, for_ms=MINUTE_MS)
        self.claimed(provider, done, "C", 1)
        provider.settle(done, "C", ttl_ms=TTL_MS, handled=["m1"])
        found = {each.key: each for each in provider.keys(EVERYTHING) if each.key.startswith(key)}
        assert set(found) == {running, waiting, held}
        assert (found[running].owner, ids(found[running].running)) == ("A", ["m1"])
        assert ids(found[waiting].waiting) == ["m1"]
        assert found[held].held_until_ms is not None
        assert empty not in found
        provider.resume(held)
        assert held not in {each.key for each in provider.keys(EVERYTHING)}

    def test_keys_stops_at_its_limit(self, provider: ControlProvider, key: str) -> None:
        """At most as many as asked for."""
        for number in range(3):
            self.claimed(provider, f"{key}-{number}", "A", 1)
        assert len(list(provider.keys(2))) == 2

    @pytest.mark.parametrize("number", range(2 * WALKS))
    def test_every_answer_of_a_controlled_walk_is_the_references(
        self, provider: ControlProvider, key: str, number: int
    ) -> None:
        """M14 to M21 among the other rules: calls in any order, in time and late."""
        self.follow(provider, key, number, CONTROL_STEPS)

    # --- R10

    @pytest.mark.parametrize("bad", table(BAD_KEYS))
    def test_bad_key_is_refused_by_every_call(self, provider: ControlProvider, bad: Any) -> None:
        """R10: before any request."""
        for call in (
            lambda: provider.stop(bad),
            lambda: provider.watch(bad, "A"),
            lambda: provider.hold(bad),
            lambda: provider.resume(bad),
            lambda: provider.cancel(bad, "m1"),
            lambda: provider.show(bad),
        ):
            with pytest.raises(ConfigurationError):
                call()

    @pytest.mark.parametrize("bad", table(BAD_IDS))
    def test_bad_id_is_refused(self, provider: ControlProvider, key: str, bad: Any) -> None:
        """R10: before any request."""
        with pytest.raises(ConfigurationError):
            provider.cancel(key, bad)

    @pytest.mark.parametrize(
        "reason", ["x" * 1_025, b"text", 7, "\ud800"], ids=["long", "bytes", "number", "surrogate"]
    )
    def test_bad_reason_is_refused(self, provider: ControlProvider, key: str, reason: Any) -> None:
        """R10: text of at most 1,024 bytes."""
        self.claimed(provider, key, "A", 1)
        for call in (
            lambda: provider.stop(key, reason=reason),
            lambda: provider.hold(key, reason=reason),
            lambda: provider.settle(key, "A", ttl_ms=TTL_MS, hold_ms=1, hold_reason=reason),
        ):
            with pytest.raises(ConfigurationError):
                call()
        assert provider.show(key).stop is None
