"""A trial of a deployed stack: a burst, a hand-over, a crash and a sweep, seen through its own functions."""

import json
import secrets
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

from incumbent.clock import SYSTEM_CLOCK, Clock
from incumbent.doctor.check import AwsClients, Check, Clients, code_of, text_of
from incumbent.errors import ConfigurationError

BURST_KEYS, BURST_MESSAGES = 3, 5
RUN_MS = 500
_DIES_AFTER_MS = 2_000
_READ_S = 70
_PATIENCE_MS = 120_000
_POLL_MS = 1_000
_SWEEP_EVERY_MS = 5_000
# Clocks of two environments of Lambda differ by little, but not by nothing.
_SKEW_MS = 250
INVOCATIONS = 2 * BURST_KEYS * BURST_MESSAGES + 40
"""About how many invocations a trial makes."""

NOT_CHECKED = (
    ("schedule", "this command invoked the sweeper itself", "incumbent doctor --sweeper checks the schedule"),
    ("sources", "messages came by Invoke, not by HTTP or a queue", "send one as docs/deploying.md says"),
    ("alarms", "neither alarms nor metrics were looked at", "docs/deploying.md says how to see them"),
)


class Stack:
    """The functions of a stack, by its outputs."""

    def __init__(self, name: str, clients: Clients | None = None) -> None:
        """Read the outputs. Raises ``ConfigurationError`` if the stack or an output is missing, and AWS's errors."""
        self._clients = clients or AwsClients(read_s=_READ_S)
        try:
            said = self._clients("cloudformation").describe_stacks(StackName=name)["Stacks"][0]
        except Exception as error:
            if code_of(error) == "ValidationError":
                raise ConfigurationError(f"there is no stack {name} in this Region") from error
            raise ConfigurationError(f"cannot read the outputs of stack {name}: {text_of(error)}") from error
        outputs = {each["OutputKey"]: each["OutputValue"] for each in said.get("Outputs", ())}
        if "SweeperFunctionName" not in outputs:
            raise ConfigurationError(f"stack {name} has no output SweeperFunctionName: is it one of template.yaml?")
        if "VerifyFunctionName" not in outputs:
            raise ConfigurationError(
                f"stack {name} has no function to send messages to: deploy it with --parameter-overrides Verify=true"
            )
        self.name = name
        self.function: str = outputs["VerifyFunctionName"]
        self.sweeper: str = outputs["SweeperFunctionName"]

    def invoke(self, function: str, event: Any, *, waits: bool = True) -> Any:
        """Invoke a function, and return its answer if this waits for it. Raises an error of the function."""
        kind = "RequestResponse" if waits else "Event"
        client = self._clients("lambda")
        said = client.invoke(FunctionName=function, InvocationType=kind, Payload=json.dumps(event).encode())
        answer = said["Payload"].read()
        if said.get("FunctionError"):
            raise RuntimeError(f"{function} failed: {answer.decode(errors='replace')[:500]}")
        return json.loads(answer) if answer else None


