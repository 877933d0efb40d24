"""Requests that the network holds back and delivers late, after the client has given up, gone on, or come again.

Each is stalled for real: the server sees it for the first time when the test lets it through.
"""

from collections.abc import Callable
from typing import Any

import pytest

from incumbent.errors import LeaseLost, LeaseUnavailable
from incumbent.testing.contract_calls import KEY, TTL_MS, acquire, claim, failure, look, message, release, settle
from incumbent.testing.proxy import LoseRequest, Pass, Stall
from incumbent.values import FOREVER_MS, Busy, Claimed, Continued, Duplicate, Idle, Message, Released, Routed
from tests.faults.stores import Provider, Store

Step = Callable[[Provider], Any]


def stall(store: Store, provider: Provider, step: Step, *, at: int = 0) -> Callable[[], object]:
    """Have a call's request (or its ``at``-th) held back and never carried out again; return what delivers it."""
    store.network.next(*[Pass()] * at, Stall(), *[LoseRequest()] * 5)
    with pytest.raises(LeaseUnavailable):
        step(provider)
    store.network.next()
    (late,) = store.network.late
    store.network.forget()
    return late.deliver


class TestLateLeaseCalls:
    """R2, R4, R5, R6: what an owner said once does not come true at a wrong time."""

    def test_late_acquire_never_takes_a_held_key(self, store: Store) -> None:
        """R1."""
        # H5.
        late = stall(store, store.provider(), acquire("A"))
        other = store.bare()
        held = other.acquire_lease(KEY, "B", TTL_MS)
        late()
        assert other.get_lease_owner(KEY) == "B"
        assert other.acquire_lease(KEY, "B", TTL_MS).fence == held.fence

    def test_late_acquire_of_a_free_key_at_worst_expires(self, store: Store) -> None:
        """R7: its grant has a fence of its own, and whoever comes next a larger one; nobody else is told "acquired"."""
        # H5.
        provider, other = store.provider(), store.bare()
        late = stall(store, provider, acquire("A"))
        first = provider.acquire_lease(KEY, "A", TTL_MS)
        provider.release_lease(KEY, "A")
        late()
        refused = other.acquire_lease(KEY, "B", TTL_MS)
        assert (refused.acquired, refused.owner) == (False, "A")
        other.release_lease(KEY, "A")  # or its ttl
        second = other.acquire_lease(KEY, "B", TTL_MS)
        assert (second.fence or 0) > (first.fence or 0)

    def test_late_renewal_does_not_shorten(self, store: Store) -> None:
        """R4: it says "at least", and the next one has said more."""
        # H51: found by exploring the rules.
        provider = store.provider()
        provider.acquire_lease(KEY, "A", TTL_MS)
        late = stall(store, provider, lambda p: p.renew_lease(KEY, "A", TTL_MS))
        provider.renew_lease(KEY, "A", 10 * TTL_MS)
        late()
        time_left_ms = store.bare().acquire_lease(KEY, "B", TTL_MS).expires_in_ms
        assert time_left_ms is not None
        assert time_left_ms > 9 * TTL_MS

    @pytest.mark.parametrize("call", [lambda p: p.renew_lease(KEY, "A", TTL_MS), lambda p: p.beat(KEY, "A", TTL_MS)])
    def test_late_renewal_revives_nothing(self, store: Store, call: Step) -> None:
        """R3: what was released stays free, and what somebody else owns stays theirs."""
        provider, other = store.provider(), store.bare()
        provider.acquire_lease(KEY, "A", TTL_MS)
        late = stall(store, provider, call)
        other.release_lease(KEY, "A")
        late()
        assert other.get_lease_owner(KEY) is None
        other.acquire_lease(KEY, "B", TTL_MS)
        late()
        assert other.get_lease_owner(KEY) == "B"

    def test_late_release_leaves_the_next_owner_alone(self, store: Store) -> None:
        """R5."""
        # H6: ShedLock #74, Terraform, Powertools, dynalock.
        provider, other = store.provider(), store.bare()
        provider.acquire_lease(KEY, "A", TTL_MS)
        late = stall(store, provider, release("A"))
        provider.release_lease(KEY, "A")
        other.acquire_lease(KEY, "B", TTL_MS)
        late()
        assert other.get_lease_owner(KEY) == "B"

    def test_late_settle_with_its_fence_leaves_the_owners_next_tenure_alone(self, store: Store) -> None:
        """R2: an owner string is good for one tenure; where it is used again all the same, the fence tells."""
        # H63: found by exploring the rules.
        provider, other = store.provider(), store.bare()
        claimed = provider.claim(KEY, "A", TTL_MS, message(1))
        assert isinstance(claimed, Claimed)
        late = stall(store, provider, settle("A", handled=["m1"], fence=claimed.fence))
        other.release_lease(KEY, "A")
        other.claim(KEY, "A", TTL_MS, message(2))
        late()
        assert other.get_lease_owner(KEY) == "A"
        assert {each.id for each in other.peek(KEY)} == {"m1", "m2"}

    @pytest.mark.parametrize("call", ["beat", "take"])
    def test_late_call_that_names_its_fence_does_not_act_in_the_owners_next_tenure(
        self, store: Store, call: str
    ) -> None:
        """R2: an owner string is good for one tenure; where it is used again all the same, the fence tells."""
        # H63: found by exploring the rules.
        provider, other = store.provider(), store.bare()
        fence = provider.acquire_lease(KEY, "A", TTL_MS).fence
        calls: dict[str, Callable[[Provider], Any]] = {
            "beat": lambda p: p.beat(KEY, "A", 2 * TTL_MS, fence=fence),
            "take": lambda p: p.take(KEY, "A", 2 * TTL_MS, fence=fence),
        }
        late = stall(store, provider, calls[call])
        other.release_lease(KEY, "A")
        other.acquire_lease(KEY, "A", TTL_MS)
        before = look(other)
        late()
        assert (look(other), other.get_lease_owner(KEY)) == (before, "A")

    def test_late_transfer_does_not_take_the_key_back(self, store: Store) -> None:
        """R6: the successor has passed it on since."""
        provider, other = store.provider(), store.bare()
        provider.acquire_lease(KEY, "A", TTL_MS)
        late = stall(store, provider, lambda p: p.transfer_lease(KEY, "A", "A2", TTL_MS))
        assert provider.transfer_lease(KEY, "A", "A2", TTL_MS) is True
        other.transfer_lease(KEY, "A2", "A3", TTL_MS)
        late()
        assert other.get_lease_owner(KEY) == "A3"


