"""Serves the invocations of one handler, with one provider and one set of settings."""

from collections.abc import Callable, Sequence
from typing import Any

from incumbent.backends import is_mailbox
from incumbent.calls import Call, Outcome, Work
from incumbent.clock import Clock
from incumbent.contract import LeaseProvider
from incumbent.errors import LeaseUnavailable, MailboxFull, MessageInvalid, MessageTooLarge
from incumbent.invocation import Invocation
from incumbent.lease import Lease
from incumbent.observe import Observer, collects, heard_by
from incumbent.pacemaker import Pacemaker, pacemaker_of
from incumbent.progress import Setup
from incumbent.reporting import describe
from incumbent.settings import Settings
from incumbent.values import Message
from incumbent.wakers import Waker


class Runner:
    """Serves calls with one provider and one set of settings. Keeps nothing between calls."""

    def __init__(
        self,
        provider: LeaseProvider,
        settings: Settings,
        *,
        clock: Clock,
        waker: Waker | None = None,
        observers: Sequence[Observer] = (),
        on_result: Callable[[Message, Any], object] | None = None,
        on_lost: Callable[[Lease], object] | None = None,
        on_dead_letter: Callable[[Message], object] | None = None,
        pacemaker: Pacemaker | None = None,
    ) -> None:
        self.setup = Setup(
            provider=provider,
            mailbox=provider if is_mailbox(provider) else None,
            stores=settings.stores,
            debounce=settings.debounce,
            interrupts=settings.when_busy == "interrupt",
            beat_ms=settings.beat_ms,
            heard=None if collects(observers) else heard_by(observers),
            settings=settings,
            clock=clock,
            waker=waker,
            observers=observers,
            on_result=on_result,
            on_lost=on_lost,
            on_dead_letter=on_dead_letter,
            pacemaker=pacemaker_of(clock) if pacemaker is None else pacemaker,
        )

    def serve(self, call: Call, work: Work) -> Outcome:
        """Acquire the key or route the message, and run the due messages.

        Raises what the run of this invocation's message raised, ``LeaseLost`` when a run lost its lease, and the errors
        of the store's calls.
        """
        invocation = Invocation(self.setup, call, work)
        try:
            return invocation.serve()
        except LeaseUnavailable as error:
            invocation.report.store_error(error)
            raise
        except (MailboxFull, MessageInvalid, MessageTooLarge) as error:
            invocation.report.tell("refused", error=describe(error))
            raise
        finally:
            invocation.report.flush()
