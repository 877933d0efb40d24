"""The stored format: how a key's state stands in items of the table, version 1 (M12).

Partition key ``pk`` is ``<prefix>#<key>``; a prefix holds no ``#``, so no two keys meet in one record (R10). By the
sort key ``sk`` there are three kinds of item::

    lease               the key's state, below
    body#<id>#<claim>   a message too large to stand inline, under the name of the claim that stored it:
                        v, body, expires_on; of one that is too large for an item each part, as body#<id>#<claim>.<n>
    dead#<id>#<letter>  a message out of attempts, under a name that no other letter ever has:
                        v, id, body, attempts, error, stored, died, fence, rank, expires_on; ref in place of body, where
                        that is in parts

Attributes of the lease item (times are epoch milliseconds, sets and lists are absent when empty)::

    v                            the format's version
    lease_owner                  the owner of the key; absent when it was freed
    expires_at since fence       of the present or the last tenure; ``expires_at`` decides, never ``expires_on``
    left left_fence              how the last tenure ended on purpose (R8)
    mail                         messages, oldest first: id, body or ref, by, promised, stored,
                                 and, where not zero, attempts, due, given, error
    head_attempts _given _due    the same of mail[0], whose own count for nothing: they stand beside the list, since a
                                 claim counts the delivery of the head in the update that appends to the list
    ids                          digests of all waiting, handled and dead ids: these are not stored again (M5)
    tombs                        digests of claims whose own message failed (M3)
    spent                        dead letters that were put back or purged, and whose items may still stand (R8):
                                 "<letter>", and "<letter>.<call>" by which call
    ended                        traces of messages that left, "<outcome>:<id>:<by>:<fence>:<at>", digests again (R9)
    edits                        counts changes inside the mailbox that do not change the fence
    inline_bytes                 bytes of all bodies in ``mail``
    block                        present when a paused message blocks the later ones (M6)
    pauses                       the policy's pauses, separated by commas: for what dies with its run (M6)
    keyspace target request_id log_stream      the last caller, and the function to wake (M8)
    orphan_shard orphan_since    the keys of the sparse index: the shard is there while messages are stored, and
                                 since is the first moment at which they can be orphans. A renewal touches neither
    expires_on                   whole epoch seconds, there only while no owner and no message is: cleans up (R3)

A writer changes the attributes that it knows and leaves all others. A value that is only compared is stored as a
digest: on a busy key, 256 traces are part of the cost of every write.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from incumbent.errors import StoredFormatUnknown
from incumbent.providers import unreadable
from incumbent.rules import Dead, Ended, KeyState, Stored, TenureEnd
from incumbent.values import Message, Origin

VERSION = 1
INDEX = "orphans"
SHARDS = 8
LEASE = "lease"
BODY = "body#"
DEAD = "dead#"

INLINE_BYTES = 2 * 1024  # a larger body goes into its own item
INLINE_BYTES_A_KEY = 8 * 1024
PART_BYTES = 384 * 1024  # an item holds 400 KiB, names and keys included; a larger body stands in several
# A lease item takes no message with which it would be larger, however few there are (M7). What may still be added to it
# is less than what is left of 400 KiB: deliveries and errors of 1,100 messages, 768 traces, and the messages of callers
# who looked at the same moment (H59).
MAX_ITEM_BYTES = 160 * 1024
FEW = 100  # so many messages always fit: a claim that has not seen the item adds to no more of them
AT_ONCE = 50  # and one that has seen it adds to no more than so many that came since
KEPT_S = 14 * 86_400  # bodies that remain after a crash, and dead letters
PARTS_KEPT_S = 2 * KEPT_S  # bodies in parts, which stay where they are when their message dies
IDLE_S = KEPT_S + 86_400  # a key without owner and messages: its target is known as long as its dead letters are kept

DESCRIBED = ("keyspace", "target", "request_id", "log_stream")  # who asked last

# What this version knows of a message in ``mail``.
FIELDS = frozenset({"id", "body", "ref", "by", "promised", "stored", "attempts", "due", "given", "error"})

_MAX_SORT_KEY_BYTES = 1_024
# Up to so many stored messages, so many bytes of each one's last error are kept.
_ERROR_BYTES = ((20, 2_048), (100, 128), (1_000_000, 32))
_DEAD_ERROR_BYTES = 4_096
_ID_BYTES = 24  # of a message's digest in ``ids``, and of what stands around the message
_OUTCOMES: Mapping[str, Literal["handled", "dead", "failed"]] = {"h": "handled", "d": "dead", "f": "failed"}

Value: TypeAlias = str | int | bool | Sequence["Value"] | Mapping[str, "Value"] | frozenset[str]
Typed: TypeAlias = Mapping[str, Any]  # a value as the API writes it: {"S": "text"}
Item: TypeAlias = Mapping[str, Typed]


class Digest(str):
    """A name shortened for comparison: 96 bits of its SHA-256."""

    __slots__ = ()


class Reference(str):
    """In place of a message's text: the digest of the claim under which its body is stored.

    Of a body in parts, their number follows after a dot.
    """

    __slots__ = ()

    @property
    def parts(self) -> int:
        """In how many items the body stands."""
        return int(self.partition(".")[2] or 1)


def digest(name: str) -> Digest:
    """Return the digest of a name; a digest is returned unchanged."""
    if isinstance(name, Digest):
        return name
    return Digest(base64.urlsafe_b64encode(hashlib.sha256(name.encode()).digest()[:12]).decode())


# --- keys


def partition(prefix: str, key: str) -> str:
    """Return the partition key of all items of a key."""
    return f"{prefix}#{key}"


def key_of(prefix: str, pk: str) -> str:
    """Return the key of a partition key."""
    return pk[len(prefix) + 1 :]


def shard(prefix: str, number: int) -> str:
    """Return the name of one partition of the orphans' index."""
    return f"{prefix}#{number}"


