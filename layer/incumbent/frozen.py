"""Dataclasses with slots, as those of the standard library, that are quicker to make, to fill and to copy.

A frozen value is filled while it is of a twin class, which has the same slots and is not frozen: a slot of it is set
five times as fast, since no ``__setattr__`` has to be passed by.

``dataclasses`` compiles six functions for each class and imports ``inspect``, which took half of the time of
``import incumbent``. Here two are compiled, each at its first use. The standard library takes these classes for its
own: ``dataclasses.replace``, ``fields``, ``asdict`` and ``is_dataclass`` work on them.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:  # type checkers know the standard library's, with every field
    from dataclasses import dataclass, field, replace

__all__ = ["dataclass", "field", "replace"]

C = TypeVar("C")

_ABSENT: Any = object()
_CLASS: Any = object.__dict__["__class__"]
_LOOKED_FOR = ("__dataclass_fields__", "__dataclass_params__", "__signature__")


class _Field:
    """A field's default, or what makes it, and whether values are compared by it."""

    __slots__ = ("compare", "default", "factory")

    def __init__(self, default: Any, factory: Callable[[], Any] | None, *, compare: bool) -> None:
        self.default = default
        self.factory = factory
        self.compare = compare


if not TYPE_CHECKING:

    def field(*, default: Any = _ABSENT, default_factory: Callable[[], Any] | None = None, compare: bool = True) -> Any:
        """Describe a field whose default is made anew for each value, or by which values are not compared."""
        return _Field(default, default_factory, compare=compare)

    def dataclass(*, slots: bool, frozen: bool = False, kw_only: bool = False) -> Callable[[type[C]], type[C]]:
        """Make a class of fields: their names are those that are annotated, after those of a base."""
        assert slots  # noqa: S101 - the caller says what it gets, as a type checker sees it
        return lambda cls: _made(cls, frozen=frozen, kw_only=kw_only)

    def replace(value: C, /, **changes: Any) -> C:
        """Return a copy of a value with other fields."""
        return value.__replace__(**changes)


def _made(cls: type[Any], *, frozen: bool, kw_only: bool) -> type[Any]:
    """Make the class anew, since slots must be known when a class is made."""
    said = cls.__annotations__
    content = {name: value for name, value in cls.__dict__.items() if name not in ("__dict__", "__weakref__")}
    known: dict[str, _Field] = dict(getattr(cls, "__frozen_fields__", {}))
    for name in said:
        given = content.pop(name, _ABSENT)
        known[name] = given if isinstance(given, _Field) else _Field(given, None, compare=True)
    content.update(
        __qualname__=cls.__qualname__,
        __slots__=tuple(said),
        __match_args__=() if kw_only else tuple(known),
        __frozen_fields__=known,
        __init__=_first_init,
        __replace__=_first_replace,
        **{name: _Standard(name, frozen=frozen, kw_only=kw_only) for name in _LOOKED_FOR},
        __eq__=_equal([name for name, each in known.items() if each.compare]),
        __hash__=_hash([name for name, each in known.items() if each.compare]) if frozen else None,
        __repr__=_repr,
        __getstate__=_state,
        __setstate__=_set_state,
    )
    if frozen:
        content.update(__setattr__=_refuse, __delattr__=_refuse)
    kind: Any = type(cls)
    made: type[Any] = kind(cls.__name__, cls.__bases__, content)
    return made


def _compiled(made: type[Any], name: str, parameters: list[str], lines: list[str], **scope: Any) -> Any:
    """Compile one function of a class. Names that end in ``__`` are no fields'."""
    scope.update(open__=_open(made), new__=object.__new__, set_class__=_CLASS.__set__, absent__=_ABSENT)
    text = "\n ".join([f"def {name}({', '.join(parameters)}):", *lines])
    exec(text, scope)  # noqa: S102 - made of the names of our own classes' fields
    return scope[name]


