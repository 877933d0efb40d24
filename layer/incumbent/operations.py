"""An operator's work on a store: list, show, redrive and purge dead letters, and sweep."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from difflib import SequenceMatcher
from itertools import islice
from typing import Protocol, TypeAlias, TypeGuard, TypeVar, cast

from incumbent.backends import is_archive, is_lease_provider, is_mailbox
from incumbent.contract import Archive, LeaseProvider, Mailbox
from incumbent.errors import ConfigurationError, ListIncomplete, MailboxFull, StoredFormatUnknown
from incumbent.keyspaces import is_in_keyspace, split_key
from incumbent.observe import Fact
from incumbent.sweeper import sweep
from incumbent.validation import json_text, printable
from incumbent.values import DeadLetter
from incumbent.wakers import Wake, Waker

T = TypeVar("T")
Unread: TypeAlias = StoredFormatUnknown | ListIncomplete
"""What a listing raises at its end, of what is missing from it."""
Say = Callable[[str], None]

EVERYTHING = 10_000
_SHORT = 100
_NAMED = 10  # keyspaces
FATES = ("woken", "failed", "untargeted", "paused", "remaining")  # in the order in which a sweep's end says them


class Store(LeaseProvider, Mailbox, Archive, Protocol):
    """A backend that leases, stores messages, and keeps their states and dead letters."""


def store_of(provider: object) -> Store:
    """Return the provider as a store. Raises ``ConfigurationError`` for one that keeps no messages or dead letters."""
    if not _is_store(provider):
        raise ConfigurationError(f"{type(provider).__name__} keeps no messages: there is nothing to look at")
    return provider


def list_letters(
    store: Store,
    say: Say,
    *,
    key: str | None,
    keyspace: str | None,
    limit: int,
    as_json: bool,
    complain: Say | None = None,
) -> bool:
    """Print a line for each dead letter of one key, a keyspace, or all; with ``as_json`` an object, its event too.

    Returns whether the keyspace that was named has any; where it has none, ``complain`` is told which keyspaces there
    are (with ``as_json`` only if it is given). Raises ``StoredFormatUnknown`` at the end for letters that could not be
    read, or ``ListIncomplete``.
    """
    letters, unread = _read(islice(_letters(store, key, keyspace), limit + 1))
    for letter in letters[:limit]:
        if as_json:
            say(json_text(_object(letter)))
        else:
            message = letter.message
            error = (message.last_error or "killed its run").partition("\n")[0][:_SHORT]
            line = f"{letter.key}  {message.id}  {_when(letter.died_at_ms)}  {_times(message.attempt)}  {error}"
            say(printable(line))
    if not as_json:
        more = len(letters) > limit
        say(f"the first {limit} dead letters; --limit shows more" if more else f"{_count(len(letters), 'dead letter')}")
        if key is not None and not letters and (hint := key_hint(key)):
            say(printable(hint))
    missing = keyspace if not letters else None
    if missing and (complain or not as_json):
        (complain or say)(printable(_keyspaces(store, missing)))
    if unread is not None:
        raise unread
    return not missing


def show_letter(store: Store, say: Say, *, key: str, message_id: str) -> bool:
    """Print a dead letter as JSON. Return whether it exists."""
    letters, unread = _read(store.dead_letters(key, EVERYTHING))
    for letter in letters:
        if letter.message.id == message_id:
            say(json_text(_object(letter), indent=2))
            return True
    if unread is not None:
        say(printable(f"{key} has no dead letter {message_id} that can be read"))
        raise unread
    say(none_of(key, f"dead letter {message_id}"))
    return False


def redrive(
    store: Store, say: Say, *, key: str, message_ids: Sequence[str], target: str | None, make_waker: Callable[[], Waker]
) -> bool:
    """Put dead letters back and wake their function. Return whether all existed and a function will run them.

    ``target`` is the function to wake. Default: the one recorded with the key.
    """
    back: list[str] = []
    try:
        for each in message_ids:
            if _done(store.redrive, say, key, each, "is back in the mailbox of"):
                back.append(each)  # noqa: PERF401 - what came before a refusal counts
    except MailboxFull as full:  # what is back already is to be run all the same
        say(str(full))
    started = not back or _start(store, say, key, target, make_waker)
    return started and len(back) == len(message_ids)


def purge(store: Store, say: Say, *, key: str, message_ids: Sequence[str]) -> bool:
    """Remove dead letters for good. Return whether all existed."""
    gone = [each for each in message_ids if _done(store.purge, say, key, each, "is gone from the dead letters of")]
    return len(gone) == len(message_ids)


def all_of(store: Store, key: str, skipped: list[Unread] | None = None) -> list[str]:
    """Return the ids of a key's dead letters, the longest dead first.

    Raises ``StoredFormatUnknown`` if some cannot be read, or adds it to ``skipped`` and returns the others.
    """
    letters, unread = _read(store.dead_letters(key, EVERYTHING))
    if unread is not None:
        if skipped is None:
            raise unread
        skipped.append(unread)
    return [letter.message.id for letter in letters]


def sweep_by_hand(store: Store, say: Say, *, limit: int, waker: Waker | None) -> bool:
    """Sweep once and print what was found; without a waker only list. Return whether all targets were woken.

    Raises ``StoredFormatUnknown`` at the end for keys that could not be read, or ``ListIncomplete``.
    """
    if waker is None:
        orphans, unread = _read(store.orphans(limit))
        for orphan in orphans:
            target = orphan.target or "no target is recorded"
            say(printable(f"{orphan.key}  {_waits(orphan.waiting, orphan.age_ms)}  {target}"))
        say(f"{_count(len(orphans), 'orphan')}; no function was woken")
        if unread is not None:
            raise unread
        return True

    fates = Counter[str | None]()

    def told(fact: Fact, /) -> None:
        if fact.fact == "orphan":
            fates[fact.outcome] += 1
            error = f": {fact.error}" if fact.error else ""
            waits = _waits(cast("int", fact.waiting), cast("int", fact.ms))
            say(printable(f"{fact.key}  {waits}  {fact.outcome}{error}"))

    unread = None
    try:
        sweep(store, waker, limit=limit, observers=[told])
    except (StoredFormatUnknown, ListIncomplete) as error:
        unread = error
    names = {"untargeted": "without a target"}
    said = ", ".join(f"{fates[fate]} {names.get(fate, fate)}" for fate in FATES if fates[fate])
    say(f"{_count(fates.total(), 'orphan')}{': ' if said else ''}{said}")
    if unread is not None:
        raise unread
    return not (fates["failed"] or fates["untargeted"])


def _is_store(value: object) -> TypeGuard[Store]:
    return is_lease_provider(value) and is_mailbox(value) and is_archive(value)


def none_of(key: str, what: str = "dead letters") -> str:
    """What to say of a key that has none."""
    hint = key_hint(key)
    return printable(f"{key} has no {what}" + (f": {hint}" if hint else ""))


def _keyspaces(store: Store, wanted: str) -> str:
    """Which keyspaces there are instead of the one that was named, those with a similar name first."""
    letters, _ = _read(store.dead_letters(None, EVERYTHING))
    orphans, _ = _read(store.orphans(EVERYTHING))
    keys = [*(letter.key for letter in letters), *(orphan.key for orphan in orphans)]
    known = {keyspace for keyspace, _ in map(split_key, keys) if keyspace}
    if wanted in known:
        return f"keyspace {wanted} has no dead letters; messages wait in it"
    if not known:
        return f"keyspace {wanted} has no dead letters, and no other has any: check --key-prefix"

    return (
        f"keyspace {wanted} has no dead letters; the keyspaces with dead letters or waiting messages are "
        f"{similar_first(wanted, known)}"
    )


def similar_first(wanted: str, known: Iterable[str]) -> str:
    """Return the known names in one text, those that are like the wanted one first, ten at most."""

    def unlikeness(name: str) -> tuple[bool, float, str]:
        alike = SequenceMatcher(None, wanted.lower(), name.lower()).ratio()
        return wanted.lower() not in name.lower(), -alike, name

    names = sorted(known, key=unlikeness)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _read(listing: Iterable[T]) -> tuple[list[T], Unread | None]:
    """Return the readable part of a listing, and the error at its end for the rest."""
    found: list[T] = []
    try:
        for each in listing:
            found.append(each)  # noqa: PERF402 - what came before an error counts
    except (StoredFormatUnknown, ListIncomplete) as error:
        return found, error
    return found, None


def _letters(store: Store, key: str | None, keyspace: str | None) -> Iterator[DeadLetter]:
    if key is not None:
        return iter(store.dead_letters(key, EVERYTHING))
    found: Iterable[DeadLetter] = store.dead_letters(None, EVERYTHING)
    return (letter for letter in found if is_in_keyspace(letter.key, keyspace))


def _done(do: Callable[[str, str], bool], say: Say, key: str, message_id: str, what: str) -> bool:
    try:
        done = do(key, message_id)
    except StoredFormatUnknown as error:
        say(printable(f"{message_id}: {error}"))
        return False
    say(printable(f"{message_id} {what} {key}") if done else none_of(key, f"dead letter {message_id}"))
    return done


def _start(store: Store, say: Say, key: str, target: str | None, make_waker: Callable[[], Waker]) -> bool:
    """Wake the function that runs the redriven messages. Print which one runs them, and return whether one does."""
    owner = store.get_lease_owner(key)
    if owner is not None:
        say(printable(f"{owner} owns the key, and runs it next"))
        return True
    later = "the next message of the key, or the sweeper, starts it"
    known = target
    if not known:
        with suppress(StoredFormatUnknown, ListIncomplete):  # of other keys
            known = next((each.target for each in store.orphans(EVERYTHING) if each.key == key), None)
    if not known:
        say(f"no function was woken, since no target is known (--target names one): {later}")
        return False
    try:
        make_waker()(Wake(key=key, ticket=None, target=known))
    except Exception as error:  # noqa: BLE001 - the message is back already, and the operator must know
        say(printable(f"{known} could not be woken ({type(error).__name__}: {error}): {later}"))
        return False
    say(printable(f"woke {known}"))
    return True


def _object(letter: DeadLetter) -> dict[str, object]:
    message = letter.message
    return {
        "key": letter.key,
        "id": message.id,
        "died_at": _when(letter.died_at_ms),
        "stored_at": _when(message.stored_at_ms),
        "attempts": message.attempt,
        "last_error": message.last_error,
        "event": message.event,
    }


def key_hint(key: str) -> str:
    """Return what may be wrong with a key that was not found."""
    if "/" in key:
        return ""
    return f"a key is given with its keyspace in front, such as my-worker/{key}, or with --keyspace my-worker"


def _when(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms // 1_000, UTC).isoformat().replace("+00:00", "Z")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _times(attempts: int) -> str:
    return "once" if attempts == 1 else f"{attempts} times"


def _waits(waiting: int, age_ms: int) -> str:
    return f"{_count(waiting, 'message')} for {age_ms // 1_000} s"
