"""The archive: states of messages, and dead letters."""

import secrets
from collections.abc import Iterable, Iterator

from incumbent.contract import DEFAULT_POLICY
from incumbent.errors import LeaseUnavailable
from incumbent.providers.redis.answers import dead_messages, status, triples
from incumbent.providers.redis.requests import Requests, repeated
from incumbent.providers.redis.server import Argument
from incumbent.providers.shared import redrive_full
from incumbent.rules import MAX_STORED
from incumbent.validation import check_key, check_limit, check_message_id
from incumbent.values import DeadLetter, Policy, Status


class Archives(Requests):
    """An archive in Redis."""

    def find(self, key: str, message_id: str, *, policy: Policy = DEFAULT_POLICY) -> Status:
        """Return what is known of a message id (M5, M17)."""
        check_message_id(message_id, check_key(key))
        return status(key, self._run("find", key, message_id, policy.window_ms, call="find"))

    def dead_letters(self, key: str | None, limit: int) -> Iterable[DeadLetter]:
        """List the dead letters of one key (M6), or of all keys, by SCAN and one request for each key.

        Letters that cannot be read are skipped, and so are primaries that do not answer: ``StoredFormatUnknown`` or
        ``ListIncomplete`` names them after the others.
        """
        return self._dead_letters(key if key is None else check_key(key), check_limit(limit))

    def _dead_letters(self, key: str | None, limit: int) -> Iterator[DeadLetter]:
        search = self._search("dead_letters")
        keys = search.keys("dead") if key is None else [key]
        for each in keys:
            if limit <= 0:
                break
            if key is None:
                answer = self._read(search, "letters", each, limit, call="dead_letters")
                if answer is None:
                    continue
            else:
                answer = self._run("letters", each, limit, call="dead_letters")
            odd, *letters = answer.more
            search.unread += self._odd("dead_letters", each, "letters", odd)
            for message_id, meta, body in triples(letters):
                died, _, meta_then = meta.partition(b" ")
                (message,) = dead_messages((message_id, meta_then, body))
                limit -= 1
                yield DeadLetter(key=each, message=message, died_at_ms=int(died))
        search.end()

    def redrive(self, key: str, message_id: str) -> bool:
        """Put a dead letter back at the end of its mailbox (M6)."""
        check_message_id(message_id, check_key(key))
        answer = self._dead("redrive", key, message_id, MAX_STORED)
        if answer == b"full":
            raise redrive_full(key, message_id)
        return answer == b"redriven"

    def purge(self, key: str, message_id: str) -> bool:
        """Remove a dead letter for good (M6)."""
        check_message_id(message_id, check_key(key))
        return self._dead("purge", key, message_id, secrets.token_hex(8)) == b"purged"

    def _dead(self, call: str, key: str, message_id: str, *more: Argument) -> bytes:
        """Run a script on a dead letter and return its answer."""
        word = self._run(call, key, message_id, repeated, *more, call=call).word
        if word == b"unknown":
            raise LeaseUnavailable(
                f"{call} of key {key!r}: an earlier try went unanswered, and dead letter {message_id!r} is gone now: "
                "that try has removed it, or another caller",
                key=key,
            )
        return word
