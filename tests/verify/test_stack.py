"""``incumbent verify --stack``: the template's functions on this machine, and stacks that break what is promised."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from incumbent.cli import QUIET, main
from incumbent.errors import ConfigurationError
from incumbent.local import LocalLambda
from incumbent.local.stores import prepared
from incumbent.testing.clock import FakeClock
from incumbent.testing.servers import AWS_ENVIRONMENT
from incumbent.verify.stack import Stack, StackTrial, wrong_with
from tests.budgets import budget

TEMPLATE = Path(__file__).parents[2] / "template.yaml"
OUTPUTS = {"SweeperFunctionName": "local-sweeper", "VerifyFunctionName": "local-verify"}


def described(outputs: dict[str, str]) -> str:
    """CloudFormation's answer to DescribeStacks."""
    members = "".join(
        f"<member><OutputKey>{key}</OutputKey><OutputValue>{value}</OutputValue></member>"
        for key, value in outputs.items()
    )
    return (
        '<DescribeStacksResponse xmlns="http://cloudformation.amazonaws.com/doc/2010-05-15/"><DescribeStacksResult><Stacks>'
        "<member><StackName>shop</StackName><CreationTime>2026-01-01T00:00:00Z</CreationTime>"
        f"<StackStatus>CREATE_COMPLETE</StackStatus><Outputs>{members}</Outputs></member>"
        "</Stacks></DescribeStacksResult></DescribeStacksResponse>"
    )


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The outputs of every stack, as an endpoint of CloudFormation tells them."""
    outputs = dict(OUTPUTS)

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            body = described(outputs).encode()
            self.send_response(200)
            self.send_header("content-type", "text/xml")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    for name, value in AWS_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDFORMATION", f"http://127.0.0.1:{server.server_port}")
        yield outputs
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("provider", budget(("redis",), soak=("redis", "dynamodb")))
def test_template_s_functions_keep_what_is_promised(
    provider: str, outputs: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst, a hand-over, a crash and a sweep, on real runtime clients; and what was not looked at."""
    with (
        prepared(TEMPLATE, provider, parameters={"Verify": "true"}) as ready,
        LocalLambda(ready.declared, env={**QUIET, **ready.env}, concurrency=4) as cloud,
    ):
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", cloud.url)
        code = main(["verify", "--stack", "shop", "--yes"])
    lines = capsys.readouterr().out.splitlines()
    assert code == 0, lines
    found = [(line[13:].partition(": ")[0], line[:11].strip()) for line in lines]
    assert found[:6] == [(name, "ok") for name in ("plan", "burst", "hand-over", "crash", "sweep", "removal")], lines
    assert found[6:] == [(name, "not checked") for name in ("schedule", "sources", "alarms")]


@pytest.mark.parametrize("missing", list(OUTPUTS))
def test_stack_without_an_output_is_told_what_to_do(outputs: dict[str, str], missing: str) -> None:
    """It is another stack, or was deployed without the function."""
    del outputs[missing]
    with pytest.raises(ConfigurationError, match=r"template\.yaml|Verify=true"):
        Stack("shop")


