"""The package's dataclasses: what the standard library promises of its own, they do too."""

import copy
import dataclasses
import inspect
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import pytest

from incumbent.frozen import changer, dataclass, field, maker, replace

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A value with each kind of field."""

    name: str
    weight: int = 1
    stops: list[str] = field(default_factory=list)
    seen: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        """Refuse a weight that cannot be."""
        if self.weight < 0:
            raise ValueError("weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter(Parcel):
    """A value with a required field behind its base's defaults."""

    stamp: str


class Note(Letter):
    """A subclass without fields of its own."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Box(Generic[T]):
    """A value of any type."""

    content: T


@dataclass(frozen=True, slots=True)
class Nothing:
    """A value without fields."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A value that can be in a set, with a field that does not count."""

    number: int
    seen: int = field(default=0, compare=False)


@dataclass(slots=True)
class Counter:
    """A value that may change. Its other fields have names of variables."""

    count: int = 0
    new: int = 0
    _new: int = 0


def test_values_are_compared_by_class_and_fields() -> None:
    """A field with ``compare=False`` does not count, and no other class is equal."""
    assert Parcel(name="a", seen=1) == Parcel(name="a", seen=2)
    assert Parcel(name="a") != Parcel(name="b")
    assert Parcel(name="a") != Letter(name="a", stamp="s")
    assert hash(Nothing()) == hash(Nothing())
    assert Nothing() == Nothing()
    assert {Ticket(1, seen=1), Ticket(1, seen=2), Ticket(2, seen=1)} == {Ticket(1), Ticket(2)}
    assert hash(Ticket(1, seen=1)) == hash(Ticket(1, seen=2)) != hash(Ticket(2, seen=1))


def test_each_value_gets_a_default_that_is_made_for_it() -> None:
    """A default factory is called for each value."""
    assert Parcel(name="a").stops is not Parcel(name="a").stops
    assert Parcel(name="a", stops=["x"]).stops == ["x"]


