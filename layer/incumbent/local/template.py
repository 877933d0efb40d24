"""Reads from a SAM template what is needed to run its functions here."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from incumbent.errors import ConfigurationError
from incumbent.local.files import MAX_DEPTH, check_depth, read_text
from incumbent.local.intrinsics import ACCOUNT_ID, NO_VALUE, REGION, Resolver, mapping, naming
from incumbent.local.servers import HOW_TO_INSTALL

LATEST = "$LATEST"

_MAX_RETRY_ATTEMPTS = 2
_IN_A_CIRCLE = "its conditions refer to themselves in a circle"
_MAX_BYTES = 1_000_000  # CloudFormation's own limit


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSpec:
    """One function of a template, with everything resolved that it takes to run it.

    ``logical_id`` is its name in the template, ``name`` the one Lambda would know it by. ``path`` lists the
    folders that come before the interpreter's own: the function's code and its layers.
    """

    logical_id: str
    name: str
    handler: str
    code: Path
    path: tuple[Path, ...]
    runtime: str | None = None
    timeout_ms: int = 3_000
    memory_mb: int = 128
    environment: Mapping[str, str] = field(default_factory=dict)
    max_retry_attempts: int = _MAX_RETRY_ATTEMPTS

    @property
    def arn(self) -> str:
        """The ARN without a qualifier."""
        return f"arn:aws:lambda:{REGION}:{ACCOUNT_ID}:function:{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotHere:
    """A function of a template that cannot be run, and why: a whole sentence that begins with its logical id."""

    logical_id: str
    name: str
    why: str


Function: TypeAlias = FunctionSpec | NotHere


def find_function(functions: Iterable[Function], name: str) -> FunctionSpec:
    """Return the function of that logical id or name.

    Raises:
        ConfigurationError: there is none, or it cannot be run; the text says why.
    """
    functions = list(functions)
    for function in functions:
        if name in {function.logical_id, function.name}:
            if isinstance(function, NotHere):
                raise ConfigurationError(function.why)
            return function
    names = ", ".join(sorted(each.logical_id for each in functions)) or "none"
    raise ConfigurationError(f"the template has no function {name!r}; it has {names}")


class Template:
    """A parsed template together with the values of its parameters.

    It reads of the functions what `FunctionSpec` has, and of the tables what it takes to create them. It does not check
    the template: `sam validate --lint` does.
    """

    def __init__(self, document: Mapping[str, Any], folder: Path, parameters: Mapping[str, str]) -> None:
        """Take an already parsed document; `load` reads one from a file."""
        self._document = document
        self._folder = folder
        self._values = Resolver(document, parameters)

    @classmethod
    def load(cls, path: Path | str, parameters: Mapping[str, str] | None = None) -> "Template":
        """Read the file at ``path``.

        Raises:
            ConfigurationError: there is no such file, it is not a SAM template, or a parameter is unknown.
        """
        file = Path(path)
        document = _parse(read_text(file, "the template", max_bytes=_MAX_BYTES), file)
        if not isinstance(document, dict) or not isinstance(document.get("Resources"), dict):
            raise ConfigurationError(f"{file} is not a template: it has no Resources")
        return cls(document, file.resolve().parent, parameters or {})

    @property
    def parameters(self) -> frozenset[str]:
        """The names of the parameters that the template declares."""
        return self._values.declared

    def functions(self, given: Collection[str] = ()) -> tuple[FunctionSpec, ...]:
        """Return every function of the template that can be run here, as `declared` reads them."""
        return tuple(each for each in self.declared(given) if isinstance(each, FunctionSpec))

    def declared(self, given: Collection[str] = ()) -> tuple[Function, ...]:
        """Return every function of the template; of one that cannot be run here, why.

        ``given`` are the variables that its user sets: what the template says of them is not read.
        """
        return tuple(
            self._function(logical_id, resource, given)
            for logical_id, resource in self._values.resources.items()
            if isinstance(resource, dict) and resource.get("Type") == "AWS::Serverless::Function"
        )

    def tables(self) -> tuple[dict[str, Any], ...]:
        """Return, for every DynamoDB table whose condition holds, the arguments of ``create_table``."""
        kept = ("AttributeDefinitions", "BillingMode", "GlobalSecondaryIndexes", "KeySchema", "LocalSecondaryIndexes")
        tables = []
        for logical_id, resource in self._values.resources.items():
            if isinstance(resource, dict) and resource.get("Type") == "AWS::DynamoDB::Table" and self._is_in(resource):
                own = mapping(resource, "Properties")
                properties = self._values.resolve({name: own[name] for name in kept if name in own})
                tables.append({"TableName": self._values.name_of(logical_id), **properties})
        return tuple(tables)

    def _is_in(self, resource: Mapping[str, Any]) -> bool:
        return "Condition" not in resource or self._values.holds(resource["Condition"])

    def _function(self, logical_id: str, resource: Mapping[str, Any], given: Collection[str]) -> Function:
        name = logical_id
        try:
            name = self._values.name_of(logical_id)
            if not self._is_in(resource):
                return NotHere(
                    logical_id=logical_id,
                    name=name,
                    why=f"{logical_id} is left out by its Condition {resource['Condition']}",
                )
            return self._spec(logical_id, name, resource, given)
        except ConfigurationError as error:
            return NotHere(logical_id=logical_id, name=name, why=f"{logical_id}: {error}")
        except RecursionError:
            return NotHere(logical_id=logical_id, name=name, why=f"{logical_id}: {_IN_A_CIRCLE}")

    def _spec(
        self, logical_id: str, function_name: str, resource: Mapping[str, Any], given: Collection[str]
    ) -> FunctionSpec:
        own = mapping(resource, "Properties")
        common = mapping(mapping(self._document, "Globals"), "Function")

        def one(name: str, default: Any = None) -> Any:
            with naming(name):
                value = self._values.resolve(own.get(name, common.get(name, default)))
            return default if value is NO_VALUE else value

        runtime = one("Runtime")
        if one("PackageType") == "Image":
            raise ConfigurationError("PackageType Image is not run here, only Python from a folder")
        if runtime is not None and not str(runtime).startswith("python"):
            raise ConfigurationError(f"{runtime} is not run here, only Python")
        handler, code_uri = one("Handler"), one("CodeUri")
        if not isinstance(handler, str) or "." not in handler:
            raise ConfigurationError(f"Handler must look like module.function, not {handler!r}")
        if not isinstance(code_uri, str):
            raise ConfigurationError(f"CodeUri must be a folder, not {code_uri!r}")
        code = self._folder / code_uri
        if not code.is_dir():
            raise ConfigurationError(f"CodeUri {code_uri} is not a folder beside the template")
        return FunctionSpec(
            logical_id=logical_id,
            name=function_name,
            handler=handler,
            code=code.resolve(),
            path=(code.resolve(), *self._layers(common, own)),
            runtime=runtime,
            timeout_ms=_whole("Timeout", one("Timeout", 3)) * 1_000,
            memory_mb=_whole("MemorySize", one("MemorySize", 128)),
            environment=self._variables(given, common, own),
            max_retry_attempts=_whole(
                "MaximumRetryAttempts",
                mapping({"EventInvokeConfig": one("EventInvokeConfig")}, "EventInvokeConfig").get(
                    "MaximumRetryAttempts", _MAX_RETRY_ATTEMPTS
                ),
            ),
        )

    def _variables(self, given: Collection[str], *sources: Mapping[str, Any]) -> dict[str, str]:
        unread: dict[str, Any] = {}
        for source in sources:  # a function's own variables come after Globals'
            with naming("Environment"):
                environment = self._values.opened(source.get("Environment"))
                variables = self._values.opened(environment.get("Variables")) if isinstance(environment, dict) else None
            unread |= variables if isinstance(variables, dict) else {}
        found: dict[str, str] = {}
        for name, raw in unread.items():
            if name in given:
                continue
            with naming(f"the variable {name}", f"--env {name}=VALUE goes before it"):
                value = self._values.resolve(raw)
                if isinstance(value, (dict, list)):
                    raise ConfigurationError(f"it must be a string, not {value!r}")
            if value is not NO_VALUE:
                found[name] = str(value).lower() if isinstance(value, bool) else str(value)
        return found

    def _layers(self, *sources: Mapping[str, Any]) -> tuple[Path, ...]:
        folders = []
        for source in sources:
            layers = source.get("Layers")
            for layer in layers if isinstance(layers, list) else []:
                # Only layers of this template are available here; any other is an ARN of another stack.
                name = layer.get("Ref") if isinstance(layer, dict) else None
                resource = self._values.resources.get(name) if isinstance(name, str) else None
                if not isinstance(resource, dict) or resource.get("Type") != "AWS::Serverless::LayerVersion":
                    continue
                with naming(f"the layer {name}"):
                    uri = self._values.resolve(mapping(resource, "Properties").get("ContentUri"))
                    if not isinstance(uri, str):
                        raise ConfigurationError(f"ContentUri must be a folder, not {uri!r}")
                    content = self._folder / uri
                if not content.is_dir():
                    raise ConfigurationError(f"the layer {name} has no folder {content.name}")
                # A built layer has its packages in python/, as Lambda wants it; a source folder as they are.
                built = content / "python"
                folders.append((built if built.is_dir() else content).resolve())
        return tuple(folders)


def _parse(text: str, file: Path) -> Any:
    try:
        import yaml
    except ImportError as cause:
        raise ConfigurationError(f"the package PyYAML is not installed: {HOW_TO_INSTALL}") from cause

    class Loader(yaml.SafeLoader):
        """YAML with CloudFormation's short forms, and dates left as the text they are."""

    def short_form(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> Any:
        if isinstance(node, yaml.ScalarNode):
            argument: Any = loader.construct_scalar(node)
        elif isinstance(node, yaml.SequenceNode):
            argument = loader.construct_sequence(node, deep=True)
        else:
            argument = None  # no short form takes a mapping
        return {suffix if suffix in {"Ref", "Condition"} else f"Fn::{suffix}": argument}

    Loader.add_multi_constructor("!", short_form)
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    try:
        document = yaml.load(text, Loader)  # noqa: S506 - it is a SafeLoader with three constructors more
        check_depth(document)
    except yaml.YAMLError as cause:
        where = getattr(cause, "problem_mark", None)
        line = f", line {where.line + 1}" if where is not None else ""
        problem = getattr(cause, "problem", None) or str(cause).partition("\n")[0]
        raise ConfigurationError(f"{file} is not YAML{line}: {problem}") from cause
    except RecursionError as cause:
        raise ConfigurationError(f"{file} is nested deeper than {MAX_DEPTH} levels") from cause
    except (ValueError, TypeError, AttributeError, OverflowError) as cause:  # a number or a date that is none
        raise ConfigurationError(f"{file} cannot be read: {cause}") from cause
    return document


def _whole(name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as cause:
        raise ConfigurationError(f"{name} must be a whole number, not {value!r}") from cause
