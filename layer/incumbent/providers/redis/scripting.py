"""The Lua scripts: of which parts each consists, and how many of a key's names it gets."""

import functools
import hashlib
from collections.abc import Mapping
from importlib.resources import files

from incumbent.frozen import dataclass

_RECORD = ("lease", "record")
_STATE = (*_RECORD, "state", "held")
_MAIL = (*_STATE, "due", "mail")
_ALL = ("state", "held", "due", "mail", "traces", "letter", "ending")

# Each script by its name: the parts that come before its own text, and the number of names. Fewer names make it rarer
# that a cluster refuses a script while a slot moves; a script names all that it may touch.
_SCRIPTS: Mapping[str, tuple[tuple[str, ...], int]] = {
    "owner": ((), 3),
    "acquire": (("lease", "held_by_other", "record", "acquire_free", "state", "held"), 3),
    "release": (_RECORD, 3),
    "transfer": (_STATE, 3),
    "renew": ((*_STATE, "due"), 4),
    "take": (_MAIL, 4),
    "peek": (_MAIL, 4),
    "orphan": ((*_STATE, "due"), 4),
    "find": ((*_MAIL, "traces", "status"), 5),
    "claim": ((*_RECORD, "claim_alone", *_ALL), 7),
    "settle": ((*_RECORD, "settle_alone", *_ALL), 7),
    "letters": ((*_MAIL, "letter"), 7),
    "redrive": ((*_MAIL, "traces", "letter"), 7),
    "purge": ((*_STATE, "letter"), 7),
    "stop": (_STATE, 3),
    "watch": (_STATE, 3),
    "hold": (_STATE, 8),
    "resume": (_STATE, 8),
    "cancel": ((*_MAIL, "traces", "status", "letter", "ending"), 5),
    "show": (_MAIL, 4),
}


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, the name that the server gives it, and how many of a key's names it gets."""

    text: bytes
    sha: bytes
    names: int


@functools.cache
def script(name: str) -> Script:
    """Load a script from its files."""
    parts, names = _SCRIPTS[name]
    folder = files("incumbent.providers.redis") / "scripts"
    text = b"\n".join((folder / f"{part}.lua").read_bytes() for part in (*parts, name))
    return Script(text=text, sha=hashlib.sha1(text, usedforsecurity=False).hexdigest().encode(), names=names)
