"""What a decorated function accepts: its lease, its message, and its other arguments."""

from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, get_args

from incumbent.errors import ConfigurationError
from incumbent.lease import Lease
from incumbent.options import name_of

if TYPE_CHECKING:
    import inspect  # imported when a function is decorated that does not show its arguments itself

MARK = "__incumbent__"  # wraps() copies it, so other decorators do not hide it
_CONTEXTS = ("lambda_context", "context")
_OF_METHODS = ("self", "cls")
_TAKES_ANY = 0x08  # inspect.CO_VARKEYWORDS
_GENERATES = 0x20 | 0x200  # inspect.CO_GENERATOR, CO_ASYNC_GENERATOR


def check_function(function: object, decorator: str) -> None:
    """Refuse what is not a plain function, or is leased already."""
    code = _code(function)
    if code is not None and code.co_varnames[0] not in _OF_METHODS and not code.co_flags & _GENERATES:
        return
    import inspect

    if not callable(function) or not inspect.isfunction(inspect.unwrap(function)):
        raise ConfigurationError(f"@{decorator} decorates functions, not {function!r}")
    if next(iter(_parameters(function)), "") in _OF_METHODS:
        raise ConfigurationError(f"@{decorator} decorates functions, and {name_of(function)} is a method")
    if hasattr(function, MARK):
        raise ConfigurationError(f"@{decorator}: {name_of(function)} is leased already and would wait for itself")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"@{decorator}: {name_of(function)} is a generator, whose work would begin after the lease was settled"
        )


def _code(function: object) -> CodeType | None:
    """Return the code of a function that has nothing around it and an argument by place: it shows the arguments.

    ``inspect`` says the same of such a function, and takes 4 ms to import.
    """
    if type(function) is not FunctionType or function.__dict__ or not function.__code__.co_argcount:
        return None
    return function.__code__


def takes_lease(function: Callable[..., Any]) -> bool:
    """Return whether the function gets its lease: it has the argument, or takes any and stands alone.

    Raises ``ConfigurationError`` if it requires the argument behind a decorator whose signature does not have it. A
    decorator that accepts anything and still does not pass it on shows at the first event (`named_if_not_passed_on`).
    """
    code = _code(function)
    if code is not None:
        named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return "lease" in named or code.co_flags & _TAKES_ANY != 0
    taken = _parameters(function).get("lease")
    layers = list(_layers(function))
    if taken is None:
        return not layers and _accepts_lease(function)
    passed = all(_accepts_lease(layer) for layer in layers)
    if not passed and taken.default is taken.empty:
        raise _not_passed_on(function)
    return passed


