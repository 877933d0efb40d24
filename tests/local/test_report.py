"""What is read from traces: invented ones, each with one thing to find."""

import json
import math
from collections.abc import Callable, Sequence

import pytest

from incumbent.local import Invocation, Outcome
from incumbent.local.report import (
    Answer,
    Fact,
    Run,
    overlaps,
    read_facts,
    runs,
    story,
    summarise,
    summary_lines,
    thread_of,
)


def claimed(t_ms: float, request: str, *, key: str = "app/t") -> Fact:
    """The request owns the key; its message is named like it."""
    return Fact(t_ms=t_ms, fact="claimed", key=key, owner=f"{request}.x", request_id=request, message_id=f"m-{request}")


def routed(t_ms: float, request: str, holder: str, *, key: str = "app/t") -> Fact:
    """The request's message waits in the mailbox."""
    return Fact(
        t_ms=t_ms,
        fact="routed",
        key=key,
        request_id=request,
        message_id=f"m-{request}",
        holder=f"{holder}.x",
    )


def ran(
    start_ms: float,
    end_ms: float,
    owner: str,
    messages: Sequence[str],
    *,
    key: str = "app/t",
    outcome: str = "handled",
) -> list[Fact]:
    """A whole run."""
    request = owner.partition(".")[0]
    ids = tuple(messages)
    return [
        Fact(t_ms=start_ms, fact="run_started", key=key, owner=owner, request_id=request, message_ids=ids),
        Fact(
            t_ms=end_ms,
            fact="run_ended",
            key=key,
            owner=owner,
            request_id=request,
            message_ids=ids,
            outcome=outcome,
        ),
    ]


def answered(request: str, ended_at_ms: float = 100, *, accepted: bool = True, label: str | None = None) -> Answer:
    """The caller of the request was told."""
    return Answer(
        label=f"step-{request}" if label is None else label,
        request_id=request,
        ended_at_ms=ended_at_ms,
        accepted=accepted,
    )


GOOD = [
    claimed(0, "a"),
    routed(1, "b", "a"),
    *ran(0, 5, "a.x", ["m-a"]),
    *ran(5, 9, "a.y", ["m-b"]),
]
GOOD_ANSWERS = [answered("a", 10), answered("b", 2)]


def test_a_good_trace_is_good() -> None:
    """Each sent message handled once, by owners that followed one another without a gap."""
    summary = summarise(GOOD, GOOD_ANSWERS)
    assert summary.good
    assert (summary.sent, summary.handled_once, summary.routed, summary.owners) == (2, 2, 1, 2)
    assert summary_lines(summary) == ["sent 2, handled once 2, routed 1, owners 2, overlaps 0, lost 0, handled twice 0"]


def test_facts_may_arrive_in_any_order() -> None:
    """They come from several processes; their time decides."""
    assert summarise(reversed(GOOD), GOOD_ANSWERS) == summarise(GOOD, GOOD_ANSWERS)


def test_a_message_that_was_accepted_and_never_run_is_lost() -> None:
    """Routed, answered well, and no run names it."""
    summary = summarise([*GOOD, routed(3, "c", "a")], [*GOOD_ANSWERS, answered("c")])
    assert not summary.good
    assert summary.lost == ("m-c",)
    assert "lost: m-c" in summary_lines(summary)


def test_a_message_whose_run_did_not_end_well_is_lost_too() -> None:
    """Failed, deferred and lost runs handle nothing; neither does one that never ended."""
    for outcome in ("failed", "deferred", "lost"):
        facts = [claimed(0, "a"), *ran(0, 5, "a.x", ["m-a"], outcome=outcome)]
        assert summarise(facts, [answered("a")]).lost == ("m-a",)
    cut_off = [claimed(0, "a"), ran(0, 5, "a.x", ["m-a"])[0]]
    assert summarise(cut_off, [answered("a")]).lost == ("m-a",)


