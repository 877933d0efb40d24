"""Facts say what happened without a payload, and nothing that listens to them changes what becomes of a run."""

import io
import json
import logging
import threading
from collections.abc import Mapping
from typing import Any, get_args

import pytest

from incumbent import Fact
from incumbent.observe import FactName, Trace, collect, collects, from_env, guarded, heard_by, log_fact, tell
from tests.unit.stage import Facts, raising

FACT = Fact(fact="run_ended", key="orders/k", t_ms=1, owner="A", fence=7, message_ids=("m1",), outcome="handled", ms=0)


def test_every_observer_is_told() -> None:
    """In order, each the same fact."""
    one, two = Facts(), Facts()
    tell([one, two], FACT)
    assert one.told == two.told == [FACT]


def test_observer_that_raises_hides_nothing_from_the_next(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, with its traceback, and goes no further."""
    after = Facts()
    tell([raising(ValueError("a bug")), after], FACT)
    assert after.told == [FACT]
    assert "observer raised; the run goes on" in caplog.text
    assert "ValueError: a bug" in caplog.text


def test_guard_lets_an_interrupt_through_and_no_exit() -> None:
    """``sys.exit`` in a hook must not leave a key owned; whoever presses Ctrl-C means it."""
    guarded("hook", raising(SystemExit(1)))
    with pytest.raises(KeyboardInterrupt):
        guarded("hook", raising(KeyboardInterrupt()))


def test_trace_is_one_line_of_json_for_each_fact() -> None:
    """What is not said is left out, 0 is said."""
    stream = io.StringIO()
    Trace(stream)(FACT)
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("INCUMBENT ")
    assert json.loads(line.removeprefix("INCUMBENT ")) == {
        "fact": "run_ended",
        "key": "orders/k",
        "t_ms": 1,
        "owner": "A",
        "fence": 7,
        "message_ids": ["m1"],
        "outcome": "handled",
        "ms": 0,
    }


def test_trace_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is the function's, and Lambda's for metrics."""
    Trace()(FACT)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("INCUMBENT {")


def test_key_with_a_line_break_stays_one_line() -> None:
    """Any character is allowed in a key."""
    stream = io.StringIO()
    Trace(stream)(Fact(fact="idle", key="a\nINCUMBENT {}\u2028ü", t_ms=1))
    assert len(stream.getvalue().splitlines()) == 1


class Pieces(io.StringIO):
    """A stream that notes each write: what a thread may come between."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str, /) -> int:
        """Note it."""
        self.writes.append(text)
        return super().write(text)


def test_lines_of_two_threads_do_not_mix() -> None:
    """Each line is one write, its end included."""
    stream = Pieces()
    trace = Trace(stream)
    threads = [threading.Thread(target=trace, args=(FACT,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stream.writes) == 4
    assert all(text.startswith("INCUMBENT {") and text.endswith("}\n") for text in stream.writes)


@pytest.mark.parametrize(
    ("fact", "said"),
    [
        ({"fact": "lost", "owner": "A", "error": "refused"}, "lost: key 'orders/k', owner 'A': refused"),
        ({"fact": "wake_failed", "error": "no route"}, "wake_failed: key 'orders/k'"),
        ({"fact": "chain_cut", "error": "100 invocations"}, "chain_cut: key 'orders/k'"),
        ({"fact": "store_error", "error": "down"}, "store_error: key 'orders/k'"),
        ({"fact": "dead", "message_ids": ("m1",), "attempt": 5, "error": "broken"}, "dead: key 'orders/k'"),
        ({"fact": "orphan", "outcome": "failed", "error": "no route"}, "orphan: key 'orders/k'"),
    ],
)
def test_what_somebody_should_look_into_is_logged(
    caplog: pytest.LogCaptureFixture, fact: Mapping[str, Any], said: str
) -> None:
    """H45: loss is never silent; nor is what failed after its invocation was answered."""
    log_fact(Fact(key="orders/k", t_ms=1, **fact))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.name == "incumbent"
    assert said in record.getMessage()


@pytest.mark.parametrize("name", ["claimed", "routed", "run_started", "run_ended", "released", "continued", "busy"])
def test_ordinary_life_is_not_logged(caplog: pytest.LogCaptureFixture, name: Any) -> None:
    """A line for each message would cost more than the message."""
    log_fact(Fact(fact=name, key="orders/k", t_ms=1))
    assert caplog.records == []


def test_trace_is_asked_for_by_the_environment() -> None:
    """The log is always there."""
    assert from_env({}) == (log_fact,)
    for off in ("", "0"):
        assert from_env({"INCUMBENT_TRACE": off}) == (log_fact,)
    log, trace = from_env({"INCUMBENT_TRACE": "1"})
    assert log is log_fact
    assert isinstance(trace, Trace)


def test_fact_that_no_observer_takes_is_not_made() -> None:
    """The log takes the rare ones; an observer that names none takes all."""
    some = heard_by((log_fact,))
    assert "lost" in some
    assert "claimed" not in some
    assert heard_by((log_fact, lambda _: None)) == {*get_args(FactName)}
    assert heard_by((log_fact, Trace())) == {*get_args(FactName)}


@pytest.mark.parametrize("name", get_args(FactName))
def test_facts_that_the_log_names_are_those_that_it_logs(caplog: pytest.LogCaptureFixture, name: Any) -> None:
    """No fact is left out that it would write."""
    log_fact(Fact(fact=name, key="k", t_ms=1, outcome="failed", error="said"))
    assert bool(caplog.records) == (name in log_fact.facts)


def test_error_that_is_logged_stays_on_its_line(caplog: pytest.LogCaptureFixture) -> None:
    """An exception's text may come from the event: it forges no line, and the terminal obeys nothing in it."""
    for name in ("lost", "dead", "orphan"):
        log_fact(Fact(fact=name, key="k\n", t_ms=1, outcome="failed", error="no\nERROR forged\x1b[2J"))
    assert len(caplog.messages) == 3
    assert all(message.isprintable() for message in caplog.messages)


def test_observer_with_something_else_called_collect_is_told_itself() -> None:
    """Only what can be called is: ``collect=False`` may be an option of its own."""

    class Option(Facts):
        collect = "text"

    observer = Option()
    assert not collects([observer])
    assert collect([observer]) == ((observer,), ())
    assert heard_by([observer]) == {*get_args(FactName)}
