"""Reads from a SAM template what is needed to run its functions here."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from incumbent.errors import ConfigurationError

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
_SUBSTITUTE = re.compile(r"\$\{(!?)([^}]+)\}")
_MAX_RETRY_ATTEMPTS = 2


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
        self._resources: Mapping[str, Any] = document.get("Resources") or {}
        declared: Mapping[str, Any] = document.get("Parameters") or {}
        unknown = sorted(set(parameters) - set(declared))
        if unknown:
            raise ConfigurationError(f"the template has no parameter {unknown[0]!r}; it has {_names(declared)}")
        defaults = {name: str(spec["Default"]) for name, spec in declared.items() if "Default" in spec}
        self._declared = frozenset(declared)
        self._parameters = {**defaults, **parameters}

    @classmethod
    def load(cls, path: Path | str, parameters: Mapping[str, str] | None = None) -> "Template":
        """Read the file at ``path``.

        Raises:
            ConfigurationError: there is no such file, it is no SAM template, or a parameter is unknown.
        """
        file = Path(path)
        try:
            text = file.read_text(encoding="utf-8")
        except OSError as cause:
            raise ConfigurationError(f"cannot read the template {file}: {cause.strerror}") from cause
        document = _parse(text, file)
        if not isinstance(document, dict) or not isinstance(document.get("Resources"), dict):
            raise ConfigurationError(f"{file} is no template: it has no Resources")
        return cls(document, file.resolve().parent, parameters or {})

    @property
    def parameters(self) -> frozenset[str]:
        """The names of the parameters that the template declares."""
        return self._declared

    def functions(self) -> tuple[FunctionSpec, ...]:
        """Return every function of the template whose condition holds."""
        return tuple(
            self._function(logical_id, resource) for logical_id, resource in self._active("AWS::Serverless::Function")
        )

    def tables(self) -> tuple[dict[str, Any], ...]:
        """Return, for every DynamoDB table whose condition holds, the arguments of ``create_table``."""
        kept = ("AttributeDefinitions", "BillingMode", "GlobalSecondaryIndexes", "KeySchema", "LocalSecondaryIndexes")
        tables = []
        for logical_id, resource in self._active("AWS::DynamoDB::Table"):
            properties = self._resolve(resource.get("Properties") or {})
            tables.append(
                {"TableName": self._name_of(logical_id)}
                | {name: properties[name] for name in kept if name in properties}
            )
        return tuple(tables)

    def _active(self, kind: str) -> list[tuple[str, Mapping[str, Any]]]:
        return [
            (logical_id, resource)
            for logical_id, resource in self._resources.items()
            if isinstance(resource, dict)
            and resource.get("Type") == kind
            and ("Condition" not in resource or self._holds(resource["Condition"]))
        ]

    def _function(self, logical_id: str, resource: Mapping[str, Any]) -> FunctionSpec:
        own: Mapping[str, Any] = resource.get("Properties") or {}
        common: Mapping[str, Any] = (self._document.get("Globals") or {}).get("Function") or {}

        def one(name: str, default: Any = None) -> Any:
            value = self._resolve(own.get(name, common.get(name, default)))
            return default if value is _NO_VALUE else value

        handler, code_uri = one("Handler"), one("CodeUri")
        if not isinstance(handler, str) or "." not in handler:
            raise ConfigurationError(f"{logical_id}: Handler must look like module.function, not {handler!r}")
        if not isinstance(code_uri, str):
            raise ConfigurationError(f"{logical_id}: CodeUri must be a folder, not {code_uri!r}")
        code = self._folder / code_uri
        if not code.is_dir():
            raise ConfigurationError(f"{logical_id}: CodeUri {code_uri} is no folder beside the template")
        return FunctionSpec(
            logical_id=logical_id,
            name=self._name_of(logical_id),
            handler=handler,
            code=code.resolve(),
            path=(code.resolve(), *self._layers(logical_id, common, own)),
            runtime=one("Runtime"),
            timeout_ms=_whole(logical_id, "Timeout", one("Timeout", 3)) * 1_000,
            memory_mb=_whole(logical_id, "MemorySize", one("MemorySize", 128)),
            environment=self._variables(logical_id, common, own),
            max_retry_attempts=_whole(
                logical_id,
                "MaximumRetryAttempts",
                (one("EventInvokeConfig") or {}).get("MaximumRetryAttempts", _MAX_RETRY_ATTEMPTS),
            ),
        )

    def _variables(self, logical_id: str, *sources: Mapping[str, Any]) -> dict[str, str]:
        variables: dict[str, str] = {}
        for source in sources:  # a function's own variables come after Globals'
            resolved = self._resolve(((source.get("Environment") or {}).get("Variables")) or {})
            for name, value in resolved.items():
                if isinstance(value, (dict, list)):
                    raise ConfigurationError(f"{logical_id}: the variable {name} must be a string: {value!r}")
                variables[name] = str(value).lower() if isinstance(value, bool) else str(value)
        return variables

    def _layers(self, logical_id: str, *sources: Mapping[str, Any]) -> tuple[Path, ...]:
        folders = []
        for source in sources:
            for layer in source.get("Layers") or []:
                # Only a layer of this template can be had here; any other is somebody else's ARN.
                name = layer.get("Ref") if isinstance(layer, dict) else None
                resource = self._resources.get(name) if isinstance(name, str) else None
                if not isinstance(resource, dict) or resource.get("Type") != "AWS::Serverless::LayerVersion":
                    continue
                content = self._folder / str(self._resolve(resource["Properties"]["ContentUri"]))
                if not content.is_dir():
                    raise ConfigurationError(f"{logical_id}: the layer {name} has no folder {content.name}")
                # A built layer has its packages in python/, as Lambda wants it; a source folder as they are.
                built = content / "python"
                folders.append((built if built.is_dir() else content).resolve())
        return tuple(folders)

    def _name_of(self, logical_id: str) -> str:
        resource = self._resources[logical_id]
        given = (resource.get("Properties") or {}).get(_NAMES.get(resource.get("Type"), ""))
        name = self._resolve(given) if given is not None else _NO_VALUE
        return name if isinstance(name, str) else logical_id

    def _holds(self, name: str) -> bool:
        conditions = self._document.get("Conditions") or {}
        if name not in conditions:
            raise ConfigurationError(f"the template has no condition {name!r}")
        return self._resolve(conditions[name]) is True

    def _resolve(self, value: Any) -> Any:
        if isinstance(value, list):
            items = (self._resolve(item) for item in value)
            return [item for item in items if item is not _NO_VALUE]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            name, argument = next(iter(value.items()))
            if name == "Ref" or name.startswith("Fn::") or (name == "Condition" and isinstance(argument, str)):
                try:
                    return self._intrinsic(name, argument)
                except (TypeError, ValueError, IndexError) as cause:
                    short = name.removeprefix("Fn::")
                    raise ConfigurationError(f"the template's {short} cannot be resolved: {argument!r}") from cause
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
            raise ConfigurationError(f"the template's parameter {name!r} has no default: give it a value")
        if name in self._resources:
            return self._name_of(name)
        # What SAM makes by itself (ServerlessHttpApi and the like) is not in the file.
        return str(name)

    def _get_att(self, argument: Any) -> str:
        logical_id, attribute = argument.split(".", 1) if isinstance(argument, str) else argument
        name = str(self._ref(logical_id))
        kind = (self._resources.get(logical_id) or {}).get("Type")
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
    loader = Loader(text)
    try:
        return loader.get_single_data()
    except yaml.YAMLError as cause:
        where = getattr(cause, "problem_mark", None)
        line = f", line {where.line + 1}" if where is not None else ""
        raise ConfigurationError(f"{file} is no YAML{line}: {getattr(cause, 'problem', cause)}") from cause
    finally:
        loader.dispose()


def _whole(logical_id: str, name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as cause:
        raise ConfigurationError(f"{logical_id}: {name} must be a whole number, not {value!r}") from cause


def _names(values: Sequence[str] | Mapping[str, Any]) -> str:
    return ", ".join(sorted(values)) or "none"
