"""Traces of messages that left: the newest stand in the lease item, the older ones in pages, which are items too.

A trace is evidence of a settle (R9: unknown outcome), and makes its id a duplicate (M5). A settle that finds
``MAX_INLINE`` traces in the lease item, or expects that by its fence, moves them into a page. It writes the page first,
so a page holds only what has been in the lease item, and may be written twice. The lease item keeps marks and short
digests of all that is remembered. What they do not show was never seen, and no page is read; what they show is decided
by the whole digests in the pages. A mark cannot be taken out, since others may share it: when there are too many, all
are made anew from the pages.
"""

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from incumbent.errors import StoredFormatUnknown
from incumbent.frozen import dataclass
from incumbent.providers.dynamodb.attributes import VERSION, Item, Value, check_version, number, seconds, text, typed
from incumbent.providers.dynamodb.names import (
    BUCKETS,
    EMPTY,
    ENDED,
    OWNER,
    SHORT,
    Digest,
    digest,
    mark,
    owner_digest,
    result_name,
    short,
)
from incumbent.rules import KINDS, REMEMBERED, Ended, Outcome

# Traces in the lease item; only a settle of more messages at once leaves more. So many leave room for a small message
# in the first kilobyte of an item with a full window and an origin.
MAX_INLINE = 4
MAX_MARKS = REMEMBERED + 16  # in ``past``: with more, it is made anew from the pages
RARE: tuple[Outcome, ...] = ("dead", "failed")  # the kinds in the order in which ``rare`` has them

_LETTERS: Mapping[Outcome, str] = {
    "handled": "h",
    "dead": "d",
    "failed": "f",
    "stopped": "s",
    "cancelled": "c",
    "superseded": "r",
}
_OUTCOMES: Mapping[str, Outcome] = {letter: outcome for outcome, letter in _LETTERS.items()}
_TOO_LARGE = "x"
_KEPT = "k"
_NO_CLAIM = "." * OWNER
_FENCE, _AT = 9, 7  # characters of six bits: enough for the clock until the year 2109
MAX_FENCE = 64**_FENCE - 1
_MOST = 12  # of nine bytes
_ENDS = tuple(accumulate((1, len(digest("")), OWNER, _FENCE, _AT)))
_TRACE = tuple(slice(begin, end) for begin, end in pairwise(_ENDS))
_APART = "|"  # between the kinds in ``rare``: not a character of a digest
_SPARE_S = 3_600  # a page outlives its window by so much


class ResultElsewhere(str):
    """In place of a result's text: it stands in an item of its own (M17)."""

    __slots__ = ()


def trace_text(trace: Ended) -> str:
    """Return a trace as it is stored, each part as long as it always is: outcome, id, claim, fence, time.

    Where a result was to be kept, a letter follows: whether it stands in an item of its own or was too large (M17).
    """
    claim = owner_digest(trace.claimed_by) if trace.claimed_by else _NO_CLAIM
    text = (
        f"{_LETTERS[trace.outcome]}{digest(trace.id)}{claim}{_digits(trace.fence, _FENCE)}{_digits(trace.at_ms, _AT)}"
    )
    if trace.result is None:
        return text
    return f"{text}{_KEPT if trace.result else _TOO_LARGE}"


def trace_of(stored: str, names: Mapping[str, str]) -> Ended:
    """Read a trace. Digests of the given names become names again."""
    message_id, claim, fence, at_ms = (stored[part] for part in _TRACE)
    result = stored[_TRACE[-1].stop :]
    if len(at_ms) < _AT or result not in ("", _KEPT, _TOO_LARGE):
        raise ValueError(stored)
    return Ended(
        id=names.get(message_id) or Digest(message_id),
        outcome=_OUTCOMES[stored[0]],
        claimed_by="" if claim == _NO_CLAIM else names.get(claim) or Digest(claim),
        fence=_number(fence),
        at_ms=_number(at_ms),
        result=None if not result else ResultElsewhere(_KEPT) if result == _KEPT else "",
    )


