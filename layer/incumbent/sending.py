"""``send`` stores a message for a key from anywhere and wakes its function; ``status`` returns a message's state."""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from incumbent import observe, powertools, providers, results
from incumbent.clock import SYSTEM_CLOCK
from incumbent.contract import (
    LeaseProvider,
    Mailbox,
    is_archive,
    is_lease_provider,
    is_mailbox,
    resolve_lease_provider,
)
from incumbent.errors import ConfigurationError, LeaseUnavailable, MailboxFull, MessageInvalid, MessageTooLarge
from incumbent.keys import check_keyspace, full_key
from incumbent.owners import new_ticket, random_name
from incumbent.policies import note_policy, policy_in_force
from incumbent.reporting import describe
from incumbent.sources import stored_form
from incumbent.stand_in import STAND_IN
from incumbent.validation import fit_message_id, flag
from incumbent.values import Claimed, Duplicate, Message, MessageState, Origin, Policy
from incumbent.wakers import LambdaWaker, Wake, Waker, check_waker, send_wake

_TICKET_TTL_MS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The message is stored. ``state`` is its present state; ``woken`` is whether this call woke the key's function."""

    message_id: str
    state: MessageState
    woken: bool


def send(
    key: str,
    event: Any,
    *,
    message_id: str | None = None,
    target: str | None = None,
    keyspace: str | None = None,
    provider: object | None = None,
    waker: Waker | Literal["auto"] | None = "auto",
    policy: Policy | None = None,
    ttl_ms: int = _TICKET_TTL_MS,
    store: Callable[[Any], Any] = stored_form,
) -> Sent:
    """Store a message for a key and, if the key is free, wake its function. Sends two requests at most.

    ``target`` is the function's name or ARN, with its alias (``INCUMBENT_TARGET``). Its name is the keyspace unless
    ``keyspace`` is given; the keyspace must be the one of the function's ``@leased``. ``message_id`` makes a repeated
    send harmless; the default is random. A key or an id that is too long for a store is digested, as by ``leased``;
    pass `status` the whole one. ``waker`` wakes the target: ``"auto"`` is `LambdaWaker`; ``None`` wakes nothing, so the
    message waits for the next one of its key or the sweeper. ``ttl_ms`` is how long the key waits for the woken
    function, milliseconds. ``store`` makes the stored value from the event, as in ``leased``; the default leaves out a
    request's credentials.

    Raises ``MailboxFull``, ``MessageTooLarge``, ``MessageInvalid``, ``ConfigurationError`` and ``LeaseUnavailable``
    (then send again with the same ``message_id``). If the wake fails, the message is stored nevertheless (``woken`` is
    ``False``), and the next message or the sweeper finds it.
    """
    if STAND_IN.get() is None and flag(os.environ, "INCUMBENT_DISABLED"):
        raise ConfigurationError(
            f"send to key {key!r}: INCUMBENT_DISABLED is set, so no function would run the message; unset it", key=key
        )
    check_waker(waker)
    chosen_policy = policy_in_force(policy)
    mailbox, name = _mailbox(provider), _function(target)
    space = _keyspace(key, keyspace, name)
    full = full_key(space, key)
    note_policy(chosen_policy, keyspace=space, provider=STAND_IN.get() or provider)
    given = random_name() if message_id is None else message_id
    stored = store(event)
    results.refuse_unfinished(stored, f"send to key {key!r}: store")
    message = Message(id=fit_message_id(given), event=stored)
    ticket = new_ticket()
    origin = Origin(keyspace=space, target=name)
    observers = (*observe.from_env(os.environ), *powertools.from_env(os.environ))

    def told(fact: observe.FactName, **said: Any) -> None:
        now_ms = SYSTEM_CLOCK.now().wall_ms
        more: Any = {"keyspace": origin.keyspace, "message_id": message.id, **said}
        observe.tell(observers, observe.Fact(fact=fact, key=full, t_ms=now_ms, **more))

    try:
        answer = mailbox.claim(full, ticket, ttl_ms, message, as_ticket=True, origin=origin, policy=chosen_policy)
    except LeaseUnavailable as error:
        told("store_error", error=describe(error))
        raise
    except (MailboxFull, MessageInvalid, MessageTooLarge) as error:
        told("refused", error=describe(error))
        raise
    state: MessageState = answer.state if isinstance(answer, Duplicate) else "waiting"
    told("sent", outcome=state)
    chosen = _lambda_waker() if waker == "auto" else waker
    woken = isinstance(answer, Claimed) and _wake(mailbox, chosen, Wake(key=full, ticket=ticket, target=name), ttl_ms)
    return Sent(message_id=given, state=state, woken=woken)


