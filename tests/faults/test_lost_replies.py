"""Every call under every fault of the network, against real servers (R8, R9).

Each call is made twice: undisturbed, and with a fault at one of its requests (at each of them in turn, where it needs
several). Both must say the same, and leave the same behind.
"""

from dataclasses import dataclass
from typing import Any

import pytest

from incumbent.errors import LeaseUnavailable
from incumbent.testing.contract_calls import (
    CALLS,
    KEY,
    TTL_MS,
    ContractCall,
    ask,
    bare,
    claim,
    failure,
    fence_of,
    look,
    message,
    settle,
)
from incumbent.testing.proxy import (
    CutReply,
    CutRequest,
    Duplicate,
    Fault,
    LoseReply,
    LoseRequest,
    Pass,
    Stall,
)
from incumbent.values import Claim, Claimed, Released, Routed
from incumbent.values import Duplicate as Known
from tests.faults.conftest import STORES
from tests.faults.stores import Provider, Store

FAULTS: dict[str, Fault] = {
    "request lost": LoseRequest(),
    "reply lost": LoseReply(),
    "request cut": CutRequest(),
    "reply cut": CutReply(),
    "duplicated": Duplicate(),
    "duplicated, last answer": Duplicate(last=True),
    "stalled": Stall(),
}
# What is one and the same to a store that is asked by HTTP is tried on Valkey alone. By itself dynalite refuses without
# the old item, so that a call makes more requests.
WHERE = {
    "valkey": (*FAULTS,),
    "dynamodb": ("request lost", "reply lost", "duplicated, last answer", "stalled"),
    "dynalite": ("reply lost", "duplicated, last answer"),
}
# A second answer to a first try: no network that keeps to TCP gives one, and nothing tells a caller that it is one.
NO_SECOND_ANSWER = ("redrive",)

# A call that only reads has no effect that could come twice or late.
READING = (
    *("owner", "owner of a free key", "peek", "orphans", "find", "find nothing", "dead letters"),
    *("watch", "watch by a stranger", "show", "keys"),
)


def matters(fault: str, call: ContractCall) -> bool:
    """Whether the fault shows anything in that call."""
    if fault == "duplicated, last answer" and (call.doubtful or call.name in NO_SECOND_ANSWER):
        return False
    return call.name not in READING or fault in ("reply lost", "reply cut")


each_call = pytest.mark.parametrize("call", [pytest.param(call, id=call.name.replace(" ", "-")) for call in CALLS])


def begin(store: Store, call: ContractCall, *, impatient: bool = False) -> Provider:
    """Bring an empty key to where the call matters; return a provider whose requests pass the network."""
    store.begin()
    others = store.bare()
    for step in call.before:
        step(others)
    return store.provider(impatient=impatient)


@dataclass(frozen=True, slots=True, kw_only=True)
class Undisturbed:
    """What a call may say, what it leaves behind, and how many requests it needs."""

    said: list[Any]
    left: Any
    requests: int


@pytest.fixture(scope="session")
def known() -> dict[tuple[str, str], Undisturbed]:
    """What every call does undisturbed, each tried once."""
    return {}


@pytest.fixture
def undisturbed(store: Store, call: ContractCall, known: dict[tuple[str, str], Undisturbed]) -> Undisturbed:
    """What the call does where nothing happens to it."""
    if (store.name, call.name) not in known:
        provider = begin(store, call)
        said = [bare(ask(call.call, provider))]
        requests = len(store.network.sent)
        left = look(store.bare())
        if call.twice:
            said.append(bare(ask(call.call, provider)))
        known[store.name, call.name] = Undisturbed(said=said, left=left, requests=requests)
    return known[store.name, call.name]


def check_fence(store: Store, said: Any) -> None:
    """R8: whoever is told that it owns the key is told the fence under which it does."""
    if fence_of(said) is not None and not isinstance(said, type):
        owner = getattr(said, "owner", "A")
        assert store.bare().acquire_lease(KEY, owner, TTL_MS).fence == said.fence