def test_a_message_that_its_source_still_has_is_not_lost() -> None:
    """The caller was told that it failed, so it is refused; handled all the same it is neither."""
    facts = [claimed(0, "a"), *ran(0, 5, "a.x", ["m-a"], outcome="failed")]
    summary = summarise(facts, [answered("a", accepted=False)])
    assert not summary.lost
    assert (summary.sent, summary.refused) == (1, ("m-a",))
    assert not summary.good, "a replay in which everything was refused has shown nothing"
    assert summarise(GOOD, [answered("a", accepted=False), answered("b")]).refused == ()


def test_one_good_answer_makes_a_message_promised() -> None:
    """Delivered twice, accepted once: it has to be handled."""
    again = Fact(t_ms=2, fact="duplicate", key="app/t", request_id="z", message_id="m-a", outcome="running")
    facts = [claimed(0, "a"), *ran(0, 5, "a.x", ["m-a"], outcome="failed"), again]
    summary = summarise(facts, [answered("a", accepted=False), answered("z")])
    assert (summary.sent, summary.lost) == (1, ("m-a",))
    assert summarise(facts, [answered("z"), answered("a", accepted=False)]).lost == ("m-a",)


def test_the_last_answer_to_a_request_holds() -> None:
    """An asynchronous invocation is retried under the same request id."""
    facts = [claimed(0, "a"), *ran(50, 60, "a.y", ["m-a"])]
    summary = summarise(facts, [answered("a", 10, accepted=False), answered("a", 70)])
    assert summary.good
    assert (summary.sent, summary.handled_once, summary.refused) == (1, 1, ())


def test_a_message_that_was_run_twice_to_the_end_is_told() -> None:
    """By two runs of one owner's invocation, or of two."""
    summary = summarise([*GOOD, *ran(20, 25, "b.x", ["m-b"])], GOOD_ANSWERS)
    assert not summary.good
    assert (summary.handled_once, summary.handled_twice) == (1, ("m-b",))


def test_two_owners_that_run_at_once_overlap() -> None:
    """The later one began before the earlier one was over."""
    facts = [claimed(0, "a"), claimed(4, "b"), *ran(0, 5, "a.x", ["m-a"]), *ran(4, 9, "b.x", ["m-b"])]
    summary = summarise(facts, GOOD_ANSWERS)
    assert not summary.good
    assert [(first.owner, second.owner) for first, second in summary.overlaps] == [("a.x", "b.x")]
    assert "overlap: t: a with b" in summary_lines(summary)


def test_overlaps_are_told_in_a_line_a_key_by_the_names_of_invocations() -> None:
    """However many pairs there are; an owner's own name is long and random."""
    facts = [fact for name in "abc" for fact in ran(0, 5, f"{name}.x", [])]
    facts += [fact for name in "ab" for fact in ran(0, 5, f"{name}.x", [], key="app/u")]
    told = summary_lines(summarise(facts, []), {"a": "step-1", "b": "step-2", "c": "successor-1"}.__getitem__)
    assert told[-2:] == [
        "overlap: t: step-1 with step-2, step-1 with successor-1, step-2 with successor-1",
        "overlap: u: step-1 with step-2",
    ]


def test_runs_that_touch_do_not_overlap_nor_do_those_of_other_keys() -> None:
    """End and start in one millisecond is a hand over; another key is nobody's business."""
    assert overlaps(runs(ran(0, 5, "a.x", []) + ran(5, 9, "b.x", []), [])) == ()
    assert overlaps(runs(ran(0, 5, "a.x", []) + ran(2, 9, "b.x", [], key="app/u"), [])) == ()


def test_a_long_run_overlaps_with_each_one_inside_it() -> None:
    """Not only with its neighbour."""
    facts = ran(0, 50, "a.x", []) + ran(5, 9, "b.x", []) + ran(20, 30, "c.x", [])
    assert [(first.owner, second.owner) for first, second in overlaps(runs(facts, []))] == [
        ("a.x", "b.x"),
        ("a.x", "c.x"),
    ]


