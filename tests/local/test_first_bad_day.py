"""A key that hangs, by docs/operations.md word for word: found, held, stopped, freed, resumed, and watched.

In memory, in this process; then with processes on Valkey, at a terminal and through the sweeper's function.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from incumbent import Lease, LeaseLost, Wake, leased
from incumbent.cli import main
from incumbent.clock import SYSTEM_CLOCK
from incumbent.local import FunctionSpec, LocalLambda
from incumbent.providers.memory import MemoryProvider
from incumbent.sweeper import sweep
from incumbent.testing import FakeContext, stand_in
from incumbent.testing.servers import AWS_ENVIRONMENT, ValkeyServer, valkey
from incumbent.wakers import LambdaWaker
from tests.local.test_pages import commands
from tests.unit.stage import PATIENCE_S, StepClock

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text("utf-8")
SECTION, THROUGH = (
    PAGE.partition("## A key that hangs\n")[2].partition("\n## ")[0].split("### Through the sweeper's function\n")
)
LS, SHOW, HOLD, STOP, RISK, RELEASE, RESUME, WATCH = commands(SECTION)
KEY = "shop-orders/order-1001"
CONTROLLED = [pytest.param(False, id="at a terminal"), pytest.param(True, id="through the sweeper's function")]


def event(message_id: str) -> dict[str, str]:
    """An update of the order."""
    return {"order_id": "order-1001", "id": message_id}


def test_page_has_the_commands_in_order() -> None:
    """And those of its last section are the same with another way in."""
    words = [each[0] for each in (LS, SHOW, HOLD, STOP, RISK, RELEASE, RESUME, WATCH)]
    assert words == ["ls", "show", "hold", "stop", "release", "release", "resume", "ls"]
    through = commands(THROUGH)
    way = ["--through", "STACK-sweeper:control"]
    assert through == [[*LS[:1], *way, *LS[1:]], [*RELEASE[:1], *way, *RELEASE[1:]]]


@dataclass(slots=True)
class Terminal:
    """A person who types the page's commands."""

    capsys: pytest.CaptureFixture[str]
    way: list[str] = field(default_factory=list)

    def run(self, words: list[str]) -> list[str]:
        """Run a command that succeeds; return what it printed."""
        code = main([*words[:1], *self.way, *words[1:]])
        out, err = self.capsys.readouterr()
        assert code == 0, (words, out, err)
        return out.splitlines()

    def free_the_key(self) -> None:
        """Go from the first command to the last but one, and look at what each says."""
        line, end = self.run(LS)
        said = re.fullmatch(rf"{KEY}  the run with fence (\d+) for \d+ s  2 waiting for \d+ s  note (.*)", line)
        assert said, line
        assert (said[2], end) == ('"waiting for the warehouse"', "1 running key")
        shown = self.run(SHOW)
        assert shown[0] == KEY
        assert f"fence {said[1]}, since " in shown[1]
        assert [row.split()[0] for row in shown if row.startswith("    ")][-3:] == ["m1", "m2", "m3"]
        assert self.run(HOLD) == [f"{KEY} is held until it is resumed; the run with fence {said[1]} goes on"]
        assert self.run(STOP) == [f"{KEY}: its run with fence {said[1]} was asked to stop"]
        asked = "asked to stop: incident 12"
        assert any(asked in row for row in self.run(SHOW))
        assert main([*RISK[:1], *self.way, *RISK[1:]]) == 2
        assert "release frees a key whose run may still go on" in self.capsys.readouterr().err
        (freed,) = self.run(RELEASE)
        assert freed.startswith(f"{KEY} was released from ")
        assert freed.endswith(f" with fence {said[1]}; it is held, so no run begins")
        (line, _) = self.run(["ls", "--held"])
        assert line.startswith(
            f"{KEY}  held until it is resumed: incident 12: the warehouse does not answer  3 waiting"
        )


def test_first_bad_day_in_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """The run that hangs is a thread, and time passes when the test says so."""
    clock, gone, ran, lost = StepClock(), threading.Event(), [], []
    store: Any = MemoryProvider(clock=clock)
    store.staged_clock = clock
    wakes: list[Wake] = []

    @leased(key_jmespath="order_id", message_id_jmespath="id", keyspace="shop-orders", waker=LambdaWaker())
    def handler(event: dict[str, str], context: object, *, lease: Lease) -> None:
        if event["id"] == "m1" and not gone.is_set():
            lease.note("waiting for the warehouse")
            gone.wait(PATIENCE_S)
        ran.append((event["id"], lease.fence))

    def invoke(what: Any) -> None:
        given: Any = handler  # the lease is the decorator's
        given(what, FakeContext(function_name="shop-orders", clock=clock))

    def hang() -> None:
        try:
            invoke(event("m1"))
        except LeaseLost as error:
            lost.append(error)

    with stand_in(store, wakes=wakes):
        thread = threading.Thread(target=hang)
        thread.start()
        until(lambda: store.get_lease_owner(KEY) is not None)
        for message_id in ("m2", "m3"):
            invoke(event(message_id))
        until(lambda: clock.pauses_ms)
        clock.advance(10_000)
        until(lambda: store.show(KEY).note is not None)
        terminal = Terminal(capsys)
        terminal.free_the_key()
        gone.set()
        thread.join(PATIENCE_S)
        assert lost, "the late run could settle"
        late = ran.pop()
        assert terminal.run(RESUME)[0].startswith(f"{KEY} was held, and is not any more; woke arn:aws:lambda:")

        def meanwhile() -> None:
            if not store.peek(KEY):
                raise KeyboardInterrupt
            sweep(store, LambdaWaker(), clock=clock)
            while wakes:
                invoke(wakes.pop(0).to_event())

        clock.while_sleeping = meanwhile
        lines = terminal.run(WATCH)
    assert [message_id for message_id, _ in ran] == ["m2", "m3", "m1"]
    assert all(fence > late[1] for _, fence in ran)
    assert lines[0].startswith(f"{KEY}  free  3 waiting for ")
    assert lines[-1] == "0 keys"