@pytest.mark.parametrize(
    ("store", "fault", "call"),
    [
        pytest.param(name, fault, call, id=f"{name}-{fault}-{call.name}".replace(" ", "-"))
        for name in STORES
        for fault in WHERE[name]
        for call in CALLS
        if matters(fault, call)
    ],
    indirect=["store"],
)
def test_call_takes_effect_once_and_says_so(
    store: Store, call: ContractCall, fault: str, undisturbed: Undisturbed
) -> None:
    """R8: whatever happens to one of its requests; late copies of it change nothing more."""
    # H1 to H4: redis-py, python-redis-lock, opentofu #4405, Powertools, dynamolock #280, KCL #325, tristanls #22.
    # What needs more requests asks several times in the same way: each part of the orphans' index.
    for place in range(undisturbed.requests) if undisturbed.requests < 6 else (0, undisturbed.requests - 1):
        provider = begin(store, call)
        store.network.next(*[Pass()] * place, FAULTS[fault])
        said = ask(call.call, provider)
        assert len(store.network.sent) > place
        assert bare(said) in undisturbed.said or (call.doubtful and said is LeaseUnavailable), (place, said)
        for late in store.network.late:
            late.deliver()
        assert look(store.bare()) == undisturbed.left, place
        check_fence(store, said)


@each_call
@pytest.mark.parametrize("store", ["valkey", "dynamodb"], indirect=True)
def test_call_that_is_never_answered_does_not_know(store: Store, call: ContractCall, undisturbed: Undisturbed) -> None:
    """R9: LeaseUnavailable, never False, None or LeaseLost; and asking again tells what has become of it."""
    # H20: Mastra #19806.
    provider = begin(store, call)
    store.network.choose(lambda _: LoseReply())
    try:
        assert ask(call.call, provider) is LeaseUnavailable
    finally:
        store.network.choose(lambda _: Pass())
    said = ask(call.call, provider)
    assert look(store.bare()) == undisturbed.left
    if not call.doubtful and call.name not in (*NO_SECOND_ANSWER, "purge", "resume"):  # another finds nothing
        assert bare(said) in undisturbed.said
        check_fence(store, said)


# One of each method: silence takes its time.
SILENT = (
    *("acquire", "owner", "renew", "release", "transfer", "claim", "settle on", "beat", "take"),
    *("peek", "find", "purge"),
)


@pytest.mark.parametrize("call", [pytest.param(call, id=call.name) for call in CALLS if call.name in SILENT])
@pytest.mark.parametrize("fault", [LoseReply(silent=True), Stall(silent=True)], ids=["reply lost", "stalled"])
@pytest.mark.parametrize("store", ["valkey", "dynamodb"], indirect=True)
def test_silence_is_given_up_and_asked_again(
    store: Store, call: ContractCall, fault: Fault, undisturbed: Undisturbed
) -> None:
    """R8: a timeout is one more way to lose a reply; what was given up may still arrive."""
    provider = begin(store, call, impatient=True)
    store.network.next(fault)
    said = ask(call.call, provider)
    assert bare(said) in undisturbed.said or (call.doubtful and said is LeaseUnavailable)
    for late in store.network.late:
        late.deliver()
    assert look(store.bare()) == undisturbed.left


@pytest.mark.parametrize("keeps", [0.05, 0.4, 0.8, 0.97])
@pytest.mark.parametrize("store", ["dynamodb", *(["dynalite"] if "dynalite" in STORES else [])], indirect=True)
def test_answer_that_breaks_off_anywhere_is_no_answer(store: Store, keeps: float) -> None:
    """R9: botocore takes half an answer for an empty one, in which nobody owns the key."""
    # H20: found here.
    provider = store.provider()
    provider.claim(KEY, "A", TTL_MS, message(1))
    store.network.choose(lambda _: CutReply(keeps=keeps))
    try:
        for step in (
            lambda: provider.get_lease_owner(KEY),
            lambda: provider.find(KEY, "m1"),
            lambda: provider.peek(KEY),
            lambda: list(provider.orphans(1)),
            lambda: list(provider.dead_letters(None, 1)),
            lambda: provider.renew_lease(KEY, "C", TTL_MS),
            lambda: provider.beat(KEY, "A", TTL_MS),
        ):
            with pytest.raises(LeaseUnavailable):
                step()
    finally:
        store.network.choose(lambda _: Pass())
    assert provider.get_lease_owner(KEY) == "A"


# --- somebody else comes between the effect and the repetition


def granted(answer: Claim) -> int:
    """The fence of a claim that was granted."""
    assert isinstance(answer, Claimed)
    return answer.fence


