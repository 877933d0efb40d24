"""The chat function answers a thread one owner at a time, and folds in what arrives meanwhile."""

import json
from collections.abc import Callable, Sequence
from threading import Thread
from types import ModuleType
from typing import Any

import pytest

from incumbent import Message, Stop, async_handlers, show
from incumbent.clock import SYSTEM_CLOCK
from incumbent.providers.memory import MemoryProvider
from incumbent.testing import After, run
from tests.functions.conftest import FUNCTIONS, Context, Model

MESSAGE = json.loads((FUNCTIONS.parent / "events" / "chat-message.json").read_text("utf-8"))


class Chat:
    """A thread of its own, and what is posted to it."""

    def __init__(self, app: ModuleType, thread_id: str) -> None:
        self.app = app
        self.thread_id = thread_id

    def event(self, text: str, message_id: str) -> Any:
        """What API Gateway makes of a post."""
        event = json.loads(json.dumps(MESSAGE))
        event["body"] = json.dumps({"thread_id": self.thread_id, "text": text})
        event["requestContext"]["requestId"] = f"{self.thread_id}-{message_id}"
        return event

    def post(self, text: str, message_id: str) -> tuple[int, dict[str, Any]]:
        """Invoke the handler as API Gateway would; return the status and the body."""
        context = Context(aws_request_id=f"request-{self.thread_id}-{message_id}")
        answer = self.app.handler(self.event(text, message_id), context)
        json.dumps(answer)  # the runtime client can send it
        return answer["statusCode"], json.loads(answer["body"])

    @property
    def said(self) -> list[str]:
        """What the transcript holds, read as a much later owner."""
        return [turn.text for turn in self.app.transcripts().load(self.thread_id, fence=2**52)]


