"""Serves the events of one decorated function: reads each, runs or stores it, and answers its source."""

import operator
import os
import threading
import warnings
from typing import Any

from incumbent import durable, observe, powertools, providers, results
from incumbent.answers import ANSWERED, Answers
from incumbent.backends import NoopLeaseProvider, is_archive, is_mailbox, resolve_lease_provider
from incumbent.calls import Call, Work
from incumbent.contract import LeaseProvider
from incumbent.errors import ConfigurationError
from incumbent.event_reader import EventReader
from incumbent.lease import Lease
from incumbent.options import CheckedOptions
from incumbent.own_message import are_stored_alike
from incumbent.policies import note_policy
from incumbent.runner import Runner
from incumbent.sources import PLAIN, source_of
from incumbent.stand_in import STAND_IN, clock_in_force, staged
from incumbent.validation import flag
from incumbent.values import Idle, Message
from incumbent.wakers import Wake, Waker, waker_from_env

_WAKING = ("AWS_LAMBDA_FUNCTION_NAME", "INCUMBENT_WAKE_QUEUE_URL")  # one of them: ``waker="auto"`` is a waker


class Endpoint:
    """Serves the events of one decorated function."""

    def __init__(self, options: CheckedOptions, *, one_of_several: bool = False) -> None:
        """Prepare for one function. ``one_of_several``: one invocation may call it more than once."""
        self._options = options
        self._one_of_several = one_of_several
        self._reader = EventReader(options, one_of_several=one_of_several)
        self._answers = Answers(options)
        self._metrics = powertools.from_env(os.environ)  # here, where Lambda's init has the most CPU
        self._making = threading.Lock()
        self._provider: LeaseProvider | None = None
        self._auto_waker: Waker | None = None
        self._kept: tuple[Runner | None, tuple[object, ...]] = (None, ())
        self._runs: Runner | None = None

    def handle(self, event: Any, context: Any, work: Work) -> Any:
        """Serve one event or resume event, and return its answer."""
        wake = Wake.from_event(event)
        if wake is None:
            return self.handle_message(event, context, work, own_work=work)
        durable.refuse(self._options.name, event, context)
        call = self._reader.call_of_wake(wake, context)
        outcome = Idle() if call is None else self._runner().serve(call, self._prepared(work, work, call, []))
        return self._answers.answer(event, context, PLAIN, call, outcome)

    def handle_message(
        self,
        event: Any,
        context: Any,
        work: Work,
        *,
        own_work: Work,
        own_event: Any = None,
        hands_over: bool = False,
    ) -> Any:
        """Serve one event that is not a resume event.

        ``own_work`` runs this invocation's own message, and ``work`` every other one. ``own_event`` is what the own
        run gets, if not the event itself.
        """
        raised: list[BaseException] = []
        source = source_of(event)
        own_event = event if own_event is None else own_event
        try:
            if self._options.unless is not None and self._reader.passes(event):
                no_lease: Any = None
                return _watched(own_work, raised)(Message(id="unleased", event=own_event), no_lease)
            durable.refuse(self._options.name, event, context)
            self._answers.check_source(source)
            call = self._reader.call_of(event, context, source, own_event, hands_over=hands_over)
            outcome = self._runner().serve(call, self._prepared(own_work, work, call, raised))
            return self._answers.answer(event, context, source, call, outcome)
        except ANSWERED as error:
            if not source.http or any(error is each for each in raised):
                raise  # the handler's own errors go to its caller unchanged
            return self._answers.error(source, error)

    def has(self, wake: Wake) -> bool:
        """Return whether the key of a resume event is in this function's keyspace."""
        return self._reader.has(wake)

    def waker(self) -> Waker | None:
        """Return the waker in force."""
        if self._options.waker != "auto":
            return self._options.waker
        if self._auto_waker is None and any(map(os.environ.get, _WAKING)):
            self._auto_waker = waker_from_env(os.environ)
        return self._auto_waker

    def _prepared(self, own_work: Work, work: Work, call: Call, raised: list[BaseException]) -> Work:
        """Choose the function's work by the message, check its result, and note in ``raised`` what it raises.

        The result must be finished and, where it answers Lambda, Lambda must be able to send it.
        """
        name, answers, own = self._options.name, not self._one_of_several, call.message
        if own_work is not work:
            work = _by_owner(own_work, work, call)
        if self._options.logger is not None:
            work = powertools.with_keys(self._options.logger, work)

        def prepared(message: Message, lease: Lease) -> Any:
            try:
                result = work(message, lease)
                results.check_done(result, lease.key)
                if answers and result is not None and own is not None and not lease.deferred and lease.holds(own.id):
                    results.check_answer(result, lease.key)
            except BaseException as error:
                raised.append(error)
                suspended = durable.suspended(name, error)
                if suspended is None:
                    raise
                raise suspended from error
            return result

        return prepared if STAND_IN.provider is None else staged(call.full_key, prepared)

    def _runner(self) -> Runner:
        """Return the runner, made at the first event with what the environment says.

        A test's stand-in has others, and one that was made without leases, for an emergency, is not kept.
        """
        if self._runs is not None and STAND_IN.provider is None:
            return self._runs
        runner = self._runner_in_force()
        self._runs = None if STAND_IN.provider is not None or flag(os.environ, "INCUMBENT_DISABLED") else runner
        return runner

    def _runner_in_force(self) -> Runner:
        """Return a runner with the provider, the waker and the observers in force: the last one, if they are its."""
        options, provider, waker = self._options, self._provider_in_force(), self.waker()
        watching = observe.from_env(os.environ)
        clock = clock_in_force(options.clock)
        parts = (provider, waker, watching, clock)
        runner, kept = self._kept
        if runner is not None and all(map(operator.is_, parts, kept)):
            return runner
        runner = Runner(
            provider,
            options.settings,
            clock=clock,
            waker=waker,
            observers=(*watching, *self._metrics, *([options.observer] if options.observer else [])),
            on_result=options.on_result,
            on_lost=options.on_lost,
            on_dead_letter=options.on_dead_letter,
        )
        self._kept = (runner, parts)
        return runner

    def _provider_in_force(self) -> LeaseProvider:
        """Return the provider: a test's, the given one, or the environment's. Made once, on the first event."""
        stand_in = STAND_IN.provider
        if stand_in is not None:
            return self._checked_provider(resolve_lease_provider(stand_in), stand_in)
        if flag(os.environ, "INCUMBENT_DISABLED"):
            warnings.warn("INCUMBENT_DISABLED is set: every invocation runs at once", RuntimeWarning, stacklevel=2)
            return NoopLeaseProvider()
        with self._making:  # with the memory provider, two threads with one each would both own every key
            if self._provider is None:
                given = self._options.provider
                made = providers.from_env() if given is None else resolve_lease_provider(given)
                self._provider = self._checked_provider(made, given)
            return self._provider

    def _checked_provider(self, provider: LeaseProvider, given: object | None) -> LeaseProvider:
        """Refuse a provider that stores no messages where the options need a mailbox. Note the policy for it."""
        settings = self._options.settings
        note_policy(settings.policy, keyspace=self._reader.keyspace(), provider=given)
        if isinstance(provider, NoopLeaseProvider):
            return provider
        if settings.needs_mailbox and not is_mailbox(provider):
            raise ConfigurationError(
                f"{self._options.name}: {type(provider).__name__} leases but stores no messages, which "
                f"{settings.needs_mailbox} needs: choose when_busy='reject' or 'skip' (and deliver='one'), or a "
                "provider with a mailbox"
            )
        if settings.when_busy == "wait" and not is_archive(provider):
            raise ConfigurationError(
                f"{self._options.name}: {type(provider).__name__} cannot look up messages (find), which "
                "when_busy='wait' needs"
            )
        return provider


def _by_owner(own_work: Work, work: Work, call: Call) -> Work:
    """Run the call's own message with ``own_work``, and every other one with ``work``.

    If another event is stored under the own id, that one runs (M5: once per id), and it is not the call's.
    """
    own = call.message

    def chosen(message: Message, lease: Lease) -> Any:
        mine = message.event is call.event or (
            own is not None and own.id == message.id and are_stored_alike(own.event, message.event)
        )
        return (own_work if mine else work)(message, lease)

    return chosen


def _watched(work: Work, raised: list[BaseException]) -> Work:
    """Note what the work raises, to tell the handler's errors from incumbent's."""

    def watched(message: Message, lease: Lease) -> Any:
        try:
            return work(message, lease)
        except BaseException as error:
            raised.append(error)
            raise

    return watched
