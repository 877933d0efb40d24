"""Control on DynamoDB: what it costs, what it stores, and what happens between two requests (M14 to M21)."""

from typing import Any

import pytest

from incumbent.errors import LeaseUnavailable, StoredFormatUnknown
from incumbent.providers.dynamodb import item, names, steps
from incumbent.values import FOREVER_MS, Continued, Debounce, Failure, Idle, Message, Policy, Released, Routed
from tests.unit.test_dynamodb_provider import (
    GET,
    NOW_MS,
    PUT,
    TTL_MS,
    UPDATE,
    Bench,
    bench,
    claim,
    on_dynalite,
    on_telling,
    settle,
    telling,
)
from tests.unit.wire import digits

__all__ = ["bench", "on_dynalite", "on_telling", "telling"]

MINUTE_MS = 60_000
KEPT = Policy(result_bytes=100)
LATEST = Policy(keep="latest")
BURST = Debounce(quiet_ms=2_000, max_ms=5_000)


# --- requests: R11


def test_calls_that_only_look_are_one_request(bench: Bench) -> None:
    """R11."""
    claim(bench.a, "A", 1)
    for call in (
        lambda p: p.watch("k", "A"),
        lambda p: p.show("k"),
        lambda p: p.show("k", events=True),
        lambda p: p.find("k", "m1"),
        lambda p: p.cancel("k", "m1"),
        lambda p: p.resume("k"),
    ):
        assert bench.b.count(call)[1] == [GET]


def test_stop_of_a_fence_is_one_request_and_of_whoever_runs_two(bench: Bench) -> None:
    """R11, M16: one too where it changes nothing."""
    fence = claim(bench.a, "A", 1).fence
    assert bench.b.count(lambda p: p.stop("k", reason="why")) == (fence, [GET, UPDATE])
    assert bench.b.count(lambda p: p.stop("k")) == (fence, [GET])
    assert bench.b.count(lambda p: p.stop("k", fence=fence)) == (fence, [UPDATE])
    answer, sent = bench.b.count(lambda p: p.stop("k", fence=fence + 1))
    assert (answer, sorted(sent)) == (None, bench.expected(UPDATE, refusals=1))


def test_hold_resume_and_cancel_are_two_requests(bench: Bench) -> None:
    """R11: the record is read, and written if it is as it was."""
    claim(bench.a, "A", 1)
    claim(bench.b, "B", 2)
    assert bench.c.count(lambda p: p.hold("k"))[1] == [GET, UPDATE]
    assert bench.c.count(lambda p: p.resume("k"))[1] == [GET, UPDATE]
    assert bench.c.count(lambda p: p.cancel("k", "m2"))[1] == [GET, UPDATE]


def test_note_costs_no_request_and_neither_does_its_end(bench: Bench) -> None:
    """M18, M10."""
    claim(bench.a, "A", 1)
    bench.clock.advance(1_000)
    assert bench.a.count(lambda p: p.beat("k", "A", TTL_MS, note={"step": 1}))[1] == [UPDATE]
    assert bench.item()["lease"]["M"]["note"] == {"S": '{"step":1}'}
    assert bench.a.count(lambda _: settle(bench.a, "A", 1)) == (Released(remaining=0), [UPDATE])
    assert "lease" not in bench.item()


def test_quick_settle_of_a_stopped_message_is_one_request(bench: Bench) -> None:
    """M16, M10; of a marked tenure two, since its answer carries the mark."""
    claim(bench.a, "A", 1)
    assert bench.a.count(lambda _: settle(bench.a, "A", stopped=["m1"]))[1] == [UPDATE]
    claim(bench.a, "A2", 2)
    bench.b.provider.stop("k", reason="why")
    answer, sent = bench.a.count(lambda _: settle(bench.a, "A2", 2))
    assert (answer, sorted(sent)) == (
        Released(remaining=0, stop="why"),
        bench.expected(UPDATE, UPDATE, refusals=1),
    )


