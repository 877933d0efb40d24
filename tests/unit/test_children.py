"""A process that a run forks holds a copy of its lease: it tells no loss, and it settles nothing."""

import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from incumbent import ConfigurationError, Lease, LeaseUnavailable, Stop, leased
from incumbent.powertools import PowertoolsMetrics
from incumbent.providers.memory import MemoryProvider
from incumbent.wakers import LambdaWaker
from tests.unit.test_runs import TTL_MS, Line

ROOT = Path(__file__).parents[2]


def in_a_process_of_its_own(name: str) -> None:
    """Fork in a process that has no threads of the test run."""
    words = [sys.executable, "-c", f"import {__name__} as ours; ours.{name}()"]
    ended = subprocess.run(words, cwd=ROOT, timeout=60, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def fork(child: Callable[[], object]) -> int:
    """Do something in a child; its exit status: 0 if it went well, 1 if it raised, its own where it chose one."""
    pid = os.fork()
    if pid == 0:
        try:
            child()
        except SystemExit as ends:
            os._exit(int(str(ends.code)))
        except BaseException:  # noqa: BLE001 - the parent sees the status, and the text
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize(
    "name",
    [
        "child_tells_no_loss",
        "child_that_inherits_a_loss_knows_it",
        "child_sees_the_deadline",
        "child_sends_nothing_under_the_lease",
        "child_that_falls_out_of_the_handler_settles_nothing",
        "child_reports_nothing_that_its_parent_collected",
        "child_asks_over_connections_of_its_own",
    ],
)
def test_forked_child_holds_a_copy(name: str) -> None:
    """See the function of that name."""
    in_a_process_of_its_own(name)


def child_tells_no_loss() -> None:
    """A ttl later the parent has renewed and the child cannot know: no LOST, no on_lost, no log; not knowing is R9."""
    line = Line()
    logged: list[logging.LogRecord] = []
    logging.getLogger("incumbent").addHandler(handler := logging.Handler())
    handler.emit = logged.append  # type: ignore[method-assign, assignment]

    def child(lease: Lease) -> None:
        lease.assert_held()
        line.clock.advance(TTL_MS)
        assert lease.stop is None
        assert lease.attempt == 1
        assert (lease.owner, lease.fence) == seen[0]
        try:
            lease.assert_held()
        except LeaseUnavailable as unknown:
            assert "child process" in str(unknown)  # noqa: PT017 - no pytest in here
        else:
            raise AssertionError
        assert line.losses == []
        assert "lost" not in line.facts.names
        assert logged == []

    def work(_: object, lease: Lease) -> int:
        seen.append((lease.owner, lease.fence))
        return fork(lambda: child(lease))

    seen: list[tuple[str, int]] = []
    line.during["m1"] = work
    outcome: Any = line.come("m1")
    assert outcome.result == 0
    assert line.stored == []


def child_that_inherits_a_loss_knows_it() -> None:
    """What was known before the fork stays known."""
    line = Line()

    def work(_: object, lease: Lease) -> int:
        line.clock.advance(TTL_MS)
        assert lease.stop is Stop.LOST
        codes.append(fork(lambda: None if lease.stop is Stop.LOST else os._exit(1)))
        return 0

    codes: list[int] = []
    line.during["m1"] = work
    try:
        line.come("m1")
    except Exception as error:  # noqa: BLE001 - no pytest in here
        assert type(error).__name__ == "LeaseLost", error  # noqa: PT017
    assert codes == [0]


def child_sees_the_deadline() -> None:
    """The invocation's end is on the clock, which both see."""
    line = Line()

    def child(lease: Lease) -> None:
        line.clock.advance(118_000)
        assert lease.stop is Stop.DEADLINE

    line.during["m1"] = lambda _, lease: fork(lambda: child(lease))
    outcome: Any = line.come("m1")
    assert outcome.result == 0


def child_sends_nothing_under_the_lease() -> None:
    """To renew, to take and to defer are the run's, which is the parent's; nothing is asked."""
    line = Line()

    def child(lease: Lease) -> None:
        before = list(line.store.calls)
        for call in (lease.renew, lease.take, lease.defer):
            try:
                call()
            except ConfigurationError as error:
                assert "child process" in str(error)  # noqa: PT017 - no pytest in here
            else:
                raise AssertionError(call)
        assert line.store.calls == before

    line.during["m1"] = lambda _, lease: fork(lambda: child(lease))
    outcome: Any = line.come("m1")
    assert outcome.result == 0


def child_that_falls_out_of_the_handler_settles_nothing() -> None:
    """It returns, raises or exits where only the parent may: its process ends, and answers for no invocation."""

    def returns() -> None:
        """Forget to exit."""

    def fails() -> None:
        raise ValueError("no")

    def leaves() -> None:
        raise SystemExit(7)

    for end, code in ((returns, 1), (fails, 1), (leaves, 7)):
        line = Line()
        codes: list[int] = []

        def work(_: object, __: Lease, end: Callable[[], None] = end, codes: list[int] = codes) -> None:
            pid = os.fork()
            if pid:
                codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            else:
                end()

        line.during["m1"] = work
        parent = os.getpid()
        try:
            line.come("m1")
        except SystemExit as ends:
            os._exit(int(str(ends.code)) if "settle" not in line.store.calls and os.getpid() != parent else 99)
        except BaseException:  # noqa: BLE001 - a child that would answer for the invocation
            os._exit(98)
        if os.getpid() != parent:
            os._exit(97)
        assert codes == [code], (end, codes)
        assert line.stored == []


def child_reports_nothing_that_its_parent_collected() -> None:
    """The metrics of the call are the parent's to print, however the child leaves the handler."""

    def raises(error: BaseException) -> None:
        raise error

    for end in (lambda: None, lambda: raises(ValueError("no")), lambda: raises(SystemExit(7))):
        read, write = os.pipe()
        parent = os.getpid()

        def work(_: object, __: Any, end: Callable[[], None] = end) -> None:
            pid = os.fork()
            if pid:
                os.waitpid(pid, 0)
            else:
                end()

        with os.fdopen(write, "w") as lines:
            metrics = PowertoolsMetrics("shop", stream=lines)
            handler = leased(key="k", keyspace="shop", provider=MemoryProvider(), observer=metrics)(work)
            try:
                handler({}, None)
            finally:
                if os.getpid() != parent:
                    lines.flush()
                    os._exit(0)
        with os.fdopen(read) as printed:
            assert printed.read().count('"LeaseAcquired"') == 2, end  # its definition, and its value


def child_asks_over_connections_of_its_own() -> None:
    """botocore's would be shared with the parent, whose answers it would read: a child makes its own client."""
    from botocore.config import Config

    from incumbent import Wake
    from incumbent.providers.dynamodb.client import Clients

    os.environ.update(AWS_REGION="eu-central-1", AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b")
    clients = Clients(None, None, Config())
    ours = clients.client(None, "k")
    assert clients.client(None, "k") is ours
    made: list[object] = []

    class Client:
        def invoke(self, **_: object) -> Any:
            made.append(self)
            raise ConnectionError

    boto3.client = lambda *_, **__: Client()  # type: ignore[assignment]
    waker = LambdaWaker()

    def wake() -> None:
        try:
            waker(Wake(key="k", ticket=None, target="t"))
        except ConnectionError:
            return

    def child() -> None:
        assert clients.client(None, "k") is not ours
        assert clients.client(None, "k") is clients.client(None, "k")
        wake()
        assert made[-1] is not made[0]
        clients.close()  # its own, and not what the parent goes on with

    wake()
    wake()
    assert made[0] is made[1]
    assert fork(child) == 0
    assert clients.client(None, "k") is ours