def test_frozen_values_cannot_be_changed() -> None:
    """Neither set nor deleted, nor given another attribute; one that is not frozen can be changed."""
    parcel: Any = Parcel(name="a")
    for name in ("name", "other"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(parcel, name, "b")
    with pytest.raises(dataclasses.FrozenInstanceError):
        del parcel.name
    counter = Counter()
    counter.count += 1
    assert counter == Counter(1)
    with pytest.raises(TypeError):
        hash(counter)


def test_wrong_arguments_are_refused() -> None:
    """A missing field, an unknown one, a positional one, and what ``__post_init__`` refuses, also in a copy."""
    make: Any = Parcel
    copied: Any = replace
    for arguments, named in (((), {}), ((), {"name": "a", "size": 1}), (("a",), {})):
        with pytest.raises(TypeError):
            make(*arguments, **named)
    with pytest.raises(TypeError):
        copied(Parcel(name="a"), size=1)
    with pytest.raises(ValueError, match="weight"):
        replace(Parcel(name="a"), weight=-1)


def test_the_standard_library_takes_them_for_its_own() -> None:
    """``dataclasses``, ``copy``, ``pickle`` and ``inspect`` work on them."""
    letter = Letter(name="a", stamp="s", stops=["x"])
    assert dataclasses.is_dataclass(letter)
    assert [each.name for each in dataclasses.fields(letter)] == ["name", "weight", "stops", "seen", "stamp"]
    assert dataclasses.asdict(letter) == {"name": "a", "weight": 1, "stops": ["x"], "seen": 0, "stamp": "s"}
    assert dataclasses.replace(letter, weight=2) == replace(letter, weight=2)
    assert pickle.loads(pickle.dumps(letter)) == letter  # noqa: S301 - our own bytes
    assert copy.deepcopy(letter) == letter
    assert list(inspect.signature(Letter).parameters) == ["name", "weight", "stops", "seen", "stamp"]
    assert repr(letter) == "Letter(name='a', weight=1, stops=['x'], seen=0, stamp='s')"


class Crate(Parcel):
    """A plain subclass, whose values have attributes of their own."""

    @property
    def twice(self) -> int:
        """Double the weight."""
        return 2 * self.weight


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tagged(Parcel):
    """A subclass by the standard library."""

    tag: str = ""


def test_subclasses_of_another_kind_are_values_too() -> None:
    """Plain ones and the standard library's: made, checked, frozen, copied with all that they have."""
    crate, tagged = Crate(name="a", weight=3), Tagged(name="a", tag="t")
    assert (crate.twice, crate.stops, tagged.tag, tagged.weight) == (6, [], "t", 1)
    assert (type(replace(crate, weight=4)), replace(crate, weight=4).twice) == (Crate, 8)
    assert replace(tagged, weight=4) == Tagged(name="a", weight=4, tag="t") == dataclasses.replace(tagged, weight=4)
    for value in (crate, tagged):
        assert copy.copy(value) == pickle.loads(pickle.dumps(value)) == value  # noqa: S301 - our own bytes
    for kind in (Crate, Tagged):
        with pytest.raises(ValueError, match="weight"):
            kind(name="a", weight=-1)
        with pytest.raises(ValueError, match="weight"):
            replace(kind(name="a"), weight=-1)
        with pytest.raises(dataclasses.FrozenInstanceError):
            kind(name="a").weight = 2  # type: ignore[misc]


def test_a_pickle_of_other_fields_is_refused() -> None:
    """Not taken for a value some of whose fields are missing."""
    letter = Letter(name="a", stamp="s")
    with pytest.raises(ValueError, match="zip"):
        Letter.__setstate__(letter, ["a"])  # type: ignore[attr-defined]


def test_a_copy_keeps_the_class() -> None:
    """A copy of a subclass is one of it, whichever was copied first."""
    assert type(replace(Parcel(name="a"), weight=2)) is Parcel
    assert type(replace(Letter(name="a", stamp="s"), weight=2)) is Letter
    assert type(replace(Box(content=1), content=2)) is Box
    note = replace(Note(name="a", stamp="s"), weight=2)
    assert (type(note), note.weight, note.stamp) == (Note, 2, "s")


def test_a_value_is_frozen_as_soon_as_it_is_made() -> None:
    """Also a copy, and a value of a subclass or of a generic class; none of them has a dictionary."""
    for made in (Parcel(name="a"), replace(Parcel(name="a"), weight=2), Note(name="a", stamp="s"), Box(content=1)):
        assert not hasattr(made, "__dict__")
        changed: Any = made
        with pytest.raises(dataclasses.FrozenInstanceError):
            changed.name = "b"


def test_fields_may_have_any_name() -> None:
    """A name that the compiled functions might use themselves is not mixed up."""
    assert replace(Counter(1, 2, 3), new=4) == Counter(1, 4, 3)


def test_positional_fields_match_by_place() -> None:
    """A class whose fields may be given by place can be matched by place."""
    match Counter(3):
        case Counter(count):
            assert count == 3


def test_maker_does_what_a_call_of_the_class_does() -> None:
    """Also at the first call: defaults, factories, checks, and the error of an argument that is missing."""
    make, make_note = maker(Parcel), maker(Note)
    for weight in (1, 2):
        assert make(name="a", weight=weight) == Parcel(name="a", weight=weight)
        with pytest.raises(ValueError, match="weight"):
            make(name="a", weight=-1)
    assert make(name="a").stops is not make(name="a").stops
    with pytest.raises(TypeError, match=r"make_Parcel\(\) missing 1 required keyword-only argument: 'name'"):
        make()  # type: ignore[call-arg]
    with pytest.raises(dataclasses.FrozenInstanceError):
        make(name="a").name = "b"  # type: ignore[misc]
    assert type(make_note(name="a", stamp="s")) is Note
    assert maker(Nothing)() == Nothing()
    assert maker(Counter)(3) == Counter(3)


def test_changer_does_what_replace_does() -> None:
    """Also at the first call, and the check is made anew."""
    change = changer(Parcel)
    parcel = Parcel(name="a", stops=["x"])
    for weight in (1, 2):
        assert change(parcel, weight=weight) == replace(parcel, weight=weight)
        with pytest.raises(ValueError, match="weight"):
            change(parcel, weight=-1)
    assert change(parcel, name="b").stops is parcel.stops


def test_threads_may_share_a_maker_at_its_first_call() -> None:
    """One that calls it while another compiles it gets its value."""
    for _ in range(20):
        make, start = maker(Parcel), threading.Barrier(4)

        def first(make: Callable[..., Parcel] = make, start: threading.Barrier = start) -> Parcel:
            start.wait()
            return make(name="a")

        with ThreadPoolExecutor(4) as threads:
            made = [threads.submit(first) for _ in range(4)]
            assert [each.result() for each in made] == [Parcel(name="a")] * 4


def test_standard_fields_say_what_is_compared() -> None:
    """As those that show or compare values by ``dataclasses.fields`` read it."""
    fields = dataclasses.fields(Parcel)
    assert {each.name: each.compare for each in fields} == {"name": True, "weight": True, "stops": True, "seen": False}