def test_run_after_a_hold_that_is_over_is_as_cheap_as_any(bench: Bench) -> None:
    """M15, M10: the first grant after it is exact, and tidies up."""
    bench.a.provider.hold("k", for_ms=1_000)
    bench.clock.advance(1_000)
    assert sorted(bench.a.count(lambda _: claim(bench.a, "A", 1))[1]) == bench.expected(UPDATE, UPDATE, refusals=1)
    assert bench.a.count(lambda _: settle(bench.a, "A", 1))[1] == [UPDATE]
    assert bench.a.count(lambda _: claim(bench.a, "A2", 2))[1] == [UPDATE]
    assert "not_before" not in bench.item()


def test_messages_for_later_and_bursts_are_two_requests(bench: Bench) -> None:
    """M14, M15: read and written."""
    assert bench.a.count(lambda _: claim(bench.a, "A", 1, debounce=BURST))[1] == [GET, UPDATE]
    assert bench.a.count(lambda _: claim(bench.a, "A2", 2, debounce=BURST))[1] == [GET, UPDATE]
    answer, sent = bench.a.count(lambda _: claim(bench.a, "T", 3, after_ms=1_000, as_ticket=True))
    assert isinstance(answer, Routed)
    assert sent == [GET, UPDATE]


def test_interrupting_and_replacing_are_two_requests(bench: Bench) -> None:
    """M16, M21: as any message that is routed."""
    claim(bench.a, "A", 1)
    for call in (
        lambda _: claim(bench.b, "B", 2, interrupt=True),
        lambda _: claim(bench.b, "B2", 3, policy=LATEST),
    ):
        answer, sent = bench.b.count(call)
        assert isinstance(answer, Routed)
        assert sorted(sent) == bench.expected(UPDATE, UPDATE, refusals=1)


def test_result_costs_a_put_and_a_read(bench: Bench) -> None:
    """M17: its text stands in an item of its own, so the record stays small."""
    claim(bench.a, "A", 1, policy=KEPT)
    answer, sent = bench.a.count(lambda _: settle(bench.a, "A", 1, results={"m1": "x" * 90}, policy=KEPT))
    assert (answer, sent) == (Released(remaining=0), [GET, PUT, UPDATE])
    status, sent = bench.b.count(lambda p: p.find("k", "m1", policy=KEPT))
    assert (status.result, sent) == ("x" * 90, [GET, GET])


# --- the stored format: M12