def _wake(mailbox: Mailbox, waker: Waker | None, wake: Wake, ttl_ms: int) -> bool:
    """Wake the key's function and return whether that worked. If not, free the key for the next call."""
    try:
        if waker is not None:
            send_wake(waker, wake)
            return True
    except Exception:  # noqa: BLE001 - a user's waker may raise anything, and the message is stored already
        observe.LOG.exception("the wake for key %r failed: its message waits for the next one or the sweeper", wake.key)
    try:
        if is_lease_provider(mailbox) and wake.ticket is not None:
            mailbox.release_lease(wake.key, wake.ticket)
    except LeaseUnavailable:  # the ticket's lease ends by itself
        observe.LOG.exception("could not release the ticket of key %r: it expires in %s ms", wake.key, ttl_ms)
    return False


def status(
    key: str,
    message_id: str,
    *,
    target: str | None = None,
    keyspace: str | None = None,
    provider: object | None = None,
    policy: Policy | None = None,
) -> MessageState | Literal["unknown"]:
    """Return the state of a message: ``"waiting"``, ``"running"``, ``"handled"``, ``"dead"`` or ``"unknown"``.

    The state is ``"running"`` only while the owner that was given the message holds its lease; after that the message
    is waiting. Handled and dead ids are remembered for the policy's window, and only the last 256 of a key (M5: once
    per id). Sends one request. Raises ``ConfigurationError`` and ``LeaseUnavailable``.
    """
    backend = _mailbox(provider)
    if not is_archive(backend):
        raise ConfigurationError(f"{type(backend).__name__} cannot look up messages")
    chosen_policy = policy_in_force(policy)
    space = _keyspace(key, keyspace, _function(target))
    full = full_key(space, key)
    note_policy(chosen_policy, keyspace=space, provider=STAND_IN.get() or provider)
    return backend.find(full, fit_message_id(message_id), policy=chosen_policy) or "unknown"


def _mailbox(provider: object | None) -> Mailbox:
    chosen = STAND_IN.get() or provider
    backend = _from_env() if chosen is None else resolve_lease_provider(chosen)
    if not is_mailbox(backend):
        raise ConfigurationError(f"{type(backend).__name__} stores no messages: give a provider with a mailbox")
    return backend


@functools.cache
def _from_env() -> LeaseProvider:
    return providers.from_env()


@functools.cache
def _lambda_waker() -> LambdaWaker:
    return LambdaWaker()


def _function(target: str | None) -> str | None:
    return target or os.environ.get("INCUMBENT_TARGET") or None


def _name(target: str | None) -> str:
    """Return the name in a target: ``name``, ``account:function:name`` or an ARN, each with or without an alias."""
    match (target or "").split(":"):
        case ["arn", _, "lambda", _, _, "function", name, *_] | [_, "function", name, *_]:
            return name
        case [name, *_]:
            return name
        case _:
            return ""


def _keyspace(key: str, keyspace: str | None, target: str | None) -> str:
    space = _name(target) if keyspace is None else check_keyspace(keyspace)
    if keyspace is None and not space:
        raise ConfigurationError(
            f"send to key {key!r}: give target= (or INCUMBENT_TARGET), the function to wake, or keyspace=", key=key
        )
    return space