class StackTrial:
    """One trial: a journal of its own, in which the function notes each run."""

    def __init__(self, stack: Stack, clock: Clock = SYSTEM_CLOCK) -> None:
        """Send nothing."""
        self._stack = stack
        self._clock = clock
        self.run = secrets.token_hex(4)
        self._journal = f"verify-{self.run}"

    def checks(self) -> Iterator[Check]:
        """Make the trial, and remove the journal, also if it is interrupted."""
        try:
            self._ask("begin")
        except Exception as error:  # noqa: BLE001 - whatever a function or a client raises is the finding
            yield Check.failed("function", text_of(error), "see its log; incumbent doctor --function may say why")
            return
        try:
            for part in (self._burst, self._crash):
                try:
                    yield from part()
                except Exception as error:  # noqa: BLE001 - as above
                    yield Check.failed(part.__name__.strip("_"), text_of(error), "see the function's log")
        finally:
            removal = self._removed()
        yield removal
        for name, found, advice in NOT_CHECKED:
            yield Check.unchecked(name, found, advice)

    def _removed(self) -> Check:
        """Remove the journal."""
        try:
            self._ask("end")
        except Exception as error:  # noqa: BLE001 - as above
            advice = f"the function forgets it once the hold of {self._journal} is over, after an hour"
            return Check.failed("removal", text_of(error), advice)
        return Check.ok("removal", "the journal is removed; records of the keys have a time to live")

    # --- the parts

    def _burst(self) -> Iterator[Check]:
        """Send messages for a few keys, all at once."""
        messages = [
            self._message(f"burst-{number % BURST_KEYS}", f"b{number}", ms=RUN_MS)
            for number in range(BURST_KEYS * BURST_MESSAGES)
        ]
        with ThreadPoolExecutor(len(messages)) as pool:
            answers = list(pool.map(lambda each: self._stack.invoke(self._stack.function, each), messages))
        expected = {each["id"] for each in messages}
        runs = self._runs_of(expected)
        wrong = wrong_with(runs, expected)
        if wrong:
            yield Check.failed("burst", wrong, "look for these ids in the function's log")
            return
        answered = sum("ran" not in str(each) and each.get("status") == "accepted" for each in answers)
        yield Check.ok(
            "burst",
            f"{len(messages)} messages for {BURST_KEYS} keys, {answered} accepted behind an owner: each ran once",
        )
        if not answered:
            yield Check.warning("hand-over", "no message met an owner, so there was nothing to hand over", "try again")
            return
        yield self._handed_over(runs, {each["request_id"] for each in answers if "request_id" in each})

    @staticmethod
    def _handed_over(runs: list[Mapping[str, Any]], own: set[str]) -> Check:
        """Check that invocations ran messages which answered no caller: successors that were woken."""
        woken = {run["request_id"] for run in runs} - own
        if not woken:
            advice = "the function's role needs lambda:InvokeFunction on itself: see wake_failed in its log"
            return Check.failed("hand-over", "no invocation was woken to go on with a key", advice)
        count = sum(run["request_id"] in woken for run in runs)
        return Check.ok("hand-over", f"{len(woken)} invocations were woken, and ran {count} of the messages")

    def _crash(self) -> Iterator[Check]:
        """Let an owner die with a message behind it, and sweep."""
        function = self._stack.function
        dying = self._message("crash", "c1", ms=_DIES_AFTER_MS, dies=True)
        self._stack.invoke(function, dying, waits=False)
        self._clock.sleep_ms(_DIES_AFTER_MS // 2)
        behind = self._stack.invoke(function, self._message("crash", "c2", ms=1))
        began, swept = self._clock.now(), []
        while True:
            runs = [each for each in self._runs() if each["key"] == self._key("crash")]
            if {each["id"] for each in runs} >= {"c1", "c2"} or began.until(self._clock.now()) > _PATIENCE_MS:
                break
            self._clock.sleep_ms(_SWEEP_EVERY_MS)
            swept.append(self._stack.invoke(self._stack.sweeper, {}))
        wrong = wrong_with(runs, {"c1", "c2"})
        if wrong:
            yield Check.failed("crash", wrong, "see the function's log, and that of the sweeper")
            return
        if behind.get("status") != "accepted":
            yield Check.warning("crash", "the owner had died before a message came behind it", "repeat the command")
            return
        attempt = max(each["attempt"] for each in runs if each["id"] == "c1")
        found = f"its owner died; its message ran at attempt {attempt}, and the one behind it ran too"
        yield Check.ok("crash", found)
        yield self._swept(swept)

    @staticmethod
    def _swept(swept: list[Any]) -> Check:
        woken = sum(each.get("woken", 0) for each in swept if isinstance(each, dict))
        if woken:
            return Check.ok("sweep", f"the sweeper found the key and woke its function, in {len(swept)} passes")
        return Check.warning(
            "sweep", "the messages ran before a pass of this command found them", "the schedule was first"
        )

    # --- what they share

    def _key(self, name: str) -> str:
        return f"{name}-{self.run}"

    def _message(self, key: str, message_id: str, *, ms: int, **more: Any) -> dict[str, Any]:
        return {"key": self._key(key), "id": message_id, "run": self._journal, "ms": ms, **more}

    def _ask(self, do: str) -> Any:
        return self._stack.invoke(self._stack.function, {"journal": self._journal, "do": do})

    def _runs(self) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = self._ask("report")["runs"]
        return found

    def _runs_of(self, ids: set[str]) -> list[Mapping[str, Any]]:
        """Wait until all of these have run, for as long as that may take; return their runs."""
        began = self._clock.now()
        while True:
            runs = [run for run in self._runs() if run["id"] in ids]
            if {run["id"] for run in runs} == ids or began.until(self._clock.now()) > _PATIENCE_MS:
                return runs
            self._clock.sleep_ms(_POLL_MS)


def wrong_with(runs: list[Mapping[str, Any]], expected: set[str]) -> str:
    """Say what is wrong with these runs, of which each message should have one; empty if nothing is."""
    ids = [run["id"] for run in runs]
    if missing := sorted(expected - set(ids)):
        return f"did not run: {', '.join(missing)}"
    if twice := sorted({each for each in ids if ids.count(each) > 1}):
        return f"ran more than once: {', '.join(twice)}"
    by_key: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for run in runs:
        by_key[run["key"]].append(run)
    for of_key in by_key.values():
        of_key.sort(key=lambda run: int(run["fence"]))
        for one, other in pairwise(of_key):
            if other["began_ms"] < one["ended_ms"] - _SKEW_MS:
                return f"{one['id']} and {other['id']} ran at the same time"
    return ""
