"""Dead letters: messages out of attempts, each in an item of its own (M6)."""

from typing import Any

from incumbent.errors import StoredFormatUnknown
from incumbent.frozen import dataclass
from incumbent.providers.dynamodb.attributes import (
    VERSION,
    Item,
    Value,
    check_version,
    cut,
    number,
    seconds,
    text,
    typed,
)
from incumbent.providers.dynamodb.bodies import KEPT_S, Reference, body_of
from incumbent.providers.dynamodb.names import dead_name
from incumbent.rules import Dead

_ERROR_BYTES = 4_096


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
        found["error"] = cut(letter.error, _ERROR_BYTES)
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
            attempts=number(item, "attempts"),
            error=text(item, "error"),
            stored_ms=number(item, "stored"),
            died_ms=number(item, "died"),
        )
        sk = str(item["sk"]["S"])
        order = (dead.died_ms, number(item, "fence"), number(item, "rank"))
        return Letter(sk=sk, name=sk.rpartition("#")[2], order=order, dead=dead)
    except (AttributeError, KeyError, TypeError, ValueError) as cause:
        raise StoredFormatUnknown(
            f"dead letter {item['sk'].get('S')!r} of key {key!r} has a shape that version {VERSION} does not know "
            f"({cause!r}); it was left as it is",
            key=key,
        ) from cause