class TestLateClaims:
    """M1, M3, M5, M9: a claim that comes late stores nothing twice, and takes nothing from anybody."""

    def test_late_claim_behind_an_owner_is_a_routed_message(self, store: Store) -> None:
        """M3: it is stored and promised, once; its own source, which was told nothing, finds it when it comes again."""
        other = store.bare()
        late = stall(store, store.provider(), claim("A", 1))
        other.claim(KEY, "B", TTL_MS, message(2))
        late()
        assert other.get_lease_owner(KEY) == "B"
        assert [each.id for each in other.peek(KEY)] in (["m2"], ["m2", "m1"])
        again = store.provider().claim(KEY, "A2", TTL_MS, message(1))
        assert isinstance(again, Routed | Duplicate)
        assert sorted(each.id for each in other.peek(KEY)) == ["m1", "m2"]

    def test_late_claim_of_a_free_key_is_found_by_its_source(self, store: Store) -> None:
        """R2: the same owner's next claim is answered from what stands, and its message stored once."""
        provider, other = store.provider(), store.bare()
        late = stall(store, provider, claim("A", 1))
        late()
        answer = provider.claim(KEY, "A", TTL_MS, message(1))
        assert isinstance(answer, Claimed)
        assert [(each.id, each.attempt) for each in other.peek(KEY)] == [("m1", 1)]

    def test_late_claim_of_a_handled_message_stores_nothing(self, store: Store) -> None:
        """M5."""
        provider, other = store.provider(), store.bare()
        late = stall(store, provider, claim("A", 1))
        provider.claim(KEY, "A", TTL_MS, message(1))
        settle("A", handled=["m1"])(provider)
        late()
        assert (other.get_lease_owner(KEY), other.peek(KEY), other.find(KEY, "m1").state) == (None, (), "handled")

    def test_late_claim_of_a_failed_message_does_not_store_it_again(self, store: Store) -> None:
        """M3: its source was told; a new delivery of the same id is another claim."""
        # H42: sentry/junior #33; H54.
        provider, other = store.provider(), store.bare()
        late = stall(store, provider, claim("A", 1))
        provider.claim(KEY, "A", TTL_MS, message(1))
        settle("A", dropped=[failure(1)])(provider)
        late()
        assert (other.get_lease_owner(KEY), other.peek(KEY)) == (None, ())
        assert isinstance(other.claim(KEY, "A2", TTL_MS, message(1)), Claimed)

    def test_late_claim_of_a_large_body_leaves_the_other_deliverys_alone(self, store: Store) -> None:
        """M5: two deliveries of one id share no body."""
        # H60: read in the design.
        provider, other = store.provider(), store.bare()
        large = Message(id="m1", event={"filling": "x" * 20_000})
        at = 0 if store.name == "valkey" else 1  # DynamoDB puts the body first
        late = stall(store, provider, lambda p: p.claim(KEY, "A", TTL_MS, large), at=at)
        other.claim(KEY, "B", TTL_MS, large)
        late()
        assert [each.event for each in other.peek(KEY)] == [large.event]
        assert isinstance(settle("B", handled=["m1"])(other), Released)
        assert other.peek(KEY) == ()

    def test_late_redemption_finds_the_ticket_spent(self, store: Store) -> None:
        """M9: one run a ticket."""
        # H53: asynchronous invocation delivers twice; H62.
        provider, other = store.provider(), store.bare()
        other.claim(KEY, "T", TTL_MS, message(1), as_ticket=True)
        late = stall(store, provider, claim("A", None, ticket="T"))
        again = other.claim(KEY, "B", TTL_MS, None, ticket="T")
        assert isinstance(again, Claimed)
        late()
        assert other.get_lease_owner(KEY) == "B"
        assert [each.attempt for each in other.peek(KEY)] == [1]
        other.release_lease(KEY, "T")
        assert other.get_lease_owner(KEY) == "B"
        assert isinstance(provider.claim(KEY, "A", TTL_MS, None, ticket="T"), Busy)


