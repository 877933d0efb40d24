"""Control: looking at a key, and holding, stopping and cancelling what runs there."""

import secrets
from collections.abc import Iterable, Iterator
from itertools import chain

from incumbent.contract import DEFAULT_POLICY
from incumbent.errors import IncumbentError, StoredFormatUnknown
from incumbent.providers.redis.answers import ScriptAnswer, holder, lives, messages, senseless, status, text
from incumbent.providers.redis.requests import Requests, repeated, told_fence
from incumbent.providers.shared import (
    check_hold,
    check_reason,
    hold_in_doubt,
    is_active,
    lease_lost,
    resume_in_doubt,
    stop_in_doubt,
)
from incumbent.validation import check_fence, check_key, check_limit, check_message_id, check_owner, from_json
from incumbent.values import KeyStatus, Policy, Status


class Controls(Requests):
    """A control in Redis."""

    def stop(self, key: str, *, fence: int | None = None, reason: str | None = None) -> int | None:
        """Mark the live tenure, so that its run stops (M16). A lease of another program is not a tenure."""
        check_fence(fence, check_key(key))
        why, own = check_reason(key, reason), secrets.token_hex(8)
        answer = self._run("stop", key, told_fence(fence), why, own, repeated, call="stop")
        if answer.word == b"unknown":
            raise stop_in_doubt(key)
        return int(answer.numbers[0]) if answer.word == b"stopped" else None

    def watch(self, key: str, owner: str, *, fence: int | None = None) -> str | None:
        """Return the mark of the owner's tenure, without a renewal (M16)."""
        check_owner(owner, check_key(key))
        check_fence(fence, key)
        answer = self._run("watch", key, owner, told_fence(fence), call="watch")
        match answer.word:
            case b"watched":
                return text(answer.more[0]) if answer.more else None
            case b"lost":
                raise lease_lost("watch", key, owner, holder(answer))
            case _:
                raise senseless(key, answer)

    def hold(self, key: str, *, for_ms: int | None = None, reason: str | None = None) -> None:
        """Grant the key to no caller for a while (M15)."""
        why = check_reason(check_key(key), reason)
        check_hold(key, for_ms)
        told = (b"" if for_ms is None else for_ms, why, secrets.token_hex(8), repeated)
        if self._run("hold", key, *told, call="hold").word == b"unknown":
            raise hold_in_doubt(key)

    def resume(self, key: str) -> bool:
        """End a hold (M15)."""
        check_key(key)
        word = self._run("resume", key, secrets.token_hex(8), repeated, call="resume").word
        if word == b"unknown":
            raise resume_in_doubt(key)
        return word == b"resumed"

    def cancel(self, key: str, message_id: str, *, policy: Policy = DEFAULT_POLICY) -> Status:
        """Remove a message that waits (M19)."""
        check_message_id(message_id, check_key(key))
        return status(key, self._run("cancel", key, message_id, policy.window_ms, call="cancel"))

    def show(self, key: str, *, events: bool = False) -> KeyStatus:
        """Return what is known of a key."""
        check_key(key)
        answer = self._run("show", key, b"1" if events else b"", call="show")
        shown, skipped = self._shown(key, answer, call="show")
        if skipped:
            raise StoredFormatUnknown.of(skipped)
        return shown

    def keys(self, limit: int) -> Iterable[KeyStatus]:
        """List the keys that have an owner, messages or a hold, ``limit`` at most, without events.

        SCAN finds the keys that store messages, another those that are held, and each is asked by one request more. A
        key whose records cannot be read is left out, and raises ``StoredFormatUnknown`` after the others (M12); those
        of a primary that does not answer raise ``ListIncomplete``.
        """
        return self._keys(check_limit(limit))

    def _keys(self, limit: int) -> Iterator[KeyStatus]:
        search = self._search("keys")
        seen: set[str] = set()
        for key in chain(search.keys("mail"), search.keys("hold")):
            if limit <= 0:
                break
            if key in seen:
                continue
            seen.add(key)
            answer = self._read(search, "show", key, b"", call="keys")
            if answer is None:
                continue
            shown, odd = self._shown(key, answer, call="keys")
            search.unread += odd
            if not odd and is_active(shown):
                limit -= 1
                yield shown
        search.end()

    def _shown(self, key: str, answer: ScriptAnswer, *, call: str) -> tuple[KeyStatus, list[IncumbentError]]:
        """Read what ``show.lua`` tells; the errors are of messages that it could not read."""
        if answer.word != b"key":
            raise senseless(key, answer)
        fence, since, _, held_until, quiet_until = map(int, answer.numbers)
        owner, target, reason, note, mark, odd, runs, waits = answer.more
        shown = KeyStatus(
            key=key,
            owner=text(owner) or None,
            fence=fence or None,
            since_ms=since or None,
            expires_in_ms=lives(answer.numbers[2]) if owner else None,
            held_until_ms=held_until or None,
            held_reason=text(reason) if held_until else None,
            quiet_until_ms=quiet_until or None,
            stop=text(mark[0]) if mark else None,
            note=from_json(text(note)) if note else None,
            target=text(target) or None,
            running=messages(runs),
            waiting=messages(waits),
        )
        return shown, self._odd(call, key, "messages", odd)
