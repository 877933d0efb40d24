"""What is measured beside incumbent, each as people use it; the packages of the extra ``bench`` may be missing."""

import importlib
import json
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import ModuleType
from typing import Any

from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyItemAlreadyExistsError,
    IdempotencyItemNotFoundError,
)
from aws_lambda_powertools.utilities.idempotency.persistence.base import BasePersistenceLayer
from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import DataRecord

from benchmarks.measure import Run

TTL_S = 30

_GIVE_BACK = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


def module(name: str) -> ModuleType | None:
    """Import a package of the extra ``bench``; ``None`` where it is not installed."""
    dumps = json.dumps
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
    finally:
        json.dumps = dumps  # pottery replaces it with a slower one, for the whole process


def redis_lock(client: Any) -> Run:
    """Take and give back redis-py's own lock."""

    def run(key: str) -> None:
        with client.lock(key, timeout=TTL_S):
            pass

    return run


def redis_lock_refused(client: Any) -> Run:
    """Try redis-py's lock while another holds it, and read who that is."""
    client.lock("refused/redis-py", timeout=3_600).acquire()

    def run(_: str) -> None:
        if not client.lock("refused/redis-py", timeout=TTL_S).acquire(blocking=False):
            client.get("refused/redis-py")

    return run


def lock_and_list(client: Any) -> Run:
    """Store a message in a list, take a lock, take the message, and give the lock back, by hand."""
    give_back = client.register_script(_GIVE_BACK)

    def run(key: str) -> None:
        token = uuid.uuid4().hex
        client.rpush(f"{key}/mail", json.dumps({"id": key, "text": "hello"}))
        client.set(key, token, nx=True, px=TTL_S * 1_000)
        json.loads(client.lpop(f"{key}/mail"))
        give_back(keys=[key], args=[token])

    return run


def python_redis_lock(client: Any) -> Run | None:
    """Take and give back a lock of python-redis-lock."""
    package = module("redis_lock")
    if package is None:
        return None

    def run(key: str) -> None:
        with package.Lock(client, key, expire=TTL_S):
            pass

    return run


def pottery(client: Any) -> Run | None:
    """Take and give back pottery's Redlock, with one server."""
    package = module("pottery")
    if package is None:
        return None

    def run(key: str) -> None:
        with package.Redlock(key=key, masters={client}, auto_release_time=TTL_S):
            pass

    return run


def fencekit(client: Any) -> Run | None:
    """Take and give back fencekit's lock, which has fencing tokens. The client must decode responses."""
    package = module("fencekit")
    if package is None:
        return None
    lock = package.DistributedLock(client)
    ttl = timedelta(seconds=TTL_S)

    def run(key: str) -> None:
        with lock.hold(key, ttl=ttl):
            pass

    return run


def fencekit_refused(client: Any) -> Run | None:
    """Try fencekit's lock while another holds it; the answer does not name the holder."""
    package = module("fencekit")
    if package is None:
        return None
    lock = package.DistributedLock(client)
    lock.acquire("refused", ttl=timedelta(hours=1))
    ttl = timedelta(seconds=TTL_S)

    def run(_: str) -> None:
        with suppress(package.LockNotAcquired):
            lock.acquire("refused", ttl=ttl)

    return run


def idempotency(layer: Any) -> Run:
    """Call a handler under Powertools' idempotency."""

    @idempotent(persistence_store=layer, config=IdempotencyConfig(event_key_jmespath="id"))
    def handler(event: Any, context: Any) -> None:
        """Do nothing."""

    return lambda key: handler({"id": key}, None)


class FakeStore(BasePersistenceLayer):
    """Powertools' records in a dictionary: what is left is the cost of the decorator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._records: dict[str, DataRecord] = {}

    def _get_record(self, idempotency_key: str) -> DataRecord:
        try:
            return self._records[idempotency_key]
        except KeyError:
            raise IdempotencyItemNotFoundError from None

    def _put_record(self, data_record: DataRecord) -> None:
        if data_record.idempotency_key in self._records:
            raise IdempotencyItemAlreadyExistsError
        self._records[data_record.idempotency_key] = data_record

    def _update_record(self, data_record: DataRecord) -> None:
        self._records[data_record.idempotency_key] = data_record

    def _delete_record(self, data_record: DataRecord) -> None:
        del self._records[data_record.idempotency_key]


def python_dynamodb_lock(session: Any, table: str) -> Run | None:
    """Take and give back a lock of python-dynamodb-lock. Its threads end with the process only."""
    package = module("python_dynamodb_lock.python_dynamodb_lock")
    if package is None:
        return None
    make: Callable[..., Any] = package.DynamoDBLockClient
    locks = make(session.resource("dynamodb"), table_name=table)

    def run(key: str) -> None:
        locks.acquire_lock(key).release()

    return run
