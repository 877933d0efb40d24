"""``send`` stores a message for a key from anywhere and wakes its function."""

from collections.abc import Callable
from typing import Any, Literal

from incumbent import observe, results
from incumbent.addresses import LeasingMailbox, Reporter, address_of, auto_waker, refuse_disabled
from incumbent.errors import LeaseUnavailable, MailboxFull, MessageInvalid, MessageTooLarge
from incumbent.frozen import dataclass, replace
from incumbent.owners import new_ticket, random_name
from incumbent.policies import note_policy, policy_in_force
from incumbent.reporting import describe
from incumbent.sources import stored_form
from incumbent.stand_in import STAND_IN
from incumbent.validation import fit_message_id
from incumbent.values import Claim, Claimed, Duplicate, Message, MessageState, Origin, Policy, Routed
from incumbent.wakers import Wake, Waker, can_delay, check_waker, send_wake

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
    after_ms: int = 0,
) -> Sent:
    """Store a message for a key and, if the key is free, wake its function. Sends two requests at most.

    ``target`` is the function's name or ARN, with its alias (``INCUMBENT_TARGET``). Its name is the keyspace unless
    ``keyspace`` is given; the keyspace must be the one of the function's ``@leased``. ``message_id`` makes a repeated
    send harmless; the default is random. A key or an id that is too long for a store is digested, as by ``leased``;
    pass `status` the whole one. ``waker`` wakes the target: ``"auto"`` is `LambdaWaker`, and `SqsWaker` for later wakes
    if ``INCUMBENT_WAKE_QUEUE_URL`` is set; ``None`` wakes nothing, so the message waits for the next one of its key or
    the sweeper. ``ttl_ms`` is how long the key waits for the woken function, milliseconds. ``store`` makes the stored
    value from the event, as in ``leased``; the default leaves out a request's credentials. ``after_ms`` is in how many
    milliseconds the message is due, at most 14 days (M14: later): a waker that can delay is asked to wake the target
    then; without one the sweeper does, within a minute.

    Raises ``MailboxFull``, ``MessageTooLarge``, ``MessageInvalid``, ``ConfigurationError`` and ``LeaseUnavailable``
    (then send again with the same ``message_id``). If the wake fails, the message is stored nevertheless (``woken`` is
    ``False``), and the next message or the sweeper finds it.
    """
    refuse_disabled("send to", key, "no function would run the message")
    check_waker(waker)
    chosen_policy = policy_in_force(policy)
    to = address_of("send to", key, target=target, keyspace=keyspace, provider=provider)
    note_policy(chosen_policy, keyspace=to.keyspace, provider=STAND_IN.provider or provider)
    given = random_name() if message_id is None else message_id
    stored = store(event)
    results.refuse_unfinished(stored, f"send to key {key!r}: store")
    message = Message(id=fit_message_id(given), event=stored)
    reporter, name = Reporter(to), to.target
    try:
        answer = to.mailbox.claim(
            to.full_key,
            new_ticket(),
            ttl_ms,
            message,
            as_ticket=True,
            origin=Origin(keyspace=to.keyspace, target=name),
            policy=chosen_policy,
            after_ms=after_ms,
        )
    except LeaseUnavailable as error:
        reporter.tell("store_error", message_id=message.id, error=describe(error))
        raise
    except (MailboxFull, MessageInvalid, MessageTooLarge) as error:
        reporter.tell("refused", message_id=message.id, error=describe(error))
        raise
    state: MessageState = answer.state if isinstance(answer, Duplicate) else "waiting"
    reporter.tell("sent", message_id=message.id, outcome=state)
    chosen = auto_waker() if waker == "auto" else waker
    wake = Wake(key=to.full_key, ticket=None, target=name, after_ms=_wake_in_ms(answer, after_ms))
    if isinstance(answer, Claimed):
        woken = _wake(to.mailbox, chosen, replace(wake, ticket=answer.owner), ttl_ms)
    else:
        woken = False
        if wake.after_ms and name is not None and chosen is not None and can_delay(chosen):
            _wake_later(chosen, wake, reporter)
    return Sent(message_id=given, state=state, woken=woken)


def _wake_in_ms(answer: Claim, after_ms: int) -> int:
    """Return in how many milliseconds the key is to be woken for what this call has stored; 0: no later wake.

    That is when a free key can be granted, if this call made the moment earlier. A message for later asks for its wake
    in any case: neither the owner of the key nor another message's wake cares for its moment.
    """
    if not isinstance(answer, Routed):
        return 0
    return after_ms if answer.due_in_ms is None else answer.due_in_ms


def _wake_later(waker: Waker, wake: Wake, reporter: Reporter) -> None:
    """Ask for a wake with a delay. A failure is reported and changes nothing else: the sweeper finds the key."""
    try:
        send_wake(waker, wake)
    except Exception as error:  # noqa: BLE001 - a user's waker may raise anything, and the message is stored already
        reporter.tell("wake_failed", target=wake.target, error=describe(error))


def _wake(mailbox: LeasingMailbox, waker: Waker | None, wake: Wake, ttl_ms: int) -> bool:
    """Wake the key's function and return whether that worked. If not, free the key for the next call."""
    try:
        if waker is not None:
            send_wake(waker, wake)
            return True
    except Exception:  # noqa: BLE001 - a user's waker may raise anything, and the message is stored already
        observe.LOG.exception("the wake for key %r failed: its message waits for the next one or the sweeper", wake.key)
    try:
        if wake.ticket is not None:
            mailbox.release_lease(wake.key, wake.ticket)
    except LeaseUnavailable:  # the ticket's lease ends by itself
        observe.LOG.exception("could not release the ticket of key %r: it expires in %s ms", wake.key, ttl_ms)
    return False