def shard_of(prefix: str, key: str) -> str:
    """Return the partition of the orphans' index that has a key."""
    return shard(prefix, hashlib.sha256(key.encode()).digest()[0] % SHARDS)


def body_names(message_id: str, reference: Reference) -> list[str]:
    """The sort keys of a large body, part by part: names of their own for each claim of each id, and no two meet."""
    name = f"{BODY}{_escaped(message_id)}#{reference.partition('.')[0]}"
    return [name] if reference.parts == 1 else [f"{name}.{part}" for part in range(1, reference.parts + 1)]


def dead_names(message_id: str) -> str:
    """Return the prefix of the sort keys of an id's dead letters, different for each id."""
    return f"{DEAD}{_escaped(message_id)}#"


def dead_name(message_id: str, letter: str) -> str:
    """Return the sort key of a dead letter."""
    return f"{dead_names(message_id)}{letter}"


def _escaped(message_id: str) -> str:
    """Return an id without ``#``, with ``%`` only before two hexadecimal digits, so that all ids stay different."""
    escaped = message_id.replace("%", "%25").replace("#", "%23")
    if len(escaped.encode()) > _MAX_SORT_KEY_BYTES - 64:
        return f"%sha256.{hashlib.sha256(message_id.encode()).hexdigest()}"
    return escaped


# --- values as the API writes them


def typed(value: Value) -> dict[str, Any]:
    """Return a value in the API's form. The format has no floats."""
    match value:
        case bool():
            return {"BOOL": value}
        case str():
            return {"S": str(value)}
        case int():
            return {"N": str(value)}
        case frozenset():
            return {"SS": sorted(value)}
        case Mapping():
            return {"M": {name: typed(inner) for name, inner in value.items()}}
        case _:
            return {"L": [typed(inner) for inner in value]}


def takes(item: Item, message: Stored) -> bool:
    """Return whether the lease item, as it was read, has room for one more message (M7: limits)."""
    return size_of(item) + _size(typed(fields(message, head=False))) + _ID_BYTES <= MAX_ITEM_BYTES


