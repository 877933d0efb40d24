"""Sends what a scenario says when it says so, and tells what happened as it happens.

Its table is one format string, the same in a terminal and in a pipe; a library of tables would be longer.
"""

import functools
import threading
from collections import defaultdict
from collections.abc import Callable

from incumbent.clock import SYSTEM_CLOCK, Clock
from incumbent.local import timeline
from incumbent.local.invocations import Cloud, Invocation, LogLine
from incumbent.local.report import Answer, Fact, Find, Summary, read_facts, story, summarise, thread_of
from incumbent.local.scenario import Scenario, Sending
from incumbent.validation import json_text

TRACE = {"INCUMBENT_TRACE": "1"}
"""The variables under which the runtime tells its facts."""

SWEEP_EVERY_MS = 60_000
_MAX_ANSWER = 500
_COLUMNS = "{:>9}  {:<14}  {:<12}  {:<14}  {}"


class Replay:
    """One replay; `on_log` and `on_invocation` are for the cloud that plays it, which needs `TRACE`.

    ``say`` takes the lines for people, one at a time. ``show_logs`` has the functions' own lines among them, and
    ``show_answers`` what each invocation answered.
    """

    def __init__(
        self,
        scenario: Scenario,
        say: Callable[[str], None],
        *,
        show_logs: bool = False,
        show_answers: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Send nothing yet."""
        self._scenario = scenario
        self._say = say
        self._show_logs = show_logs
        self._show_answers = show_answers
        self._sent = 0
        self._clock = clock
        self._lock = threading.RLock()
        self._facts: list[Fact] = []
        self._untold: dict[str, list[Fact]] = defaultdict(list)
        self._answers: list[Answer] = []
        self._names: dict[str, str] = {}
        self._successors = 0
        self._start = clock.now()

    def on_log(self, line: LogLine) -> None:
        """Keep the facts in the line, or show it."""
        facts = read_facts(line.text, line.request_id)
        with self._lock:
            for fact in facts:
                self._facts.append(fact)
                self._untold[fact.request_id].append(fact)
            if not facts and self._show_logs and line.text.strip():
                self._say(_COLUMNS.format("", "", line.environment, "", f"| {line.text}"))

    def on_invocation(self, invocation: Invocation) -> None:
        """Tell of an invocation that ended."""
        answer = Answer.of(invocation)
        with self._lock:
            self._answers.append(answer)
            facts = self._untold.pop(invocation.request_id, [])
            name = self.name(invocation.request_id)
            first, *others = dict.fromkeys(thread_of(fact.key) for fact in facts if fact.key) or ["-"]
            own = [fact.message_id for fact in facts if fact.message_id]
            what = " · ".join(part for part in (story(facts, self.name, ending=answer.told), answer.told) if part)
            self._say(
                _COLUMNS.format(
                    f"{invocation.ended_at_ms - self._start.wall_ms} ms",
                    f"{first} +{len(others)}" if others else first,
                    name if invocation.attempt == 1 else f"{name} again",
                    own[0] if own else "-",
                    what or "nothing to tell",
                )
            )
            if self._show_answers:
                given = invocation.payload if invocation.ok else invocation.error
                self._say(_COLUMNS.format("", "", "", "", f"= {json_text(given)[:_MAX_ANSWER]}"))

    def name(self, request_id: str) -> str:
        """Number an invocation that the scenario did not start, but a waker, when it is first seen."""
        if request_id not in self._names:
            self._successors += 1
            self._names[request_id] = f"successor-{self._successors}"
        return self._names[request_id]

    @property
    def progress(self) -> str:
        """How far it is, in a few words. It takes no lock: a terminal asks while a line is printed."""
        return f"{self._sent} of {len(self._scenario.sendings)} sent, {len(self._answers)} invocations ended"

    def page(self, title: str, summary: Summary) -> str:
        """Return the replay as an HTML page."""
        with self._lock:
            return timeline.page(title, self._facts, self._answers, summary, self.name)

    def run(
        self,
        cloud: Cloud,
        find: Find,
        *,
        cold: bool = False,
        sweeper: str | None = None,
        sweep_every_ms: int = SWEEP_EVERY_MS,
        timeout_ms: int = 1_800_000,
    ) -> Summary:
        """Send everything, wait until nothing goes on any more, and count.

        ``find`` asks the functions' store. ``cold`` starts with no environment ready. It waits for invocations and
        their retries and their wakes within a minute, not for what is due later in a mailbox. ``sweeper`` names the
        sweeper's function: it is invoked every minute (``sweep_every_ms``) from the start, until all is sent, nothing
        goes on and no message waits.

        Raises:
            ConfigurationError: the cloud has no such function; nothing was sent.
            CannotStart: a function cannot start; nothing was sent.
            TimeoutError: it was not quiet ``timeout_ms`` after the last sending.
        """
        for function in self._scenario.functions:
            cloud.check_function(function)
        if not cold:
            for function in self._scenario.functions:
                cloud.warm(function)
        self._say(_COLUMNS.format("time", "thread", "invocation", "message", "what happened"))
        sweeps = None if sweeper is None else _Sweeps(self, cloud, sweeper, sweep_every_ms)
        all_sent = threading.Event()

        def begin() -> None:  # among the cloud's calls, so that none of them comes before all are known
            self._start = self._clock.now()
            for sending in self._scenario.sendings:
                cloud.after(sending.at_ms, functools.partial(self._send, cloud, sending))
            cloud.after(self._scenario.sendings[-1].at_ms, all_sent.set)
            if sweeps is not None:
                sweeps.begin()

        cloud.after(0, begin)
        all_sent.wait()
        cloud.wait_idle(timeout_ms)
        summary, last_sent = self._summary(find), self._clock.now()
        while sweeps is not None and summary.waiting and last_sent.until(self._clock.now()) < timeout_ms:
            sweeps.go_on()
            cloud.wait_idle(timeout_ms)
            summary = self._summary(find)
        return summary

    def _send(self, cloud: Cloud, sending: Sending) -> None:
        with self._lock:  # its name must be known before anybody is routed to it
            pending = cloud.submit(sending.function, sending.event, asynchronous=sending.asynchronous, label=sending.id)
            self._names[pending.request_id] = sending.id
            self._sent += 1

    def sweep(self, cloud: Cloud, sweeper: str) -> None:
        """Invoke the sweeper's function."""
        with self._lock:
            pending = cloud.submit(sweeper, {}, label="")
            self._names[pending.request_id] = "sweeper"

    @property
    def gone_ms(self) -> int:
        """How long ago it began."""
        return self._start.until(self._clock.now())

    @property
    def is_sent(self) -> bool:
        """Whether all was sent."""
        return self._sent == len(self._scenario.sendings)

    def _summary(self, find: Find) -> Summary:
        with self._lock:
            return summarise(self._facts, self._answers, find)


class _Sweeps:
    """The sweeper's invocations: one every ``every_ms`` while something is to be sent, goes on, or is said to wait."""

    def __init__(self, replay: Replay, cloud: Cloud, sweeper: str, every_ms: int) -> None:
        self._replay = replay
        self._cloud = cloud
        self._sweeper = sweeper
        self._every_ms = every_ms
        self._turn = 0

    def begin(self) -> None:
        """Sweep from now on, until all is sent and nothing goes on."""
        turn = self._turn

        def tick() -> None:
            if turn == self._turn and not (self._replay.is_sent and self._cloud.is_idle):
                self._sweep()

        self._cloud.after(self._next_in_ms(), tick, waited_for=False)

    def go_on(self) -> None:
        """Sweep at the next full minute, though nothing goes on; then as from the beginning."""
        self._turn += 1  # what `begin` has left is passed over
        swept = threading.Event()

        def sweep() -> None:
            self._sweep()
            swept.set()

        self._cloud.after(self._next_in_ms(), sweep)
        swept.wait()

    def _sweep(self) -> None:
        self._replay.sweep(self._cloud, self._sweeper)
        self.begin()

    def _next_in_ms(self) -> int:
        return self._every_ms - self._replay.gone_ms % self._every_ms