def test_a_run_that_nobody_ended_lasts_until_its_process_is_gone() -> None:
    """The answer of its invocation says when; without one it lasts for ever, and overlaps with what follows."""
    begun = ran(10.7, 0, "a.x", [])[:1]
    assert runs(begun, [answered("a", 10)])[0].ended_at_ms == 10  # answers are told in whole milliseconds
    assert runs(begun, [answered("a", 5), answered("a", 40)])[0].ended_at_ms == 40
    assert runs(begun, [])[0].ended_at_ms == math.inf
    following = ran(45, 50, "b.x", [])
    assert overlaps(runs(begun + following, [answered("a", 40)])) == ()
    assert len(overlaps(runs(begun + following, []))) == 1


def test_what_was_turned_away_or_is_dead_is_counted_by_name_and_not_lost() -> None:
    """Their callers were told, or somebody can look at the dead letters."""
    facts = [
        *GOOD,
        Fact(t_ms=2, fact="busy", key="app/t", request_id="c", message_id="m-c", holder="a.x"),
        routed(3, "d", "a"),
        Fact(t_ms=9, fact="dead", key="app/t", request_id="a", message_ids=("m-d",)),
    ]
    summary = summarise(facts, [*GOOD_ANSWERS, answered("c"), answered("d")])
    assert summary.good
    assert (summary.turned_away, summary.dead) == (("m-c",), ("m-d",))
    assert summary_lines(summary)[0].endswith("turned away 1, dead 1")


def test_an_answer_without_any_trace_brought_no_message() -> None:
    """A status page: nothing is lost with it. It is named, in case that a decorator was forgotten."""
    summary = summarise(GOOD, [*GOOD_ANSWERS, answered("c")])
    assert summary.good
    assert (summary.sent, summary.lost, summary.untraced) == (2, (), ("step-c",))
    assert summary_lines(summary)[-1] == "without a message, since no @leased and no send told of one: step-c"
    alone = summarise([], [answered("c")])
    assert alone.good
    assert alone.sent == 0


def test_a_sweeper_brought_no_message_either() -> None:
    """It tells facts, of keys that others had."""
    swept = [
        Fact(t_ms=1, fact="orphan", key="app/t", request_id="s", outcome="woken"),
        Fact(t_ms=2, fact="swept", request_id="s", waiting=1),
    ]
    summary = summarise([*GOOD, *swept], [*GOOD_ANSWERS, answered("s")])
    assert summary.good
    assert (summary.sent, summary.untraced) == (2, ())


def test_an_error_without_any_trace_is_refused() -> None:
    """Its caller was told no, whatever it was."""
    summary = summarise(GOOD, [*GOOD_ANSWERS, answered("c", accepted=False)])
    assert (summary.sent, summary.refused, summary.untraced) == (3, ("step-c",), ())


def sqs(number: int) -> dict[str, str]:
    """A record of a queue."""
    return {"messageId": f"m{number}", "body": "{}"}


def kinesis(number: int) -> dict[str, object]:
    """A record of a stream: its answer calls it by another name than its message has."""
    return {"eventID": f"m{number}", "kinesis": {"sequenceNumber": f"49{number}"}}


def change(number: int) -> dict[str, object]:
    """A record of a table's stream."""
    return {"eventID": f"m{number}", "dynamodb": {"SequenceNumber": f"49{number}"}}