class TestLateSettles:
    """M2, R3: what a run said of its messages does not come true in another's tenure."""

    @pytest.mark.parametrize(
        "more",
        [
            {"handled": ["m1"]},
            {"failed": [failure(1, 0)]},
            {"dropped": [failure(1)]},
            {"deferred": ["m1"]},
            {"handled": ["m1"], "next_owner": "A2"},
            {"handled": ["m1"], "ticket": "T"},
        ],
        ids=" ".join,
    )
    def test_late_settle_changes_nothing_in_a_later_tenure(self, store: Store, more: dict[str, Any]) -> None:
        """R3: it was lost, its messages run again, and then it arrives."""
        # H37: Mastra #23734, Jepsen etcd 3.4.3.
        provider, other = store.provider(), store.bare()
        provider.claim(KEY, "A", TTL_MS, message(1))
        other.claim(KEY, "B", TTL_MS, message(2))
        late = stall(store, provider, settle("A", **more))
        other.release_lease(KEY, "A")
        assert isinstance(other.claim(KEY, "C", TTL_MS, None), Claimed)
        before = look(other)
        late()
        assert look(other) == before
        with pytest.raises(LeaseLost):
            settle("A", **more)(store.bare())
        assert look(other) == before

    def test_late_settle_does_not_close_what_came_meanwhile(self, store: Store) -> None:
        """M2: it closed an empty key when it was sent; now something waits."""
        # H39: vercel/chat #928, Temporal #1289.
        provider, other = store.provider(), store.bare()
        provider.claim(KEY, "A", TTL_MS, message(1))
        late = stall(store, provider, settle("A", handled=["m1"], next_owner="A2"))
        other.claim(KEY, "B", TTL_MS, message(2))
        late()
        answer = settle("A", handled=["m1"], next_owner="A2")(provider)
        assert isinstance(answer, Continued)
        assert [each.id for each in answer.messages] == ["m2"]
        assert [(each.id, each.attempt) for each in other.peek(KEY)] == [("m2", 1)]

    def test_late_take_counts_nothing_twice(self, store: Store) -> None:
        """M6."""
        provider, other = store.provider(), store.bare()
        provider.claim(KEY, "A", TTL_MS, message(1))
        other.claim(KEY, "B", TTL_MS, message(2))
        late = stall(store, provider, lambda p: p.take(KEY, "A", TTL_MS, have=["m1"]))
        provider.take(KEY, "A", TTL_MS, have=["m1"])
        late()
        assert [(each.id, each.attempt) for each in other.peek(KEY)] == [("m1", 1), ("m2", 1)]

    def test_late_take_gives_nothing_to_a_tenure_that_is_over(self, store: Store) -> None:
        """M6: a delivery is counted for a run that knows of it, and never for nobody."""
        provider, other = store.provider(), store.bare()
        provider.claim(KEY, "A", TTL_MS, message(1))
        other.claim(KEY, "B", TTL_MS, message(2))
        late = stall(store, provider, lambda p: p.take(KEY, "A", TTL_MS, have=["m1"]))
        other.release_lease(KEY, "A")
        late()
        assert [(each.id, each.attempt) for each in other.peek(KEY)] == [("m1", 1), ("m2", 0)]

    def test_late_redrive_puts_nothing_back_twice(self, store: Store) -> None:
        """M6: not even after it was handled."""
        provider, other = store.provider(), store.bare()
        claim("A", 1)(other)
        settle("A", failed=[failure(1, 0)])(other)
        for number in range(4):
            assert isinstance(claim(f"B{number}", None)(other), Claimed)
            settle(f"B{number}", failed=[failure(1, 0)])(other)
        assert other.find(KEY, "m1").state == "dead"
        at = 0 if store.name == "valkey" else 2  # DynamoDB reads the letter and the record first
        late = stall(store, provider, lambda p: p.redrive(KEY, "m1"), at=at)
        assert provider.redrive(KEY, "m1") is True
        assert isinstance(claim("C", None)(other), Claimed)
        settle("C", handled=["m1"])(other)
        late()
        assert (other.find(KEY, "m1").state, other.peek(KEY), list(other.dead_letters(KEY, 9))) == ("handled", (), [])
        assert isinstance(claim("D", None)(other), Idle)


