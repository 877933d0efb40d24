"""Large bodies: items of their own, one for each part of a text that is too large for an item."""

from typing import Any

from incumbent.providers.dynamodb.attributes import VERSION, Item, Value, seconds, text, typed
from incumbent.providers.dynamodb.names import BODY, escaped

PART_BYTES = 384 * 1024  # an item holds 400 KiB, names and keys included; a larger body stands in several
KEPT_S = 14 * 86_400  # bodies that remain after a crash, and dead letters
WHY_GONE = f"it is gone, as it was due more than {KEPT_S // 86_400} days ago"
PARTS_KEPT_S = 2 * KEPT_S  # bodies in parts, which stay where they are when their message dies


class Reference(str):
    """In place of a message's text: the digest of the claim that stored its body, and of the text.

    Of a body in parts, their number follows after a dot.
    """

    __slots__ = ()

    @property
    def parts(self) -> int:
        """In how many items the body stands."""
        return int(self.partition(".")[2] or 1)


def body_names(message_id: str, reference: Reference) -> list[str]:
    """The sort keys of a large body, part by part: names of their own for each claim and text of an id."""
    name = f"{BODY}{escaped(message_id)}#{reference.partition('.')[0]}"
    return [name] if reference.parts == 1 else [f"{name}.{part}" for part in range(1, reference.parts + 1)]


def body_items(pk: str, message_id: str, name: str, body: str, due_ms: int) -> tuple[Reference, list[dict[str, Any]]]:
    """The items of a large body under a name, and the reference to them; TTL takes what nothing refers to.

    ``due_ms`` is when its message is due: so long nothing is to be taken, and for 14 days from then.
    """
    texts = _parts(body)
    reference = Reference(name if len(texts) == 1 else f"{name}.{len(texts)}")
    kept_s = KEPT_S if len(texts) == 1 else PARTS_KEPT_S
    items = []
    for sk, part in zip(body_names(message_id, reference), texts, strict=True):
        found: dict[str, Value] = {
            "pk": pk,
            "sk": sk,
            "v": VERSION,
            "body": part,
            "expires_on": seconds(due_ms) + kept_s,
        }
        items.append({name: typed(value) for name, value in found.items()})
    return reference, items


def _parts(body: str) -> list[str]:
    """Text cut into parts that fit an item each, between characters."""
    raw, parts, begin = body.encode(), list[str](), 0
    while begin < len(raw):
        end = min(begin + PART_BYTES, len(raw))
        while end < len(raw) and raw[end] & 0xC0 == 0x80:  # noqa: PLR2004 - in the middle of a character
            end -= 1
        parts.append(raw[begin:end].decode())
        begin = end
    return parts


def body_of(item: Item) -> str | None:
    """Return the text in the item of a large body or of a dead letter; ``None`` if it has none."""
    return text(item, "body") if "S" in item.get("body", {}) else None
