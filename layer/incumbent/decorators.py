"""The decorators ``@leased`` and ``leased_function``: exactly one invocation of an event's key runs at a time."""

import functools
import inspect
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, cast, get_args

from incumbent import async_handlers, durable, observe, powertools, providers, results
from incumbent.clock import SYSTEM_CLOCK, Clock
from incumbent.contract import (
    LeaseProvider,
    NoopLeaseProvider,
    check_backend,
    check_waits,
    is_mailbox,
    resolve_lease_provider,
)
from incumbent.errors import (
    ConfigurationError,
    DuplicateMessage,
    IncumbentError,
    LeaseBusy,
    LeaseKeyMissing,
    LeaseUnavailable,
    MailboxFull,
    MessageInvalid,
    MessageTooLarge,
)
from incumbent.keys import check_keyspace, full_key, is_in_keyspace, without_keyspace
from incumbent.lease import Lease
from incumbent.owners import random_name
from incumbent.policies import policy_in_force
from incumbent.runs import Call, Completed, Outcome, Postponed, Runner, Settings, Work, as_stored
from incumbent.sources import Source, source_of, stored_form
from incumbent.stand_in import STAND_IN, staged
from incumbent.validation import check_message_id, fit_message_id, flag, shown
from incumbent.values import Busy, Duplicate, Idle, Message, Origin, Policy, Routed
from incumbent.wakers import LambdaWaker, Wake, Waker, check_waker

F = TypeVar("F", bound=Callable[..., Any])
Choose: TypeAlias = Callable[[Any], object]

_RETRY_AFTER = {"retry-after": "1"}


class LambdaContext(Protocol):
    """The part of Lambda's context object that incumbent uses; each of these may be missing."""

    aws_request_id: str
    invoked_function_arn: str
    log_stream_name: str

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until the invocation times out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """A decorator's options, checked."""

    name: str
    choose_key: Choose
    key_said: str
    choose_id: Choose | None
    id_said: str
    provider: object | None
    keyspace: str | None
    settings: Settings
    waker: Waker | Literal["auto"] | None
    target: str | None
    unless: Callable[[Any], object] | None
    answer_headers: Mapping[str, str]
    store: Callable[[Any], Any]
    on_busy: Callable[..., Any] | None
    on_result: Callable[[Message, Any], object] | None
    on_lost: Callable[[Lease], object] | None
    on_dead_letter: Callable[[Message], object] | None
    observer: observe.Observer | None
    logger: powertools.KeyedLogger | None
    clock: Clock