def until(there: Callable[[], object]) -> None:
    """Wait for another thread or process."""
    ends = SYSTEM_CLOCK.now().plus(int(PATIENCE_S * 1_000))
    while not there():
        assert SYSTEM_CLOCK.now().until(ends) > 0, "it did not come in time"
        SYSTEM_CLOCK.sleep_ms(20)


APP = """
import os
import time
from pathlib import Path

from incumbent import leased


@leased(key_jmespath="order_id", message_id_jmespath="id")
def handler(event, context, *, lease):
    if event["id"] == "m1" and not Path(os.environ["CAUSE_IS_GONE"]).exists():
        lease.note("waiting for the warehouse")
        while not Path(os.environ["CAUSE_IS_GONE"]).exists():
            time.sleep(0.02)
    with Path(os.environ["RAN"]).open("a") as file:
        file.write(f"{event['id']} {lease.fence}\\n")
"""


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    """With nothing in it that another test has left."""
    with valkey() as server:
        yield server


@pytest.fixture
def shop(server: ValkeyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalLambda]:
    """The orders' function, which hangs, and the sweeper's."""
    (tmp_path / "app.py").write_text(APP)
    environment = {
        **AWS_ENVIRONMENT,
        "INCUMBENT_PROVIDER": "redis",
        "INCUMBENT_REDIS_URL": server.url,
        "INCUMBENT_TTL_MS": "3000",
        "INCUMBENT_CONTROL_ALIAS": "control",
        "CAUSE_IS_GONE": str(tmp_path / "gone"),
        "RAN": str(tmp_path / "ran"),
    }
    specs = [
        FunctionSpec(
            logical_id=name,
            name=name,
            handler=handler,
            code=code,
            path=(code,),
            timeout_ms=60_000,
            environment=environment,
        )
        for name, handler, code in (
            ("shop-orders", "app.handler", tmp_path),
            ("shop-sweeper", "incumbent.sweeper.handler", ROOT / "functions" / "sweeper"),
        )
    ]
    with LocalLambda(specs, concurrency=4, retry_delays_ms=(100, 200)) as cloud:
        for name, value in AWS_ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", cloud.url)
        yield cloud


def heed_ctrl_c() -> None:
    """End by Ctrl-C, as in a terminal: a shell's background jobs, and what they start, ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("through", CONTROLLED)
def test_first_bad_day_on_valkey(
    shop: LocalLambda,
    server: ValkeyServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    through: bool,
) -> None:
    """The same with processes; through the sweeper's function, the terminal knows no store."""
    if not through:
        monkeypatch.setenv("INCUMBENT_PROVIDER", "redis")
        monkeypatch.setenv("INCUMBENT_REDIS_URL", server.url)
    way = ["--through", "shop-sweeper:control"] if through else []
    terminal = Terminal(capsys, way)
    hanging = shop.submit("shop-orders", event("m1"), asynchronous=True)
    until(lambda: main(["show", *way, KEY, "--json"]) == 0)
    for message_id in ("m2", "m3"):
        assert shop.invoke("shop-orders", event(message_id)).ok
    capsys.readouterr()
    until(lambda: main(["show", *way, KEY]) == 0 and "note" in capsys.readouterr().out)
    terminal.free_the_key()
    (tmp_path / "gone").touch()
    watch = subprocess.Popen(
        [sys.executable, "-m", "incumbent", *WATCH[:1], *way, *WATCH[1:]],
        env=os.environ,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c,  # noqa: PLW1509 - it only sets a signal
    )
    try:
        assert watch.stdout is not None
        assert " 3 waiting for " in watch.stdout.readline()
        (line,) = terminal.run(RESUME)
        assert re.fullmatch(rf"{KEY} was held, and is not any more; woke arn:aws:lambda:.*shop-orders.*", line), line

        def drained() -> bool:
            shop.invoke("shop-sweeper", {})
            return len((tmp_path / "ran").read_text().splitlines()) >= 4

        until(drained)
        for line in watch.stdout:
            if line == "0 keys\n":
                break
        watch.send_signal(signal.SIGINT)
        assert watch.wait(PATIENCE_S) == 0
    finally:
        watch.kill()
        watch.communicate()
    shop.wait_idle(int(PATIENCE_S * 1_000))
    assert hanging.result() is not None
    runs = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert sorted(name for name, _ in runs) == ["m1", "m1", "m2", "m3"]
    first, *others = sorted(int(fence) for _, fence in runs)
    assert all(fence > first for fence in others)
