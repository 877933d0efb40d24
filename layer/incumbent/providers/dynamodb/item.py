"""The stored format: how a key's state stands in items of the table, version 1 (M12).

Partition key ``pk`` is ``<prefix>#<key>``; a prefix holds no ``#``, so no two keys meet in one record (R10). By the
sort key ``sk`` there are five kinds of item::

    lease                the key's state, below
    body#<id>#<digest>   a message too large to stand inline, under the digest of its claim and its text (M5):
                         v, body, expires_on; of one that is too large for an item each part, as body#<id>#<digest>.<n>
    dead#<id>#<letter>   a message out of attempts, under a name that no other letter ever has:
                         v, id, body, attempts, error, stored, died, fence, rank, expires_on; ref in place of body,
                         where that is in parts
    ended#<fence>#<at>#<hash>  a page of traces that have left the lease item, under the tenure and time of the newest:
                         v, ended, expires_on
    result#<id>#<fence>  what a run returned, under the digest of its message's id: v, result, expires_on (M17)

Attributes of the lease item (times are epoch milliseconds, sets and lists are absent when empty)::

    v                            the format's version
    fence                        of the present or the last tenure
    lease                        of that tenure, absent when it was freed: holder; expires, which decides, never
                                 ``expires_on``; since; stop, the reason why it should stop, or true without one (M16);
                                 note, what its run noted last, as JSON (M18)
    left left_fence              how a tenure ended on purpose, "<how>:<owner>:<successor>", digests (R8), with ":<at>"
                                 if it freed the key: the last one if the key is free or ``left_fence`` is the fence,
                                 else an earlier one, which counts for nothing, and which a grant may remove
    mail                         messages, oldest first: id, body or ref, by, stored,
                                 and, where not false or zero, promised, attempts, due, given, error
    given head                   the same of mail[0], whose own count for nothing: they stand beside the list, since a
                                 claim counts the delivery of the head in the update that appends to the list. Both are
                                 absent if it was never delivered and is due; head is "<attempts>:<due>", if not "1:0"
    not_before                   "<quiet_until>:<held_until>:<reason>", zero where not set; absent where neither is, and
                                 it may remain when both are over (M15)
    resumed                      which call ended the last hold: evidence for a repeated resume or hold (R8)
    ended                        traces of the messages that left last, "<outcome><id><by><fence><at>" (R9), the numbers
                                 in base 64, and "k" behind it where an item holds the result, "x" where that was too
                                 large
    known tombs                  short digests: of the ids in mail and of those in ended that left for good (M5), with
                                 "=<digest>" beside one that two of them share; and of the claims in ended whose own
                                 message failed (M3). A message is stored at once only if its id and its claim are not
                                 among them, nor in the following
    past                         marks of the ids in pages that were handled, at least of the last 256: 64 texts, and in
                                 that of its bucket one character for each id, in any order; "." where there is none
    rare                         short digests of the other traces in pages, the oldest first, the last 256 of each
                                 kind: dead, and behind a "|" the claims of failed ones
    spent                        dead letters that were put back or purged, and whose items may still stand (R8):
                                 "<letter>", and "<letter>.<call>" by which call
    edits                        counts changes inside the mailbox that do not change the fence
    policy                       for what dies with its run (M6): "b" if a paused message blocks the later ones, and the
                                 pauses, separated by commas, or "d" for the usual ones
    keyspace target request_id log_stream      the last caller, and the function to wake (M8); request_id only
                                 where the owner's name does not begin with it
    orphan_shard orphan_since    the keys of the sparse index: the shard is there while messages are stored or a hold
                                 is, and since is the first moment at which messages can be orphans, but for a hold or
                                 a pause of the key. A renewal touches neither
    expires_on                   whole epoch seconds, there only while no owner and no message is: cleans up (R3), some
                                 time after a hold is over

A writer changes the attributes that it knows and leaves all others. A value that is only compared is stored as a
digest, since every write of the item costs as much as the whole item.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal

from incumbent.errors import StoredFormatUnknown
from incumbent.frozen import dataclass, replace
from incumbent.owners import request_of
from incumbent.providers.dynamodb.attributes import (
    VERSION,
    Item,
    Typed,
    Value,
    check_version,
    cut,
    elements,
    number,
    size_of,
    size_of_value,
    text,
    typed,
)
from incumbent.providers.dynamodb.bodies import KEPT_S, Reference
from incumbent.providers.dynamodb.names import BUCKETS, Digest, digest, digests, mark, owner_digest, short
from incumbent.providers.dynamodb.traces import MAX_FENCE, counted, in_order, rare_of, trace_of
from incumbent.rules import Ended, KeyState, Outcome, Stored, TenureEnd, kept_pauses
from incumbent.values import FOREVER_MS, Origin, Policy

INDEX = "orphans"

INLINE_BYTES = 2 * 1024  # a larger body goes into its own item
INLINE_BYTES_A_KEY = 8 * 1024
# A lease item takes no message with which it would be larger, however few there are (M7). What may still be added to it
# is less than what is left of 400 KiB: deliveries and errors of 1,100 messages, a trace of each, and the messages of
# callers who looked at the same moment (H59).
MAX_ITEM_BYTES = 160 * 1024
# So many messages always fit, whatever the policy (M7): a claim that has not seen the item adds to no more of them.
FEW = 100
AT_ONCE = 50  # and one that has seen it adds to no more than so many that came since
NEVER_MS = FOREVER_MS  # when a key without messages can be an orphan
IDLE_S = KEPT_S + 86_400  # a key without owner and messages: its target is known as long as its dead letters are kept

DESCRIBED = ("keyspace", "target", "request_id", "log_stream")  # who asked last

# What is read only when a call needs it, and of which type it is.
_SHAPES = (
    *(("known", "SS"), ("tombs", "SS"), ("spent", "SS"), ("rare", "S"), ("past", "L"), ("resumed", "S")),
    *(("orphan_shard", "S"), ("expires_on", "N")),
)

_NUMBERS = ("fence", "edits", "left_fence", "orphan_since")

# What this version knows of a message in ``mail``.
FIELDS = frozenset({"id", "body", "ref", "by", "promised", "stored", "attempts", "due", "given", "error"})

# Up to so many stored messages, so many bytes of each one's last error are kept.
_ERROR_BYTES = ((20, 2_048), (100, 128), (1_000_000, 32))
_ID_BYTES = 8  # of a message's short digest in ``ids``, and of what stands around the message
_BLOCKS, _USUAL, _USUAL_MS = "b", "d", (1_000, 10_000, 60_000, 300_000)
_LEFT: Mapping[str, Literal["released", "settled", "moved", "transferred"]] = {
    "r": "released",
    "s": "settled",
    "m": "moved",
    "t": "transferred",
}


def takes(item: Item, message: Stored) -> bool:
    """Return whether the lease item, as it was read, has room for one more message (M7: limits)."""
    return size_of(item) + size_of_value(typed(fields(message, head=False))) + _ID_BYTES <= MAX_ITEM_BYTES


# --- the lease item


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A lease item: the key's state for the rules, and the item as it was read. ``item`` is empty if none exists.

    A message has the same place in ``state.mail`` as in the stored list. ``state.dead`` is always empty: each dead
    letter has its own item. ``state.ended`` holds the item's own traces and, where its pages were read, ``paged`` too.
    """

    state: KeyState
    item: Item
    paged: frozenset[Ended] = frozenset()

    @property
    def exists(self) -> bool:
        """Whether the item exists."""
        return bool(self.item)

    def number(self, name: str) -> int:
        """Return an attribute that is a number; 0 if it is missing."""
        return number(self.item, name)

    def inline(self, traces: Iterable[Ended]) -> tuple[Ended, ...]:
        """Return those of the traces that stand in no page."""
        return tuple(trace for trace in traces if trace not in self.paged)

    def may_know(self, message_id: str, claim: str) -> bool:
        """Return whether the short digests show an id or a claim, so that a message is not stored at once."""
        one, other = short(message_id), short(claim)
        rare = text(self.item, "rare") or ""
        return (
            one in elements(self.item, "known")
            or other in elements(self.item, "tombs")
            or one in rare
            or other in rare
            or self._shows(message_id)
        )

    def may_have_paged(self, message_id: str, claim: str) -> bool:
        """Return whether the pages may hold a trace of an id, or of a claim whose own message failed."""
        return bool(self.past_kinds(message_id, claim))

    def past_kinds(self, message_id: str, claim: str) -> list[Outcome]:
        """Return of which kinds the pages may hold a trace of an id, or of a claim whose own message failed."""
        one, other = short(message_id), short(claim)
        rare = rare_of(text(self.item, "rare"))
        kinds = [kind for kind, known in rare.items() if (other if kind == "failed" else one) in known]
        return ["handled", *kinds] if self._shows(message_id) else kinds

    def _shows(self, message_id: str) -> bool:
        """Return whether the pages may hold a trace of an id that was handled."""
        bucket, char = mark(message_id)
        return "past" in self.item and char in self.item["past"]["L"][bucket]["S"]


