"""Threads that take turns: each runs one operation, and stands still before every request until it is its turn."""

import _thread
import threading
from collections.abc import Callable
from typing import TypeAlias

Action: TypeAlias = Callable[[], object]

STUCK_S = 60.0


class ReplyLost(Exception):
    """The request was carried out, and its sender never learns of it."""


class Actor:
    """One operation on its way. ``lose_reply`` says that the reply to its next request gets lost."""

    __slots__ = ("action", "baton", "error", "lose_reply", "name", "over")

    def __init__(self, name: str, action: Action) -> None:
        self.name = name
        self.action = action
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.error: BaseException | None = None
        self.lose_reply = False
        self.over = False


class Turns:
    """Whose turn it is. Threads are kept from one schedule to the next, since making one costs more than a request."""

    def __init__(self) -> None:
        self.running: Actor | None = None
        self._main = _thread.allocate_lock()
        self._main.acquire()
        self._idle: list[_Worker] = []

    def begin(self, name: str, action: Action) -> Actor:
        """Bring an operation to its start; its first turn takes it to where it sends its first request."""
        actor = Actor(name, action)
        worker = self._idle.pop() if self._idle else _Worker(self)
        worker.start(actor)
        return actor

    def turn(self, actor: Actor, *, lose_reply: bool = False) -> None:
        """Let it send the request before which it stands, and go on to the next, or to its end."""
        actor.lose_reply = lose_reply
        self.running = actor
        actor.baton.release()
        if not self._main.acquire(timeout=STUCK_S):
            raise TimeoutError(f"{actor.name} waits for something that is not a request")
        self.running = None
        actor.lose_reply = False

    def before_request(self) -> None:
        """Stand still until it is one's turn. What no actor sends, as when a state is prepared, goes on at once."""
        actor = self.running
        if actor is not None:
            self._main.release()
            actor.baton.acquire()

    def after_request(self) -> None:
        """Lose the reply where that is wanted. Raises ``ReplyLost``."""
        actor = self.running
        if actor is not None and actor.lose_reply:
            actor.lose_reply = False
            raise ReplyLost

    def carried_out(self, worker: "_Worker") -> None:
        """An actor has come to its end."""
        self._idle.append(worker)
        self._main.release()

    def close(self) -> None:
        """Let the threads end."""
        for worker in self._idle:
            worker.start(None)
        self._idle.clear()


class _Worker:
    __slots__ = ("_actor", "_begin", "_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._begin = _thread.allocate_lock()
        self._begin.acquire()
        self._actor: Actor | None = None
        threading.Thread(target=self._work, daemon=True).start()

    def start(self, actor: Actor | None) -> None:
        self._actor = actor
        self._begin.release()

    def _work(self) -> None:
        while True:
            self._begin.acquire()
            actor = self._actor
            if actor is None:
                return
            actor.baton.acquire()
            try:
                actor.action()
            except BaseException as error:  # noqa: BLE001 - whoever began it decides what it means
                actor.error = error
            actor.over = True
            self._turns.carried_out(self)
