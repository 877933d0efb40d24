"""The keys of a store: the keyspace, a slash, and the application's key."""

import sys

from incumbent.errors import ConfigurationError
from incumbent.validation import MAX_KEY_BYTES, check_key, check_text, fit, shown


def check_keyspace(keyspace: object) -> str:
    """Check a keyspace: text without a slash, which separates it from the key."""
    if not isinstance(keyspace, str) or "/" in keyspace:
        raise ConfigurationError(f"keyspace is {shown(keyspace)}: give text without a slash")
    return keyspace


def full_key(keyspace: str, key: object) -> str:
    """Return the provider's key: the keyspace, then the application's key, digested if it is too long.

    An empty keyspace leaves the key unchanged. Raises ``ConfigurationError`` if the result is not a valid key (R10:
    validation).
    """
    if (
        isinstance(key, str)
        and key
        and key.isascii()
        and keyspace.isascii()
        and len(keyspace) + len(key) < MAX_KEY_BYTES
        and "~" not in key  # of a digested key
    ):
        return f"{keyspace}/{key}" if keyspace else key  # the usual keys, and quickly
    prefix = _prefix(keyspace)
    name = check_text("the key", key, sys.maxsize)
    room = MAX_KEY_BYTES - len(prefix.encode(errors="surrogatepass"))  # whether it is Unicode is checked at the end
    return check_key(f"{prefix}{fit(name, room)}")


def is_in_keyspace(full: str, keyspace: str | None) -> bool:
    """Return whether a provider's key is in the keyspace. Every key is in the empty one, and in none."""
    return full.startswith(_prefix(keyspace))


def without_keyspace(full: str, keyspace: str) -> str:
    """Return the application's key of a provider's key in the keyspace."""
    return full.removeprefix(f"{keyspace}/") if keyspace else full


def split_key(full: str) -> tuple[str, str]:
    """Return the keyspace and the application's key of a provider's key; without a slash the keyspace is empty."""
    keyspace, slash, key = full.partition("/")
    return (keyspace, key) if slash else ("", full)


def _prefix(keyspace: str | None) -> str:
    return f"{keyspace}/" if keyspace else ""