def leased(
    *,
    key: str | Callable[[Any], object] | None = None,
    key_jmespath: str | None = None,
    message_id: Callable[[Any], object] | None = None,
    message_id_jmespath: str | None = None,
    provider: object | None = None,
    keyspace: str | None = None,
    ttl_ms: int | None = None,
    renew_every_ms: int | None = None,
    when_busy: Literal["enqueue", "reject", "skip"] = "enqueue",
    deliver: Literal["one", "all"] = "one",
    gather_ms: int = 0,
    drain_ms: int | None = None,
    stop_before_ms: int | None = None,
    max_hops: int = 100,
    policy: Policy | None = None,
    waker: Waker | Literal["auto"] | None = "auto",
    target: str | None = None,
    unless: Callable[[Any], object] | None = None,
    answer_headers: Mapping[str, str] | None = None,
    store: Callable[[Any], Any] = stored_form,
    on_busy: Callable[..., Any] | None = None,
    on_result: Callable[[Message, Any], object] | None = None,
    on_lost: Callable[[Lease], object] | None = None,
    on_dead_letter: Callable[[Message], object] | None = None,
    observer: observe.Observer | None = None,
    logger: powertools.KeyedLogger | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Callable[[F], F]:
    """Let one invocation of a key run; every other one hands its event to the owner and returns at once.

    Decorates a Lambda handler, ``def`` or ``async def``. A handler with a parameter ``lease`` gets the handle. Put the
    decorator outside parsers and event sources (the mailbox stores the JSON event) and outside ``@idempotent``.

    Args:
        key: The key that must not run twice at once: text for one key, or a callable from the event to it. A key that
            is too long for a store (1,024 bytes with its keyspace) is cut, and its digest appended.
        key_jmespath: The same as an expression, with Powertools' functions such as ``powertools_json(body).id``.
        message_id: A callable from the event to its id. Default: the source's own id, or the request id. An id of more
            than 256 bytes is cut, and its digest appended.
        message_id_jmespath: The same as an expression.
        provider: A provider, or a backend that has one. Default: the provider that the environment names.
        keyspace: Separates this application's keys from another's; no slash. Default: the function's name. An empty
            keyspace uses the key unchanged, to share it with other applications.
        ttl_ms: How long a lease lives without renewal, milliseconds (``INCUMBENT_TTL_MS``, else 30,000).
        renew_every_ms: How often it is renewed (``INCUMBENT_RENEW_EVERY_MS``, else a third of the ttl).
        when_busy: ``"enqueue"`` stores the event for the owner; ``"reject"`` refuses it, so that its source retries;
            ``"skip"`` answers success and drops it.
        deliver: ``"one"`` message per run, or ``"all"`` that are due.
        gather_ms: With ``"all"``: how long a burst may collect before the first run, milliseconds; at most a third of
            the ttl.
        drain_ms: How long this invocation may run messages other than its own, milliseconds. Default: not at all when
            a caller waits for the answer (HTTP), else as long as there is time for another.
        stop_before_ms: How many milliseconds before the invocation's end ``lease.stop`` becomes ``DEADLINE``. Default:
            5,000, but at most a quarter of the time that the invocation has.
        max_hops: How many invocations may wake one another in a row.
        policy: How messages are kept: limits, window, attempts and pauses (``INCUMBENT_POLICY``, a JSON object of its
            fields). `send` and `status` need the same one: set the variable for all functions of a keyspace.
        waker: Starts the next invocation. ``"auto"``: `LambdaWaker` inside Lambda, ``None`` elsewhere. ``None`` wakes
            nothing: this invocation runs the waiting messages itself.
        target: The function to wake, instead of this function as it was invoked (``INCUMBENT_TARGET``).
        unless: ``unless(event)`` is true for an event that needs no lease, such as a keep-warm ping, a health check or
            a preflight request: the handler runs at once, with ``lease=None``, and no request goes to the store.
        answer_headers: HTTP headers of every answer that incumbent makes, errors included, such as those of CORS.
        store: A callable from the event to what the mailbox stores; later runs get exactly that. The default leaves
            out a request's credentials.
        on_busy: ``on_busy(event, context, outcome=...)`` makes the answer when this invocation does not run the event,
            or when its run deferred. Required for sources that wait for an answer in their own shape, such as AppSync
            (docs/sources.md).
        on_result: ``on_result(message, result)`` gets the results of messages other than this invocation's.
        on_lost: ``on_lost(lease)`` is called once when a run loses its lease, possibly from the heartbeat's thread.
        on_dead_letter: ``on_dead_letter(message)`` is called when a message is out of attempts, by the invocation that
            moves it to the dead letters. The call is not guaranteed: an invocation that dies at that moment makes
            none. The dead letters themselves are the record (``incumbent dead ls``).
        observer: Gets every fact. With ``INCUMBENT_METRICS_NAMESPACE`` set, CloudWatch gets metrics in addition.
        logger: A Powertools ``Logger``: the lines of a run carry ``lease_key``, ``owner``, ``fence`` and ``attempt``.
        clock: The source of time.

    The decorator checks its arguments and raises ``ConfigurationError``. The decorated handler raises
    ``LeaseKeyMissing`` for an event without a key, ``LeaseUnavailable`` when the store cannot be reached,
    ``MailboxFull``, ``MessageTooLarge`` and ``MessageInvalid`` for an event that is not stored, ``LeaseBusy`` under
    ``"reject"``, ``LeaseLost``, and ``ResultRefused`` for a result that is not JSON, larger than 6 MB, or unfinished
    work.
    HTTP callers get the status 400, 503, 429, 413, 400 or 409 instead of the first six.
    """
    options = functools.partial(
        _options,
        key=key,
        key_jmespath=key_jmespath,
        message_id=message_id,
        message_id_jmespath=message_id_jmespath,
        provider=provider,
        keyspace=keyspace,
        settings=_settings(
            ttl_ms=ttl_ms,
            renew_every_ms=renew_every_ms,
            when_busy=when_busy,
            deliver=deliver,
            gather_ms=gather_ms,
            drain_ms=drain_ms,
            stop_before_ms=stop_before_ms,
            max_hops=max_hops,
            policy=policy,
        ),
        waker=waker,
        target=target,
        unless=unless,
        answer_headers=answer_headers,
        store=store,
        on_busy=on_busy,
        on_result=on_result,
        on_lost=on_lost,
        on_dead_letter=on_dead_letter,
        observer=observer,
        logger=logger,
        clock=clock,
    )

    def decorate(handler: F) -> F:
        _refuse(handler, "leased")
        run = async_handlers.synchronous(handler)
        gives_lease = _takes_lease(handler, _name_of(handler))
        endpoint = _Endpoint(options(name=_name_of(handler)))

        @functools.wraps(handler)
        def leased_handler(event: Any, context: Any = None, **more: Any) -> Any:
            endpoint.check_order(sys._getframe(1))  # noqa: SLF001 - who calls can only be seen from here
            async_handlers.refuse_to_nest(handler, endpoint.options.name)

            def work(message: Message, lease: Lease) -> Any:
                return run(lease, message.event, context, **more, **({"lease": lease} if gives_lease else {}))

            return endpoint.handle(event, context, work)

        setattr(leased_handler, _MARK, True)
        return cast("F", leased_handler)

    return decorate


class LeasedFunction(Protocol):
    """A function under ``leased_function``."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function under its key's lease, or hand its message to the owner. The decorator passes ``lease``."""
        ...

    def resume(self, event: Any, context: Any = None) -> bool:
        """Continue a key if ``event`` is a resume event. Return whether it was one."""
        ...


def leased_function(
    *,
    argument: str | None = None,
    load: Callable[[Any], Any] | None = None,
    waker: Waker | Literal["auto"] | None = None,
    **options: Any,
) -> Callable[[Callable[..., Any]], LeasedFunction]:
    """Let one call of a key run: for one record of a batch, or any function of a JSON value.

    Takes the options of ``leased``, and these:

    Args:
        argument: The name of the argument that is the message. Default: the first one.
        load: Makes that argument from the stored value. An argument that is annotated with a Powertools data class
            needs no ``load``.
        waker: Default: none, so this invocation runs the waiting messages itself. With one (``"auto"``: `LambdaWaker`
            inside Lambda), the function runs its own record and hands the rest over. The handler must then call
            ``function.resume(event, context)`` first: it returns true if the event was a resume event, whose work is
            done by then.
        **options: See ``leased``.

    Its caller is Python code and not Lambda, so its result need not be JSON; unfinished work (a generator, a
    coroutine, a future and the like, also inside a dict, list, tuple or set) raises ``ResultRefused``.

    Pass Lambda's context as the argument ``lambda_context`` or ``context``, so that the remaining time is known.
    """
    _refuse_unknown(options)
    chosen = functools.partial(
        _options,
        **{
            "key": None,
            "key_jmespath": None,
            "message_id": None,
            "message_id_jmespath": None,
            "provider": None,
            "keyspace": None,
            "target": None,
            "unless": None,
            "answer_headers": None,
            "store": stored_form,
            "on_busy": None,
            "on_result": None,
            "on_lost": None,
            "on_dead_letter": None,
            "observer": None,
            "logger": None,
            "clock": SYSTEM_CLOCK,
            **{name: value for name, value in options.items() if name not in _SETTINGS},
        },
        waker=waker,
        settings=_settings(**{name: value for name, value in options.items() if name in _SETTINGS}),
    )

    def decorate(function: Callable[..., Any]) -> LeasedFunction:
        _refuse(function, "leased_function")
        run = async_handlers.synchronous(function)
        gives_lease = _takes_lease(function, _name_of(function))
        signature = _signature(function)
        names = [name for name in signature.parameters if name != "lease"]
        named = argument or (names[0] if names else "")
        if named not in names:
            raise ConfigurationError(f"leased_function: {_name_of(function)} has no argument {named!r}")
        _refuse_more_arguments(function, signature, named)
        made_anew = load or _data_class(signature.parameters[named].annotation)
        endpoint = _Endpoint(chosen(name=_name_of(function)), one_of_several=True)

        def call(arguments: dict[str, Any], event: Any, lease: Lease) -> Any:
            given = {**arguments, named: event, **({"lease": lease} if gives_lease else {})}
            bound = signature.bind_partial()
            bound.arguments.update({name: given[name] for name in signature.parameters if name in given})
            more = {"lease": lease} if gives_lease and "lease" not in signature.parameters else {}
            return run(lease, *bound.args, **bound.kwargs, **more)

        @functools.wraps(function)
        def leased_call(*args: Any, **kwargs: Any) -> Any:
            endpoint.check_order(sys._getframe(1))  # noqa: SLF001 - who calls can only be seen from here
            async_handlers.refuse_to_nest(function, endpoint.options.name)
            arguments = dict(signature.bind_partial(*args, **kwargs).arguments)
            if named not in arguments:
                raise TypeError(
                    f"{_name_of(function)}() was called without {named!r}, the argument that is the message"
                )
            event = arguments[named]
            raw = getattr(event, "raw_event", None)
            if raw is not None and made_anew is None:
                raise ConfigurationError(
                    f"{_name_of(function)}: a stored {type(event).__name__} could not be made again: annotate "
                    f"{named!r} with a class that can be imported at run time, or give load="
                )
            remake = made_anew or _as_it_is
            context = arguments.get("lambda_context", arguments.get("context"))
            # Another message does not get the arguments of this one.
            others = {name: arguments[name] for name in _CONTEXTS if name in arguments}

            def own_work(message: Message, lease: Lease) -> Any:
                return call(arguments, event if message.event is event else remake(message.event), lease)

            return endpoint.handle(
                event if raw is None else raw,
                context,
                lambda message, lease: call(others, remake(message.event), lease),
                own_work=own_work,
                own_event=event,
                hands_over=endpoint.waker() is not None,
                may_resume=False,
            )

        def resume(event: Any, context: Any = None) -> bool:
            """Continue a key of this function if ``event`` is its resume event. Return whether it was one."""
            wake = Wake.from_event(event)
            if wake is None or not endpoint.has(wake):
                return False
            given: dict[str, Any] = {name: context for name in _CONTEXTS if name in names}
            remake = made_anew or _as_it_is
            endpoint.handle(event, context, lambda message, lease: call(given, remake(message.event), lease))
            return True

        leased_call.resume = resume  # type: ignore[attr-defined]
        setattr(leased_call, _MARK, True)
        return cast("LeasedFunction", leased_call)

    return decorate


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature, with annotations that are text (``from __future__ import annotations``) evaluated."""
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # noqa: BLE001 - a name that only a type checker knows, or any other text
        return inspect.signature(function)


def _checked(work: Work, call: Call, *, answers: bool) -> Work:
    """Check the result of the work: it is finished and, where it ``answers`` Lambda, Lambda can send it."""
    own = None if call.message is None else call.message.id

    def checked(message: Message, lease: Lease) -> Any:
        result = work(message, lease)
        results.check_done(result, lease.key)
        if answers and not lease.deferred and any(each.id == own for each in lease.held):
            results.check_answer(result, lease.key)
        return result

    return checked


def _by_owner(own_work: Work, work: Work, call: Call) -> Work:
    """Run the call's own message with ``own_work``, and every other one with ``work``.

    If another event is stored under the own id, that one runs (M5), and it is not the call's.
    """
    own = call.message

    def chosen(message: Message, lease: Lease) -> Any:
        mine = message.event is call.event or (
            own is not None and own.id == message.id and as_stored(own.event) == as_stored(message.event)
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


def _own(event: Any, own_event: Any) -> Any:
    return event if own_event is None else own_event


def _as_it_is(event: Any) -> Any:
    return event


def _data_class(annotation: object) -> Callable[[Any], Any] | None:
    """Return the Powertools data class of an annotation, also if it is one type of a union."""
    for named in (annotation, *get_args(annotation)):
        if isinstance(named, type) and hasattr(named, "raw_event"):
            return named
    return None


def _refuse_more_arguments(function: Callable[..., Any], signature: inspect.Signature, named: str) -> None:
    """Refuse required arguments besides the message: the owner also runs messages of other calls, without them."""
    for name, parameter in signature.parameters.items():
        needed = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        if needed and name not in (named, "lease", *_CONTEXTS):
            raise ConfigurationError(
                f"leased_function: {_name_of(function)} needs {name!r} besides its message {named!r}, but a stored "
                "message of another call does not have it: put it into the message"
            )


class _Endpoint:
    """Serves the events of one decorated handler: reads key and id, runs or stores the event, makes the answer."""

    def __init__(self, options: _Options, *, one_of_several: bool = False) -> None:
        """Prepare for one function. ``one_of_several``: one invocation may call it more than once."""
        self.options = options
        self.one_of_several = one_of_several
        self.metrics = powertools.from_env(os.environ)  # here, where Lambda's init has the most CPU
        self._order_checked = False
        self._making = threading.Lock()
        self._provider: LeaseProvider | None = None
        self._auto_waker: Waker | None = None

    def handle(
        self,
        event: Any,
        context: Any,
        work: Work,
        *,
        own_work: Work | None = None,
        own_event: Any = None,
        hands_over: bool = False,
        may_resume: bool = True,
    ) -> Any:
        """Serve one event.

        ``own_work`` runs this invocation's own message, if not ``work``. ``own_event`` is what that run gets, if not
        the event itself.
        """
        raised: list[BaseException] = []
        wake = Wake.from_event(event) if may_resume else None
        source = Source(kind="plain", message_id=None) if wake is not None else source_of(event)
        source = replace(source, headers=self.options.answer_headers)
        try:
            if wake is None and self.passes(event):
                no_lease: Any = None
                unleased = Message(id="unleased", event=_own(event, own_event))
                return _watched(own_work or work, raised)(unleased, no_lease)
            durable.refuse(self.options.name, event, context)
            if wake is not None:
                call = self.resumed(wake, context)
            else:
                call = self.call(event, context, source, own_event, hands_over=hands_over)
            if own_work is not None and call is not None:
                work = _by_owner(own_work, work, call)
            work = durable.held_to_the_end(self.options.name, work)
            if self.options.logger is not None:
                work = powertools.with_keys(self.options.logger, work)
            checked = work if call is None else _checked(work, call, answers=not self.one_of_several)
            watched = checked if call is None else _watched(staged(call.full_key, checked), raised)
            outcome = Idle() if call is None else self.runner().serve(call, watched)
            return self.answer(event, context, source, call, outcome)
        except (LeaseKeyMissing, LeaseUnavailable, MailboxFull, MessageInvalid, MessageTooLarge) as error:
            if not source.http or any(error is each for each in raised):
                raise  # the handler's own errors go to its caller unchanged
            observe.LOG.error("answered with an error: %s", error)
            status, said = _STATUS[type(error)]
            # Retrying an event without a key, or one that is too large, cannot succeed.
            again = _RETRY_AFTER if isinstance(error, LeaseUnavailable | MailboxFull) else {}
            return source.answer(status, {"error": type(error).__name__, "message": said}, again)

    def passes(self, event: Any) -> bool:
        """Return whether an event runs without a lease."""
        unless = self.options.unless
        return unless is not None and bool(self.read(event, unless, "unless"))

    def call(self, event: Any, context: Any, source: Source, own_event: Any, *, hands_over: bool) -> Call:
        """Read an event: its key, its id, and the value to store. Sends no request."""
        options = self.options
        if options.store is stored_form and not isinstance(event, _JSON):
            raise ConfigurationError(
                f"{options.name}: the event is a {type(event).__name__}, but the mailbox stores the JSON event: put "
                "@leased above @event_parser and @event_source (for a record of a batch, give store= and load=)"
            )
        if source.kind == "caller" and options.on_busy is None:
            raise ConfigurationError(
                f"{options.name}: {source.name} waits for an answer in its own shape, which incumbent cannot make "
                "when this invocation does not run the event: give on_busy="
            )
        given = self.key(event)
        key = self.full_key(given)
        name = self.name_of(key)
        request_id = getattr(context, "aws_request_id", None) or f"local-{random_name()}"
        message_id = self.message_id(event, source, request_id, name)
        stored = options.store(event)
        results.refuse_unfinished(stored, f"{options.name}: store")
        return Call(
            full_key=key,
            key=name,
            said={"key": given, "message_id": message_id},
            message=Message(id=self.stored_id(message_id, name), event=stored),
            event=_own(event, own_event),
            origin=self.origin(context, request_id),
            ends=self.ends(context),
            synchronous=source.synchronous or hands_over,
            comes_again=self.comes_again(source),
        )

    def resumed(self, wake: Wake, context: Any) -> Call | None:
        """Read a resume event. Return ``None`` when its key is not in this handler's keyspace."""
        if flag(os.environ, "INCUMBENT_DISABLED"):
            observe.LOG.warning("INCUMBENT_DISABLED is set: messages of key %r wait until it is unset", wake.key)
        if not self.has(wake):
            observe.LOG.warning(
                "a resume event for key %r is ignored: this function's keyspace is %r; give send() the same keyspace=",
                wake.key,
                self.keyspace(),
            )
            return None
        request_id = getattr(context, "aws_request_id", None) or f"local-{random_name()}"
        return Call(
            full_key=wake.key,
            key=self.name_of(wake.key),
            message=None,
            ticket=wake.ticket,
            hops=wake.hops,
            origin=self.origin(context, request_id),
            ends=self.ends(context),
        )

    def has(self, wake: Wake) -> bool:
        """Return whether the key of a resume event is in this handler's keyspace."""
        return is_in_keyspace(wake.key, self.keyspace())

    def answer(  # noqa: C901 - one case for each row of the table
        self, event: Any, context: Any, source: Source, call: Call | None, outcome: Outcome
    ) -> Any:
        """Answer the source by the table *Who may retry*."""
        options = self.options
        if call is None or call.message is None:
            return {"status": "resumed" if isinstance(outcome, Completed) else "idle"}
        if isinstance(outcome, Completed):
            return outcome.result
        if options.on_busy is not None:
            asked = Routed(owner=None) if isinstance(outcome, Postponed) else outcome
            if isinstance(asked, Routed | Duplicate | Busy):
                made = options.on_busy(event, context, outcome=asked)
                results.refuse_unfinished(made, f"{options.name}: on_busy")
                return made
        if source.kind == "state-machine":
            self.refuse_a_result(call, outcome)
        said = call.said
        match outcome:
            case Postponed() | Routed():
                return source.answer(202, {"status": "accepted", **said})
            case Duplicate(state="waiting" | "running"):
                return source.answer(202, {"status": "accepted", "state": outcome.state, **said})
            case Duplicate():
                return source.answer(200, {"status": outcome.state, **said})
            case Busy() if options.settings.when_busy == "reject":
                message = (
                    f"another invocation owns key {call.key!r} and when_busy is 'reject': nothing was stored, and the "
                    "source keeps its event"
                )
                if not source.http:
                    raise LeaseBusy(message, key=call.key)
                return source.answer(409, {"error": "LeaseBusy", "message": "the key is busy; retry"}, _RETRY_AFTER)
            case Busy():
                return source.answer(200, {"status": "skipped", **said})
            case Idle():  # a late copy of a claim whose run has failed since; its source was told
                raise LeaseUnavailable(
                    f"message {call.message.id!r} of key {call.key!r} was claimed by this call before and failed; it "
                    "is not stored, so deliver it again",
                    key=call.key,
                )

    def refuse_a_result(self, call: Call, outcome: Outcome) -> None:
        """Raise instead of answering: a state machine would take any answer for the result of its task."""
        if isinstance(outcome, Duplicate) and outcome.state in ("handled", "dead"):
            raise DuplicateMessage(
                f"message {call.said['message_id']!r} of key {call.key!r} is {outcome.state} already, and its result "
                "is not kept: catch DuplicateMessage and read what the run wrote, or give on_busy=",
                key=call.key,
                state=outcome.state,
            )
        if self.options.settings.when_busy == "reject" and isinstance(outcome, Postponed | Routed | Duplicate):
            raise LeaseBusy(
                f"message {call.said['message_id']!r} of key {call.key!r} runs or waits already: try again later",
                key=call.key,
            )

    # --- reading an event

    def key(self, event: Any) -> str:
        """Return the user's key. Anything but text and whole numbers is refused."""
        value = _as_text(self.read(event, self.options.choose_key, self.options.key_said))
        if not isinstance(value, str) or not value:
            raise LeaseKeyMissing(
                f"{self.options.name}: {self.options.key_said} gave {type(value).__name__} {shown(value)} instead of a "
                "non-empty string or an integer: the event has no key, and nothing was run or stored"
            )
        return value

    def message_id(self, event: Any, source: Source, request_id: str, key: str) -> str:
        """Return the event's id: the chosen one, the source's, or the request's (the same on an asynchronous retry).

        One request may call a function for several messages; each has its own id then.
        """
        if self.options.choose_id is None:
            return source.message_id or (f"{request_id}#{random_name()}" if self.one_of_several else request_id)
        value = _as_text(self.read(event, self.options.choose_id, self.options.id_said))
        if not isinstance(value, str) or not value:
            raise LeaseKeyMissing(
                f"{self.options.name}: {self.options.id_said} gave {type(value).__name__} {shown(value)} instead "
                "of a non-empty string or an integer: the event has no message id, and nothing was run or stored",
                key=key,
            )
        return value

    def comes_again(self, source: Source) -> bool:
        """Return whether the source of a failed message delivers it again under the same id."""
        if source.synchronous or source.kind == "state-machine":
            return False  # the waiting caller decides
        if self.options.choose_id is not None or source.message_id is not None:
            return True
        return source.kind != "record" and not self.one_of_several  # asynchronous retries keep the request's id

    def stored_id(self, message_id: str, key: str) -> str:
        """Return the id to store: one that is too long is digested. The sources' ids have been shortened already."""
        try:
            return check_message_id(fit_message_id(message_id) if self.options.choose_id else message_id, key)
        except ConfigurationError as cause:
            raise LeaseKeyMissing(f"{self.options.name}: no usable message id: {cause}", key=key) from cause

    def read(self, event: Any, choose: Choose, said: str) -> object:
        """Evaluate a callable or an expression. Any error means that the event lacks the value.

        An answer whose work is not done, such as a coroutine, is refused: it would be true of every event.
        """
        try:
            value = choose(event)
        except IncumbentError:
            raise
        except Exception as cause:
            raise LeaseKeyMissing(
                f"{self.options.name}: {said} failed on the event ({type(cause).__name__}: {cause}): nothing was run "
                "or stored"
            ) from cause
        results.refuse_unfinished(value, f"{self.options.name}: {said}")
        return value

    def full_key(self, name: str) -> str:
        """Return the provider's key: the keyspace, then the user's key."""
        keyspace = self.keyspace()
        try:
            return full_key(keyspace, name)
        except ConfigurationError as cause:
            raise LeaseKeyMissing(f"{self.options.name}: no usable key: {cause}", key=name) from cause

    def name_of(self, full: str) -> str:
        """Return the user's key: the provider's key without the keyspace."""
        return without_keyspace(full, self.keyspace())

    def keyspace(self) -> str:
        """Return the chosen keyspace, or the function's name, inside Lambda the deployed one."""
        if self.options.keyspace is not None:
            return self.options.keyspace
        deployed = os.environ.get("AWS_LAMBDA_FUNCTION_NAME")
        if deployed is None or not self.one_of_several:
            return deployed or self.options.name
        return f"{deployed}.{self.options.name}"  # two functions in one Lambda function do not share messages

    def origin(self, context: Any, request_id: str) -> Origin:
        """Return the caller, with the function to wake: the chosen one, or this one as invoked, alias included."""
        return Origin(
            keyspace=self.keyspace(),
            target=self.options.target
            or os.environ.get("INCUMBENT_TARGET")
            or getattr(context, "invoked_function_arn", None),
            request_id=request_id,
            log_stream=getattr(context, "log_stream_name", None),
        )

    def ends(self, context: Any) -> Any:
        """Return when the invocation times out, on both clocks; ``None`` if the context does not say."""
        remaining = getattr(context, "get_remaining_time_in_millis", None)
        if not callable(remaining):
            return None
        time_left_ms, stop_before_ms = remaining(), self.options.settings.stop_before_ms
        if stop_before_ms is not None and time_left_ms <= stop_before_ms and not self.one_of_several:
            raise ConfigurationError(
                f"{self.options.name}: the invocation has {time_left_ms:,} ms and stop_before_ms is "
                f"{stop_before_ms:,}: every run would be told to stop as it begins; raise the function's timeout"
            )
        return self.options.clock.now().plus(time_left_ms)

    def check_order(self, caller: FrameType | None) -> None:
        """Refuse Powertools' decorators above this one that must not see a resume event or store an answer.

        They are applied after this one, so they show only when an event comes through them: the first call checks.
        """
        if self._order_checked:
            return
        while caller is not None and (module := str(caller.f_globals.get("__name__"))).startswith(_POWERTOOLS):
            for utility, why in _NOT_ABOVE.items():
                if module.startswith(f"{_POWERTOOLS}utilities.{utility}"):
                    raise ConfigurationError(f"{self.options.name}: put @leased above {why}")
            caller = caller.f_back
        self._order_checked = True

    # --- runner, provider and waker

    def runner(self) -> Runner:
        """Make a runner on the provider in force."""
        options = self.options
        return Runner(
            self.provider(),
            options.settings,
            clock=options.clock,
            waker=self.waker(),
            observers=(
                *observe.from_env(os.environ),
                *self.metrics,
                *([options.observer] if options.observer else []),
            ),
            on_result=options.on_result,
            on_lost=options.on_lost,
            on_dead_letter=options.on_dead_letter,
        )

    def provider(self) -> LeaseProvider:
        """Return the provider: a test's, the given one, or the environment's. Made once, on the first event."""
        stand_in = STAND_IN.get()
        if stand_in is not None:
            return self.checked(resolve_lease_provider(stand_in))
        if flag(os.environ, "INCUMBENT_DISABLED"):
            warnings.warn("INCUMBENT_DISABLED is set: every invocation runs at once", RuntimeWarning, stacklevel=2)
            return NoopLeaseProvider()
        with self._making:  # with the memory provider, two threads with one each would both own every key
            if self._provider is None:
                given = self.options.provider
                self._provider = self.checked(providers.from_env() if given is None else resolve_lease_provider(given))
            return self._provider

    def checked(self, provider: LeaseProvider) -> LeaseProvider:
        """Refuse a provider that stores no messages where the options need a mailbox."""
        settings = self.options.settings
        stores = is_mailbox(provider)
        if stores or isinstance(provider, NoopLeaseProvider):
            return provider
        if settings.when_busy == "enqueue" or settings.deliver == "all":
            raise ConfigurationError(
                f"{self.options.name}: {type(provider).__name__} leases but stores no messages: choose "
                "when_busy='reject' or 'skip' (and deliver='one'), or a provider with a mailbox"
            )
        return provider

    def waker(self) -> Waker | None:
        """Return the waker in force."""
        if self.options.waker != "auto":
            return self.options.waker
        if self._auto_waker is None and os.environ.get("AWS_LAMBDA_FUNCTION_NAME"):
            self._auto_waker = LambdaWaker()
        return self._auto_waker


_MAX_NUMBER = 10**256  # a larger number is refused as key and as id

_JSON = (dict, list, str, int, float, bool, type(None))

_MARK = "__incumbent__"  # wraps() copies it, so other decorators do not hide it

_POWERTOOLS = "aws_lambda_powertools."
_NOT_ABOVE = {
    "idempotency": "@idempotent, which would store 'accepted' as the result and answer woken invocations with it",
    "parser": "@event_parser, which would refuse the resume events that wake this function",
    "validation": "@validator, which would refuse the resume events that wake this function",
    "data_classes": "@event_source: the mailbox stores the JSON event",
}

_CONTEXTS = ("lambda_context", "context")

# What an HTTP caller is told. The log has the details, which may name hosts, roles, tables and the event's own data.
_STATUS: Mapping[type[IncumbentError], tuple[int, str]] = {
    LeaseKeyMissing: (400, "the request has no key"),
    LeaseUnavailable: (503, "temporarily unavailable; retry"),
    MessageInvalid: (400, "the request cannot be stored as JSON"),
    MailboxFull: (429, "too many requests are waiting; retry later"),
    MessageTooLarge: (413, "the request is too large"),
}

_SETTINGS = frozenset(
    {
        "ttl_ms",
        "renew_every_ms",
        "when_busy",
        "deliver",
        "gather_ms",
        "drain_ms",
        "stop_before_ms",
        "max_hops",
        "policy",
    }
)


def _settings(**given: Any) -> Settings:
    """Make the settings from arguments, else from the environment, else from the defaults."""
    chosen = {name: value for name, value in given.items() if value is not None}
    read = []
    for name, variable in (("ttl_ms", "INCUMBENT_TTL_MS"), ("renew_every_ms", "INCUMBENT_RENEW_EVERY_MS")):
        text = os.environ.get(variable)
        if name not in chosen and text:
            try:
                chosen[name] = int(text)
            except ValueError as cause:
                raise ConfigurationError(f"{variable} is {text!r}: give whole milliseconds") from cause
            read.append(variable)
    chosen["policy"] = policy_in_force(given.get("policy"))
    try:
        return Settings(**chosen)
    except ConfigurationError as cause:
        if read:
            raise ConfigurationError(f"{cause} (from the environment: {', '.join(read)})") from cause
        raise


def _options(  # noqa: C901, PLR0912 - one check after another
    *,
    name: str,
    key: str | Callable[[Any], object] | None,
    key_jmespath: str | None,
    message_id: Callable[[Any], object] | None,
    message_id_jmespath: str | None,
    **others: Any,
) -> _Options:
    """Check a decorator's options."""
    if (key is None) == (key_jmespath is None):
        raise ConfigurationError(f"{name}: give key= or key_jmespath=, exactly one of them")
    if message_id is not None and message_id_jmespath is not None:
        raise ConfigurationError(f"{name}: give message_id= or message_id_jmespath=, not both")
    if others["keyspace"] is not None:
        check_keyspace(others["keyspace"])
    logger = others["logger"]
    if logger is not None and not isinstance(logger, powertools.KeyedLogger):
        raise ConfigurationError(f"{name}: logger is {logger!r}: give a Powertools Logger")
    if others["store"] is None:
        raise ConfigurationError(f"{name}: store is None: leave it out, or give a callable")
    if others["target"] is not None and (not isinstance(others["target"], str) or not others["target"]):
        raise ConfigurationError(f"{name}: target is {others['target']!r}: give a function's name or ARN")
    if others["provider"] is not None:
        check_backend(others["provider"])
        check_waits(others["provider"], others["settings"].ttl_ms)
    check_waker(others["waker"])
    headers = others["answer_headers"] or {}
    if not isinstance(headers, Mapping) or not all(isinstance(each, str) for pair in headers.items() for each in pair):
        raise ConfigurationError(f"{name}: answer_headers is {shown(headers)}: give a mapping of text to text")
    others["answer_headers"] = {header.lower(): value for header, value in headers.items()}
    for hook in ("unless", "store", "on_busy", "on_result", "on_lost", "on_dead_letter", "observer"):
        if others[hook] is not None and not callable(others[hook]):
            raise ConfigurationError(f"{name}: {hook} is {others[hook]!r}, which is not callable")
    for said, chosen in {**others, "key": key, "message_id": message_id}.items():
        if results.is_async(chosen):
            raise ConfigurationError(f"{name}: {said} is async and would not be awaited: give a plain function")
    if key_jmespath is not None:
        choose_key, key_said = _expression(name, key_jmespath), f"key_jmespath {key_jmespath!r}"
    elif callable(key):
        choose_key, key_said = key, f"key {_name_of(key)}"
    else:
        if not isinstance(key, str) or not key:
            raise ConfigurationError(f"{name}: key is {key!r}: give non-empty text or a callable")
        choose_key, key_said = functools.partial(_constant, key), f"key {key!r}"
    choose_id = _expression(name, message_id_jmespath) if message_id_jmespath is not None else message_id
    if choose_id is not None and not callable(choose_id):
        raise ConfigurationError(f"{name}: message_id is {choose_id!r}: give a callable")
    id_said = "message_id" if message_id_jmespath is None else f"message_id_jmespath {message_id_jmespath!r}"
    return _Options(name=name, choose_key=choose_key, key_said=key_said, choose_id=choose_id, id_said=id_said, **others)


def _constant(value: str, event: Any) -> str:
    del event
    return value


def _expression(name: str, expression: str) -> Choose:
    """Compile an expression, with Powertools' functions."""
    import jmespath
    from aws_lambda_powertools.utilities.jmespath_utils import PowertoolsFunctions
    from jmespath.exceptions import JMESPathError

    try:
        compiled = jmespath.compile(expression)
    except (JMESPathError, TypeError, AttributeError) as cause:
        raise ConfigurationError(f"{name}: {expression!r} is not a JMESPath expression: {cause}") from cause
    functions = PowertoolsFunctions()
    unknown = sorted(set(_functions_of(compiled.parsed)) - set(functions.FUNCTION_TABLE))
    if unknown:
        raise ConfigurationError(
            f"{name}: {expression!r} calls {', '.join(unknown)}, which is not a JMESPath function (Powertools adds "
            "powertools_json, powertools_base64 and powertools_base64_gzip)"
        )
    options = jmespath.Options(custom_functions=functions)

    def choose(event: Any) -> object:
        return compiled.search(event, options=options)

    return choose


def _functions_of(node: Any) -> Iterator[str]:
    """Yield the names of the functions that an expression calls, from jmespath's parse tree."""
    if isinstance(node, dict):
        if node["type"] == "function_expression":
            yield node["value"]
        for child in node["children"]:
            yield from _functions_of(child)


def _refuse(handler: object, decorator: str) -> None:
    if not callable(handler) or not inspect.isfunction(inspect.unwrap(handler)):
        raise ConfigurationError(f"@{decorator} decorates functions, not {handler!r}")
    if next(iter(inspect.signature(handler).parameters), "") in ("self", "cls"):
        raise ConfigurationError(f"@{decorator} decorates functions, and {_name_of(handler)} is a method")
    if hasattr(handler, _MARK):
        raise ConfigurationError(f"@{decorator}: {_name_of(handler)} is leased already and would wait for itself")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise ConfigurationError(
            f"@{decorator}: {_name_of(handler)} is a generator, whose work would begin after the lease was settled"
        )


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    known = set(inspect.signature(leased).parameters) - {"waker"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise ConfigurationError(
            f"leased_function has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}"
        )


def _takes_lease(handler: Callable[..., Any], name: str) -> bool:
    """Return whether the handler gets its lease. Refuse one that needs it behind a decorator that does not pass it."""
    taken = inspect.signature(handler).parameters.get("lease")
    if taken is None and not _accepts_lease(handler, follow_wrapped=True):
        return False
    passed = all(_passes_lease(layer) for layer in _layers(handler))
    if not passed and taken is not None and taken.default is taken.empty:
        raise ConfigurationError(
            f"{name} takes lease=, but a decorator between it and @leased does not pass it on: leave the argument out "
            "and call current_lease()"
        )
    return passed


def _layers(handler: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield the decorators around a handler, as far as they set ``__wrapped__``."""
    while hasattr(handler, "__wrapped__"):
        yield handler
        handler = handler.__wrapped__


def _passes_lease(layer: Callable[..., Any]) -> bool:
    """Return whether a wrapper takes ``lease``. Powertools' factory passes everything to its own decorator."""
    if not _accepts_lease(layer, follow_wrapped=False):
        return False
    if getattr(layer, "__globals__", {}).get("__name__") != f"{_POWERTOOLS}middleware_factory.factory":
        return True
    return _accepts_lease(inspect.getclosurevars(layer).nonlocals["decorator"], follow_wrapped=False)


def _accepts_lease(function: Callable[..., Any], *, follow_wrapped: bool) -> bool:
    parameters = inspect.signature(function, follow_wrapped=follow_wrapped).parameters
    return "lease" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _name_of(handler: object) -> str:
    module, name = getattr(handler, "__module__", ""), getattr(handler, "__qualname__", repr(handler))
    return f"{module}.{name}".replace("/", ".")


def _as_text(value: object) -> object:
    """Return a whole number as its digits, any text (an enum's too) as plain text, and other values unchanged."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MAX_NUMBER:
        return int.__repr__(value)
    return value
