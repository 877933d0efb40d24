"""Shows a request to DynamoDB as lines, with the values in their places: what must be so, and what is written."""

import re
from collections.abc import Mapping
from typing import Any

from incumbent.providers.dynamodb.expression import Request

PLACES = re.compile(r"[:#]\w+")
ACTIONS = re.compile(r" (?=(?:SET|REMOVE|ADD|DELETE) )")


def lines(request: Request) -> list[str]:
    """Each condition and each action of an update, a line each."""
    asked = request.arguments("table", {"pk": {"S": "p"}, "sk": {"S": "lease"}})
    assert (asked["TableName"], asked["Key"]) == ("table", {"pk": {"S": "p"}, "sk": {"S": "lease"}})
    assert asked["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD"
    return told(asked)


def told(asked: Mapping[str, Any]) -> list[str]:
    """The same of the arguments of an ``update_item``."""
    condition, update = asked["ConditionExpression"], asked["UpdateExpression"]
    names: Mapping[str, str] = asked.get("ExpressionAttributeNames", {})
    values: Mapping[str, Any] = asked.get("ExpressionAttributeValues", {})
    used = set(PLACES.findall(f"{condition} {update}"))
    assert used == {*names, *values}, "DynamoDB refuses a name or a value that is not used"
    shown = {**names, **{place: compact(value) for place, value in values.items()}}

    def resolved(text: str) -> str:
        return PLACES.sub(lambda found: shown[found[0]], text)

    found = [f"IF {resolved(each)}" for each in condition.split(" AND ")]
    for action in ACTIONS.split(update):
        verb, _, parts = action.partition(" ")
        found += [f"{verb} {resolved(each)}" for each in re.split(r", (?![^()]*\))", parts)]
    return [*"\n".join(found).replace(") (", ")\n  (").splitlines(), asked["ReturnValues"]]  # each message for itself


def compact(value: Mapping[str, Any]) -> str:
    """A value, without the kinds of what it holds."""
    ((kind, inner),) = value.items()
    match kind:
        case "S":
            return repr(inner)
        case "SS":
            return "{" + " ".join(sorted(inner)) + "}"
        case "M":
            return "(" + " ".join(f"{name}={compact(each)}" for name, each in inner.items()) + ")"
        case "L":
            return "[" + " ".join(map(compact, inner)) + "]"
        case _:
            return str(inner)