NO_RECORD = Record(state=KeyState(), item={})


def decode(item: Item | None, *, key: str, names: Iterable[str] = (), pages: Iterable[str] = ()) -> Record:
    """Read a lease item. ``names`` are owners and ids that the caller knows: their digests become names again.

    ``pages`` are the traces of its pages, as they stand there. Raises ``StoredFormatUnknown`` for a version or a shape
    that this code does not know (M12).
    """
    if not item:
        return NO_RECORD
    check_version(item, key=key)
    try:
        known = digests(names)
        record = Record(state=_state(item, known), item=item)
        _check_shapes(item)
        paged = {each: trace_of(each, known) for each in pages}
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as cause:
        raise StoredFormatUnknown(
            f"the record of key {key!r} has a shape that version {VERSION} does not know ({cause!r}): another "
            "program wrote it. Nothing of it was changed but, by a renewal, the end of its lease; give this "
            "application its own key_prefix or table",
            key=key,
        ) from cause
    return _with_pages(record, paged) if paged else record


def _check_shapes(item: Item) -> None:
    """Read what a call reads only later, where an odd value would be an error of Python."""
    for name, kind in _SHAPES:
        if name in item:
            item[name][kind]
    if min(number(item, name) for name in _NUMBERS) < 0 or number(item, "fence") > MAX_FENCE:
        raise ValueError("a number of the record makes no sense")
    if "past" in item and len([each["S"] for each in item["past"]["L"]]) != BUCKETS:
        raise ValueError("past")


