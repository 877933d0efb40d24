"""The values of a template: its parameters, conditions and intrinsic functions.

No library fits: samtranslator resolves no conditions, cfn-flip only rewrites short forms, SAM CLI's resolver cannot be
imported without SAM CLI.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from incumbent.errors import ConfigurationError
from incumbent.validation import shown

REGION = "eu-central-1"
ACCOUNT_ID = "123456789012"

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


class _NoValue:
    """The answer of AWS::NoValue: the property is as if it were not there."""


NO_VALUE = _NoValue()


class Resolver:
    """Resolves the values of a parsed template for given parameters.

    Resolved are Ref, Sub, GetAtt, If, Equals, And, Or, Not, Condition, Join, Select, Split, FindInMap.
    """

    def __init__(self, document: Mapping[str, Any], parameters: Mapping[str, str]) -> None:
        """Raises `ConfigurationError` for a parameter that the template does not declare."""
        self._document = document
        self.resources = mapping(document, "Resources")
        declared = mapping(document, "Parameters")
        unknown = sorted(set(parameters) - set(declared))
        if unknown:
            raise ConfigurationError(f"the template has no parameter {unknown[0]!r}; it has {_names(declared)}")
        specs = {name: mapping(declared, name) for name in declared}
        defaults = {name: str(spec["Default"]) for name, spec in specs.items() if "Default" in spec}
        self.declared = frozenset(declared)
        self._parameters = {**defaults, **parameters}

    def name_of(self, logical_id: str) -> str:
        """Return the name that the resource is given, or its logical id."""
        resource = mapping(self.resources, logical_id)
        given = mapping(resource, "Properties").get(_NAMES.get(str(resource.get("Type")), ""))
        with naming("its name"):
            name = self.resolve(given) if given is not None else NO_VALUE
        return name if isinstance(name, str) else logical_id

    def holds(self, name: Any) -> bool:
        """Return whether the condition of that name holds."""
        conditions = mapping(self._document, "Conditions")
        if not isinstance(name, str) or name not in conditions:
            raise ConfigurationError(f"the template has no condition {shown(name)}")
        return self.resolve(conditions[name]) is True

    def opened(self, value: Any) -> Any:
        """Return the value, resolved if it is itself an If or the like; what stands in it is not."""
        return self.resolve(value) if isinstance(value, dict) and _is_intrinsic(value) else value

    def resolve(self, value: Any) -> Any:
        """Return the value with every intrinsic function in it replaced, and without what is AWS::NoValue.

        Raises:
            ConfigurationError: something in it cannot be resolved; the text names it.
        """
        if isinstance(value, list):
            items = (self.resolve(item) for item in value)
            return [item for item in items if item is not NO_VALUE]
        if not isinstance(value, dict):
            return value
        if _is_intrinsic(value):
            ((name, argument),) = value.items()
            try:
                return self._intrinsic(name, argument)
            except (TypeError, ValueError, LookupError) as cause:
                short = name.removeprefix("Fn::")
                raise ConfigurationError(f"the template's {short} cannot be resolved: {shown(argument)}") from cause
        resolved = {name: self.resolve(item) for name, item in value.items()}
        return {name: item for name, item in resolved.items() if item is not NO_VALUE}

    def _intrinsic(self, name: str, argument: Any) -> Any:  # noqa: C901, PLR0912 - a table
        match name.removeprefix("Fn::"):
            case "Ref":
                return self._ref(argument)
            case "Condition":
                return self.holds(argument)
            case "GetAtt":
                return self._get_att(argument)
            case "Sub":
                return self._sub(argument)
            case "If":
                condition, when_true, when_false = argument
                return self.resolve(when_true if self.holds(condition) else when_false)
            case "Equals":
                left, right = self.resolve(argument)
                return str(left) == str(right)
            case "And":
                return all(self.resolve(argument))
            case "Or":
                return any(self.resolve(argument))
            case "Not":
                return not self.resolve(argument)[0]
            case "Join":
                separator, items = self.resolve(argument)
                return str(separator).join(str(item) for item in items)
            case "Select":
                index, items = self.resolve(argument)
                return items[int(index)]
            case "Split":
                separator, text = self.resolve(argument)
                return str(text).split(str(separator))
            case "FindInMap":
                return self._find_in_map(argument)
            case other:
                raise ConfigurationError(f"the template uses {other}, which cannot be resolved here")

    def _ref(self, name: Any) -> Any:
        if name == "AWS::NoValue":
            return NO_VALUE
        if name in _PSEUDO_PARAMETERS:
            return _PSEUDO_PARAMETERS[name]
        if name in self._parameters:
            return self._parameters[name]
        if name in self.declared:
            raise ConfigurationError(
                f"the template's parameter {name!r} has no default: give it a value (--parameter {name}=VALUE)"
            )
        if name in self.resources:
            return self.name_of(name)
        # What SAM makes by itself, such as ServerlessHttpApi or a function's role, is not in the file.
        if name in _ADDED_BY_SAM or any(str(name).startswith(known) for known in self.resources):
            return str(name)
        raise ConfigurationError(f"the template has no parameter and no resource {name!r}")

    def _get_att(self, argument: Any) -> str:
        logical_id, attribute = argument.split(".", 1) if isinstance(argument, str) else argument
        name = str(self._ref(logical_id))
        kind = mapping(self.resources, logical_id).get("Type")
        if attribute == "Arn" and kind == "AWS::Serverless::Function":
            return f"arn:aws:lambda:{REGION}:{ACCOUNT_ID}:function:{name}"
        if attribute == "Arn" and kind == "AWS::DynamoDB::Table":
            return f"arn:aws:dynamodb:{REGION}:{ACCOUNT_ID}:table/{name}"
        return f"{name}.{attribute}"

    def _sub(self, argument: Any) -> str:
        text, own = (argument, {}) if isinstance(argument, str) else (argument[0], self.resolve(argument[1]))

        def replace(match: re.Match[str]) -> str:
            literal, name = match.groups()
            if literal:
                return "${" + name + "}"
            if name in own:
                return str(own[name])
            return str(self._get_att(name) if "." in name else self._ref(name))

        return _SUBSTITUTE.sub(replace, text)

    def _find_in_map(self, argument: Any) -> Any:
        name, first, second = self.resolve(argument)
        try:
            return self._document["Mappings"][name][first][second]
        except (KeyError, TypeError) as cause:
            raise ConfigurationError(f"the template's mapping {name}.{first}.{second} is not there") from cause


@contextmanager
def naming(what: str, advice: str = "") -> Iterator[None]:
    """Say of which property an error is."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{what}: {error}" + (f" ({advice})" if advice else "")) from error


def mapping(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
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


def _names(values: Mapping[str, Any]) -> str:
    return ", ".join(sorted(map(str, values))) or "none"
