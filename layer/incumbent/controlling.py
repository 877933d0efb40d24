"""Control of a key from outside of a run: see it, stop its run, hold it, cancel a message, wait for a result."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Literal, TypeVar

from incumbent.addresses import Address, Reporter, address_of, auto_waker, function_name, mailbox_of, refuse_disabled
from incumbent.backends import is_archive, is_control
from incumbent.clock import SYSTEM_CLOCK
from incumbent.contract import Archive, Control, Mailbox
from incumbent.errors import ConfigurationError, LeaseUnavailable
from incumbent.keyspaces import check_keyspace, is_in_keyspace
from incumbent.policies import note_policy, policy_in_force
from incumbent.reporting import describe
from incumbent.stand_in import STAND_IN, clock_in_force
from incumbent.validation import MAX_LIMIT, MAX_TTL_MS, check_limit, check_ms, fit_message_id
from incumbent.values import KeyStatus, Policy, Status
from incumbent.wakers import Wake, Waker, can_delay, check_waker, send_wake

T = TypeVar("T")


def status(
    key: str,
    message_id: str,
    *,
    target: str | None = None,
    keyspace: str | None = None,
    provider: object | None = None,
    policy: Policy | None = None,
) -> Status:
    """Return what is known of a message: its state, attempt, times, result and note, and the run that has it.

    The state is ``"running"`` only while the owner that was given the message holds its lease; after that the message
    is waiting. What has left is remembered for the policy's window, and only the last 256 of a key (M5: once per id);
    then its state is ``"unknown"``. Sends one request. Raises ``ConfigurationError`` and ``LeaseUnavailable``.
    """
    chosen_policy = policy_in_force(policy)
    at = address_of("status of", key, target=target, keyspace=keyspace, provider=provider)
    note_policy(chosen_policy, keyspace=at.keyspace, provider=STAND_IN.provider or provider)
    return _archive(at.mailbox).find(at.full_key, fit_message_id(message_id), policy=chosen_policy)


def wait(
    key: str,
    message_id: str,
    *,
    timeout_ms: int,
    target: str | None = None,
    keyspace: str | None = None,
    provider: object | None = None,
    policy: Policy | None = None,
) -> Status:
    """Wait until a message has left its mailbox, at most ``timeout_ms`` milliseconds (a day), and return its status.

    Its state says whether it was handled, stopped, cancelled or superseded, or is dead; ``"waiting"`` and ``"running"``
    mean that the time was over first. ``"unknown"``, for a message that was never stored or is forgotten, is returned
    at once. ``result`` is what its run returned, if the policy keeps results (M17). Looks with growing pauses, from 50
    ms to a second, each time with one request.

    Raises ``ConfigurationError``, and ``LeaseUnavailable`` if the store does not answer when the time is over.
    """
    from incumbent.retry import growing_pauses  # here, as few processes wait

    check_ms("timeout_ms", timeout_ms, 0, MAX_TTL_MS, key)
    chosen_policy = policy_in_force(policy)
    at = address_of("wait for a message of", key, target=target, keyspace=keyspace, provider=provider)
    note_policy(chosen_policy, keyspace=at.keyspace, provider=STAND_IN.provider or provider)
    archive, clock, fitted = _archive(at.mailbox), clock_in_force(SYSTEM_CLOCK), fit_message_id(message_id)
    until = clock.now().plus(timeout_ms)
    pauses = growing_pauses()
    while True:
        failed: LeaseUnavailable | None = None
        try:
            found = archive.find(at.full_key, fitted, policy=chosen_policy)
            if found.state not in ("waiting", "running"):
                return found
        except LeaseUnavailable as error:
            failed = error
        left_ms = clock.now().until(until)
        if left_ms <= 0:
            if failed is not None:
                raise failed
            return found
        clock.sleep_ms(min(next(pauses), left_ms))


def stop(
    key: str,
    *,
    fence: int | None = None,
    reason: str | None = None,
    target: str | None = None,
    keyspace: str | None = None,
    provider: object | None = None,
) -> int | None:
    """Ask the run that owns the key now to stop, or only that of ``fence`` (M16). Return the fence that was marked.

    ``None`` means that no such run is live. The run sees it as ``lease.stop`` with its next renewal, or sooner with
    ``watch_ms``; the next run does not inherit it. While a key is handed over (after `send`, or along a chain), its
    owner is a ticket, which runs nothing: to end a message that has not begun, `cancel` it. ``reason`` is text of at
    most 1,024 bytes; the first one stands. Sends one request. Does not guarantee that the run notices before it ends.

    Raises ``ConfigurationError`` and ``LeaseUnavailable`` (it may have worked; without ``fence``, another call stops
    whichever run is live by then).
    """
    refuse_disabled("stop of", key, "no run would notice")
    at = address_of("stop of", key, target=target, keyspace=keyspace, provider=provider)
    marked = _carry_out(at, lambda control: control.stop(at.full_key, fence=fence, reason=reason))
    Reporter(at).tell("stop_sent", fence=marked, outcome="marked" if marked is not None else "no run", error=reason)
    return marked


def hold(
    key: str,
    *,
    reason: str | None = None,
    for_ms: int | None = None,
    waker: Waker | Literal["auto"] | None = "auto",
    target: str | None = None,
    keyspace: str | None = None,
    provider: object | None = None,
) -> None:
    """Let no run of the key begin for ``for_ms`` milliseconds (at most 14 days), or until `resume` (M15).

    Messages are stored meanwhile. A run that goes on is not disturbed: `stop` it too if it should end. A hold is never
    shortened but by `resume`. ``reason`` is text of at most 1,024 bytes, for `show`.

    Sends one request. With ``for_ms`` and a ``waker`` that can delay, it sends one more: if the key has an owner or
    messages, it asks for a wake at the end of the hold, of ``target``, the function that is recorded with the key, or
    ``INCUMBENT_TARGET``. Otherwise the next message or the sweeper begins the next run then.

    Raises ``ConfigurationError`` and ``LeaseUnavailable`` (then call again).
    """
    refuse_disabled("hold of", key, "its runs begin all the same")
    check_waker(waker)
    at = address_of("hold of", key, target=target, keyspace=keyspace, provider=provider)
    _carry_out(at, lambda control: control.hold(at.full_key, for_ms=for_ms, reason=reason))
    reporter = Reporter(at)
    reporter.tell("held", ms=for_ms, error=reason)
    chosen = auto_waker() if waker == "auto" else waker
    if for_ms is not None and chosen is not None and can_delay(chosen):
        try:
            wake_after_hold(_control(at.mailbox), at.full_key, chosen, target=target, default=at.target)
        except Exception as error:  # noqa: BLE001 - a user's waker may raise anything, and the key is held already
            reporter.tell("wake_failed", error=describe(error))


def resume(
    key: str,
    *,
    waker: Waker | Literal["auto"] | None = "auto",
    target: str | None = None,
    keyspace: str | None = None,
    provider: object | None = None,
) -> bool:
    """End a hold (M15), and wake the key's function if a message is due. Return whether the key was held.

    Wakes ``target``, else the function that is recorded with the key, else ``INCUMBENT_TARGET``; ``waker`` as in
    `send`. If the wake fails, or no function is known, the next message or the sweeper begins the next run. Sends two
    requests to the store at most.

    Raises ``ConfigurationError`` and ``LeaseUnavailable`` (then call again).
    """
    refuse_disabled("resume of", key, "nothing was held")
    check_waker(waker)
    at = address_of("resume of", key, target=target, keyspace=keyspace, provider=provider)
    held = _carry_out(at, lambda control: control.resume(at.full_key))
    reporter = Reporter(at)
    reporter.tell("resumed", outcome="held" if held else "not held")
    chosen = auto_waker() if waker == "auto" else waker
    if chosen is not None:
        try:
            wake_if_due(_control(at.mailbox), at.full_key, chosen, target=target, default=at.target)
        except Exception as error:  # noqa: BLE001 - a user's waker may raise anything, and the hold is over already
            reporter.tell("wake_failed", error=describe(error))
    return held


def cancel(
    key: str,
    message_id: str,
    *,
    target: str | None = None,
    keyspace: str | None = None,
    provider: object | None = None,
    policy: Policy | None = None,
) -> Status:
    """Remove a message that waits (M19), and return its status: ``"cancelled"`` if this or an earlier call removed it.

    One that runs is not touched: its status names the owner and the fence, for `stop`. Sends one request. Raises
    ``ConfigurationError`` and ``LeaseUnavailable`` (then call again).
    """
    refuse_disabled("cancel of a message of", key, "its messages are not stored")
    chosen_policy = policy_in_force(policy)
    at = address_of("cancel of a message of", key, target=target, keyspace=keyspace, provider=provider)
    note_policy(chosen_policy, keyspace=at.keyspace, provider=STAND_IN.provider or provider)
    fitted = fit_message_id(message_id)
    found = _carry_out(at, lambda control: control.cancel(at.full_key, fitted, policy=chosen_policy))
    Reporter(at).tell("cancelled", message_id=fitted, fence=found.fence, outcome=found.state)
    return found


def show(
    key: str,
    *,
    events: bool = False,
    target: str | None = None,
    keyspace: str | None = None,
    provider: object | None = None,
) -> KeyStatus:
    """Return what is known of a key: its owner and fence, since when, holds, marks, and the messages that wait or run.

    ``events`` includes the events of the messages. Sends one request, with ``events`` maybe more. Raises
    ``ConfigurationError`` and ``LeaseUnavailable``.
    """
    at = address_of("show of", key, target=target, keyspace=keyspace, provider=provider)
    return _control(at.mailbox).show(at.full_key, events=events)


def keys(
    *,
    limit: int = 1_000,
    target: str | None = None,
    keyspace: str | None = None,
    provider: object | None = None,
) -> Iterator[KeyStatus]:
    """List the keys of a keyspace that have an owner or messages, or are held: ``limit`` at most, without events.

    The keyspace is ``keyspace``, else the name of ``target``; with neither, the keys of all keyspaces are listed. On
    Redis this looks through all names of the store. A key whose lease a caller took by ``acquire_lease`` and
    that stores no message may be missing.

    Raises ``ConfigurationError`` and ``LeaseUnavailable``, and after the last ``StoredFormatUnknown`` (M12) or
    ``ListIncomplete``, for what is missing.
    """
    check_limit(limit)
    space = function_name(target) if keyspace is None else check_keyspace(keyspace)
    control = _control(mailbox_of(provider))
    found = control.keys(MAX_LIMIT if space else limit)
    return islice((each for each in found if is_in_keyspace(each.key, space)), limit)


def wake_if_due(
    control: Control, full_key: str, waker: Waker, *, target: str | None = None, default: str | None = None
) -> str | None:
    """Wake a key's function if the key is free, not held, and has a due message. Return which function was woken.

    ``target`` goes before the function that is recorded with the key, and ``default`` comes after it. Raises what the
    waker raises, and ``ConfigurationError`` if no function is known.
    """
    found = control.show(full_key)
    now_ms = clock_in_force(SYSTEM_CLOCK).now().wall_ms
    not_before_ms = found.held_until_ms or found.quiet_until_ms  # by the store's clock, still to come
    due = any(message.due_at_ms <= now_ms for message in found.waiting)
    if found.owner is not None or not_before_ms is not None or not due:
        return None
    wake = Wake(key=full_key, ticket=None, target=target or found.target or default)
    if wake.target is None:
        raise ConfigurationError(f"no target is known for key {full_key!r}: name the function to wake", key=full_key)
    send_wake(waker, wake)
    return wake.target


def wake_after_hold(
    control: Control, full_key: str, waker: Waker, *, target: str | None = None, default: str | None = None
) -> None:
    """Ask for the wake of a held key at the end of its hold, if it has an owner or messages, and a known function.

    ``waker`` can delay. Raises what it raises.
    """
    found = control.show(full_key)
    name = target or found.target or default
    if name is not None and found.held_until_ms and (found.owner or found.waiting):
        now_ms = clock_in_force(SYSTEM_CLOCK).now().wall_ms
        send_wake(waker, Wake(key=full_key, ticket=None, target=name, after_ms=max(1, found.held_until_ms - now_ms)))


def _carry_out(at: Address, call: Callable[[Control], T]) -> T:
    """Make a call on the store, and report that it did not answer."""
    control = _control(at.mailbox)
    try:
        return call(control)
    except LeaseUnavailable as error:
        Reporter(at).tell("store_error", error=describe(error))
        raise


def _control(backend: Mailbox) -> Control:
    control: Any = backend
    if not is_control(control):
        raise ConfigurationError(f"{type(backend).__name__} cannot look at keys, or hold or stop them")
    return control


def _archive(backend: Mailbox) -> Archive:
    archive: Any = backend
    if not is_archive(archive):
        raise ConfigurationError(f"{type(backend).__name__} cannot look up messages")
    return archive