def _with_pages(record: Record, paged: Mapping[str, Ended]) -> Record:
    """Add the traces of pages. That a message died which waits now counts for nothing: its letter was put back."""
    state = record.state
    here, waiting = elements(record.item, "ended"), {digest(message.id) for message in state.mail}
    added = [
        trace
        for stored, trace in paged.items()
        if stored not in here and not (trace.outcome == "dead" and digest(trace.id) in waiting)
    ]
    ended = counted(in_order((*state.ended, *added)))
    return replace(record, state=replace(state, ended=ended), paged=frozenset(added))


def _state(item: Item, names: Mapping[str, str]) -> KeyState:
    mail = [_stored(each["M"], names) for each in item["mail"]["L"]] if "mail" in item else []
    quiet, held, reason = item["not_before"]["S"].split(":", 2) if "not_before" in item else ("0", "0", "")
    if mail:
        attempts, due_ms = head_of(item)
        mail[0] = replace(mail[0], attempts=attempts, due_ms=due_ms, delivered_fence=number(item, "given"))
    lease, fence = item["lease"]["M"] if "lease" in item else {}, number(item, "fence")
    owner = lease["holder"]["S"] if lease else None
    freed_ms = None if lease else _freed_ms(item)
    block, pauses_ms = _policy(item)
    return KeyState(
        owner=owner,
        expires_ms=number(lease, "expires") if freed_ms is None else freed_ms,
        since_ms=number(lease, "since") if freed_ms is None else freed_ms,
        fence=fence,
        mail=tuple(mail),
        ended=in_order(trace_of(each, names) for each in item["ended"]["SS"]) if "ended" in item else (),
        tenure_end=_left(item, names, fence) if owner is None or number(item, "left_fence") == fence else None,
        block=block,
        pauses_ms=pauses_ms,
        origin=None
        if not any(name in item for name in DESCRIBED)
        else Origin(
            keyspace=text(item, "keyspace") or "",
            target=text(item, "target"),
            request_id=text(item, "request_id"),
            log_stream=text(item, "log_stream"),
        ),
        quiet_until_ms=int(quiet),
        held_until_ms=int(held),
        held_reason=reason if int(held) else None,
        stop=lease["stop"].get("S", "") if "stop" in lease else None,
        note=text(lease, "note"),
    )


