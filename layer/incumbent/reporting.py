"""Tells observers and hooks what one invocation did."""

from collections.abc import Callable, Sequence
from typing import Any

from incumbent.calls import Call
from incumbent.clock import Clock
from incumbent.observe import Collected, Fact, FactName, Observer, collect, guarded, heard_by, tell
from incumbent.owners import this_process
from incumbent.values import Message

MAX_ERROR = 500  # characters of an exception kept with its message


class Reporter:
    """The facts of one invocation, passed to its observers, and its dead letters, passed to the hook.

    ``heard`` are the facts that an observer takes. Each run looks there before it makes one.
    """

    __slots__ = ("_call", "_clock", "_collected", "_observers", "_on_dead_letter", "_process", "heard")

    def __init__(
        self,
        call: Call,
        clock: Clock,
        observers: Sequence[Observer],
        on_dead_letter: Callable[[Message], object] | None,
        heard: frozenset[FactName] | None = None,
    ) -> None:
        """Begin without facts. ``heard`` is what the observers take, if each of them serves all invocations."""
        self._call = call
        self._clock = clock
        self._on_dead_letter = on_dead_letter
        self._observers = observers
        self._collected: tuple[Collected, ...] = ()
        if heard is None:
            self._observers, self._collected = collect(observers)
            self._process = this_process()
            heard = heard_by(self._observers)
        self.heard = heard

    def tell(self, fact: FactName, **said: Any) -> None:
        """Pass a fact of this invocation to the observers, if one takes it."""
        if fact not in self.heard:
            return
        own = self._call.message
        tell(
            self._observers,
            Fact(
                fact=fact,
                key=self._call.full_key,
                t_ms=self._clock.now().wall_ms,
                keyspace=self._call.origin.keyspace,
                request_id=self._call.origin.request_id,
                message_id=None if own is None else own.id,
                **said,
            ),
        )

    def store_error(self, error: BaseException, *, owner: str | None = None) -> None:
        """Report a store that gave no answer."""
        self.tell("store_error", owner=owner, error=describe(error))

    def dead(self, dead_lettered: Sequence[Message]) -> None:
        """Report the messages that a call has moved to the dead letters (M6: failure)."""
        for message in dead_lettered:
            self.tell("dead", message_ids=(message.id,), attempt=message.attempt, error=message.last_error)
            if self._on_dead_letter is not None:
                guarded("on_dead_letter", self._on_dead_letter, message)

    def flush(self) -> None:
        """Have the observers that collect facts tell what they have: not in a forked child, whose facts are copies."""
        if self._collected and self._process is this_process():
            for each in self._collected:
                guarded("observer", each.flush)


def describe(error: BaseException) -> str:
    """Return the text of an exception in a form that every store takes, even if its ``str`` raises."""
    try:
        said = str(error)
    except BaseException as failed:  # noqa: BLE001 - its run must be settled nevertheless
        said = f"(its text raised {type(failed).__name__})"
    return f"{type(error).__name__}: {said}".encode(errors="backslashreplace").decode()[:MAX_ERROR]
