"""The end of an invocation cuts a chat's answer: its part stays, marked, and the next invocation goes on with it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis

from incumbent.local import Invocation, LocalLambda, LogLine
from incumbent.local.report import Fact, read_facts
from incumbent.local.stores import prepared

ROOT = Path(__file__).parents[2]
STEP_MS = 20_000  # the function's own: with less time left, it stops
WORDS = " ".join(f"word-{number}" for number in range(45))


def test_answer_that_the_deadline_itself_cuts_is_marked_and_continued() -> None:
    """In the real runtime, on a Valkey: nothing is said twice, nothing is left out, and no invocation times out."""
    facts: list[Fact] = []
    kept: list[tuple[str, str]] = []

    with prepared(ROOT / "template.yaml", "redis") as ready:
        client: Any = redis.Redis.from_url(ready.env["INCUMBENT_REDIS_URL"])
        (thread,) = (each for each in ready.functions if each.logical_id == "ThreadFunction")
        event = json.loads((ROOT / "events" / "chat-message.json").read_text("utf-8"))
        event["body"] = json.dumps({"thread_id": "cut", "text": WORDS})

        def on_log(line: LogLine) -> None:
            facts.extend(read_facts(line.text, line.request_id))

        def on_invocation(_: Invocation) -> None:
            for name in client.scan_iter(
                match="*:transcript:cut"
            ):  # read without a fence, which would shut the owner out
                *_, last = json.loads(client.hget(name, "turns") or "[{}]")
                if last.get("role") == "assistant":
                    kept.append((last["state"], last["text"]))

        env = {**ready.env, "INCUMBENT_TRACE": "1", "THINK_MS": "150", "QUIET_MS": "100"}
        with LocalLambda(
            [replace(thread, timeout_ms=STEP_MS + 4_000)], env=env, on_log=on_log, on_invocation=on_invocation
        ) as cloud:
            assert cloud.invoke("ThreadFunction", event).payload["statusCode"] == 202
            cloud.wait_idle()
            assert [each.error for each in cloud.invocations if not each.ok] == []
        client.close()

    ended = [fact for fact in facts if fact.fact == "run_ended"]
    assert [fact.outcome for fact in ended] == ["deferred"] * (len(ended) - 1) + ["handled"]
    assert len({fact.request_id for fact in ended}) == len(ended) >= 2
    *cut, (state, said) = dict.fromkeys(kept)
    assert (state, said) == ("done", f"You said: {WORDS}")
    assert len(cut) == len(ended) - 1
    for (state, part), longer in zip(cut, [*(part for _, part in cut[1:]), said], strict=True):
        assert state == "cut"
        assert part.startswith("You said: word-0 word-1")
        assert longer.startswith(part)
        assert len(longer) > len(part)
