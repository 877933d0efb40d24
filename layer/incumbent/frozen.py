"""Dataclasses with slots, as those of the standard library, that are quicker to make, to fill and to copy.

A frozen value is filled while it is of a twin class, which has the same slots and is not frozen: a slot of it is set
five times as fast, since no ``__setattr__`` has to be passed by.

``dataclasses`` compiles six functions for each class and imports ``inspect``, which took half of the time of
``import incumbent``. Here two are compiled, each at its first use. The standard library takes these classes for its
own: ``dataclasses.replace``, ``fields``, ``asdict`` and ``is_dataclass`` work on them.

Python packs the arguments of a class that is called into a tuple and a dict, and those of a function not. What each run
makes is made by functions, therefore, in a third of the time: see `maker` and `changer`.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, cast

if TYPE_CHECKING:  # type checkers know the standard library's, with every field
    from dataclasses import dataclass, field, replace

__all__ = ["changer", "dataclass", "field", "maker", "replace"]

C = TypeVar("C")
P = ParamSpec("P")

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


def maker(of: Callable[P, C]) -> Callable[P, C]:
    """Return a function that does what a call of this class does."""
    make: Callable[P, C] = _when_called(lambda: _maker(of))
    return make


def changer(of: type[C]) -> Callable[..., C]:
    """Return a function that does what `replace` does with values of this class."""
    change: Callable[..., C] = _when_called(lambda: _changer(of))
    return change


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
    parameters, values, scope = _filling(made)
    lines = _set(values)
    if _is_frozen(made) and lines:
        scope.update(made__=made, set__=object.__setattr__)
        lines = [
            "if self.__class__ is made__:",
            *(f" {line}" for line in ("set_class__(self, open__)", *lines, "self.__class__ = made__")),
            "else:",  # a subclass, which may have attributes of its own
            *(f" set__(self, {name!r}, {value})" for name, value in values.items()),
        ]
    made.__init__ = _compiled(made, "__init__", ["self", *parameters], [*lines, *_check(made), "return"], **scope)
    made.__init__(self, *args, **given)


def _first_replace(self: Any, /, **changes: Any) -> Any:
    """Compile ``__replace__`` for the first copy of a class, and copy the value."""
    made = _made_of(self)
    made.__replace__ = _changer(made)
    return made.__replace__(self, **changes)


def _changer(made: Any) -> Any:
    values = {name: f"copied__.{name} if {name} is absent__ else {name}" for name in made.__frozen_fields__}
    return _compiled(
        made,
        "__replace__",
        ["copied__", "/", *(f"{name}=absent__" for name in values)],
        [
            "if copied__.__class__ is not made__:",
            f" return replace__(copied__, {', '.join(f'{name}={name}' for name in values)})",
            *("self = new__(open__)", *_set(values), "self.__class__ = made__", *_check(made), "return self"),
        ],
        made__=made,
        replace__=_replace_subclass,
    )


def _replace_subclass(copied: Any, **changes: Any) -> Any:
    from dataclasses import replace  # which knows the fields of a subclass

    return replace(copied, **{name: value for name, value in changes.items() if value is not _ABSENT})


def _maker(made: Any) -> Any:
    parameters, values, scope = _filling(made)
    return _compiled(
        made,
        f"make_{made.__name__}",
        parameters,
        ["self = new__(open__)", *_set(values), "self.__class__ = made__", *_check(made), "return self"],
        made__=made,
        **scope,
    )


def _filling(made: Any) -> tuple[list[str], dict[str, str], dict[str, Any]]:
    """Return the parameters of what fills a value of a class, each field's value, and what these refer to."""
    scope, parameters, values = dict[str, Any](), [], {}
    for name, each in made.__frozen_fields__.items():
        scope[f"given__{name}"] = each.default if each.factory is None else each.factory
        if each.factory is not None:
            parameters.append(f"{name}=absent__")
            values[name] = f"given__{name}() if {name} is absent__ else {name}"
        else:
            parameters.append(name if each.default is _ABSENT else f"{name}=given__{name}")
            values[name] = name
    return (["*", *parameters] if made.__match_args__ == () and parameters else parameters), values, scope


def _set(values: dict[str, str]) -> list[str]:
    return [f"self.{name} = {value}" for name, value in values.items()]


def _check(made: Any) -> list[str]:
    return ["self.__post_init__()"] if hasattr(made, "__post_init__") else []


def _when_called(compiled: Callable[[], FunctionType]) -> Any:
    """Return a function that is compiled at its first call: it takes over the code of the compiled one then."""

    def compile_and_call(*args: Any, **given: Any) -> Any:
        known = compiled()
        scope.update(known.__globals__)
        function.__qualname__ = known.__qualname__
        function.__defaults__, function.__kwdefaults__ = known.__defaults__, known.__kwdefaults__
        function.__code__ = known.__code__  # last: another thread may call it meanwhile
        return known(*args, **given)

    scope: dict[str, Any] = {"compile_and_call__": compile_and_call}
    function = FunctionType(_first_call.__code__, scope)
    return function


def _first_call(*args: Any, **given: Any) -> Any:
    return compile_and_call__(*args, **given)  # type: ignore[name-defined] # noqa: F821 - in the scope of each function


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


def _names(self: Any) -> Iterable[str]:
    if "__frozen_fields__" in type(self).__dict__:
        return cast("Iterable[str]", self.__frozen_fields__)
    from dataclasses import fields  # which knows those of a subclass

    return [each.name for each in fields(self)]


def _state(self: Any) -> list[Any]:
    return [getattr(self, name) for name in _names(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for name, value in zip(_names(self), state, strict=True):
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
