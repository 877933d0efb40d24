"""Removes from a request, before it is stored, everything that would let a reader act for the caller."""

import functools
import re
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any

# Endings of names, in small letters and without "-", "_", "." and a final "[]": of headers, query parameters, and
# fields of a request's context. So X-Api-Key and apiKey are one name, and apiKeyId is another.
_SECRET_ENDINGS = (
    "apikey",
    "authkey",
    "authorization",
    "challengeanswer",
    "cookie",
    "cookies",
    "credential",
    "credentials",
    "encryptioncustomerkey",
    "functionskey",
    "jwt",
    "jwtassertion",
    "passcode",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "pwd",
    "secret",
    "secretaccesskey",
    "secretkey",
    "secwebsocketprotocol",
    "signingkey",
    "subscriptionkey",
    "token",
    "xamznoidcdata",
    "xamzsignature",
    "xoriginverify",
)
_SECRET_NAMES = frozenset({"auth", "bearer", "dpop", "otp", "pass", "sig", "signature"})  # with or without "X-"
# The address to which a run sends its answer, or the token by which it continues: a later run needs them.
_HARMLESS_ENDINGS = tuple(
    f"{each}token" for each in ("next", "page", "continuation", "task", "result", "request", "idempotency", "sync")
)

# The parts of an event in which the platform, not the application, identifies the caller.
_PARTS = frozenset(
    {
        "CodePipeline.job",
        "Details",
        "Records",
        "cf",
        "context",
        "getObjectContext",
        "headers",
        "identity",
        "multiValueHeaders",
        "multiValueQueryStringParameters",
        "promptSessionAttributes",
        "queryStringParameters",
        "query_string_parameters",
        "rawQueryString",
        "raw_path",
        "request",
        "requestAttributes",
        "requestContext",
        "requestHeaders",
        "session",
        "sessionAttributes",
        "sessionState",
        "templateParameterValues",
        "userRequest",
    }
)
_PAIR = re.compile(r"(\A|[?&;])([^=&?#;\s]+)=([^&#;\s]+)")
_NO_MARKS = str.maketrans("", "", "-_.")
_WHOLE = frozenset(
    {
        "authorizationtoken",
        "cookies",
        "identitysource",
        "password",
        "privatechallengeparameters",
        "protocoldata",
        "token",
    }
)


def without_credentials(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a request without credentials. The application's own data (body, arguments) stays unchanged."""
    return {
        name: _scrubbed(value) if name in _PARTS else value
        for name, value in event.items()
        if value is None or _plain(name) not in _WHOLE
    }


def _scrubbed(value: Any) -> Any:
    return copied([value], _without_secrets, into=(dict, list))[0]


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            name: _PAIR.sub(_emptied, inner) if isinstance(inner, str) and "=" in inner else inner
            for name, inner in value.items()
            if not _is_left_out(str(name), inner)
        }
    if isinstance(value, list):
        return [_PAIR.sub(_emptied, inner) if isinstance(inner, str) and "=" in inner else inner for inner in value]
    return value


def copied(value: Any, form: Callable[[Any], Any], *, into: type | tuple[type, ...]) -> Any:
    """Return what ``form`` makes of a value, and of each value in the copies of these types that it returns.

    It goes level by level, so no depth is too much, and copies each object once, so one that holds itself ends. Texts,
    numbers and ``None`` are left to the ``form`` of what holds them.
    """
    whole = [value]
    made: dict[int, tuple[Any, Any]] = {}  # by the original's id, beside the original, which keeps the id in use
    level: list[Any] = [whole]
    while level:
        below: list[Any] = []
        for group in level:
            for place, inner in list(group.items() if isinstance(group, dict) else enumerate(group)):
                if isinstance(inner, _ATOMS):
                    continue
                if id(inner) not in made:
                    made[id(inner)] = (inner, form(inner))
                    if isinstance(made[id(inner)][1], into) and made[id(inner)][1] is not inner:
                        below.append(made[id(inner)][1])
                group[place] = made[id(inner)][1]
        level = below
    return whole[0]


_ATOMS = (str, int, float, NoneType)


def _is_left_out(name: str, value: object) -> bool:
    """Return whether a field is a secret; a group of values, such as a token's claims (``authorizer.jwt``), is not."""
    if not _may_be_left_out(name):
        return False
    return value is not None and (_plain(name) in _WHOLE or not isinstance(value, Mapping))


@functools.lru_cache(maxsize=1_024)  # the same headers and fields come with every event
def _may_be_left_out(name: str) -> bool:
    return _plain(name) in _WHOLE or _is_secret(name)


def _emptied(pair: re.Match[str]) -> str:
    """Return a query's parameter, without its value if that is a secret."""
    from urllib.parse import unquote  # 3 ms, and only a request with a query needs it

    return f"{pair[1]}{pair[2]}=" if _is_secret(unquote(pair[2])) else pair[0]


def _is_secret(name: str) -> bool:
    plain = _plain(name)
    if plain.endswith(_SECRET_ENDINGS):
        return not plain.endswith(_HARMLESS_ENDINGS)
    return plain.removeprefix("x") in _SECRET_NAMES


def _plain(name: str) -> str:
    return name.lower().removesuffix("[]").translate(_NO_MARKS)
