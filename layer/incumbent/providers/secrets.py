"""A store's password from AWS Secrets Manager, so that a function's settings hold only the secret's name."""

import json
import os
import threading
from typing import Any

from incumbent.clock import SYSTEM_CLOCK, Clock, Moment
from incumbent.errors import ConfigurationError

KEPT_MS = 5 * 60_000
"""How long a secret that was read is used before it is read again."""

REFUSED_KEPT_MS = 5_000
"""How long it is used although the server refuses it: a secret that is wrong is not read for every connection."""


class SecretPassword:
    """A callable that returns a password from a secret, for ``RedisProvider(password=...)``.

    It reads the secret at the first call and again after five minutes, or when the server has refused the password
    (then at most every five seconds), so that new connections use a rotated password. If Secrets Manager then gives no
    answer, it uses the one that it has, unless the server refused that, and asks again after five seconds.
    The secret's text is the password, or a JSON object that has it as ``password``, as Secrets Manager's rotation
    stores it. The function needs ``secretsmanager:GetSecretValue``.
    """

    def __init__(self, secret_id: str, *, client: Any = None, clock: Clock = SYSTEM_CLOCK) -> None:
        """Read nothing yet. ``secret_id`` is the secret's name or ARN; ``client`` a boto3 client for Secrets Manager.

        Raises ``ConfigurationError`` for an empty ``secret_id``.
        """
        if not secret_id or type(secret_id) is not str:
            raise ConfigurationError(f"secret_id is {secret_id!r}: give the name or the ARN of a secret")
        self._secret_id = secret_id
        self._client = client
        self._made_in: int | None = None  # the process: a child must not share the connections of its parent
        self._clock = clock
        self._lock = threading.Lock()
        self._read: tuple[str, Moment] | None = None

    def __call__(self) -> str:
        """Return the password. Raises boto3's errors, and ``ConfigurationError`` for a secret without one."""
        with self._lock:
            now = self._clock.now()
            if self._read is None or self._read[1].until(now) >= KEPT_MS:
                self._read = self._ask_or_keep(now)
            return self._read[0]

    def refused(self, password: str) -> bool:
        """Tell that the server has refused a password. Return whether the next call may return another one.

        It does if the secret has been read since, or was read five seconds ago: then the next call reads it again.
        """
        with self._lock:
            if self._read is not None and self._read[0] == password:
                if self._read[1].until(self._clock.now()) < REFUSED_KEPT_MS:
                    return False
                self._read = None
            return True

    def _ask_or_keep(self, now: Moment) -> tuple[str, Moment]:
        try:
            return self._ask(), now
        except ConfigurationError:
            raise
        except Exception:
            if self._read is None:
                raise
            return self._read[0], now.plus(REFUSED_KEPT_MS - KEPT_MS)  # the server may well accept it still

    def _ask(self) -> str:
        if self._client is None or self._made_in not in (None, os.getpid()):
            import boto3
            from botocore.config import Config

            config = Config(connect_timeout=1, read_timeout=2, retries={"total_max_attempts": 2})
            self._client = boto3.client("secretsmanager", config=config)
            self._made_in = os.getpid()
        text = self._client.get_secret_value(SecretId=self._secret_id).get("SecretString")
        password = text
        if text is not None and text.lstrip().startswith("{"):
            try:
                password = json.loads(text).get("password")
            except ValueError:  # a password may begin as it likes
                password = text
        if not isinstance(password, str) or not password:
            raise ConfigurationError(
                f"the secret {self._secret_id!r} holds neither text nor a JSON object with a password: store either"
            )
        return password