class TestLateControl:
    """M15, M16, M18: what was asked for one run, or one time, does not come true at another."""

    def test_late_stop_does_not_hit_the_successor(self, store: Store) -> None:
        """M16: it names the tenure that its caller has seen."""
        provider, other = store.provider(), store.bare()
        claim("A", 1)(other)
        claim("B", 2)(other)
        fence = other.show(KEY).fence
        late = stall(store, provider, lambda p: p.stop(KEY, fence=fence, reason="enough"))
        settle("A", handled=["m1"], next_owner="A2")(other)
        late()
        assert other.watch(KEY, "A2") is None
        assert other.beat(KEY, "A2", TTL_MS).stop is None

    @pytest.mark.parametrize("call", ["stop", "hold"])
    def test_late_copy_of_an_answered_call_comes_to_nothing(self, store: Store, call: str) -> None:
        """M15, M16: a second try was answered, and its time is over."""
        provider, other = store.provider(), store.bare()
        calls: dict[str, Step] = {"stop": lambda p: p.stop(KEY), "hold": lambda p: p.hold(KEY)}
        claim("A", 1)(other)
        claim("B", 2)(other)
        store.network.next(*[Pass()] * (store.name != "valkey"), Stall())
        calls[call](provider)
        (late,) = store.network.late
        other.resume(KEY)
        settle("A", handled=["m1"], next_owner="A2")(other)
        late.deliver()
        assert other.watch(KEY, "A2") is None
        assert other.show(KEY).held_until_ms is None

    def test_late_interruption_does_not_hit_a_later_run(self, store: Store) -> None:
        """M16: its message was stored by a repeated call, and has been handled."""
        provider, other = store.provider(), store.bare()
        claim("A", 1)(other)
        interrupt = claim("B", 2, interrupt=True)
        at = {"valkey": 0, "dynamodb": 1, "dynalite": 2}[store.name]  # DynamoDB first tries to own the key
        late = stall(store, provider, interrupt, at=at)
        assert isinstance(interrupt(other), Routed)
        settle("A", stopped=["m1"], next_owner="A2")(other)
        settle("A2", handled=["m2"])(other)
        claim("C", 3)(other)
        late()
        assert other.watch(KEY, "C") is None
        assert [each.id for each in other.peek(KEY)] == ["m3"]

    def test_late_note_is_not_the_next_runs(self, store: Store) -> None:
        """M18: it belongs to its tenure."""
        provider, other = store.provider(), store.bare()
        claim("A", 1)(other)
        late = stall(store, provider, lambda p: p.beat(KEY, "A", TTL_MS, note="half"))
        settle("A", handled=["m1"])(other)
        claim("B", 2)(other)
        late()
        assert other.show(KEY).note is None

    def test_late_hold_does_not_shorten_a_longer_one(self, store: Store) -> None:
        """M15: nor change its reason."""
        provider, other = store.provider(), store.bare()
        late = stall(store, provider, lambda p: p.hold(KEY, for_ms=TTL_MS, reason="a while"))
        other.hold(KEY, reason="for good")
        late()
        assert other.show(KEY).held_reason == "for good"
        assert other.show(KEY).held_until_ms == FOREVER_MS