class TestOvertaken:
    """R8, R9: the key has moved on when the call is repeated."""

    def test_settle_is_found_by_its_traces(self, store: Store) -> None:
        """What it handled bears the fence of its run, whoever owns the key now."""
        provider, other = store.provider(), store.bare()
        fence = granted(provider.claim(KEY, "A", TTL_MS, message(1)))
        store.network.next(LoseReply(meanwhile=lambda: other.claim(KEY, "B", TTL_MS, message(2))))
        assert settle("A", handled=["m1"], fence=fence)(provider) == Released(remaining=1)
        assert other.get_lease_owner(KEY) == "B"

    def test_settle_of_a_dropped_message_is_found_by_its_trace(self, store: Store) -> None:
        """The trace of a failed claim is evidence as well."""
        provider, other = store.provider(), store.bare()
        fence = granted(provider.claim(KEY, "A", TTL_MS, message(1)))
        store.network.next(LoseReply(meanwhile=lambda: other.claim(KEY, "B", TTL_MS, message(1))))
        assert settle("A", dropped=[failure(1)], fence=fence)(provider) == Released(remaining=1)

    def test_settle_that_leaves_no_trace_does_not_know(self, store: Store) -> None:
        """R9: never LeaseLost, since it may have worked; and it did."""
        provider, other = store.provider(), store.bare()
        fence = granted(provider.claim(KEY, "A", TTL_MS, message(1)))
        reads = [Pass()] * (store.name != "valkey")  # DynamoDB first looks how often it was delivered
        store.network.next(*reads, LoseReply(meanwhile=lambda: other.claim(KEY, "B", TTL_MS, message(2))))
        with pytest.raises(LeaseUnavailable):
            settle("A", failed=[failure(1, 3_600_000)], fence=fence)(provider)
        assert [each.last_error for each in other.peek(KEY)] == ["no", None]

    def test_settle_that_was_lost_before_it_arrived_does_not_know(self, store: Store) -> None:
        """R9: it changed nothing, and cannot tell."""
        provider, other = store.provider(), store.bare()
        fence = granted(provider.claim(KEY, "A", TTL_MS, message(1)))

        def overtake() -> None:
            other.release_lease(KEY, "A")
            other.claim(KEY, "B", TTL_MS, message(2))

        store.network.next(LoseRequest(meanwhile=overtake))
        with pytest.raises(LeaseUnavailable):
            settle("A", handled=["m1"], fence=fence)(provider)
        assert [each.id for each in other.peek(KEY)] == ["m2", "m1"]
        assert other.get_lease_owner(KEY) == "B"

    def test_settle_does_not_take_a_cancel_for_its_own_effect(self, store: Store) -> None:
        """M19, R9: the run was over, and an operator has removed its message since."""
        provider, other = store.provider(), store.bare()
        fence = granted(provider.claim(KEY, "A", TTL_MS, message(1)))

        def overtake() -> None:
            other.release_lease(KEY, "A")
            assert other.cancel(KEY, "m1").state == "cancelled"
            other.claim(KEY, "B", TTL_MS, message(2))

        store.network.next(LoseRequest(meanwhile=overtake))
        with pytest.raises(LeaseUnavailable):
            settle("A", handled=["m1"], fence=fence)(provider)
        assert other.find(KEY, "m1").state == "cancelled"

    def test_transfer_whose_successor_has_gone_on_does_not_know(self, store: Store) -> None:
        """R9: never False, since it worked."""
        # H4: KCL's hand-off.
        provider, other = store.provider(), store.bare()
        provider.acquire_lease(KEY, "A", TTL_MS)
        store.network.next(LoseReply(meanwhile=lambda: other.transfer_lease(KEY, "A2", "A3", TTL_MS)))
        with pytest.raises(LeaseUnavailable):
            provider.transfer_lease(KEY, "A", "A2", TTL_MS)
        assert other.get_lease_owner(KEY) == "A3"

    def test_first_try_knows_that_it_has_lost(self, store: Store) -> None:
        """R9: nothing of its own can have gone before."""
        provider, other = store.provider(), store.bare()
        provider.acquire_lease(KEY, "A", TTL_MS)
        other.transfer_lease(KEY, "A", "B", TTL_MS)
        assert provider.transfer_lease(KEY, "A", "A2", TTL_MS) is False
        assert provider.renew_lease(KEY, "A", TTL_MS) is False

    def test_acquire_that_was_overtaken_names_the_holder(self, store: Store) -> None:
        """R8: it owned the key for a moment, which is over: the second try's answer is true."""
        provider, other = store.provider(), store.bare()

        def overtake() -> None:
            other.release_lease(KEY, "A")
            other.acquire_lease(KEY, "B", TTL_MS)

        store.network.next(LoseReply(meanwhile=overtake))
        answer = provider.acquire_lease(KEY, "A", TTL_MS)
        assert (answer.acquired, answer.owner) == (False, "B")

    def test_routed_message_may_become_its_claims_own(self, store: Store) -> None:
        """R8: the holder has left meanwhile, and nobody else has come for it."""
        provider, other = store.provider(), store.bare()
        other.claim(KEY, "A", TTL_MS, message(1))
        store.network.next(*self.until_stored(store), LoseReply(meanwhile=lambda: settle("A", handled=["m1"])(other)))
        answer = claim("B", 2)(provider)
        assert isinstance(answer, Claimed)
        assert [each.id for each in answer.messages] == ["m2"]
        assert [each.id for each in other.peek(KEY)] == ["m2"]

    def test_routed_message_may_have_been_handled_meanwhile(self, store: Store) -> None:
        """R8: it was accepted; it is not stored a second time."""
        provider, other = store.provider(), store.bare()
        other.claim(KEY, "A", TTL_MS, message(1))

        def finish() -> None:
            other.take(KEY, "A", TTL_MS, have=["m1"])
            settle("A", handled=["m1", "m2"])(other)

        store.network.next(*self.until_stored(store), LoseReply(meanwhile=finish))
        assert isinstance(claim("B", 2)(provider), Routed | Known)
        assert other.peek(KEY) == ()
        assert other.find(KEY, "m2").state == "handled"

    @staticmethod
    def until_stored(store: Store) -> list[Pass]:
        """What passes before the request that stores a routed message: DynamoDB first tries to own the key."""
        return [Pass()] * {"valkey": 0, "dynamodb": 1, "dynalite": 2}[store.name]