def _digits(number: int, size: int) -> str:
    return base64.urlsafe_b64encode(number.to_bytes(_MOST * 3 // 4)).decode()[-size:]


def _number(digits: str) -> int:
    return int.from_bytes(base64.urlsafe_b64decode(digits.rjust(_MOST, "A")))


def kind_of(stored: str) -> Outcome:
    """Return the kind of a stored trace: what is remembered together (M5)."""
    return KINDS[_OUTCOMES[stored[0]]]


def age_of(stored: str) -> tuple[int, int]:
    """Return what orders a stored trace among others: its tenure, and its time."""
    return _number(stored[_TRACE[2]]), _number(stored[_TRACE[3]])


def in_order(traces: Iterable[Ended]) -> tuple[Ended, ...]:
    """Return traces, the oldest first: by tenure, and within one by the clocks of those who ended their messages."""
    return tuple(sorted(traces, key=lambda trace: (trace.fence, trace.at_ms)))


def counted(traces: Sequence[Ended]) -> tuple[Ended, ...]:
    """Return the last traces of each kind, as many as are remembered (M5)."""
    counts: Counter[str] = Counter()
    kept: list[Ended] = []
    for trace in reversed(traces):
        counts[KINDS[trace.outcome]] += 1
        if counts[KINDS[trace.outcome]] <= REMEMBERED:
            kept.append(trace)
    return tuple(reversed(kept))


def tombs(traces: Iterable[Ended]) -> frozenset[str]:
    """Return the value of ``tombs``: short digests of claims that must store nothing any more (M3)."""
    return frozenset(short(trace.claimed_by) for trace in traces if trace.outcome == "failed")


def past_of(item: Item) -> tuple[str, ...]:
    """Return the marks of the handled ids in pages, by bucket; empty if there is no page."""
    return tuple(each["S"] for each in item["past"]["L"]) if "past" in item else ()


def past(before: Sequence[str], moved: Iterable[Ended]) -> tuple[str, ...]:
    """Return what ``past`` becomes when traces move into a page."""
    buckets = list(before) or [EMPTY] * BUCKETS
    for trace in moved:
        if KINDS[trace.outcome] == "handled":
            bucket, char = mark(trace.id)
            if char not in buckets[bucket]:
                buckets[bucket] = f"{buckets[bucket].strip(EMPTY)}{char}"
    return tuple(buckets)


def rare_of(stored: str | None) -> dict[Outcome, str]:
    """Return the short digests of the other traces in pages, by kind, from the text of ``rare``."""
    texts = [*(stored or "").split(_APART), ""]
    return dict(zip(RARE, texts, strict=False))


def rare(before: str | None, moved: Sequence[Ended]) -> str | None:
    """Return what ``rare`` becomes when traces move into a page: the last of each kind, as many as are remembered."""
    found = []
    for kind, known in rare_of(before).items():
        names = (each.claimed_by if kind == "failed" else each.id for each in moved if KINDS[each.outcome] == kind)
        found.append((known + "".join(map(short, names)))[-REMEMBERED * SHORT :])
    return _APART.join(found).rstrip(_APART) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Traces that a page holds now, and what the lease item then shows of all pages: ``past`` and ``rare``."""

    traces: tuple[Ended, ...] = ()
    past: tuple[str, ...] = ()
    rare: str | None = None


NONE_MOVED = Moved()


def moved_into_page(item: Item, moved: Sequence[Ended]) -> Moved:
    """Return what is to be written of traces that a page holds now, in place of what an item shows."""
    return Moved(traces=tuple(moved), past=past(past_of(item), moved), rare=rare(text(item, "rare"), moved))


# --- pages


def page_item(pk: str, moved: Sequence[Ended], window_ms: int) -> dict[str, Any]:
    """Make the page of traces. Its name depends on nothing but them; it sorts by the newest, and shows its age."""
    ended = " ".join(map(trace_text, moved))
    fence, at_ms = max((trace.fence, trace.at_ms) for trace in moved)
    found: dict[str, Value] = {
        "pk": pk,
        "sk": f"{ENDED}{fence:020d}#{at_ms:020d}#{digest(ended)}",
        "v": VERSION,
        "ended": ended,
        "expires_on": seconds(max(trace.at_ms for trace in moved) + window_ms) + _SPARE_S,
    }
    return {name: typed(value) for name, value in found.items()}


def texts_of(page: Item, *, key: str) -> list[str]:
    """Return the traces of a page. Raises ``StoredFormatUnknown`` for a later version, or another shape (M12)."""
    check_version(page, key=key)
    found = page["ended"]["S"].split(" ") if "S" in page.get("ended", {}) else [""]
    if any(len(each) < _ENDS[-1] or each[0] not in _OUTCOMES for each in found):
        raise StoredFormatUnknown(f"page {page['sk']['S']!r} of key {key!r} holds no traces", key=key)
    return found


def page_age(page: Item) -> tuple[int, int]:
    """Return the age of a page's newest trace."""
    _, fence, at_ms, _ = page["sk"]["S"].split("#")
    return int(fence), int(at_ms)


def is_kept(page: Item, now_ms: int) -> bool:
    """Return whether the window of a page's traces is not over; TTL deletes it up to two days later."""
    return number(page, "expires_on") > seconds(now_ms)


def handled_in(texts: Iterable[str]) -> list[Ended]:
    """Return the traces of a page of ids that were handled."""
    return [trace_of(each, {}) for each in texts if kind_of(each) == "handled"]


# --- results


def result_item(pk: str, trace: Ended, window_ms: int) -> dict[str, Any]:
    """Make the item of what a run returned (M17). Its name is that of its message and tenure."""
    found: dict[str, Value] = {
        "pk": pk,
        "sk": result_name(trace.id, trace.fence),
        "v": VERSION,
        "result": trace.result or "",
        "expires_on": seconds(trace.at_ms + window_ms) + _SPARE_S,
    }
    return {name: typed(value) for name, value in found.items()}


def result_of(item: Item | None, *, key: str) -> str | None:
    """Return the text of a result; ``None`` if TTL has deleted it. Raises ``StoredFormatUnknown`` (M12)."""
    if item is None:
        return None
    check_version(item, key=key)
    return text(item, "result") if "S" in item.get("result", {}) else None
