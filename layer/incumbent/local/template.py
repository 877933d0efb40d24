"""Reads from a SAM template what is needed to run its functions here."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from incumbent.errors import ConfigurationError
from incumbent.local.files import MAX_DEPTH, check_depth, read_text
from incumbent.validation import shown

REGION = "eu-central-1"
ACCOUNT_ID = "123456789012"
LATEST = "$LATEST"

_PSEUDO_PARAMETERS = {
    "AWS::AccountId": ACCOUNT_ID,
    "AWS::Partition": "aws",
    "AWS::Region": REGION,
    "AWS::StackId": f"arn:aws:cloudformation:{REGION}:{ACCOUNT_ID}:stack/local/local",
    "AWS::StackName": "local",
    "AWS::URLSuffix": "amazonaws.com",
}
# What a resource's own name is called where it may be given one.
_NAMES = {
    "AWS::DynamoDB::Table": "TableName",
    "AWS::Logs::LogGroup": "LogGroupName",
    "AWS::Serverless::Function": "FunctionName",
}
# What SAM adds for a whole template; the rest begins with the logical id of what it is added for.
_ADDED_BY_SAM = frozenset({"ServerlessHttpApi", "ServerlessRestApi", "ServerlessDeploymentApplication"})
_SUBSTITUTE = re.compile(r"\$\{(!?)([^}]+)\}")
_MAX_RETRY_ATTEMPTS = 2
_IN_A_CIRCLE = "its conditions refer to themselves in a circle"
_MAX_BYTES = 1_000_000  # CloudFormation's own limit


class _NoValue:
    """The answer of AWS::NoValue: the property is as if it were not there."""


_NO_VALUE = _NoValue()


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

    Resolved are Ref, Sub, GetAtt, If, Equals, And, Or, Not, Condition, Join, Select, Split, FindInMap; of the
    functions what `FunctionSpec` has; of the tables what it takes to create them. It does not check the
    template: `sam validate --lint` does.
    """

    def __init__(self, document: Mapping[str, Any], folder: Path, parameters: Mapping[str, str]) -> None:
        """Take an already parsed document; `load` reads one from a file."""
        self._document = document
        self._folder = folder
        self._resources = _mapping(document, "Resources")
        declared = _mapping(document, "Parameters")
        unknown = sorted(set(parameters) - set(declared))
        if unknown:
            raise ConfigurationError(f"the template has no parameter {unknown[0]!r}; it has {_names(declared)}")
        specs = {name: _mapping(declared, name) for name in declared}
        defaults = {name: str(spec["Default"]) for name, spec in specs.items() if "Default" in spec}
        self._declared = frozenset(declared)
        self._parameters = {**defaults, **parameters}

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
        return self._declared

    def functions(self, given: Collection[str] = ()) -> tuple[FunctionSpec, ...]:
        """Return every function of the template that can be run here, as `declared` reads them."""
        return tuple(each for each in self.declared(given) if isinstance(each, FunctionSpec))

    def declared(self, given: Collection[str] = ()) -> tuple[Function, ...]:
        """Return every function of the template; of one that cannot be run here, why.

        ``given`` are the variables that its user sets: what the template says of them is not read.
        """
        return tuple(
            self._function(logical_id, resource, given)
            for logical_id, resource in self._resources.items()
            if isinstance(resource, dict) and resource.get("Type") == "AWS::Serverless::Function"
        )

    def tables(self) -> tuple[dict[str, Any], ...]:
        """Return, for every DynamoDB table whose condition holds, the arguments of ``create_table``."""
        kept = ("AttributeDefinitions", "BillingMode", "GlobalSecondaryIndexes", "KeySchema", "LocalSecondaryIndexes")
        tables = []
        for logical_id, resource in self._resources.items():
            if isinstance(resource, dict) and resource.get("Type") == "AWS::DynamoDB::Table" and self._is_in(resource):
                own = _mapping(resource, "Properties")
                properties = self._resolve({name: own[name] for name in kept if name in own})
                tables.append({"TableName": self._name_of(logical_id), **properties})
        return tuple(tables)

    def _is_in(self, resource: Mapping[str, Any]) -> bool:
        return "Condition" not in resource or self._holds(resource["Condition"])

    def _function(self, logical_id: str, resource: Mapping[str, Any], given: Collection[str]) -> Function:
        name = logical_id
        try:
            name = self._name_of(logical_id)
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
        own = _mapping(resource, "Properties")
        common = _mapping(_mapping(self._document, "Globals"), "Function")

        def one(name: str, default: Any = None) -> Any:
            with _naming(name):
                value = self._resolve(own.get(name, common.get(name, default)))
            return default if value is _NO_VALUE else value

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
                _mapping({"EventInvokeConfig": one("EventInvokeConfig")}, "EventInvokeConfig").get(
                    "MaximumRetryAttempts", _MAX_RETRY_ATTEMPTS
                ),
            ),
        )

    def _variables(self, given: Collection[str], *sources: Mapping[str, Any]) -> dict[str, str]:
        unread: dict[str, Any] = {}
        for source in sources:  # a function's own variables come after Globals'
            with _naming("Environment"):
                environment = self._opened(source.get("Environment"))
                variables = self._opened(environment.get("Variables")) if isinstance(environment, dict) else None
            unread |= variables if isinstance(variables, dict) else {}
        found: dict[str, str] = {}
        for name, raw in unread.items():
            if name in given:
                continue
            with _naming(f"the variable {name}", f"--env {name}=VALUE goes before it"):
                value = self._resolve(raw)
                if isinstance(value, (dict, list)):
                    raise ConfigurationError(f"it must be a string, not {value!r}")
            if value is not _NO_VALUE:
                found[name] = str(value).lower() if isinstance(value, bool) else str(value)
        return found

    def _layers(self, *sources: Mapping[str, Any]) -> tuple[Path, ...]:
        folders = []
        for source in sources:
            layers = source.get("Layers")
            for layer in layers if isinstance(layers, list) else []:
                # Only layers of this template are available here; any other is an ARN of another stack.
                name = layer.get("Ref") if isinstance(layer, dict) else None
                resource = self._resources.get(name) if isinstance(name, str) else None
                if not isinstance(resource, dict) or resource.get("Type") != "AWS::Serverless::LayerVersion":
                    continue
                with _naming(f"the layer {name}"):
                    uri = self._resolve(_mapping(resource, "Properties").get("ContentUri"))
                    if not isinstance(uri, str):
                        raise ConfigurationError(f"ContentUri must be a folder, not {uri!r}")
                    content = self._folder / uri
                if not content.is_dir():
                    raise ConfigurationError(f"the layer {name} has no folder {content.name}")
                # A built layer has its packages in python/, as Lambda wants it; a source folder as they are.
                built = content / "python"
                folders.append((built if built.is_dir() else content).resolve())
        return tuple(folders)

    def _name_of(self, logical_id: str) -> str:
        resource = _mapping(self._resources, logical_id)
        given = _mapping(resource, "Properties").get(_NAMES.get(str(resource.get("Type")), ""))
        with _naming("its name"):
            name = self._resolve(given) if given is not None else _NO_VALUE
        return name if isinstance(name, str) else logical_id

    def _holds(self, name: Any) -> bool:
        conditions = _mapping(self._document, "Conditions")
        if not isinstance(name, str) or name not in conditions:
            raise ConfigurationError(f"the template has no condition {shown(name)}")
        return self._resolve(conditions[name]) is True

    def _opened(self, value: Any) -> Any:
        """The value, resolved if it is itself an If or the like; what stands in it is not."""
        return self._resolve(value) if isinstance(value, dict) and _is_intrinsic(value) else value

    def _resolve(self, value: Any) -> Any:
        if isinstance(value, list):
            items = (self._resolve(item) for item in value)
            return [item for item in items if item is not _NO_VALUE]
        if not isinstance(value, dict):
            return value
        if _is_intrinsic(value):
            ((name, argument),) = value.items()
            try:
                return self._intrinsic(name, argument)
            except (TypeError, ValueError, LookupError) as cause:
                short = name.removeprefix("Fn::")
                raise ConfigurationError(f"the template's {short} cannot be resolved: {shown(argument)}") from cause
        resolved = {name: self._resolve(item) for name, item in value.items()}
        return {name: item for name, item in resolved.items() if item is not _NO_VALUE}

    def _intrinsic(self, name: str, argument: Any) -> Any:  # noqa: C901, PLR0912 - a table
        match name.removeprefix("Fn::"):
            case "Ref":
                return self._ref(argument)
            case "Condition":
                return self._holds(argument)
            case "GetAtt":
                return self._get_att(argument)
            case "Sub":
                return self._sub(argument)
            case "If":
                condition, when_true, when_false = argument
                return self._resolve(when_true if self._holds(condition) else when_false)
            case "Equals":
                left, right = self._resolve(argument)
                return str(left) == str(right)
            case "And":
                return all(self._resolve(argument))
            case "Or":
                return any(self._resolve(argument))
            case "Not":
                return not self._resolve(argument)[0]
            case "Join":
                separator, items = self._resolve(argument)
                return str(separator).join(str(item) for item in items)
            case "Select":
                index, items = self._resolve(argument)
                return items[int(index)]
            case "Split":
                separator, text = self._resolve(argument)
                return str(text).split(str(separator))
            case "FindInMap":
                return self._find_in_map(argument)
            case other:
                raise ConfigurationError(f"the template uses {other}, which cannot be resolved here")

    def _ref(self, name: Any) -> Any:
        if name == "AWS::NoValue":
            return _NO_VALUE
        if name in _PSEUDO_PARAMETERS:
            return _PSEUDO_PARAMETERS[name]
        if name in self._parameters:
            return self._parameters[name]
        if name in self._declared:
            raise ConfigurationError(
                f"the template's parameter {name!r} has no default: give it a value (--parameter {name}=VALUE)"
            )
        if name in self._resources:
            return self._name_of(name)
        # What SAM makes by itself, such as ServerlessHttpApi or a function's role, is not in the file.
        if name in _ADDED_BY_SAM or any(str(name).startswith(known) for known in self._resources):
            return str(name)
        raise ConfigurationError(f"the template has no parameter and no resource {name!r}")

    def _get_att(self, argument: Any) -> str:
        logical_id, attribute = argument.split(".", 1) if isinstance(argument, str) else argument
        name = str(self._ref(logical_id))
        kind = _mapping(self._resources, logical_id).get("Type")
        if attribute == "Arn" and kind == "AWS::Serverless::Function":
            return f"arn:aws:lambda:{REGION}:{ACCOUNT_ID}:function:{name}"
        if attribute == "Arn" and kind == "AWS::DynamoDB::Table":
            return f"arn:aws:dynamodb:{REGION}:{ACCOUNT_ID}:table/{name}"
        return f"{name}.{attribute}"

    def _sub(self, argument: Any) -> str:
        text, own = (argument, {}) if isinstance(argument, str) else (argument[0], self._resolve(argument[1]))

        def replace(match: re.Match[str]) -> str:
            literal, name = match.groups()
            if literal:
                return "${" + name + "}"
            if name in own:
                return str(own[name])
            return str(self._get_att(name) if "." in name else self._ref(name))

        return _SUBSTITUTE.sub(replace, text)

    def _find_in_map(self, argument: Any) -> Any:
        name, first, second = self._resolve(argument)
        try:
            return self._document["Mappings"][name][first][second]
        except (KeyError, TypeError) as cause:
            raise ConfigurationError(f"the template's mapping {name}.{first}.{second} is not there") from cause


def _parse(text: str, file: Path) -> Any:
    try:
        import yaml
    except ImportError as cause:
        raise ConfigurationError("to read a template install incumbent[local]: PyYAML is not here") from cause

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


@contextmanager
def _naming(what: str, advice: str = "") -> Iterator[None]:
    """Say of which property an error is."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{what}: {error}" + (f" ({advice})" if advice else "")) from error


def _mapping(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What stands under ``name``: nothing is as good as an empty mapping, and all else is refused."""
    value = holder.get(name)
    if not isinstance(value, dict | None):
        raise ConfigurationError(f"{name} must be a mapping, not {shown(value)}")
    return value or {}


def _is_intrinsic(value: Mapping[Any, Any]) -> bool:
    if len(value) != 1:
        return False
    ((name, argument),) = value.items()
    return isinstance(name, str) and (
        name == "Ref" or name.startswith("Fn::") or (name == "Condition" and isinstance(argument, str))
    )


def _whole(name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as cause:
        raise ConfigurationError(f"{name} must be a whole number, not {value!r}") from cause


def _names(values: Sequence[str] | Mapping[str, Any]) -> str:
    return ", ".join(sorted(map(str, values))) or "none"
