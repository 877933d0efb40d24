"""The decorators ``@leased`` and ``leased_function``: exactly one invocation of an event's key runs at a time."""

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, Unpack, cast

from incumbent import async_handlers
from incumbent.endpoint import Endpoint
from incumbent.lease import Lease
from incumbent.options import CheckedOptions, Options, make_settings, name_of
from incumbent.settings import Settings
from incumbent.signatures import MARK, MessageFunction, check_function, named_if_not_passed_on, takes_lease
from incumbent.values import Message
from incumbent.wakers import Wake

F = TypeVar("F", bound=Callable[..., Any])


def leased(**options: Unpack[Options]) -> Callable[[F], F]:
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
        when_busy: ``"enqueue"`` (the default) stores the event for the owner; ``"reject"`` refuses it, so that its
            source retries; ``"skip"`` answers success and drops it. ``"wait"`` stores it and answers its own result, if
            that comes within ``wait_ms``; it needs a policy with ``result_bytes``. ``"interrupt"`` stores it and marks
            the running tenure, whose ``lease.stop`` becomes ``ASKED``.
        wait_ms: With ``"wait"``: how long this invocation waits for the result of its message, milliseconds, and no
            longer than its own time allows. Afterwards it answers as with ``"enqueue"``.
        deliver: ``"one"`` message per run (the default), or ``"all"`` that are due.
        debounce_ms: With ``"all"``: for how long no message must have come before a run begins, milliseconds, on a key
            without an owner. Default: 0. With a waker that can delay, the invocations return at once and the key's
            function is woken when it is quiet; else the first invocation waits, and renews meanwhile.
        debounce_max_ms: How long after its first message a burst may last, milliseconds. Default: four times
            ``debounce_ms``.
        min_gap_ms: How far apart two runs of a key begin at least, milliseconds: the key is held meanwhile. Default: 0.
        drain_ms: How long this invocation may run messages other than its own, milliseconds. Default: not at all when
            a caller waits for the answer (HTTP), else as long as there is time for another.
        stop_before_ms: How many milliseconds before the invocation's end ``lease.stop`` becomes ``DEADLINE``. Default:
            5,000, but at most a quarter of the time that the invocation has.
        watch_ms: How often the heartbeat looks for a stop between renewals, milliseconds, by one cheap read; it must be
            less than ``renew_every_ms``. Default: only each renewal tells.
        cancel_on_stop: For ``async def`` handlers: a stop cancels the handler at its next ``await``. If it lets the
            ``CancelledError`` out, its messages leave as ``"stopped"``, and their source is answered success, but a
            state machine ``DuplicateMessage``.
        max_run_ms: How long a run is renewed, milliseconds, not less than ``ttl_ms``. A run that takes longer loses its
            lease when that ends, ``ttl_ms`` later at most, and counts as one that crashed. Default: no limit.
        max_hops: How many invocations may wake one another in a row. Default: 100.
        policy: How messages are kept: limits, window, attempts and pauses (``INCUMBENT_POLICY``, a JSON object of its
            fields). `send` and `status` need the same one: set the variable for all functions of a keyspace.
        waker: Starts the next invocation. ``"auto"`` (the default): `LambdaWaker` inside Lambda, ``None`` elsewhere;
            with ``INCUMBENT_WAKE_QUEUE_URL``, `SqsWaker` for wakes with a delay besides, anywhere.
            ``None`` wakes nothing: this invocation runs the waiting messages itself.
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
        clock: The source of time. Default: the system's clocks.

    The decorator checks its options and raises ``ConfigurationError``, and ``TypeError`` for an unknown one. The
    decorated handler raises ``LeaseKeyMissing`` for an event without a key, ``LeaseUnavailable`` when the store cannot
    be reached, ``MailboxFull``, ``MessageTooLarge`` and ``MessageInvalid`` for an event that is not stored,
    ``LeaseBusy`` under ``"reject"``, ``LeaseLost``, and ``ResultRefused`` for a result that is not JSON, larger than 6
    MB, or unfinished work.
    HTTP callers get the status 400, 503, 429, 413, 400 or 409 instead of the first six.
    """
    settings = make_settings("leased", options)

    def decorate(handler: F) -> F:
        check_function(handler, "leased")
        name = name_of(handler)
        gives_lease = takes_lease(handler)
        run = _synchronous(handler, name, settings)
        is_async = async_handlers.is_async(handler)
        if gives_lease:
            run = named_if_not_passed_on(handler, run)
        endpoint = Endpoint(CheckedOptions(name, options, settings))

        @functools.wraps(handler)
        def leased_handler(event: Any, context: Any = None, **more: Any) -> Any:
            if is_async:
                async_handlers.refuse_to_nest(name)

            def work(message: Message, lease: Lease) -> Any:
                if gives_lease:
                    return run(lease, message.event, context, **more, lease=lease)
                return run(lease, message.event, context, **more)

            return endpoint.handle(event, context, work)

        setattr(leased_handler, MARK, endpoint)
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
    *, argument: str | None = None, load: Callable[[Any], Any] | None = None, **options: Unpack[Options]
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
    options.setdefault("waker", None)
    settings = make_settings("leased_function", options)

    def decorate(function: Callable[..., Any]) -> LeasedFunction:
        check_function(function, "leased_function")
        name = name_of(function)
        called = MessageFunction(function, argument=argument, load=load)
        run = _synchronous(function, name, settings)
        is_async = async_handlers.is_async(function)
        if called.gives_lease:
            run = named_if_not_passed_on(function, run)
        endpoint = Endpoint(CheckedOptions(name, options, settings), one_of_several=True)

        @functools.wraps(function)
        def leased_call(*args: Any, **kwargs: Any) -> Any:
            if is_async:
                async_handlers.refuse_to_nest(name)
            arguments = called.arguments(args, kwargs)
            event = arguments[called.argument]
            others = called.contexts(arguments)  # another message does not get this call's other arguments

            def work(message: Message, lease: Lease) -> Any:
                return called.call(run, others, called.loaded(message.event), lease)

            def own_work(message: Message, lease: Lease) -> Any:
                own = event if message.event is event else called.loaded(message.event)
                return called.call(run, arguments, own, lease)

            return endpoint.handle_message(
                called.raw(event),
                called.context(arguments),
                work,
                own_work=own_work,
                own_event=event,
                hands_over=endpoint.waker() is not None,
            )

        def resume(event: Any, context: Any = None) -> bool:
            """Continue a key of this function if ``event`` is its resume event. Return whether it was one."""
            wake = Wake.from_event(event)
            if wake is None or not endpoint.has(wake):
                return False
            given = called.contexts_of(context)
            endpoint.handle(
                event, context, lambda message, lease: called.call(run, given, called.loaded(message.event), lease)
            )
            return True

        leased_call.resume = resume  # type: ignore[attr-defined]
        setattr(leased_call, MARK, endpoint)
        return cast("LeasedFunction", leased_call)

    return decorate


def _synchronous(function: Callable[..., Any], name: str, settings: Settings) -> Callable[..., Any]:
    if settings.cancel_on_stop:
        async_handlers.check_cancels(function, name)
    return async_handlers.synchronous(function, cancel_on_stop=settings.cancel_on_stop)