def _left(item: Item, names: Mapping[str, str], fence: int) -> TenureEnd | None:
    if "left" not in item:
        return None
    how, owner, successor = item["left"]["S"].split(":")[:3]
    return TenureEnd(
        how=_LEFT[how],
        owner=names.get(owner) or Digest(owner),
        successor=(names.get(successor) or Digest(successor)) if successor else None,
        fence=fence,
    )


def described(origin: Origin, owner: str) -> dict[str, str]:
    """Return the attributes of an origin: its request's id only if the owner's name does not begin with it."""
    named = {
        "keyspace": origin.keyspace,
        "target": origin.target,
        "request_id": None if origin.request_id == request_of(owner) else origin.request_id,
        "log_stream": origin.log_stream,
    }
    return {name: value for name, value in named.items() if value}


def head_of(item: Item) -> tuple[int, int]:
    """Return how often the head was delivered, and when it is due: the usual is once, and at once."""
    if "given" not in item:
        return 0, 0
    attempts, due_ms = item["head"]["S"].split(":") if "head" in item else ("1", "0")
    return int(attempts), int(due_ms)


def head_text(attempts: int, due_ms: int) -> str | None:
    """Return the same in the form of ``head``; ``None`` for the usual."""
    return None if (attempts, due_ms) == (1, 0) else f"{attempts}:{due_ms}"


def policy_text(policy: Policy) -> str:
    """Return what a key keeps of a policy, in the form of ``policy``."""
    return _policy_text(policy.on_error == "block", kept_pauses(policy))


def policy_text_of(state: KeyState) -> str | None:
    """Return the same of a state; ``None`` if nothing is noted."""
    return _policy_text(state.block, state.pauses_ms) or None


@lru_cache(maxsize=64)
def _policy_text(block: bool, pauses_ms: tuple[int, ...]) -> str:  # noqa: FBT001 - private
    pauses = _USUAL if pauses_ms == _USUAL_MS else ",".join(map(str, pauses_ms))
    return (_BLOCKS if block else "") + pauses


def _policy(item: Item) -> tuple[bool, tuple[int, ...]]:
    stored = text(item, "policy") or ""
    pauses = stored.removeprefix(_BLOCKS)
    return stored != pauses, _USUAL_MS if pauses == _USUAL else tuple(map(int, pauses.split(","))) if pauses else ()


def lease(owner: str, expires_ms: int, since_ms: int) -> Typed:
    """Return the value of ``lease`` when a tenure begins: without a mark and a note."""
    return {"M": {"holder": {"S": owner}, "expires": {"N": str(expires_ms)}, "since": {"N": str(since_ms)}}}


