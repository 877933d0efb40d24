"""Sends what a scenario says when it says so, and tells what happened as it happens.

Its table is one format string, the same in a terminal and in a pipe; a library of tables would be longer.
"""

import threading
from collections import defaultdict
from collections.abc import Callable

from incumbent.clock import SYSTEM_CLOCK, Clock
from incumbent.local import timeline
from incumbent.local.invocations import Cloud, Invocation, LogLine
from incumbent.local.report import Answer, Fact, Find, Summary, read_facts, story, summarise, thread_of
from incumbent.local.scenario import Scenario
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
        self._started_at_ms = 0

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
            what = " · ".join(part for part in (story(facts, self.name), answer.told) if part)
            self._say(
                _COLUMNS.format(
                    f"{invocation.ended_at_ms - self._started_at_ms} ms",
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
        """How far it is, in a few words."""
        with self._lock:
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
        sweeper's function: it is invoked every minute (``sweep_every_ms``), until no message waits any more.

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
        start = self._clock.now()
        self._started_at_ms = start.wall_ms
        for sending in self._scenario.sendings:
            wait_ms = sending.at_ms - (self._clock.now().mono_ms - start.mono_ms)
            if wait_ms > 0:
                self._clock.sleep_ms(wait_ms)
            with self._lock:  # its name must be known before anybody is routed to it
                pending = cloud.submit(
                    sending.function, sending.event, asynchronous=sending.asynchronous, label=sending.id
                )
                self._names[pending.request_id] = sending.id
                self._sent += 1
        cloud.wait_idle(timeout_ms)
        summary = self._summary(find)
        while sweeper is not None and summary.waiting and start.until(self._clock.now()) < timeout_ms:
            self._clock.sleep_ms(sweep_every_ms - start.until(self._clock.now()) % sweep_every_ms)
            with self._lock:
                pending = cloud.submit(sweeper, {}, label="")
                self._names[pending.request_id] = "sweeper"
            cloud.wait_idle(timeout_ms)
            summary = self._summary(find)
        return summary

    def _summary(self, find: Find) -> Summary:
        with self._lock:
            return summarise(self._facts, self._answers, find)
