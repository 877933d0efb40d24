"""Properties of names, checks and encoding, on whatever Hypothesis thinks of."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.crc import key_slot

from incumbent import ConfigurationError, Message, MessageTooLarge
from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.providers.dynamodb import names as dynamodb_names
from incumbent.providers.memory import MemoryProvider
from incumbent.providers.redis import RedisProvider
from incumbent.providers.redis.names import Names
from incumbent.validation import to_json

ODD = st.sampled_from(["a", "b", ":", "lease", "{", "}", "%", "%7B", "25", "#", "/", "\x00", "é", "🧵", "state", "*"])
TEXT = st.lists(ODD, min_size=1, max_size=6).map("".join) | st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40
)
PREFIXES = st.sampled_from(["incumbent", "mastra:topic", "a", "a:b", "leases", "x*"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(prefixes=st.tuples(PREFIXES, PREFIXES), keys=st.tuples(TEXT, TEXT))
def test_two_keys_share_no_record_in_redis(prefixes: tuple[str, str], keys: tuple[str, str]) -> None:
    """Different keys, or the same under different prefixes, have no name in common (R10, H28)."""
    first, second = (Names(prefix).of(key) for prefix, key in zip(prefixes, keys, strict=True))
    if (prefixes[0], keys[0]) == (prefixes[1], keys[1]):
        assert first == second
    else:
        assert not set(first) & set(second)


@given(prefix=PREFIXES, key=TEXT)
def test_all_names_of_a_key_lie_in_one_slot_and_lead_back_to_it(prefix: str, key: str) -> None:
    """Cluster mode runs every script, and a scan finds the key again (H24)."""
    names = Names(prefix)
    assert len({key_slot(name) for name in names.of(key)}) == 1
    assert names.key_of(names.of(key)[2], "mail") == key


@given(prefixes=st.tuples(PREFIXES, PREFIXES), keys=st.tuples(TEXT, TEXT))
def test_two_keys_share_no_record_in_dynamodb(prefixes: tuple[str, str], keys: tuple[str, str]) -> None:
    """The partition key tells prefix and key apart, and leads back to the key."""
    first, second = (dynamodb_names.partition(prefix, key) for prefix, key in zip(prefixes, keys, strict=True))
    assert (first == second) == ((prefixes[0], keys[0]) == (prefixes[1], keys[1]))
    assert dynamodb_names.key_of(prefixes[0], first) == keys[0]


@given(ids=st.tuples(TEXT, TEXT))
def test_two_dead_letters_share_no_item(ids: tuple[str, str]) -> None:
    """An id has an item of its own, whatever stands in it."""
    assert (dynamodb_names.dead_names(ids[0]) == dynamodb_names.dead_names(ids[1])) == (ids[0] == ids[1])


@given(event=JSON)
def test_json_comes_back_as_it_went(event: Any) -> None:
    """What is stored is what was sent, lone surrogates and large numbers included."""
    text = to_json(event, key="k", message_id="m", most_bytes=10_000_000)
    assert json.loads(text) == event
    text.encode()  # what is stored is always UTF-8


@given(event=JSON, less=st.integers(min_value=1, max_value=50))
def test_a_message_is_too_large_by_the_byte(event: Any, less: int) -> None:
    """Exactly as many bytes as are allowed pass, and not one more (M7)."""
    size = len(to_json(event, key="k", message_id="m", most_bytes=10_000_000).encode())
    to_json(event, key="k", message_id="m", most_bytes=size)
    if less < size:
        with pytest.raises(MessageTooLarge):
            to_json(event, key="k", message_id="m", most_bytes=size - less)


def unreachable() -> list[Any]:
    """All providers; those that need a server have none, so that a request would be seen."""
    no_session: Any = NoSession()
    return [
        MemoryProvider(),
        RedisProvider(url="redis://127.0.0.1:1/0"),
        DynamoDBProvider(table_name="none", boto3_session=no_session),
    ]


class NoSession:
    """A boto3 session that makes no client."""

    def client(self, *_: Any, **__: Any) -> Any:
        """Fail the test."""
        raise AssertionError("a request was about to be sent")


WRONG_KEYS = st.sampled_from(["", "k" * 1_025, "é" * 513, "\ud800", 5, None, b"k", True])
WRONG_OWNERS = st.sampled_from(["", "o" * 513, "🧵" * 129, "\udfff", 7, None])
WRONG_TTLS = st.sampled_from([0, -1, True, 0.5, math.nan, math.inf, 2**63, 86_400_001, "5", None])


@settings(max_examples=60)
@given(key=WRONG_KEYS)
def test_every_provider_refuses_the_same_keys(key: Any) -> None:
    """The same error in the same words, before any request (R10, H27)."""
    assert len({refusals(provider, key, "o", 1_000) for provider in unreachable()}) == 1


@settings(max_examples=60)
@given(owner=WRONG_OWNERS)
def test_every_provider_refuses_the_same_owners(owner: Any) -> None:
    """The same error in the same words, before any request (R10)."""
    assert len({refusals(provider, "k", owner, 1_000) for provider in unreachable()}) == 1


@settings(max_examples=60)
@given(ttl_ms=WRONG_TTLS)
def test_every_provider_refuses_the_same_ttls(ttl_ms: Any) -> None:
    """The same error in the same words, before any request (R10, H26)."""
    assert len({refusals(provider, "k", "o", ttl_ms) for provider in unreachable()}) == 1


def refusals(provider: Any, key: Any, owner: Any, ttl_ms: Any) -> tuple[str, ...]:
    """What a provider says to each call that takes these."""
    calls: list[Callable[[], object]] = [
        lambda: provider.acquire_lease(key, owner, ttl_ms),
        lambda: provider.renew_lease(key, owner, ttl_ms),
        lambda: provider.transfer_lease(key, owner, "successor", ttl_ms),
        lambda: provider.claim(key, owner, ttl_ms, Message(id="m", event=1)),
        lambda: provider.settle(key, owner, ttl_ms=ttl_ms),
        lambda: provider.beat(key, owner, ttl_ms),
        lambda: provider.take(key, owner, ttl_ms),
    ]
    said = []
    for call in calls:
        with pytest.raises(ConfigurationError) as refused:
            call()
        said.append(str(refused.value))
    return tuple(said)