def _freed_ms(item: Item) -> int:
    """Return when a key was freed that has no owner; 0 if it never had one."""
    return int(item["left"]["S"].split(":")[3]) if "left" in item else 0


def left_text(how: str, owner: str, successor: str | None, freed_ms: int | None = None) -> str:
    """Return how a tenure ended, in the form of ``left``."""
    said = f"{how[0]}:{owner_digest(owner)}:{owner_digest(successor) if successor else ''}"
    return said if freed_ms is None else f"{said}:{freed_ms}"


def not_before_text(state: KeyState, now_ms: int = 0) -> str | None:
    """Return what is not over by then of a hold and of a burst, in the form of ``not_before`` (M15)."""
    quiet, held = (until if until > now_ms else 0 for until in (state.quiet_until_ms, state.held_until_ms))
    return f"{quiet}:{held}:{(held and state.held_reason) or ''}" if quiet or held else None


def stop_value(reason: str) -> Value:
    """Return the value of ``stop``: not every store of this kind takes an empty text."""
    return reason or True


def is_held(not_before: str | None) -> bool:
    """Return whether ``not_before`` tells of a hold, over or not."""
    return not_before is not None and not_before.split(":", 2)[1] != "0"


def _stored(message: Item, names: Mapping[str, str]) -> Stored:
    by = text(message, "by") or ""
    return Stored(
        id=message["id"]["S"],
        body=Reference(message["ref"]["S"]) if "ref" in message else message["body"]["S"],
        claimed_by=names.get(by) or (Digest(by) if by else ""),
        promised="promised" in message and message["promised"]["BOOL"],
        stored_ms=number(message, "stored"),
        attempts=number(message, "attempts"),
        due_ms=number(message, "due"),
        delivered_fence=number(message, "given"),
        error=text(message, "error"),
    )


def fields(message: Stored, *, head: bool, stored: int = 0) -> dict[str, Value]:
    """Return the attributes of a message in ``mail``; the head's delivery stands beside the list.

    ``stored`` is the number of messages: the more there are, the shorter their stored errors.
    """
    found: dict[str, Value] = {"id": message.id}
    if isinstance(message.body, Reference):
        found["ref"] = str(message.body)
    else:
        found["body"] = message.body
    if message.claimed_by:
        found["by"] = str(owner_digest(message.claimed_by))
    if message.promised:
        found["promised"] = True
    found["stored"] = message.stored_ms
    if not head:
        found |= {name: value for name, value in delivery(message).items() if value}
    if message.error is not None:
        found["error"] = cut(message.error, next(most for few, most in _ERROR_BYTES if stored <= few))
    return found


def delivery(message: Stored) -> dict[str, int]:
    """Return the attributes that a delivery changes in a message."""
    return {"attempts": message.attempts, "due": message.due_ms, "given": message.delivered_fence}


def fitting(message: Stored) -> int:
    """Return how many messages of the size of a message a key takes with their bodies in the lease item."""
    return max(1, INLINE_BYTES_A_KEY // (inline_bytes([message]) or 1))


def inline_bytes(mail: Iterable[Stored]) -> int:
    """Return the bytes of the bodies in the lease item."""
    return sum(len(each.body.encode()) for each in mail if not isinstance(each.body, Reference))


def known(mail: Iterable[Stored], ended: Iterable[Ended]) -> frozenset[str]:
    """Return the value of ``known``: short digests of the ids that wait, and of those that left for good (M5)."""
    names = {digest(message.id) for message in mail}
    names.update(digest(trace.id) for trace in ended if trace.outcome != "failed")
    counts = Counter(map(short, names))
    return frozenset((*counts, *(shared(each) for each, count in counts.items() if count > 1)))


def shared(short_digest: str) -> str:
    """Return what stands in ``known`` beside a short digest that two ids share: neither may be taken out alone."""
    return f"={short_digest}"
