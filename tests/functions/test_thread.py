"""The chat function answers a thread one owner at a time, and folds in what arrives meanwhile."""

import json
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest

from incumbent import Message, Stop
from incumbent.providers.memory import MemoryProvider
from incumbent.testing import run
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
    assert json.loads(played.answers[0]["body"]) == {"answer": "answer 2"}
    assert chat.said == ["one", "answer 1", "two", "answer 2"]


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