def size_of(item: Item) -> int:
    """Return the bytes of an item as DynamoDB counts them, names included (at most a few too many)."""
    return sum(len(name.encode()) + _size(value) for name, value in item.items())


def _size(value: Typed) -> int:
    ((kind, inner),) = value.items()
    match kind:
        case "S":
            return len(inner.encode())
        case "N":
            return len(inner) // 2 + 2
        case "SS":
            return sum(len(each.encode()) + 1 for each in inner) + 3
        case "L":
            return sum(_size(each) + 1 for each in inner) + 3
        case "M":
            return sum(len(name.encode()) + _size(each) + 1 for name, each in inner.items()) + 3
        case _:
            return 1


# --- the lease item


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A lease item: the key's state for the rules, and the item as it was read. ``item`` is empty if none exists.

    A message has the same place in ``state.mail`` as in the stored list. ``state.dead`` is always empty: each dead
    letter has its own item.
    """

    state: KeyState
    item: Item

    @property
    def exists(self) -> bool:
        """Whether the item exists."""
        return bool(self.item)

    def number(self, name: str) -> int:
        """Return an attribute that is a number; 0 if it is missing."""
        return _number(self.item, name)


def decode(item: Item | None, *, key: str, names: Iterable[str] = ()) -> Record:
    """Read a lease item. ``names`` are owners and ids that the caller knows: their digests become names again.

    Raises ``StoredFormatUnknown`` for a version or a shape that this code does not know (M12).
    """
    if not item:
        return Record(state=KeyState(), item={})
    check_version(item, key=key)
    try:
        return Record(state=_state(item, {digest(name): name for name in names}), item=item)
    except (KeyError, ValueError, TypeError, AttributeError) as cause:
        raise StoredFormatUnknown(
            f"the record of key {key!r} has a shape that version {VERSION} does not know ({cause!r}): another "
            "program wrote it, and it was left as it is; give this application its own key_prefix or table",
            key=key,
        ) from cause


def check_version(item: Item, *, key: str) -> None:
    """Refuse an item of another version (M12)."""
    if item.get("v") != {"N": str(VERSION)}:
        raise StoredFormatUnknown(
            f"record {item.get('sk', {}).get('S', LEASE)!r} of key {key!r} has version {item.get('v')!r}; this code "
            f"knows {VERSION}: deploy the version that wrote it, or a newer one. The record was left as it is",
            key=key,
        )


def _state(item: Item, names: Mapping[str, str]) -> KeyState:
    mail = [_stored(each["M"], names) for each in item.get("mail", {"L": []})["L"]]
    if mail:
        mail[0] = _head(mail[0], item)
    end = item.get("left")
    return KeyState(
        owner=_text(item, "lease_owner"),
        expires_ms=_number(item, "expires_at"),
        since_ms=_number(item, "since"),
        fence=_number(item, "fence"),
        mail=tuple(mail),
        ended=tuple(_trace(each["S"], names) for each in item.get("ended", {"L": []})["L"]),
        tenure_end=None
        if end is None
        else TenureEnd(
            how=end["M"]["how"]["S"],
            owner=end["M"]["owner"]["S"],
            successor=_text(end["M"], "successor"),
            fence=_number(item, "left_fence"),
        ),
        block="block" in item,
        pauses_ms=tuple(map(int, (_text(item, "pauses") or "0").split(","))) if "pauses" in item else (),
        origin=None
        if not any(name in item for name in DESCRIBED)
        else Origin(
            keyspace=_text(item, "keyspace") or "",
            target=_text(item, "target"),
            request_id=_text(item, "request_id"),
            log_stream=_text(item, "log_stream"),
        ),
    )


def _stored(message: Item, names: Mapping[str, str]) -> Stored:
    by = _text(message, "by") or ""
    return Stored(
        id=message["id"]["S"],
        body=Reference(message["ref"]["S"]) if "ref" in message else message["body"]["S"],
        claimed_by=names.get(by) or (Digest(by) if by else ""),
        promised=message["promised"]["BOOL"],
        stored_ms=_number(message, "stored"),
        attempts=_number(message, "attempts"),
        due_ms=_number(message, "due"),
        delivered_fence=_number(message, "given"),
        error=_text(message, "error"),
    )


def _head(message: Stored, item: Item) -> Stored:
    return Stored(
        id=message.id,
        body=message.body,
        claimed_by=message.claimed_by,
        promised=message.promised,
        stored_ms=message.stored_ms,
        attempts=_number(item, "head_attempts"),
        due_ms=_number(item, "head_due"),
        delivered_fence=_number(item, "head_given"),
        error=message.error,
    )


def _trace(text: str, names: Mapping[str, str]) -> Ended:
    outcome, message_id, by, fence, at_ms = text.split(":")[:5]
    return Ended(
        id=names.get(message_id) or Digest(message_id),
        outcome=_OUTCOMES[outcome],
        claimed_by=names.get(by) or (Digest(by) if by else ""),
        fence=int(fence),
        at_ms=int(at_ms),
    )


def _number(item: Item, name: str) -> int:
    """Return an attribute that is a number; 0 if it is missing."""
    return int(item[name]["N"]) if name in item else 0


def _text(item: Item, name: str) -> str | None:
    return str(item[name]["S"]) if name in item else None


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
        found["by"] = str(digest(message.claimed_by))
    found |= {"promised": message.promised, "stored": message.stored_ms}
    if not head:
        found |= {name: value for name, value in delivery(message).items() if value}
    if message.error is not None:
        found["error"] = _cut(message.error, next(most for few, most in _ERROR_BYTES if stored <= few))
    return found


def delivery(message: Stored) -> dict[str, int]:
    """Return the attributes that a delivery changes in a message."""
    return {"attempts": message.attempts, "due": message.due_ms, "given": message.delivered_fence}


def inline_bytes(mail: Iterable[Stored]) -> int:
    """Return the bytes of the bodies in the lease item."""
    return sum(len(each.body.encode()) for each in mail if not isinstance(each.body, Reference))


def pauses_text(pauses_ms: Sequence[int]) -> str | None:
    """The pauses as they stand in ``pauses``."""
    return ",".join(map(str, pauses_ms)) or None


def trace_text(trace: Ended) -> str:
    """Return a trace in the form of ``ended``."""
    by = digest(trace.claimed_by) if trace.claimed_by else ""
    return f"{trace.outcome[0]}:{digest(trace.id)}:{by}:{trace.fence}:{trace.at_ms}"


def known_ids(state: KeyState) -> frozenset[str]:
    """Return the value of ``ids``: the digests of ids that are not stored a second time (M5)."""
    waiting = {str(digest(message.id)) for message in state.mail}
    return frozenset(waiting | {str(digest(trace.id)) for trace in state.ended if trace.outcome != "failed"})


def tombstones(state: KeyState) -> frozenset[str]:
    """Return the value of ``tombs``: the digests of claims that must store nothing any more (M3)."""
    return frozenset(str(digest(trace.claimed_by)) for trace in state.ended if trace.outcome == "failed")


# --- the other items


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A dead letter: its item's sort key, its own name within it, and what orders it among those of its key."""

    sk: str
    name: str
    order: tuple[int, int, int]
    dead: Dead