def named_if_not_passed_on(function: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """Make a ``run`` whose error says so if a decorator around the function turns out not to pass its lease on."""
    if not hasattr(function, "__wrapped__"):
        return run

    def named(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except TypeError as error:
            if "unexpected keyword argument 'lease'" not in str(error):
                raise
            raise _not_passed_on(function) from error

    return named


def _not_passed_on(function: Callable[..., Any]) -> ConfigurationError:
    return ConfigurationError(
        f"{name_of(function)} takes lease=, but a decorator between it and @leased does not pass it on: leave the "
        "argument out and call current_lease()"
    )


def _layers(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield the decorators around a function, as far as they set ``__wrapped__``."""
    while hasattr(function, "__wrapped__"):
        yield function
        function = function.__wrapped__


def _accepts_lease(function: Callable[..., Any]) -> bool:
    parameters = _parameters(function, follow_wrapped=False)
    return "lease" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


class MessageFunction:
    """A function of one message, which can be called with the stored message of another call."""

    def __init__(
        self, function: Callable[..., Any], *, argument: str | None, load: Callable[[Any], Any] | None
    ) -> None:
        """Find the argument that is the message: the named one, or the first. ``load`` makes it of the stored value.

        Raises ``ConfigurationError`` if the function does not have it, or requires another one: the owner also runs
        messages of other calls, without their arguments.
        """
        self.name = name_of(function)
        self.gives_lease = takes_lease(function)
        self.signature = signature_of(function)
        self.names = [name for name in self.signature.parameters if name != "lease"]
        self.argument = argument or (self.names[0] if self.names else "")
        if self.argument not in self.names:
            raise ConfigurationError(f"leased_function: {self.name} has no argument {self.argument!r}")
        self._check_other_arguments()
        self.load = load or data_class(self.signature.parameters[self.argument].annotation)

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return a call's arguments by name. Raises ``TypeError`` for a call that does not fit, or has no message."""
        arguments = self.signature.bind_partial(*args, **kwargs).arguments
        if self.argument not in arguments:
            raise TypeError(f"{self.name}() was called without {self.argument!r}, the argument that is the message")
        return arguments

    def context(self, arguments: dict[str, Any]) -> Any:
        """Return Lambda's context, if it is among a call's arguments."""
        return arguments.get("lambda_context", arguments.get("context"))

    def contexts(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return those of a call's arguments that every message gets."""
        return {name: arguments[name] for name in _CONTEXTS if name in arguments}

    def contexts_of(self, context: Any) -> dict[str, Any]:
        """Return the arguments of a resumed message, which has no call."""
        return {name: context for name in _CONTEXTS if name in self.names}

    def loaded(self, stored: Any) -> Any:
        """Make the message's argument of the stored value."""
        return stored if self.load is None else self.load(stored)

    def raw(self, event: Any) -> Any:
        """Return the JSON value of the message's argument.

        Raises ``ConfigurationError`` for a data class that could not be made of the stored value again.
        """
        raw = getattr(event, "raw_event", None)
        if raw is None:
            return event
        if self.load is None:
            raise ConfigurationError(
                f"{self.name}: a stored {type(event).__name__} could not be made again: annotate {self.argument!r} "
                "with a class that can be imported at run time, or give load="
            )
        return raw

    def call(self, run: Callable[..., Any], arguments: dict[str, Any], event: Any, lease: Lease) -> Any:
        """Call ``run(lease, ...)`` with the arguments and this message."""
        given = {**arguments, self.argument: event, **({"lease": lease} if self.gives_lease else {})}
        bound = self.signature.bind_partial()
        bound.arguments.update({name: given[name] for name in self.signature.parameters if name in given})
        more = {"lease": lease} if self.gives_lease and "lease" not in self.signature.parameters else {}
        return run(lease, *bound.args, **bound.kwargs, **more)

    def _check_other_arguments(self) -> None:
        for name, parameter in self.signature.parameters.items():
            needed = parameter.default is parameter.empty and parameter.kind not in (
                parameter.VAR_POSITIONAL,
                parameter.VAR_KEYWORD,
            )
            if needed and name not in (self.argument, "lease", *_CONTEXTS):
                raise ConfigurationError(
                    f"leased_function: {self.name} needs {name!r} besides its message {self.argument!r}, but a stored "
                    "message of another call does not have it: put it into the message"
                )


def _parameters(function: Callable[..., Any], *, follow_wrapped: bool = True) -> "Mapping[str, inspect.Parameter]":
    import inspect

    return inspect.signature(function, follow_wrapped=follow_wrapped).parameters


def signature_of(function: Callable[..., Any]) -> "inspect.Signature":
    """Return the signature, with annotations that are text (``from __future__ import annotations``) evaluated."""
    import inspect

    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # noqa: BLE001 - a name that only a type checker knows, or any other text
        return inspect.signature(function)


def data_class(annotation: object) -> Callable[[Any], Any] | None:
    """Return the Powertools data class of an annotation, also if it is one type of a union."""
    for named in (annotation, *get_args(annotation)):
        if isinstance(named, type) and hasattr(named, "raw_event"):
            return named
    return None