class TestRepeatedControl:
    """R8: what a lost reply hides comes true once, for the run and the time for which it was meant."""

    def test_stop_does_not_mark_the_successor(self, store: Store) -> None:
        """M16: the first try has marked its predecessor, whose fence is the answer if the store can still tell."""
        provider, other = store.provider(), store.bare()
        fence = granted(claim("A", 1)(other))
        claim("B", 2)(other)
        go_on = settle("A", handled=["m1"], next_owner="A2")
        store.network.next(*self.read(store), LoseReply(meanwhile=lambda: go_on(other)))
        said = ask(lambda p: p.stop(KEY, reason="enough"), provider)
        assert said == (fence if store.name == "valkey" else LeaseUnavailable)
        assert other.watch(KEY, "A2") is None

    def test_stop_of_a_run_that_is_over_is_not_denied(self, store: Store) -> None:
        """M16: it has marked the run, which may have stopped for it."""
        provider, other = store.provider(), store.bare()
        fence = granted(claim("A", 1)(other))
        store.network.next(LoseReply(meanwhile=lambda: settle("A", stopped=["m1"])(other)))
        said = ask(lambda p: p.stop(KEY, fence=fence), provider)
        assert said == (fence if store.name == "valkey" else LeaseUnavailable)

    def test_stop_that_others_hide_does_not_know(self, store: Store) -> None:
        """R9: another operator has stopped the successor."""
        provider, other = store.provider(), store.bare()
        claim("A", 1)(other)
        for number in (2, 3):
            claim(f"B{number}", number)(other)

        def go_on() -> None:
            settle("A", handled=["m1"], next_owner="A2")(other)
            assert other.stop(KEY, reason="another") is not None
            settle("A2", handled=["m2"], next_owner="A3")(other)

        store.network.next(*self.read(store), LoseReply(meanwhile=go_on))
        assert ask(lambda p: p.stop(KEY), provider) == LeaseUnavailable
        assert other.watch(KEY, "A3") is None

    @pytest.mark.parametrize("known", [False, True], ids=["new", "known"])
    def test_hold_does_not_hold_what_was_resumed(self, store: Store, known: bool) -> None:  # noqa: FBT001 - pytest's
        """M15: another operator has ended it since."""
        provider, other = store.provider(), store.bare()
        if known:
            claim("A", 1)(other)
            settle("A", handled=["m1"])(other)
        store.network.next(*self.read(store), LoseReply(meanwhile=lambda: other.resume(KEY)))
        said = ask(lambda p: p.hold(KEY, reason="an incident"), provider)
        assert said == (None if store.name == "valkey" else LeaseUnavailable)
        assert other.show(KEY).held_until_ms is None

    def test_hold_that_others_hide_does_not_know(self, store: Store) -> None:
        """R9: others have held and resumed the key since."""
        provider, other = store.provider(), store.bare()

        def hide() -> None:
            assert other.resume(KEY) is True
            other.hold(KEY)
            assert other.resume(KEY) is True

        store.network.next(*self.read(store), LoseReply(meanwhile=hide))
        assert ask(lambda p: p.hold(KEY, reason="an incident"), provider) == LeaseUnavailable
        assert other.show(KEY).held_until_ms is None

    @staticmethod
    def read(store: Store) -> list[Pass]:
        """What passes before the write: DynamoDB first reads the record."""
        return [Pass()] * (store.name != "valkey")
