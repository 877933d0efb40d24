"""The names of a key's records: its lease, which other programs may use too, and the companions in its hash slot."""

import functools

from incumbent.errors import ConfigurationError
from incumbent.frozen import dataclass

# `scripts/lease.lua` describes each.
COMPANIONS = ("state", "mail", "messages", "ended", "dead", "letters", "hold")

MAX_PREFIX_BYTES = 256

# A brace would move the companions to another hash slot; `%` begins the codes of the escaped characters.
_WRITTEN = {"%": "%25", "{": "%7B", "}": "%7D"}
_ESCAPED = frozenset(_WRITTEN)
_ENCODED = [companion.encode() for companion in COMPANIONS]
_GLOB = "\\*?[]"


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one application's keys: ``<prefix>:lease:<key>``."""

    prefix: str

    def __post_init__(self) -> None:
        """Refuse a prefix with which two keys could get the same name."""
        if not isinstance(self.prefix, str):
            raise ConfigurationError(f"key_prefix must be a str, not {type(self.prefix).__name__}: {self.prefix!r}")
        try:
            size = len(self.prefix.encode())
        except UnicodeEncodeError as cause:
            raise ConfigurationError(f"key_prefix is not valid Unicode: {self.prefix!r}") from cause
        if not 1 <= size <= MAX_PREFIX_BYTES:
            raise ConfigurationError(f"key_prefix has {size:,} bytes; allowed are 1 to {MAX_PREFIX_BYTES}")
        if any(letter in self.prefix for letter in _WRITTEN):
            raise ConfigurationError(f"key_prefix {self.prefix!r}: braces and % are not allowed in it")
        if "lease" in self.prefix.split(":"):
            raise ConfigurationError(
                f"key_prefix {self.prefix!r} has a part 'lease', which is where the prefix ends and the key begins: "
                "choose another"
            )

    def of(self, key: str, count: int = 1 + len(COMPANIONS)) -> list[bytes]:
        """Return the names of the lease and its companions, the first ``count`` in the order of every script's KEYS."""
        return _names(self.prefix, key)[:count]

    def pattern(self, companion: str) -> str:
        """Return the glob that matches this companion of any key, for SCAN."""
        prefix = "".join(f"\\{letter}" if letter in _GLOB else letter for letter in self.prefix)
        return f"{{{prefix}:lease:*}}:{companion}"

    def key_of(self, name: bytes, companion: str) -> str | None:
        """Return the key whose companion has this name; ``None`` for a name of another program."""
        before, after = f"{{{self.prefix}:lease:".encode(), f"}}:{companion}".encode()
        try:
            key = name.removeprefix(before).removesuffix(after).decode()
        except UnicodeDecodeError:
            return None
        for letter, code in reversed(_WRITTEN.items()):
            key = key.replace(code, letter)
        return key if key and name in self.of(key) else None


@functools.lru_cache(maxsize=64)  # a run makes several calls for its key
def _names(prefix: str, key: str) -> list[bytes]:
    written = key
    if not _ESCAPED.isdisjoint(key):
        for letter, code in _WRITTEN.items():
            written = written.replace(letter, code)
    lease = f"{prefix}:lease:{written}".encode()
    slot = b"{" + lease + b"}:"
    return [lease, *[slot + companion for companion in _ENCODED]]