def _first_init(self: Any, /, *args: Any, **given: Any) -> None:
    """Compile ``__init__`` for the first value of a class, and fill the value."""
    made = _made_of(self)
    scope, parameters, lines = dict[str, Any](), [], []
    for name, each in made.__frozen_fields__.items():
        scope[f"given__{name}"] = each.default if each.factory is None else each.factory
        if each.factory is not None:
            parameters.append(f"{name}=absent__")
            lines.append(f"self.{name} = given__{name}() if {name} is absent__ else {name}")
        else:
            parameters.append(name if each.default is _ABSENT else f"{name}=given__{name}")
            lines.append(f"self.{name} = {name}")
    if _is_frozen(made) and lines:
        lines = ["class__ = self.__class__", "set_class__(self, open__)", *lines, "self.__class__ = class__"]
    star = ["*"] if made.__match_args__ == () and parameters else []
    check = ["self.__post_init__()"] if hasattr(made, "__post_init__") else []
    made.__init__ = _compiled(made, "__init__", ["self", *star, *parameters], [*lines, *check, "return"], **scope)
    made.__init__(self, *args, **given)


def _first_replace(self: Any, /, **changes: Any) -> Any:
    """Compile ``__replace__`` for the first copy of a class, and copy the value."""
    made = _made_of(self)
    names = list(made.__frozen_fields__)
    lines = [f"copy__.{name} = self.{name} if {name} is absent__ else {name}" for name in names]
    close = ["copy__.__class__ = self.__class__"]
    check = ["copy__.__post_init__()"] if hasattr(made, "__post_init__") else []
    made.__replace__ = _compiled(
        made,
        "__replace__",
        ["self", "/", *(f"{name}=absent__" for name in names)],
        ["copy__ = new__(open__)", *lines, *close, *check, "return copy__"],
    )
    return made.__replace__(self, **changes)


def _made_of(self: Any) -> Any:
    """Return the class that was made here: a value's own, or the base of a subclass without fields."""
    return next(each for each in type(self).__mro__ if "__frozen_fields__" in each.__dict__)


def _is_frozen(made: type[Any]) -> bool:
    return made.__setattr__ is _refuse


def _open(made: type[Any]) -> type[Any]:
    """Return the twin of a frozen class, whose values can be changed; else the class."""
    if not _is_frozen(made):
        return made
    if "__open__" not in made.__dict__:
        content = {name: made.__dict__[name] for name in ("__slots__", "__orig_bases__") if name in made.__dict__}
        kind: Any = type(made)
        made.__open__ = kind(made.__name__, made.__bases__, {**content, "__setattr__": object.__setattr__})
    twin: type[Any] = made.__open__
    return twin


def _annotations(made: type[Any]) -> dict[str, Any]:
    return {
        name: said for base in reversed(made.__mro__) for name, said in getattr(base, "__annotations__", {}).items()
    }


def _getter(names: list[str]) -> Callable[[Any], Any]:
    return attrgetter(*names) if names else lambda _: ()


def _equal(names: list[str]) -> Callable[[Any, Any], bool]:
    parts = _getter(names)

    def equal(self: Any, other: Any) -> bool:
        return parts(self) == parts(other) if other.__class__ is self.__class__ else NotImplemented

    return equal


def _hash(names: list[str]) -> Callable[[Any], int]:
    parts = _getter(names)
    return lambda self: hash(parts(self))


def _repr(self: Any) -> str:
    said = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__frozen_fields__)
    return f"{type(self).__qualname__}({said})"


def _state(self: Any) -> list[Any]:
    return [getattr(self, name) for name in self.__frozen_fields__]


def _set_state(self: Any, state: list[Any]) -> None:
    for name, value in zip(self.__frozen_fields__, state, strict=True):
        object.__setattr__(self, name, value)


def _refuse(_: Any, name: str, *__: Any) -> NoReturn:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot change field {name!r}")


class _Standard:
    """What ``dataclasses`` or ``inspect`` looks for in a class, made when it looks."""

    def __init__(self, name: str, *, frozen: bool, kw_only: bool) -> None:
        self._name = name
        self._how: dict[str, Any] = {"frozen": frozen, "kw_only": kw_only}
        self._made: Any = None

    def __get__(self, _: object, owner: type[Any]) -> Any:
        if self._made is None:
            import dataclasses
            import inspect

            said = _annotations(owner)
            twin = dataclasses.make_dataclass(
                owner.__name__,
                [(name, said[name], _standard_field(each)) for name, each in owner.__frozen_fields__.items()],
                **self._how,
            )
            self._made = inspect.signature(twin) if self._name == "__signature__" else getattr(twin, self._name)
        return self._made


def _standard_field(of: _Field) -> Any:
    import dataclasses

    given: dict[str, Any] = {} if of.default is _ABSENT else {"default": of.default}
    if of.factory is not None:
        given["default_factory"] = of.factory
    return dataclasses.field(compare=of.compare, **given)
