"""A transcript takes nothing from an owner that another one has followed, wherever it is kept."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from types import ModuleType
from typing import Any

import pytest

from incumbent.testing.servers import dynalite, dynalite_available, locked_moto
from tests.functions.conftest import table_on

Load = Callable[..., Sequence[ModuleType]]

KEPT_IN = {"memory": "MemoryTranscripts", "redis": "RedisTranscripts", "moto": "DynamoDBTranscripts"}
if dynalite_available():
    KEPT_IN["dynalite"] = "DynamoDBTranscripts"


@pytest.fixture(scope="module")
def moto_environment() -> Iterator[dict[str, str]]:
    """A table on moto."""
    with table_on(locked_moto(), "thread", "TRANSCRIPT_TABLE_NAME") as environment:
        yield environment


@pytest.fixture(scope="module")
def dynalite_environment() -> Iterator[dict[str, str]]:
    """A table on dynalite, which takes no expression that the real service would refuse."""
    with table_on(dynalite(), "thread", "TRANSCRIPT_TABLE_NAME") as environment:
        yield environment


@pytest.fixture
def transcript(load: Load) -> ModuleType:
    """The function's module."""
    (module,) = load("thread", "transcript")
    return module


@pytest.fixture(params=KEPT_IN)
def transcripts(
    request: pytest.FixtureRequest, transcript: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """A place for transcripts, chosen by the environment as the function chooses it."""
    environment = {"INCUMBENT_PROVIDER": "memory"}
    if request.param != "memory":
        environment = request.getfixturevalue(f"{request.param}_environment")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = transcript.transcripts_from_env()
    assert type(found).__name__ == KEPT_IN[request.param]
    yield found
    if hasattr(found, "client"):
        found.client.close()


@pytest.fixture
def thread(request: pytest.FixtureRequest) -> str:
    """A thread that no other test uses."""
    return f"thread/{request.node.name} {{é}}"


def said(transcript: ModuleType, *texts: str) -> list[Any]:
    """Return turns of a user."""
    return [transcript.Turn(role="user", text=text, message_id=f"id of {text[:9]}") for text in texts]


# Two owners, the later one with the higher fence, as far apart as a store's microseconds put them.
EARLIER, LATER = 1_793_610_930_412_000, 1_793_610_930_412_001


def test_new_thread_has_nothing_said(transcripts: Any, thread: str) -> None:
    """The first load answers an empty list."""
    assert transcripts.load(thread, fence=EARLIER) == []


def test_what_was_saved_is_loaded_as_it_was(transcripts: Any, transcript: ModuleType, thread: str) -> None:
    """Role, text and message id come back, for the same owner and for the next."""
    turns = [*said(transcript, "hello", "grüße 🙂"), transcript.Turn(role="assistant", text="hi")]
    transcripts.load(thread, fence=EARLIER)
    transcripts.save(thread, turns, fence=EARLIER)
    assert transcripts.load(thread, fence=EARLIER) == turns
    assert transcripts.load(thread, fence=LATER) == turns


def test_stale_owner_cannot_overwrite_what_a_later_one_saved(
    transcripts: Any, transcript: ModuleType, thread: str
) -> None:
    """A save under a lower fence is refused, and changes nothing (H37)."""
    transcripts.load(thread, fence=EARLIER)
    transcripts.save(thread, said(transcript, "later"), fence=LATER)
    with pytest.raises(transcript.StaleOwner, match="later than fence"):
        transcripts.save(thread, said(transcript, "stale"), fence=EARLIER)
    assert transcripts.load(thread, fence=LATER) == said(transcript, "later")


def test_loading_alone_shuts_out_the_owners_before(transcripts: Any, transcript: ModuleType, thread: str) -> None:
    """What an owner has read stands, though it has not saved yet."""
    transcripts.save(thread, said(transcript, "first"), fence=EARLIER)
    assert transcripts.load(thread, fence=LATER) == said(transcript, "first")
    with pytest.raises(transcript.StaleOwner):
        transcripts.save(thread, said(transcript, "first", "stale"), fence=EARLIER)
    assert transcripts.load(thread, fence=LATER) == said(transcript, "first")


def test_stale_owner_is_told_when_it_loads(transcripts: Any, transcript: ModuleType, thread: str) -> None:
    """It need not run a whole step to find out."""
    transcripts.load(thread, fence=LATER)
    with pytest.raises(transcript.StaleOwner):
        transcripts.load(thread, fence=EARLIER)


def test_saving_again_is_safe(transcripts: Any, transcript: ModuleType, thread: str) -> None:
    """A repeated save under the same fence is no conflict with itself."""
    for _ in range(2):
        transcripts.save(thread, said(transcript, "once"), fence=EARLIER)
    assert transcripts.load(thread, fence=EARLIER) == said(transcript, "once")


def test_threads_do_not_meet(transcripts: Any, transcript: ModuleType, thread: str) -> None:
    """One thread's fence and turns are nothing to another."""
    transcripts.save(thread, said(transcript, "mine"), fence=LATER)
    assert transcripts.load(f"{thread}2", fence=EARLIER) == []


def item_bytes(transcripts: Any, thread: str) -> int:
    """How large DynamoDB counts a thread's item: the bytes of its names and values."""
    item = transcripts.client.get_item(TableName=transcripts.table_name, Key={"thread": {"S": thread}})["Item"]
    return sum(len(name.encode()) + len(str(*value.values()).encode()) for name, value in item.items())


def test_long_thread_goes_on_by_its_newest_turns(transcripts: Any, transcript: ModuleType, thread: str) -> None:
    """120 turns of 5 KB and one of 390 KB are saved as they come: whole turns go, the oldest first."""
    texts = [f"{n:03}{'é' * 2_500}" for n in range(120)]
    texts[60:60] = ["x" * 390_000]
    turns: list[Any] = []
    for fence, turn in enumerate(said(transcript, *texts), EARLIER):
        turns = [*transcripts.load(thread, fence=fence), turn]
        transcripts.save(thread, turns, fence=fence)
        if hasattr(transcripts, "table_name"):
            assert item_bytes(transcripts, thread) < 400 * 1024
    assert len(turns) > 35
    assert turns == said(transcript, *texts)[-len(turns) :]


@pytest.mark.parametrize("text", ["x" * 390_000, "🙂" * 100_000, "\x01" * 390_000, "x" * 90_000 + "\x01" * 390_000])
def test_turn_that_is_too_large_is_shortened(transcripts: Any, transcript: ModuleType, thread: str, text: str) -> None:
    """Its beginning stays, and a mark that says that there was more; so question and answer are both kept."""
    turns = [*said(transcript, "before", text), transcript.Turn(role="assistant", text=text)]
    transcripts.save(thread, turns, fence=EARLIER)
    asked, answered = transcripts.load(thread, fence=EARLIER)
    assert (asked.message_id, asked.role, answered.role) == (turns[1].message_id, "user", "assistant")
    for kept in (asked, answered):
        assert kept.text.endswith(transcript.CUT)
        assert text.startswith(kept.text.removesuffix(transcript.CUT))
        size = len(json.dumps(asdict(kept), ensure_ascii=False).encode())
        assert transcript.TURN_BYTES - 10 < size <= transcript.TURN_BYTES


def test_text_that_is_no_utf_8_is_kept_as_far_as_it_is(transcripts: Any, transcript: ModuleType, thread: str) -> None:
    """Half a character from JSON's escapes would be refused by a store, each time that the thread is saved."""
    transcripts.save(thread, [transcript.Turn(role="user", text="a\ud83d")], fence=EARLIER)
    assert [turn.text for turn in transcripts.load(thread, fence=EARLIER)] == ["a?"]


def test_leases_without_a_place_for_transcripts_are_refused(
    transcript: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of leases and no table of transcripts is a mistake, not a reason to keep them in memory."""
    monkeypatch.setenv("INCUMBENT_PROVIDER", "dynamodb")
    with pytest.raises(RuntimeError, match="set TRANSCRIPT_TABLE_NAME"):
        transcript.transcripts_from_env()
