"""A search through the names of several primaries: in which order, up to where, and what it leaves out."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import redis
from redis.crc import key_slot
from redis.exceptions import ResponseError, TryAgainError

from incumbent.errors import LeaseUnavailable, ListIncomplete
from incumbent.providers.redis.names import Names
from incumbent.providers.redis.search import ScanPlace, Search

NAMES = Names("x")
KEYS = {"a": ["a1", "a2", "a3"], "b": ["b1", "b2", "b3"]}


class Primaries:
    """A server that has two primaries, with two pages of names each, and time for so many pages."""

    def __init__(self, pages: int = 99) -> None:
        self.pages = pages
        self.scanned: list[tuple[str, int]] = []

    def nodes(self, **_: Any) -> dict[str, Any]:
        """Both, the second first."""
        return {name: name for name in reversed(KEYS)}

    def scan(self, node: str, _pattern: str, cursor: int, **_: Any) -> tuple[int, Sequence[bytes]]:
        """Two names, and then one."""
        self.scanned.append((node, cursor))
        found = KEYS[node][2:] if cursor else KEYS[node][:2]
        return (0 if cursor else 7), [NAMES.of(key)[2] for key in found]

    def search_is_over(self) -> bool:
        """After so many pages."""
        self.pages -= 1
        return self.pages <= 0


def search(server: Any, place: ScanPlace | None = None) -> Search:
    """A search for orphans."""
    return Search(server, NAMES, call="orphans", place=place)


def test_every_name_of_every_primary_is_found() -> None:
    """One primary after the other, in the order of their addresses."""
    assert list(search(Primaries()).keys("mail")) == KEYS["a"] + KEYS["b"]


def test_name_that_is_told_twice_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As SCAN does while the server's table grows, and another primary once a slot has moved."""
    monkeypatch.setitem(KEYS, "a", ["a1", "a2", "a1"])
    monkeypatch.setitem(KEYS, "b", ["a2", "b2", "b3"])
    assert list(search(Primaries()).keys("mail")) == ["a1", "a2", "b2", "b3"]


def test_silent_primary_is_asked_for_no_further_key() -> None:
    """Nor for further names, and neither is it by the same listing's second search."""
    asked: list[str] = []
    server = Primaries()
    made = search(server)

    def ask(key: str) -> Any:
        asked.append(key)
        if key == "a1":
            raise LeaseUnavailable("no answer", key=key)
        return key

    for _ in range(2):
        for key in made.keys("mail"):
            made.read(key, partial(ask, key))
    assert asked == ["a1", *KEYS["b"], *KEYS["b"]]
    assert [node for node, _ in server.scanned] == ["a", "b", "b", "b", "b"]
    with pytest.raises(ListIncomplete, match="primary a") as raised:
        made.end()
    assert len(raised.value.skipped) == 1


@pytest.mark.parametrize("pages", [1, 2, 3])
def test_search_goes_on_where_the_last_one_had_no_more_time(pages: int) -> None:
    """At that primary, whatever others have come or gone; and what lies before the place is searched at the end."""
    place = ScanPlace()
    first = list(search(Primaries(pages), place).keys("mail"))
    server = Primaries()
    second = list(search(server, place).keys("mail"))
    assert (first + second)[: len(KEYS["a"] + KEYS["b"])] == KEYS["a"] + KEYS["b"]
    assert server.scanned[0] == [("a", 7), ("b", 0), ("b", 7)][pages - 1]
    assert set(second) == {*KEYS["a"], *KEYS["b"]}
    assert place == ScanPlace()


def test_place_at_a_primary_that_is_gone_goes_on_at_the_next() -> None:
    """And at the first one after the last."""
    for gone, first in (("aa", "b"), ("c", "a")):
        server = Primaries()
        list(search(server, ScanPlace(node=gone)).keys("mail"))
        assert server.scanned[0][0] == first


def test_silent_primary_is_not_where_the_next_search_begins() -> None:
    """When the time is over, too."""
    place, server = ScanPlace(), Primaries(pages=1)
    made = search(server, place)

    def ask() -> Any:
        raise LeaseUnavailable("no answer", key="a1")

    for key in made.keys("mail"):
        made.read(key, ask)
    assert server.scanned == [("a", 0)]
    assert place == ScanPlace(node="b")


def test_slot_that_moves_is_named_and_hides_no_other() -> None:
    """Each once, however many of its keys were asked for."""
    made = search(Primaries())

    def ask(key: str) -> Any:
        if key.startswith("a"):
            raise LeaseUnavailable("moves", key=key) from TryAgainError("TRYAGAIN")
        return key

    found: list[Any] = [made.read(key, partial(ask, key)) for key in made.keys("mail")]
    assert found == [None, None, None, *KEYS["b"]]
    slots = {key_slot(NAMES.of(key, 1)[0]) for key in KEYS["a"]}
    with pytest.raises(ListIncomplete) as raised:
        made.end()
    said = sorted(str(each) for each in raised.value.skipped)
    assert said == sorted(f"orphans of slot {slot}: not all keys were asked for (moves)" for slot in slots)
    assert {each.key for each in raised.value.skipped} <= {*KEYS["a"]}


@pytest.mark.parametrize("cause", [None, redis.ConnectionError("gone"), ResponseError("ERR no"), OSError("no route")])
def test_error_of_any_other_kind_is_of_the_primary(cause: Exception | None) -> None:
    """Only a slot that is being moved, and odd records, leave the primary to be asked for more."""
    made = search(Primaries())

    def ask(key: str) -> Any:
        if key == "a1":
            raise LeaseUnavailable("no answer", key=key) from cause
        return key

    found: list[Any] = [made.read(key, partial(ask, key)) for key in made.keys("mail")]
    assert found == [None, *KEYS["b"]]
    with pytest.raises(ListIncomplete, match="orphans of primary a"):
        made.end()
