"""The options of ``leased`` and ``leased_function``: their types, and their checks when a function is decorated."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, cast

from incumbent import powertools, results
from incumbent.backends import check_backend, check_waits
from incumbent.clock import SYSTEM_CLOCK, Clock
from incumbent.errors import ConfigurationError
from incumbent.frozen import dataclass
from incumbent.keyspaces import check_keyspace
from incumbent.lease import Lease
from incumbent.observe import Observer
from incumbent.policies import policy_in_force
from incumbent.settings import Settings, WhenBusy
from incumbent.sources import stored_form
from incumbent.validation import shown
from incumbent.values import Message, Policy
from incumbent.wakers import Waker, check_waker

Choose: TypeAlias = Callable[[Any], object]


class SettingOptions(TypedDict, total=False):
    """The options that decide how runs go."""

    ttl_ms: int | None
    renew_every_ms: int | None
    when_busy: WhenBusy
    wait_ms: int | None
    deliver: Literal["one", "all"]
    debounce_ms: int
    debounce_max_ms: int | None
    min_gap_ms: int
    drain_ms: int | None
    stop_before_ms: int | None
    watch_ms: int | None
    cancel_on_stop: bool
    max_run_ms: int | None
    max_hops: int
    policy: Policy | None


class Options(SettingOptions, total=False):
    """The options of both decorators, as the docstring of ``leased`` describes them."""

    key: str | Callable[[Any], object] | None
    key_jmespath: str | None
    message_id: Callable[[Any], object] | None
    message_id_jmespath: str | None
    provider: object | None
    keyspace: str | None
    waker: Waker | Literal["auto"] | None
    target: str | None
    unless: Callable[[Any], object] | None
    answer_headers: Mapping[str, str] | None
    store: Callable[[Any], Any]
    on_busy: Callable[..., Any] | None
    on_result: Callable[[Message, Any], object] | None
    on_lost: Callable[[Lease], object] | None
    on_dead_letter: Callable[[Message], object] | None
    observer: Observer | None
    logger: powertools.KeyedLogger | None
    clock: Clock


_HOOKS = ("unless", "store", "on_busy", "on_result", "on_lost", "on_dead_letter", "observer")
_VARIABLES = {"ttl_ms": "INCUMBENT_TTL_MS", "renew_every_ms": "INCUMBENT_RENEW_EVERY_MS"}


@dataclass(frozen=True, slots=True)
class Selector:
    """Chooses a value of an event. ``said`` is what errors call it."""

    said: str
    choose: Choose


class CheckedOptions:
    """The options of one decorated function, checked. Raises ``ConfigurationError``."""

    def __init__(self, name: str, options: Options, settings: Settings) -> None:
        """Check the options of the function that errors call ``name``."""
        self.name = name
        self.settings = settings
        self.provider = options.get("provider")
        self.keyspace = options.get("keyspace")
        self.waker = options.get("waker", "auto")
        self.target = options.get("target")
        self.unless = options.get("unless")
        self.store = options.get("store", stored_form)
        self.on_busy = options.get("on_busy")
        self.on_result = options.get("on_result")
        self.on_lost = options.get("on_lost")
        self.on_dead_letter = options.get("on_dead_letter")
        self.observer = options.get("observer")
        self.logger = options.get("logger")
        self.clock = options.get("clock", SYSTEM_CLOCK)
        self._check(options)
        self.answer_headers = self._answer_headers(options.get("answer_headers"))
        self.key = self._key(options.get("key"), options.get("key_jmespath"))
        self.message_id = self._message_id(options.get("message_id"), options.get("message_id_jmespath"))

    def _check(self, options: Options) -> None:
        if self.keyspace is not None:
            check_keyspace(self.keyspace)
        if self.logger is not None and not isinstance(self.logger, powertools.KeyedLogger):
            raise self._wrong(f"logger is {self.logger!r}: give a Powertools Logger")
        if cast("object", self.store) is None:
            raise self._wrong("store is None: leave it out, or give a callable")
        if self.target is not None and (not isinstance(cast("object", self.target), str) or not self.target):
            raise self._wrong(f"target is {self.target!r}: give a function's name or ARN")
        if self.provider is not None:
            check_backend(self.provider)
            check_waits(self.provider, self.settings.ttl_ms)
        check_waker(self.waker)
        given: Mapping[str, object] = cast("Mapping[str, object]", options)
        for hook in _HOOKS:
            if given.get(hook) is not None and not callable(given[hook]):
                raise self._wrong(f"{hook} is {given[hook]!r}, which is not callable")
        for option, value in given.items():
            if results.is_async(value):
                raise self._wrong(f"{option} is async and would not be awaited: give a plain function")

    def _answer_headers(self, given: Mapping[str, str] | None) -> Mapping[str, str]:
        headers: Any = given or {}
        if not isinstance(headers, Mapping) or not all(
            isinstance(each, str) for pair in headers.items() for each in pair
        ):
            raise self._wrong(f"answer_headers is {shown(headers)}: give a mapping of text to text")
        return {header.lower(): value for header, value in headers.items()}

    def _key(self, key: object, key_jmespath: str | None) -> Selector:
        if (key is None) == (key_jmespath is None):
            raise self._wrong("give key= or key_jmespath=, exactly one of them")
        if key_jmespath is not None:
            return Selector(f"key_jmespath {key_jmespath!r}", self._expression(key_jmespath))
        if callable(key):
            return Selector(f"key {name_of(key)}", key)
        if not isinstance(key, str) or not key:
            raise self._wrong(f"key is {key!r}: give non-empty text or a callable")
        return Selector(f"key {key!r}", functools.partial(_constant, key))

    def _message_id(self, message_id: object, message_id_jmespath: str | None) -> Selector | None:
        if message_id is not None and message_id_jmespath is not None:
            raise self._wrong("give message_id= or message_id_jmespath=, not both")
        if message_id_jmespath is not None:
            return Selector(f"message_id_jmespath {message_id_jmespath!r}", self._expression(message_id_jmespath))
        if message_id is None:
            return None
        if not callable(message_id):
            raise self._wrong(f"message_id is {message_id!r}: give a callable")
        return Selector("message_id", message_id)

    def _expression(self, expression: str) -> Choose:
        """Compile an expression. Powertools is imported only for its functions, and jmespath for more than a path.

        A function that does not exist shows when the expression reaches it: now, on an empty event, or at the first
        event that has the values around it.
        """
        names = expression.split(".") if isinstance(cast("object", expression), str) else []
        if names and all(name.isascii() and name.isidentifier() for name in names):
            return functools.partial(_at, names)
        import jmespath
        from jmespath.exceptions import JMESPathError, UnknownFunctionError

        try:
            compiled = jmespath.compile(expression)
        except (JMESPathError, TypeError, AttributeError) as cause:
            raise self._wrong(f"{expression!r} is not a JMESPath expression: {cause}") from cause
        functions = None
        if "powertools_" in expression:
            from aws_lambda_powertools.utilities.jmespath_utils import PowertoolsFunctions

            functions = PowertoolsFunctions()
        options = jmespath.Options(custom_functions=functions)

        def choose(event: Any) -> object:
            try:
                return compiled.search(event, options=options)
            except UnknownFunctionError as cause:
                raise self._wrong(
                    f"{expression!r} calls a function that JMESPath does not have ({cause}); Powertools adds "
                    "powertools_json, powertools_base64 and powertools_base64_gzip"
                ) from cause

        try:
            choose({})
        except ConfigurationError:
            raise
        except Exception:  # noqa: BLE001, S110 - an empty event has no values to work on
            pass
        return choose

    def _wrong(self, said: str) -> ConfigurationError:
        return ConfigurationError(f"{self.name}: {said}")


def make_settings(decorator: str, options: Options) -> Settings:
    """Make the settings from the options, else from the environment, else from the defaults.

    Raises ``TypeError`` for an option that ``decorator`` does not have.
    """
    known = Options.__annotations__  # those of its base, too
    if unknown := sorted(options.keys() - known.keys()):
        raise TypeError(f"{decorator} has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    chosen: dict[str, Any] = {
        name: value for name, value in options.items() if name in SettingOptions.__annotations__ and value is not None
    }
    read = []
    for name, variable in _VARIABLES.items():
        text = os.environ.get(variable)
        if name not in chosen and text:
            try:
                chosen[name] = int(text)
            except ValueError as cause:
                raise ConfigurationError(f"{variable} is {text!r}: give whole milliseconds") from cause
            read.append(variable)
    chosen["policy"] = policy_in_force(options.get("policy"))
    try:
        return Settings(**chosen)
    except ConfigurationError as cause:
        if read:
            raise ConfigurationError(f"{cause} (from the environment: {', '.join(read)})") from cause
        raise


def name_of(function: object) -> str:
    """Return what errors call a function, and its keyspace outside Lambda: its module and name."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", repr(function))
    return f"{module}.{name}".replace("/", ".")


def _at(names: Sequence[str], event: Any) -> object:
    """Return what JMESPath finds at a path of names: most expressions are one, and jmespath takes 5 ms to import."""
    found = event
    for name in names:
        try:
            found = found.get(name)
        except AttributeError:
            return None
    return found


def _constant(value: str, event: Any) -> str:
    del event
    return value
