"""Keys and ids that are too long for a store: their beginning and their digest stand for them, everywhere the same."""

from typing import Any

import pytest

from incumbent import ConfigurationError, IncumbentError, LeaseKeyMissing, leased, leased_function, send, status
from incumbent.keyspaces import full_key
from incumbent.validation import fit
from tests.unit.stage import RecordingWaker
from tests.unit.test_decorators import Shop

MACHINE = "arn:aws:states:eu-central-1:123456789012:execution:" + "m" * 80 + ":" + "e" * 80
LONG_ID = f"{MACHINE}/{'s' * 80}"  # 293 bytes
LONG_KEY = "incoming/" + "k" * 1_015  # as long as S3 allows


def order(event: Any) -> None:
    """A function of one order."""


@pytest.fixture
def shop() -> Shop:
    """A store of the test's own."""
    return Shop()


def test_short_text_is_itself() -> None:
    """Up to the bound, which counts bytes of UTF-8."""
    assert fit("ü" * 128, 256) == "ü" * 128
    assert fit("ü" * 128 + "x", 256) != "ü" * 128 + "x"


def test_long_text_shows_its_beginning() -> None:
    """128 bytes of it, whole characters only, and then the digest: 201 bytes at most."""
    fitted = fit(LONG_KEY, 1_000)
    assert fitted.startswith(LONG_KEY[:128] + "~sha256.")
    assert len(fitted.encode()) == 200
    assert fit("x" + "ü" * 1_000, 1_000).startswith("x" + "ü" * 63 + "~sha256.")


def test_two_long_texts_never_meet() -> None:
    """Also where they differ at the end only, and after what no encoding says."""
    texts = [LONG_KEY, LONG_KEY + "a", LONG_KEY + "b", LONG_KEY + "\ud800", LONG_KEY + "\ud801"]
    assert len({fit(text, 512) for text in texts}) == len(texts)


def test_short_text_that_looks_fitted_does_not_meet_a_long_one() -> None:
    """It is digested itself."""
    fitted = fit(LONG_KEY, 1_000)
    assert len({fit(LONG_KEY, 1_000), fit(fitted, 1_000), fit(fit(fitted, 1_000), 1_000)}) == 3


@pytest.mark.parametrize("keyspace", ["", "s", "space" * 20])
@pytest.mark.parametrize("size", [1_018, 1_023, 1_024, 1_025, 5_000])
def test_key_fits_behind_its_keyspace(keyspace: str, size: int) -> None:
    """R10 bounds the whole of it; the keyspace is kept as it is."""
    full = full_key(keyspace, "k" * size)
    assert len(full.encode()) <= 1_024
    assert full.startswith(f"{keyspace}/k" if keyspace else "k")
    assert full != full_key(keyspace, "k" * (size + 1))


@pytest.mark.parametrize("key", ["", None, 7, "k" * 2_000 + "\ud800"])
def test_what_is_not_text_is_not_a_key(key: Any) -> None:
    """A digest hides no fault."""
    with pytest.raises(ConfigurationError, match="the key"):
        full_key("shop", key)


def test_keyspace_without_room_for_a_key_is_refused() -> None:
    """Nothing is cut off it: resume events are told by it."""
    with pytest.raises(ConfigurationError, match=r"1,\d{3} bytes"):
        full_key("s" * 1_000, "k" * 100)


def test_long_names_are_one_message_by_whichever_way(shop: Shop) -> None:
    """``send``, ``leased``, ``leased_function`` and ``status`` mean one record, by its whole names."""
    said: dict[str, Any] = {"keyspace": "shop", "provider": shop.store}
    first = send(LONG_KEY, {"k": LONG_KEY, "id": LONG_ID}, message_id=LONG_ID, waker=RecordingWaker(), **said)
    assert (first.message_id, first.state) == (LONG_ID, "waiting")
    full = full_key("shop", LONG_KEY)
    event = {"k": LONG_KEY, "id": LONG_ID}
    handler = shop.handler(message_id_jmespath="id")
    accepted = handler(event, shop.context())
    assert accepted == {"status": "accepted", "state": "waiting", "key": LONG_KEY, "message_id": LONG_ID}
    apply: Any = leased_function(key_jmespath="k", message_id_jmespath="id", clock=shop.clock, **said)(order)
    assert apply(event) == accepted
    assert len(shop.store.peek(full)) == 1
    shop.clock.advance(60_000)
    assert handler(event, shop.context()) is None
    assert status(LONG_KEY, LONG_ID, **said).state == "handled"
    assert status(LONG_KEY, LONG_ID + "x", **said).state == "unknown"
    assert status(LONG_KEY + "x", LONG_ID, **said).state == "unknown"


def test_every_run_of_a_long_key_calls_it_the_same(shop: Shop) -> None:
    """``lease.key`` is the key as it is kept, also in a woken invocation, which knows no other."""
    names: list[str] = []
    wakes = RecordingWaker()

    def handle(event: Any, context: Any, *, lease: Any) -> None:
        names.append(lease.key)

    handler: Any = leased(
        key_jmespath="k", keyspace="shop", provider=shop.store, clock=shop.clock, waker=wakes, drain_ms=0
    )(handle)
    handler({"k": LONG_KEY}, shop.context())
    send(LONG_KEY, {"k": LONG_KEY}, keyspace="shop", provider=shop.store, waker=wakes)
    handler(wakes.wakes[0].to_event(), shop.context("request-2"))
    assert set(names) == {fit(LONG_KEY, 1_024 - len("shop/"))}
    assert len(names) == 2


@pytest.mark.parametrize("length", [1, 256, 300, 2_000])
def test_id_with_a_lone_surrogate_is_refused_at_any_length(shop: Shop, length: int) -> None:
    """A digest hides no fault: by every way in, and whether it is chosen or the event's."""
    given = "m" * (length - 1) + "\ud800"
    said: dict[str, Any] = {"keyspace": "shop", "provider": shop.store}
    with pytest.raises(ConfigurationError, match="not valid Unicode"):
        send("k", {}, message_id=given, waker=None, **said)
    with pytest.raises(ConfigurationError, match="not valid Unicode"):
        status("k", given, **said)
    with pytest.raises(LeaseKeyMissing, match="not valid Unicode"):
        shop.handler(message_id_jmespath="id")({"k": "k", "id": given}, shop.context())
    apply: Any = leased_function(key_jmespath="k", message_id_jmespath="id", clock=shop.clock, **said)(order)
    with pytest.raises(LeaseKeyMissing, match="not valid Unicode"):
        apply({"k": "k", "id": given})
    record = {"messageId": given, "receiptHandle": "r", "eventSource": "aws:sqs", "body": "{}"}
    unchosen: Any = leased_function(key="k", clock=shop.clock, **said)(order)
    with pytest.raises(IncumbentError, match="not valid Unicode"):
        unchosen(record)
    assert not shop.store.peek("shop/k")


def test_long_key_with_a_lone_surrogate_is_missing(shop: Shop) -> None:
    """As a short one is."""
    with pytest.raises(LeaseKeyMissing, match="not valid Unicode"):
        shop.handler()({"k": "k" * 2_000 + "\ud800"}, shop.context())


def test_id_that_looks_fitted_is_not_the_message_of_a_long_one(shop: Shop) -> None:
    """A handler's event may have any id."""
    shop.occupy()
    handler = shop.handler(key="a", key_jmespath=None, message_id_jmespath="id")
    for message_id in (LONG_ID, fit(LONG_ID, 256)):
        handler({"id": message_id}, shop.context())
    assert len({message.id for message in shop.peek()}) == 2