def test_golden_record_of_a_controlled_key(telling: Bench) -> None:
    """Version 1, to the attribute."""
    fence = claim(telling.a, "A", 1).fence
    telling.b.provider.stop("k", reason="why")
    telling.clock.advance(1)
    telling.a.provider.beat("k", "A", TTL_MS, note=[3, 5])
    telling.b.provider.hold("k", for_ms=MINUTE_MS, reason="a: b")
    found = telling.item()
    assert {name: found[name] for name in ("lease", "not_before", "orphan_shard", "fence")} == {
        "lease": {
            "M": {
                "holder": {"S": "A"},
                "expires": {"N": str(NOW_MS + 1 + TTL_MS)},
                "since": {"N": str(NOW_MS)},
                "stop": {"S": "why"},
                "note": {"S": "[3,5]"},
            }
        },
        "not_before": {"S": f"0:{NOW_MS + 1 + MINUTE_MS}:a: b"},
        "orphan_shard": {"S": names.shard_of(telling.prefix, "k")},
        "fence": {"N": str(fence)},
    }
    assert telling.b.provider.show("k").held_reason == "a: b"
    telling.a.provider.settle("k", "A", ttl_ms=TTL_MS, handled=["m1"], results={"m1": 7}, policy=KEPT)
    at_ms, digest, owner = NOW_MS + 1, names.digest, names.owner_digest
    assert telling.item()["ended"] == {"SS": [f"h{digest('m1')}{owner('A')}{digits(fence, 9)}{digits(at_ms, 7)}k"]}
    sk = f"result#{digest('m1')}#{fence:020d}"
    assert telling.item(sk=sk) == {
        "pk": {"S": telling.pk()},
        "sk": {"S": sk},
        "v": {"N": "1"},
        "result": {"S": "7"},
        "expires_on": {"N": str((at_ms + KEPT.window_ms) // 1_000 + 3_600)},
    }


def test_golden_record_of_a_held_empty_key(telling: Bench) -> None:
    """Version 1, to the attribute: it is in the index, never as an orphan, and TTL takes it some time after."""
    telling.a.provider.hold("k", reason="an incident")
    assert telling.item() == {
        "pk": {"S": telling.pk()},
        "sk": {"S": "lease"},
        "v": {"N": "1"},
        "not_before": {"S": f"0:{FOREVER_MS}:an incident"},
        "orphan_shard": {"S": names.shard_of(telling.prefix, "k")},
        "orphan_since": {"N": str(FOREVER_MS)},
        "expires_on": {"N": str(FOREVER_MS // 1_000 + item.IDLE_S)},
    }
    assert telling.a.provider.resume("k")
    found = telling.item()
    assert set(found) == {"pk", "sk", "v", "orphan_since", "expires_on", "resumed"}
    assert found["expires_on"] == {"N": str(NOW_MS // 1_000 + item.IDLE_S)}


def test_stop_without_a_reason_is_stored_as_one(telling: Bench) -> None:
    """M16: not every store takes an empty text."""
    claim(telling.a, "A", 1)
    telling.b.provider.stop("k")
    assert telling.item()["lease"]["M"]["stop"] == {"BOOL": True}
    assert telling.a.provider.watch("k", "A") == ""


def test_result_of_a_later_version_is_said(bench: Bench) -> None:
    """M12."""
    fence = claim(bench.a, "A", 1).fence
    settle(bench.a, "A", 1, results={"m1": 7}, policy=KEPT)
    bench.place.change(bench.pk(), "SET #v = :v", sk=names.result_name("m1", fence), v={"N": "2"})
    with pytest.raises(StoredFormatUnknown):
        bench.b.provider.find("k", "m1")


def test_key_of_a_later_version_hides_no_other(bench: Bench) -> None:
    """M12: from a list of keys."""
    for key in ("k1", "k2", "k3"):
        bench.a.provider.hold(key)
    bench.place.change(bench.pk("k2"), "SET #v = :v", v={"N": "2"})
    listing = iter(bench.b.provider.keys(100))
    assert sorted(status.key for status in (next(listing), next(listing))) == ["k1", "k3"]
    with pytest.raises(StoredFormatUnknown):
        next(listing)


def test_superseded_messages_do_not_make_the_record_large(bench: Bench) -> None:
    """M21, M5: their traces move into pages as others do."""
    claim(bench.a, "A", 1, policy=LATEST)
    for number in range(2, 40):
        claim(bench.b, f"B{number}", number, policy=LATEST)
    assert len(bench.item()["ended"]["SS"]) <= 11
    assert bench.c.provider.find("k", "m2").state == "superseded"
    assert bench.c.provider.find("k", "m38").state == "superseded"
    assert bench.c.provider.find("k", "m39").state == "waiting"


# --- between two requests


@pytest.mark.parametrize("more", [{"next_owner": "A2"}, {"ticket": "T"}])
def test_key_that_is_held_during_a_settle_is_not_passed_on(bench: Bench, more: dict[str, Any]) -> None:
    """M15: the hold came first."""
    claim(bench.a, "A", 1)
    claim(bench.b, "B", 2)
    claim(bench.b, "C", 3)
    bench.a.faults = [None, lambda _: bench.b.provider.hold("k", for_ms=MINUTE_MS)]
    answer = settle(bench.a, "A", 1, fence=None, **more)
    assert isinstance(answer, Released)
    assert bench.b.provider.get_lease_owner("k") is None


def test_key_that_is_held_during_a_claim_is_not_granted(bench: Bench) -> None:
    """M15: neither by the quick claim nor by an exact one."""
    bench.a.faults = [lambda _: bench.b.provider.hold("k", for_ms=MINUTE_MS)]
    assert isinstance(claim(bench.a, "A", 1), Routed)
    bench.b.provider.resume("k")
    claim(bench.c, "C")
    bench.die()
    bench.a.faults = [None, lambda _: bench.b.provider.hold("k", for_ms=MINUTE_MS)]
    assert isinstance(claim(bench.a, "A2"), Idle)
    assert bench.b.provider.get_lease_owner("k") is None


def test_mark_that_comes_during_a_settle_is_told(bench: Bench) -> None:
    """M16: a stop that was answered reaches its owner."""
    claim(bench.a, "A", 1)
    claim(bench.b, "B", 2)
    bench.a.faults = [None, lambda _: bench.b.provider.stop("k", reason="why")]
    answer = settle(bench.a, "A", 1, fence=None, next_owner="A2")
    assert isinstance(answer, Continued)
    assert answer.stop == "why"
    assert bench.a.provider.beat("k", "A2", TTL_MS).stop is None


def test_first_of_two_stops_at_once_stands(bench: Bench) -> None:
    """M16: the reason that the owner may know already is not replaced."""
    claim(bench.a, "A", 1)
    bench.b.faults = [None, lambda _: bench.a.provider.stop("k", reason="first")]
    assert bench.b.provider.stop("k", reason="second") is not None
    assert bench.a.provider.watch("k", "A") == "first"


def test_mark_that_comes_before_a_take_over_does_not_survive_it(bench: Bench) -> None:
    """M16: whoever's clock is behind may mark a tenure that others see as over."""
    claim(bench.a, "A", 1)
    late = bench.wire(type(bench.clock)(wall_ms=NOW_MS))
    bench.die()
    bench.b.faults = [None, lambda _: late.provider.stop("k", reason="why")]
    claim(bench.b, "B")
    assert bench.b.provider.get_lease_owner("k") == "B"
    assert bench.b.provider.beat("k", "B", TTL_MS).stop is None


def test_record_that_a_cancel_has_emptied_is_not_left_to_ttl(bench: Bench) -> None:
    """R3, M19: the lease was granted by what an acquire had seen before."""
    claim(bench.a, "T", 1, as_ticket=True, after_ms=MINUTE_MS)
    bench.a.faults = [None, lambda _: bench.b.provider.cancel("k", "m1")]
    assert bench.a.provider.acquire_lease("k", "A", TTL_MS).acquired
    assert "expires_on" not in bench.item()
    assert bench.b.provider.show("k").waiting == ()


# --- lost replies: R8, R9


def test_resume_applied_and_reply_lost_is_true(bench: Bench) -> None:
    """R8: the record tells of it, also when the key is held again since."""
    bench.a.provider.hold("k")
    bench.a.faults = [None, bench.a.reply_lost]
    assert bench.a.provider.resume("k")
    bench.a.provider.hold("k")
    bench.a.faults = [None, bench.a.reply_lost, lambda _: bench.b.provider.hold("k")]
    assert bench.a.provider.resume("k")
    assert bench.b.provider.show("k").held_until_ms is not None


def test_resume_that_another_one_hides_is_unavailable(bench: Bench) -> None:
    """R9."""

    def again(_: Any) -> None:
        bench.b.provider.hold("k")
        bench.b.provider.resume("k")

    bench.a.provider.hold("k")
    bench.a.faults = [None, bench.a.reply_lost, again]
    with pytest.raises(LeaseUnavailable):
        bench.a.provider.resume("k")


def test_stop_applied_and_reply_lost_tells_the_fence(bench: Bench) -> None:
    """R8."""
    fence = claim(bench.a, "A", 1).fence
    bench.b.faults = [None, bench.b.reply_lost]
    assert bench.b.provider.stop("k", reason="why") == fence
    bench.b.faults = [bench.b.reply_lost]
    assert bench.b.provider.stop("k", fence=fence) == fence
    assert bench.a.provider.watch("k", "A") == "why"


def test_stop_whose_request_was_lost_marks_the_tenure_that_it_meant(bench: Bench) -> None:
    """R8."""
    claim(bench.a, "A", 1)
    bench.b.faults = [None, bench.b.request_lost]
    assert bench.b.provider.stop("k") == bench.a.fences["A"]
    assert bench.a.provider.watch("k", "A") == ""


def test_stop_that_is_repeated_does_not_mark_a_tenure_that_began_since(bench: Bench) -> None:
    """M16, R9: it has marked the one before."""
    claim(bench.a, "A", 1)
    claim(bench.c, "C", 2)

    def go_on(_: Any) -> None:
        assert settle(bench.a, "A", 1, next_owner="A2").stop == "why"

    bench.b.faults = [None, bench.b.reply_lost, go_on]
    with pytest.raises(LeaseUnavailable):
        bench.b.provider.stop("k", reason="why")
    assert bench.a.provider.watch("k", "A2") is None


def test_last_round_counts_if_its_write_was_applied(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """R9: else a call that worked is told to be repeated."""
    monkeypatch.setattr(steps, "MAX_ROUNDS", 1)
    bench.a.provider.hold("k")
    waits = bench.a.provider.claim("k", "A", TTL_MS, Message(id="m1", event={}), debounce=BURST)
    assert isinstance(waits, Routed)
    assert bench.a.provider.cancel("k", "m1").state == "cancelled"


@pytest.mark.parametrize("size", [3_000, 500_000], ids=["one item", "in parts"])
def test_large_body_of_a_message_for_later_is_kept_from_when_it_is_due(telling: Bench, size: int) -> None:
    """M14: TTL must not delete it in the days before."""
    after_ms = 14 * 86_400_000
    large = Message(id="m1", event="x" * size)
    telling.a.provider.claim("k", "T", TTL_MS, large, as_ticket=True, after_ms=after_ms)
    items = [each for each in telling.place.items(telling.pk()) if each != "lease"]
    for each in items:
        expires_s = int(telling.item(sk=each)["expires_on"]["N"])
        assert expires_s >= (NOW_MS + after_ms) // 1_000 + 14 * 86_400


def test_settle_that_goes_on_carries_a_stop_that_came_before_its_write(bench: Bench) -> None:
    """M16: every answer to the owner carries the mark, and the successor does not inherit it."""
    claim(bench.a, "A", 1)
    claim(bench.b, "B", 2)
    bench.a.faults = [None, lambda _: bench.b.provider.stop("k", reason="why")]
    answer = settle(bench.a, "A", 1, next_owner="A2")
    assert (answer.owner, answer.stop) == ("A2", "why")
    assert bench.b.provider.watch("k", "A2") is None


def test_list_of_dead_letters_ends_at_its_limit_within_a_key(bench: Bench) -> None:
    """M6: a key with more letters than are left to list does not bring those of the next one."""
    once = Policy(max_attempts=1)
    for key in ("k1", "k2", "k3"):
        for name in ("a", "b"):
            granted = bench.a.provider.claim(key, f"o-{name}", TTL_MS, Message(id=name, event={}), policy=once)
            failed = [Failure(id=name, error="no")]
            bench.a.provider.settle(
                key, f"o-{name}", ttl_ms=TTL_MS, failed=failed, policy=once, fence=getattr(granted, "fence", None)
            )
    for limit in range(7):
        assert len(list(bench.b.provider.dead_letters(None, limit))) == limit
