"""The names of a key's items in the table, and digests of names that are only compared."""

import base64
import hashlib
from collections.abc import Iterable
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase, digits

LEASE = "lease"
BODY = "body#"
DEAD = "dead#"
ENDED = "ended#"
RESULT = "result#"

SHARDS = 8
SHORT = 3  # characters of a short digest
BUCKETS = 64  # of marks: as many as the first character of a digest has values
EMPTY = "."  # a bucket without marks: not every store of this kind takes an empty text
OWNER = 10  # and of an owner's

_MAX_SORT_KEY_BYTES = 1_024
_SIX_BITS = {char: bits for bits, char in enumerate(f"{ascii_uppercase}{ascii_lowercase}{digits}-_")}
_MARKS = "".join(each for each in map(chr, range(0x21, 0x7F)) if each not in f'{EMPTY}"\\')  # none that JSON escapes


class Digest(str):
    """A name shortened for comparison: 96 bits of its SHA-256, or 60 bits of an owner's."""

    __slots__ = ()


def digest(name: str) -> Digest:
    """Return the digest of a name; a digest is returned unchanged."""
    return name if isinstance(name, Digest) else _digest(name)


@lru_cache(maxsize=256)  # a call needs those of its owner and its ids several times
def _digest(name: str) -> Digest:
    return Digest(base64.urlsafe_b64encode(hashlib.sha256(name.encode()).digest()[:12]).decode())


@lru_cache(maxsize=256, typed=True)  # a digest is not the name that reads like it
def owner_digest(owner: str) -> Digest:
    """Return the digest of an owner, which is compared with those of one key only."""
    return Digest(digest(owner)[:OWNER])


def body_digest(claim: str, body: str) -> str:
    """Return what tells a large body from all others of its message's id: by which claim it came, and its text.

    By the claim alone, a claim that is repeated with another text would replace the first (M5).
    """
    return digest(f"{claim}.{hashlib.sha256(body.encode()).hexdigest()}")


def digests(names: Iterable[str]) -> dict[str, str]:
    """Return names by their digests."""
    known: dict[str, str] = {}
    for name in names:
        whole = digest(name)
        known[whole] = known[whole[:OWNER]] = name
    return known


@lru_cache(maxsize=256, typed=True)
def short(name: str) -> str:
    """Return the first 18 bits of a digest: two names with different ones differ, and one pair in 262,144 shares it."""
    return digest(name)[:SHORT]


@lru_cache(maxsize=256, typed=True)
def mark(name: str) -> tuple[int, str]:
    """Return the bucket of a name, and one character that stands there for it: one pair of names in 5,800 shares both.

    They depend on nothing but the short digest.
    """
    bucket, high, low = [_SIX_BITS[char] for char in short(name)]
    return bucket, _MARKS[(high * 64 + low) % len(_MARKS)]


def partition(prefix: str, key: str) -> str:
    """Return the partition key of all items of a key."""
    return f"{prefix}#{key}"


def key_of(prefix: str, pk: str) -> str:
    """Return the key of a partition key."""
    return pk[len(prefix) + 1 :]


def shard(prefix: str, number: int) -> str:
    """Return the name of one partition of the orphans' index."""
    return f"{prefix}#{number}"


def shard_of(prefix: str, key: str) -> str:
    """Return the partition of the orphans' index that has a key."""
    return shard(prefix, hashlib.sha256(key.encode()).digest()[0] % SHARDS)


def escaped(message_id: str) -> str:
    """Return an id without ``#``, with ``%`` only before two hexadecimal digits, so that all ids stay different."""
    found = message_id.replace("%", "%25").replace("#", "%23")
    if len(found.encode()) > _MAX_SORT_KEY_BYTES - 64:
        return f"%sha256.{hashlib.sha256(message_id.encode()).hexdigest()}"
    return found


def dead_names(message_id: str) -> str:
    """Return the prefix of the sort keys of an id's dead letters, different for each id."""
    return f"{DEAD}{escaped(message_id)}#"


def dead_name(message_id: str, letter: str) -> str:
    """Return the sort key of a dead letter."""
    return f"{dead_names(message_id)}{letter}"


def result_name(message_id: str, fence: int) -> str:
    """Return the sort key of what a run returned: its own for each id and tenure."""
    return f"{RESULT}{digest(message_id)}#{fence:020d}"