def dead_item(pk: str, letter: Dead, fence: int, rank: int, name: str) -> dict[str, Any]:
    """Make the item of a dead letter, with its whole text (M6).

    ``fence`` is that of the tenure in which it died, and ``rank`` orders the letters of one tenure and millisecond.
    """
    found: dict[str, Value] = {
        "pk": pk,
        "sk": dead_name(letter.id, name),
        "v": VERSION,
        "id": letter.id,
        "ref" if isinstance(letter.body, Reference) else "body": str(letter.body),
        "attempts": letter.attempts,
        "stored": letter.stored_ms,
        "died": letter.died_ms,
        "fence": fence,
        "rank": rank,
        "expires_on": seconds(letter.died_ms) + KEPT_S,
    }
    if letter.error is not None:
        found["error"] = _cut(letter.error, _DEAD_ERROR_BYTES)
    return {name: typed(value) for name, value in found.items()}


def dead_letter(item: Item, *, key: str) -> Letter:
    """Read a dead letter.

    Raises ``StoredFormatUnknown`` for a version or a shape that this code does not know (M12).
    """
    check_version(item, key=key)
    try:
        dead = Dead(
            id=item["id"]["S"],
            body=Reference(item["ref"]["S"]) if "ref" in item else body_of(item) or "",
            attempts=_number(item, "attempts"),
            error=_text(item, "error"),
            stored_ms=_number(item, "stored"),
            died_ms=_number(item, "died"),
        )
        sk = str(item["sk"]["S"])
        order = (dead.died_ms, _number(item, "fence"), _number(item, "rank"))
        return Letter(sk=sk, name=sk.rpartition("#")[2], order=order, dead=dead)
    except (AttributeError, KeyError, TypeError, ValueError) as cause:
        raise StoredFormatUnknown(
            f"dead letter {item['sk'].get('S')!r} of key {key!r} has a shape that version {VERSION} does not know "
            f"({cause!r}); it was left as it is",
            key=key,
        ) from cause