@pytest.mark.parametrize(
    ("record", "identifiers", "refused"),
    [
        (sqs, [], []),
        (sqs, ["m2"], ["m2"]),
        (sqs, ["m1", "m3"], ["m1", "m3"]),
        (sqs, ["nothing of the kind"], ["m1", "m2", "m3"]),
        (sqs, [""], ["m1", "m2", "m3"]),
        (sqs, [None], ["m1", "m2", "m3"]),
        (kinesis, ["492"], ["m2", "m3"]),  # the stream goes on from the first that failed
        (change, ["493"], ["m3"]),
        (change, ["m1"], ["m1", "m2", "m3"]),
    ],
)
def test_records_that_are_given_back_are_refused_and_not_lost(
    record: Callable[[int], dict[str, object]], identifiers: list[str | None], refused: list[str]
) -> None:
    """Their source has them still. What was not given back, and that no run handled, is lost."""
    ended = invocation(
        event={"Records": [record(number) for number in (1, 2, 3)]},
        payload={"batchItemFailures": [{"itemIdentifier": each} for each in identifiers]},
    )
    facts = [
        Fact(t_ms=number, fact="claimed", key=f"app/{number}", request_id=ended.request_id, message_id=f"m{number}")
        for number in (1, 2, 3)
    ]
    summary = summarise(facts, [Answer.of(ended)])
    assert list(summary.refused) == refused
    assert list(summary.lost) == [each for each in ("m1", "m2", "m3") if each not in refused]
    if refused:
        assert f"{len(refused)} of 3 records given back" in Answer.of(ended).told


def test_records_whose_messages_have_ids_of_their_own_are_refused_when_one_is_given_back() -> None:
    """Which of them that was cannot be seen; those that a run handled are handled."""
    ended = invocation(
        event={"Records": [sqs(1), sqs(2)]},
        payload={"batchItemFailures": [{"itemIdentifier": "m1"}]},
    )
    facts = [
        *(
            Fact(t_ms=1, fact="claimed", key="app/t", request_id=ended.request_id, message_id=f"own-{number}")
            for number in (1, 2)
        ),
        *ran(1, 2, f"{ended.request_id}.x", ["own-2"]),
    ]
    summary = summarise(facts, [Answer.of(ended)])
    assert (summary.refused, summary.lost, summary.handled_once) == (("own-1",), (), 1)


def test_a_woken_successor_sends_nothing() -> None:
    """It has no label, since nobody of the scenario asked for it."""
    assert summarise(GOOD, [*GOOD_ANSWERS, answered("s", label="")]) == summarise(GOOD, GOOD_ANSWERS)


def test_facts_are_found_wherever_they_stand_in_a_line() -> None:
    """Behind a line that was not ended, two in one line, and never in what only looks like one."""
    fact = {"t_ms": 1, "fact": "claimed", "key": "k", "message_ids": ["a"], "fence": 3, "attempt": 2, "owner": None}
    text = f"INCUMBENT {json.dumps(fact)}"
    expected = Fact(t_ms=1, fact="claimed", key="k", message_ids=("a",), attempt=2)
    assert read_facts(text) == [expected]
    assert read_facts(f"no newline{text}{text}") == [expected, expected]
    for other in ("INCUMBENT", "INCUMBENT {", "INCUMBENT []", 'INCUMBENT {"fact": "x"}', "nothing of ours"):
        assert read_facts(other) == []


def test_a_story_names_invocations_as_the_scenario_does() -> None:
    """In the order of time; the holder may be the ticket of one that is being woken, or a stranger's word."""
    name = {"a": "first", "b": "second"}.__getitem__
    assert story([fact for fact in GOOD if fact.request_id == "a"], name) == "owned · ran m-a · ran m-b"
    assert story([routed(0, "b", "a")], name) == "routed to first"
    for holder, told in [("ticket.xyz", "a successor on its way"), ("", "a successor on its way"), ("them", "them")]:
        assert story([Fact(t_ms=0, fact="routed", holder=holder)], name) == f"routed to {told}"
    rest = [
        Fact(t_ms=0, fact="busy", holder="a.x"),
        Fact(t_ms=1, fact="duplicate", outcome="handled"),
        Fact(t_ms=2, fact="continued"),
        Fact(t_ms=3, fact="continued", owner="ticket.xyz"),
        Fact(t_ms=3, fact="handed_over", owner="ticket.xyz"),
        Fact(t_ms=4, fact="wake_failed", error="no net"),
        Fact(t_ms=5, fact="lost"),
        Fact(t_ms=6, fact="released", waiting=2),
        Fact(t_ms=7, fact="something new"),
    ]
    assert story(rest, name) == (
        "busy with first · duplicate, handled · went on · handed over · wake failed (no net) · lost its lease"
        " · released, 2 left"
    )
    assert thread_of("app/a/b") == "a/b"
    assert thread_of("bare") == "bare"