@pytest.mark.parametrize(
    "words", [("--table", "leases"), ("--remove", "0123abcd"), ("--fail-over",), ("--matching", "beat")]
)
def test_options_of_a_store_do_not_go_with_a_stack(
    outputs: dict[str, str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """The functions know their store, and leave nothing that needs to be removed."""
    assert main(["verify", "--stack", "shop", *words]) == 2
    assert "leave out the options of a store" in capsys.readouterr().err


class FakeStack:
    """A stack whose invocations take no time. Mutants break what it promises."""

    function, sweeper = "verify", "sweeper"

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.left: list[dict[str, Any]] = []
        self.now_ms = 0
        self.ended = False
        self._lock = threading.Lock()

    def invoke(self, function: str, event: Any, *, waits: bool = True) -> Any:
        """Answer."""
        with self._lock:
            if function == self.sweeper:
                return self.sweep()
            if "journal" in event:
                self.ended = event["do"] == "end"
                return {"runs": list(self.runs)}
            if event.get("dies") or event["key"].startswith("crash"):
                self.left.append(event)
                return {"status": "accepted"}
            return self.run(event, "successor" if event["id"] == "b14" else event["id"])

    def sweep(self) -> Any:
        """Run what was left."""
        left, self.left = self.left, []
        for event in left:
            self.run(event, "swept", attempt=2)
        return {"found": 1, "woken": 1}

    def run(self, event: dict[str, Any], request_id: str, attempt: int = 1) -> Any:
        """Note a run."""
        began_ms = self.now_ms
        self.now_ms += 1_000
        of_event = {name: event[name] for name in ("key", "id")}
        times = {"began_ms": began_ms, "ended_ms": self.now_ms, "fence": self.now_ms}
        self.runs.append({**of_event, **times, "attempt": attempt, "request_id": request_id})
        return {"status": "accepted"} if request_id == "successor" else self.runs[-1]


class RunsTwice(FakeStack):
    """M5 left out."""

    def run(self, event: dict[str, Any], request_id: str, attempt: int = 1) -> Any:
        """Run again."""
        super().run(event, request_id, attempt)
        return super().run(event, request_id, attempt)


class RunsAtOnce(FakeStack):
    """R1 left out."""

    def run(self, event: dict[str, Any], request_id: str, attempt: int = 1) -> Any:
        """Take as long as the others together."""
        said = super().run(event, request_id, attempt)
        self.runs[-1]["ended_ms"] += 1_000_000
        return said


class Loses(FakeStack):
    """M2 left out."""

    def run(self, event: dict[str, Any], request_id: str, attempt: int = 1) -> Any:
        """Forget one."""
        return {"status": "accepted"} if event["id"] == "b3" else super().run(event, request_id, attempt)


class WakesNone(FakeStack):
    """Its role may not invoke itself, and callers wait for all."""

    def run(self, event: dict[str, Any], request_id: str, attempt: int = 1) -> Any:
        """Run it in the invocation of another caller, which waits."""
        said = super().run(event, "b0" if request_id == "successor" else request_id, attempt)
        return {"status": "accepted"} if request_id == "successor" else said


class SweepsNothing(FakeStack):
    """M8 left out."""

    def sweep(self) -> Any:
        """Find nothing."""
        return {"found": 0, "woken": 0}


class Raises(FakeStack):
    """Its functions cannot be imported."""

    def run(self, event: dict[str, Any], request_id: str, attempt: int = 1) -> Any:
        """Fail."""
        raise RuntimeError("verify failed: Runtime.ImportModuleError")


class KeepsItsJournal(FakeStack):
    """It is throttled when it should remove the journal."""

    def invoke(self, function: str, event: Any, *, waits: bool = True) -> Any:
        """Refuse that."""
        said = super().invoke(function, event, waits=waits)
        if event.get("do") == "end":
            raise RuntimeError("Rate Exceeded")
        return said


def failed(stack: FakeStack) -> list[str]:
    """The parts that fail on a stack."""
    trial: Any = StackTrial(stack, FakeClock())  # type: ignore[arg-type]
    checks = list(trial.checks())
    assert stack.ended
    return [check.name for check in checks if check.status == "failed"]


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        (FakeStack, []),
        (RunsTwice, ["burst", "crash"]),
        (RunsAtOnce, ["burst", "crash"]),
        (Loses, ["burst"]),
        (WakesNone, ["hand-over"]),
        (SweepsNothing, ["crash"]),
        (Raises, ["burst", "crash"]),
        (KeepsItsJournal, ["removal"]),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else "",
)
def test_stack_that_breaks_a_promise_fails(kind: Callable[[], FakeStack], parts: list[str]) -> None:
    """In the part that shows it; the journal is removed all the same, or a line says that it was not."""
    assert failed(kind()) == parts


def test_clocks_of_two_environments_may_differ_a_little() -> None:
    """A quarter of a second is not an overlap."""
    one = {"key": "k", "id": "a", "fence": 1, "began_ms": 0, "ended_ms": 1_000}
    other = {"key": "k", "id": "b", "fence": 2, "began_ms": 800, "ended_ms": 1_800}
    assert wrong_with([one, other], {"a", "b"}) == ""
    assert wrong_with([one, {**other, "began_ms": 700}], {"a", "b"}) == "a and b ran at the same time"