def dead_message(letter: Dead, text: str | None) -> Message:
    """A dead letter's message as the contract gives it, with its text."""
    return unreadable.message_of(
        text,
        id=letter.id,
        attempt=letter.attempts,
        stored_at_ms=letter.stored_ms,
        promised=True,
        last_error=letter.error,
    )


def body_items(pk: str, message_id: str, name: str, text: str, now_ms: int) -> tuple[Reference, list[dict[str, Any]]]:
    """The items of a large body under a name, and the reference to them; TTL takes what nothing refers to."""
    texts = _parts(text)
    reference = Reference(name if len(texts) == 1 else f"{name}.{len(texts)}")
    kept_s = KEPT_S if len(texts) == 1 else PARTS_KEPT_S
    items = []
    for sk, part in zip(body_names(message_id, reference), texts, strict=True):
        found: dict[str, Value] = {
            "pk": pk,
            "sk": sk,
            "v": VERSION,
            "body": part,
            "expires_on": seconds(now_ms) + kept_s,
        }
        items.append({name: typed(value) for name, value in found.items()})
    return reference, items


def _parts(text: str) -> list[str]:
    """Text cut into parts that fit an item each, between characters."""
    raw, parts, begin = text.encode(), list[str](), 0
    while begin < len(raw):
        end = min(begin + PART_BYTES, len(raw))
        while end < len(raw) and raw[end] & 0xC0 == 0x80:  # noqa: PLR2004 - in the middle of a character
            end -= 1
        parts.append(raw[begin:end].decode())
        begin = end
    return parts


def body_of(item: Item) -> str | None:
    """Return the text in the item of a large body or of a dead letter; ``None`` if it has none."""
    return _text(item, "body") if "S" in item.get("body", {}) else None


def seconds(now_ms: int) -> int:
    """Return whole epoch seconds, the unit of TTL."""
    return now_ms // 1_000


def message_of(stored: Stored, text: str | None) -> Message:
    """Return a stored message in the contract's form. ``text`` is ``None`` if TTL has deleted it."""
    return unreadable.message_of(
        text,
        why_gone=f"it is gone, as it was stored more than {KEPT_S // 86_400} days ago",
        id=stored.id,
        attempt=stored.attempts,
        stored_at_ms=stored.stored_ms,
        due_at_ms=stored.due_ms,
        promised=stored.promised,
        last_error=stored.error,
    )


def _cut(text: str, most_bytes: int) -> str:
    return text.encode(errors="replace")[:most_bytes].decode(errors="ignore")