def invocation(outcome: Outcome = Outcome.OK, payload: object = None, event: object = None) -> Invocation:
    """An invocation that ended."""
    return Invocation(
        request_id="r",
        label="l",
        function="F",
        invoked_arn="",
        environment="",
        log_stream="",
        asynchronous=False,
        attempt=1,
        cold_start=False,
        sent_at_ms=0,
        started_at_ms=0,
        ended_at_ms=7,
        outcome=outcome,
        event=event,
        payload=payload,
        error=None if outcome is Outcome.OK else {"errorType": "E", "errorMessage": "why"},
        logs=(),
    )


def test_an_http_error_is_no_acceptance() -> None:
    """The invocation went well, but its caller was told no."""
    assert Answer.of(invocation(payload={"statusCode": 202})).accepted
    assert Answer.of(invocation(payload=["anything"])).accepted
    refused = Answer.of(invocation(payload={"statusCode": 503}))
    assert (refused.accepted, refused.told) == (False, "HTTP 503")
    crashed = Answer.of(invocation(Outcome.CRASH))
    assert (crashed.accepted, crashed.told) == (False, "crash: E: why")


def test_many_names_are_cut_short() -> None:
    """A line stays a line."""
    answers = [answered(f"{number:02}") for number in range(20)]
    assert summary_lines(summarise([], answers))[1].endswith("step-11 and 8 more")


def test_a_run_keeps_its_key_and_times() -> None:
    """What an overlap is told with."""
    assert runs(ran(1, 2, "a.x", []), []) == [Run(key="app/t", owner="a.x", started_at_ms=1, ended_at_ms=2)]


def test_a_message_that_was_sent_is_promised_by_the_invocation_that_sent_it() -> None:
    """`send` knows no request id: the line's own invocation is whose it is."""
    line = 'INCUMBENT {"t_ms": 1, "fact": "sent", "key": "app/t", "message_id": "m", "outcome": "waiting"}'
    (sent,) = read_facts(line, "a")
    summary = summarise([sent, *ran(2, 3, "w.x", ["m"])], [answered("a"), answered("w", label="")])
    assert summary.good
    assert (summary.sent, summary.handled_once, summary.untraced) == (1, 1, ())
    assert summarise([sent], [answered("a")]).lost == ("m",)
    assert story([sent], str) == "sent"
    failed = Fact(t_ms=0, fact="run_ended", outcome="failed", message_ids=("m1",), error="ValueError: no")
    assert story([failed], str) == "failed m1 (ValueError: no)"
    assert story([failed], str, ending="error: ValueError: no") == "failed m1"
    assert story([Fact(t_ms=1, fact="sent", outcome="handled")], str) == "sent before, handled"
    assert read_facts(line.replace('"key"', '"request_id": "own", "key"'), "a")[0].request_id == "own"


def test_the_store_is_asked_for_what_no_run_has_handled() -> None:
    """What it has still is waiting; what it knows as handled or dead was not told by a process that died."""
    facts = [claimed(0, "a"), *(routed(1, name, "a") for name in "bcdef")]
    states = {"m-a": "waiting", "m-b": "running", "m-c": "handled", "m-d": "dead", "m-e": None, "m-f": "waiting"}
    asked = []

    def find(key: str, message: str) -> str | None:
        asked.append((key, message))
        return states[message]

    answers = [*(answered(name) for name in "abcde"), answered("f", accepted=False)]
    summary = summarise(facts, answers, find)
    assert (summary.waiting, summary.lost, summary.dead) == (("m-a", "m-b"), ("m-e",), ("m-d",))
    assert (summary.handled_once, summary.refused) == (1, ("m-f",))
    assert sorted(asked) == [("app/t", f"m-{name}") for name in "abcde"]
    assert not summarise(facts[:1], answers[:1], find).good, "where everything waits, nothing was shown"
