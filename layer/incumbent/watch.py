"""Looks for a stop more often than a lease is renewed, so that its run need not wait for the next renewal (M16)."""

import contextvars
from collections.abc import Callable

from incumbent.errors import LeaseLost
from incumbent.heartbeat import Heartbeat
from incumbent.pacemaker import Pacemaker


class Watch:
    """Looks for the mark of one tenure, until it has seen it or the run is over.

    It beats beside the heartbeat, so that a slow look delays no renewal. ``look`` sends one cheap request and returns
    the mark; it raises ``LeaseLost`` when the lease is over, and any other error when there is no answer. ``prepare``
    is called before each look.
    """

    def __init__(
        self,
        look: Callable[[], str | None],
        heartbeat: Heartbeat,
        *,
        every_ms: int,
        pacemaker: Pacemaker,
        prepare: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._look = look
        self._heartbeat = heartbeat
        self._every_ms = every_ms
        self._pacemaker = pacemaker
        self._prepare = prepare
        self._on_error = on_error
        self._context: contextvars.Context | None = None

    def start(self) -> None:
        """Begin. Raises what a thread that cannot be started raises."""
        self._context = contextvars.copy_context()
        self._pacemaker.add(self, self._every_ms)

    def stop(self) -> None:
        """Stop. No look is under way afterwards."""
        if self._context is not None and not self._heartbeat.is_copy:
            self._pacemaker.remove(self)

    def beat(self) -> int | None:
        """Look as the pacemaker says. Return in how many milliseconds the next look is due, ``None`` for never."""
        return None if self._context is None else self._context.run(self._beat)

    def die(self, cause: BaseException) -> None:
        """Take note of nothing: the renewals tell of a stop, too, and of the thread's death."""
        del cause

    def _beat(self) -> int | None:
        heartbeat = self._heartbeat
        if heartbeat.asked is not None or heartbeat.is_over or heartbeat.loss is not None:
            return None
        self._prepare()
        try:
            heartbeat.note_stop(self._look())
        except LeaseLost as refused:
            heartbeat.lose(refused)
        except Exception as error:  # noqa: BLE001 - the next look may have more luck, and each renewal looks too
            self._on_error(error)
        return self._every_ms