@pytest.fixture
def app(load: Callable[..., Sequence[ModuleType]], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The function, with its leases and transcripts in memory."""
    monkeypatch.setenv("INCUMBENT_PROVIDER", "memory")
    monkeypatch.setenv("THINK_MS", "1")
    monkeypatch.setenv("QUIET_MS", "1")
    (app,) = load("thread", "app")
    return app


@pytest.fixture
def chat(app: ModuleType, request: pytest.FixtureRequest) -> Chat:
    """A thread that no other test uses."""
    return Chat(app, request.node.name)


def asked(model: Model) -> list[list[list[str]]]:
    """Return the texts of each question's messages."""
    return [[[block["text"] for block in message["content"]] for message in messages] for messages in model.asked]


def test_answer_is_an_http_answer(chat: Chat) -> None:
    """Status, content type and a JSON body in a string; the local responder says back what it was told."""
    event = {**MESSAGE, "body": json.dumps({"thread_id": chat.thread_id, "text": "hello"})}
    assert chat.app.handler(event, Context(aws_request_id="request-1")) == {
        "statusCode": 200,
        "headers": {"content-type": "application/json"},
        "body": '{"answer": "You said: hello"}',
    }


def test_conversation_goes_on_in_the_next_invocation(chat: Chat, model: Model) -> None:
    """The model is asked with everything that was said before."""
    assert chat.post("one", "a") == (200, {"answer": "answer 1"})
    assert chat.post("two", "b") == (200, {"answer": "answer 2"})
    assert asked(model) == [[["one"]], [["one"], ["answer 1"], ["two"]]]
    assert [message["role"] for message in model.asked[1]] == ["user", "assistant", "user"]


def test_follow_up_is_accepted_at_once_and_folded_in(chat: Chat, model: Model) -> None:
    """Who posts while the owner thinks gets 202; the owner's next step sees the message."""
    posted: list[tuple[int, Any]] = []
    model.while_thinking = [lambda: posted.append(chat.post("and two?", "b"))]
    assert chat.post("one?", "a") == (200, {"answer": "answer 2"})
    assert [status for status, _ in posted] == [202]
    assert asked(model) == [[["one?"]], [["one?"], ["answer 1"], ["and two?"]]]
    assert chat.said == ["one?", "answer 1", "and two?", "answer 2"]


def test_several_follow_ups_are_one_step(chat: Chat, model: Model) -> None:
    """What arrived during one step is asked together, in the order of arrival."""

    def burst() -> None:
        assert [chat.post(text, text)[0] for text in ("b", "c", "d")] == [202, 202, 202]

    model.while_thinking = [burst]
    assert chat.post("a", "a") == (200, {"answer": "answer 2"})
    assert asked(model)[1:] == [[["a"], ["answer 1"], ["b", "c", "d"]]]


def test_folded_in_message_is_handled(chat: Chat, model: Model) -> None:
    """Its source may deliver it again: nothing runs, nothing is said twice."""
    model.while_thinking = [lambda: chat.post("b", "b")]
    chat.post("a", "a")
    assert chat.post("b", "b")[0] == 200
    assert len(model.asked) == 2
    assert chat.said == ["a", "answer 1", "b", "answer 2"]


def test_no_step_is_begun_when_the_invocation_is_nearly_over(chat: Chat, model: Model) -> None:
    """The run defers itself; the next invocation answers both."""
    provider = MemoryProvider()
    played = run(chat.app.handler, chat.thread_id, [chat.event("one", "a")], stop=Stop.DEADLINE, provider=provider)
    assert played.answers[0]["statusCode"] == 202
    assert model.asked == []
    played = run(chat.app.handler, chat.thread_id, [chat.event("two", "b")], provider=provider)
    assert json.loads(played.answers[0]["body"]) == {"answer": "answer 1"}
    assert chat.said == ["one", "two", "answer 1"]


def test_owner_that_another_one_followed_says_nothing(chat: Chat, model: Model) -> None:
    """A later owner reads the transcript while this one thinks: the late answer is refused, the run fails."""
    model.while_thinking = [lambda: chat.said]
    with pytest.raises(Exception, match="later than fence"):
        chat.post("one", "a")
    assert chat.said == []


def test_message_without_text_is_refused(chat: Chat, model: Model) -> None:
    """It is answered as the caller's mistake, and asks nobody."""
    assert chat.post("  ", "a") == (400, {"error": "a message needs a text"})
    assert model.asked == []


def test_message_delivered_again_is_not_asked_twice(app: ModuleType) -> None:
    """After a crash between saving and settling, the transcript knows the message by its id."""

    def message(text: str, message_id: str) -> Message:
        return Message(id=message_id, event={"body": json.dumps({"text": text})})

    turns = app.fold([], [message("one", "a"), message("two", "b")])
    assert app.fold(turns, [message("two", "b"), message("three", "c")]) == app.fold(turns, [message("three", "c")])
    assert [turn.text for turn in turns] == ["one", "two"]


def test_converse_starts_with_the_user_and_takes_turns(load: Callable[..., Sequence[ModuleType]]) -> None:
    """Where the oldest turns were cut off, an answer without its question is left out."""
    responder, transcript = load("thread", "responder", "transcript")
    turns = [
        transcript.Turn(role=role, text=text)
        for role, text in (("assistant", "cut"), ("user", "a"), ("user", "b"), ("assistant", "c"), ("user", "d"))
    ]
    assert responder.as_messages(turns) == [
        {"role": "user", "content": [{"text": "a"}, {"text": "b"}]},
        {"role": "assistant", "content": [{"text": "c"}]},
        {"role": "user", "content": [{"text": "d"}]},
    ]


def test_what_is_typed_in_a_row_is_one_question(
    load: Callable[..., Sequence[ModuleType]], model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a quiet time of 1.5 s; a person who goes on typing is answered after 6 s."""
    monkeypatch.setenv("INCUMBENT_PROVIDER", "memory")
    monkeypatch.setenv("INCUMBENT_WAKE_QUEUE_URL", "https://sqs.example/wakes")
    (app,) = load("thread", "app")
    chat = Chat(app, "typed")
    events = [
        chat.event("I need a hotel", "a"),
        After(900, chat.event("in Lyon", "b")),
        After(900, chat.event("quiet", "c")),
    ]
    played = run(app.handler, chat.thread_id, events, lasts_ms=10_000)
    assert [answer["statusCode"] for answer in played.answers] == [202, 202, 202]
    assert [ran.at_ms for ran in played.runs] == [pytest.approx(3_300, abs=1_000)]
    assert asked(model) == [[["I need a hotel", "in Lyon", "quiet"]]]
    model.asked.clear()
    chat = Chat(app, "typing")
    events = [chat.event("one", "0"), *(After(1_000, chat.event("more", str(number))) for number in range(1, 12))]
    played = run(app.handler, chat.thread_id, events, lasts_ms=20_000)
    assert len(played.runs[0].messages) == pytest.approx(7, abs=1)


@pytest.fixture
def slow(app: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Chat:
    """A thread whose answers take 50 ms a word."""
    monkeypatch.setenv("THINK_MS", "50")
    app.responder.cache_clear()
    return Chat(app, "slow")


WORDS = " ".join(f"word-{number}" for number in range(200))


def answering(chat: Chat, text: str = WORDS) -> tuple[Thread, list[Any]]:
    """Post in another thread, and wait until the run has begun to answer."""
    answers: list[Any] = []

    def post() -> None:
        answers.append(chat.post(text, "long"))
        async_handlers.close()  # as the thread ends

    posting = Thread(target=post)
    posting.start()
    while not show(chat.thread_id, keyspace="thread").owner:
        SYSTEM_CLOCK.sleep_ms(10)
    SYSTEM_CLOCK.sleep_ms(300)
    return posting, answers


def test_user_says_stop_and_the_answer_stops_within_a_second(slow: Chat) -> None:
    """The transcript keeps what was said until then, marked; the model is told so with the next question."""
    posting, answers = answering(slow)
    began = SYSTEM_CLOCK.now()
    assert slow.post("Stop", "s") == (200, {"stopping": "yes"})
    posting.join()
    assert began.until(SYSTEM_CLOCK.now()) < 1_000
    ((status, body),) = answers
    assert (status, body["status"]) == (200, "stopped")
    question, partial = slow.app.transcripts().load(slow.thread_id, fence=2**52)
    assert (question.text, partial.state) == (WORDS, "stopped")
    assert partial.text.startswith("You said: word-0")
    assert len(partial.text) < len(WORDS)
    assert slow.app.stop_answer(slow.event("stop", "again"))["body"] == '{"stopping": "no"}'


def test_stop_gets_through_when_the_mailbox_is_full(slow: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stores nothing, so there is room for it."""
    posting, answers = answering(slow)
    accepted = [slow.post("more", f"m-{number}")[0] for number in range(101)]
    assert accepted[-1] == 429, "the mailbox is full"
    assert slow.post("stop", "s") == (200, {"stopping": "yes"})
    posting.join()
    assert answers[0][1]["status"] == "stopped"


def test_answer_that_the_deadline_cuts_is_continued(app: ModuleType) -> None:
    """The next invocation goes on where it was cut, in the same turn."""
    chat = Chat(app, "cut")
    cut = app.Turn(role="assistant", text="You said: word-0 word-1", state="cut")
    provider = MemoryProvider()
    asked = chat.event("word-0 word-1 word-2 word-3", "a")
    app.transcripts().save("cut", [*app.fold([], [Message(id="cut-a", event=asked)]), cut], fence=1)
    run(app.handler, chat.thread_id, [asked], provider=provider)
    *_, last = app.transcripts().load("cut", fence=2**52)
    assert (last.text, last.state) == ("You said: word-0 word-1 word-2 word-3", "done")
    assert len(chat.said) == 2


def test_model_reads_that_an_answer_was_stopped(load: Callable[..., Sequence[ModuleType]]) -> None:
    """An answer of no words, too; and a cut one is the beginning of its continuation."""
    responder, transcript = load("thread", "responder", "transcript")
    for text, read in (("half an", "half an [stopped by the user]"), ("", "[stopped by the user]")):
        turn = transcript.Turn(role="assistant", text=text, state="stopped")
        assert responder.as_text(turn) == read
    assert responder.as_text(transcript.Turn(role="assistant", text="half ", state="cut")) == "half"
