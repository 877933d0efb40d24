"""Processes of the real runtime client, and what happens to them."""

import os
import signal
import sys
from pathlib import Path

import pytest

from incumbent.clock import SYSTEM_CLOCK
from incumbent.local import Environment, LocalLambda, Outcome
from tests.local.conftest import Start


def state(pid: int) -> str:
    """One letter, as the kernel has it: T is stopped, Z and nothing are dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def wait_in_flight(cloud: LocalLambda, function: str, count: int = 1) -> list[Environment]:
    """Wait until ``count`` environments have an invocation, and return them."""
    while len(busy := [each for each in cloud.environments(function) if each.request_ids]) < count:
        SYSTEM_CLOCK.sleep_ms(1)
    return busy


def wait_begun(cloud: LocalLambda, count: int) -> None:
    """Wait until ``count`` handlers sleep."""
    while sum(line.text == "begun" for line in cloud.logs) < count:
        SYSTEM_CLOCK.sleep_ms(1)


def test_an_environment_is_used_again(start: Start) -> None:
    """The second invocation finds the first one's process and module, and is no cold start."""
    cloud = start()
    first = cloud.invoke("ShortFunction", {})
    second = cloud.invoke("ShortFunction", {})
    assert (first.cold_start, second.cold_start) == (True, False)
    assert first.environment == second.environment
    assert first.log_stream == second.log_stream
    assert first.payload["pid"] == second.payload["pid"]
    assert second.payload["calls"] == first.payload["calls"] + 1


def test_eight_invocations_have_eight_processes_and_the_ninth_waits(start: Start) -> None:
    """Never more environments than allowed; what comes beyond runs in one that has become free."""
    cloud = start(concurrency=8)
    cloud.warm("EchoFunction")
    pending = [cloud.submit("EchoFunction", {"do": "sleep", "ms": 150}) for _ in range(9)]
    done = [each.result() for each in pending]
    assert len({each.payload["pid"] for each in done}) == 8
    assert len(cloud.environments("EchoFunction")) == 8
    first_end = min(each.ended_at_ms for each in done)
    assert [each.started_at_ms >= first_end for each in done] == [False] * 8 + [True]


def test_the_handler_sees_what_lambda_would_show_it(cloud: LocalLambda) -> None:
    """Request id, remaining time, the layer, resolved variables, and nothing of our own environment."""
    names = ["GREETING", "AWS_LAMBDA_FUNCTION_NAME", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "_HANDLER", "AWS_REGION"]
    names += ["AWS_ENDPOINT_URL_LAMBDA", "AWS_EXECUTION_ENV", "AWS_LAMBDA_LOG_STREAM_NAME", "HOME", "VIRTUAL_ENV"]
    done = cloud.invoke("EchoFunction", {"environ": names})
    assert done.payload["request_id"] == done.request_id
    assert 18_000 < done.payload["time_left_ms"] <= 20_000
    assert done.payload["layer"] == "yes"
    assert done.payload["trace_id"].startswith("Root=1-")
    assert done.payload["environ"] == {
        "GREETING": "hello, eu-central-1 ${kept}",
        "AWS_LAMBDA_FUNCTION_NAME": "local-echo",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128",
        "_HANDLER": "app.handler",
        "AWS_REGION": "eu-central-1",
        "AWS_ENDPOINT_URL_LAMBDA": cloud.url,
        "AWS_EXECUTION_ENV": "AWS_Lambda_python3.13",
        "AWS_LAMBDA_LOG_STREAM_NAME": done.log_stream,
    }


def test_what_is_printed_belongs_to_its_invocation(cloud: LocalLambda) -> None:
    """Standard output and error, line by line, complete when the answer is there, with or without a newline."""
    for text, end in (("one", "\n"), ("two", ""), ("three", "")):
        done = cloud.invoke("EchoFunction", {"do": "print", "text": text, "end": end})
        assert [line.text for line in done.logs] == [text, text.upper()]
        assert {line.request_id for line in done.logs} == {done.request_id}
        assert {line.log_stream for line in done.logs} == {done.log_stream}


def test_no_line_comes_too_late(cloud: LocalLambda) -> None:
    """What was printed right before the end is there with the answer, however much it is."""
    text = "\n".join(f"{number:0500}" for number in range(200))
    for _ in range(10):
        done = cloud.invoke("EchoFunction", {"do": "print", "text": text})
        assert len(done.logs) == 400


def test_what_the_handler_raises_is_the_error(cloud: LocalLambda) -> None:
    """With Python's type, text and stack; the environment goes on."""
    done = cloud.invoke("EchoFunction", {"do": "raise", "text": "no such luck"})
    assert done.outcome is Outcome.ERROR
    assert done.error is not None
    assert (done.error["errorType"], done.error["errorMessage"]) == ("RuntimeError", "no such luck")
    assert "app.py" in done.error["stackTrace"][-1]
    assert cloud.invoke("EchoFunction", {}).environment == done.environment


def test_at_its_deadline_an_environment_is_killed_and_replaced(start: Start) -> None:
    """SIGKILL to the whole process group: what the handler has started dies too."""
    cloud = start()
    pending = cloud.submit("ShortFunction", {"do": "spawn", "ms": 60_000})
    (environment,) = wait_in_flight(cloud, "ShortFunction")
    done = pending.result()
    assert done.outcome is Outcome.TIMEOUT
    assert done.error == {
        "errorType": "Sandbox.Timedout",
        "errorMessage": f"RequestId: {done.request_id} Error: Task timed out after 1.00 seconds",
    }
    assert 1_000 <= done.ended_at_ms - done.started_at_ms < 1_500
    while group_members(environment.pid):  # killed, and gone as soon as the kernel gets to it
        SYSTEM_CLOCK.sleep_ms(1)
    following = cloud.invoke("ShortFunction", {})
    assert following.cold_start
    assert following.environment != done.environment


def test_without_enforcement_the_caller_is_told_and_the_code_runs_on(start: Start) -> None:
    """As on Managed Instances; the late answer goes nowhere, and its environment is used again."""
    cloud = start(enforce_timeouts=False)
    done = cloud.invoke("ShortFunction", {"do": "sleep", "ms": 1_300})
    assert done.outcome is Outcome.TIMEOUT
    (environment,) = cloud.environments("ShortFunction")
    assert environment.request_ids == (done.request_id,)
    cloud.wait_idle()
    assert len(cloud.invocations) == 1
    following = cloud.invoke("ShortFunction", {})
    assert following.payload["calls"] == 2


def test_a_process_that_ends_in_the_middle_is_a_crash(cloud: LocalLambda) -> None:
    """The error says how it ended, and the next invocation has another environment."""
    for event, reason in [
        ({"do": "exit", "code": 3}, "exit status 3"),
        ({"do": "die"}, "signal: killed"),
    ]:
        done = cloud.invoke("EchoFunction", event)
        assert done.outcome is Outcome.CRASH
        assert done.error == {
            "errorType": "Runtime.ExitError",
            "errorMessage": f"RequestId: {done.request_id} Error: Runtime exited with error: {reason}",
        }
        assert cloud.invoke("EchoFunction", {}).environment != done.environment


def test_what_a_crashed_process_has_started_ends_with_it(start: Start) -> None:
    """No child of an environment outlives it."""
    cloud = start()
    cloud.warm("EchoFunction", 1)
    (environment,) = cloud.environments("EchoFunction")
    assert cloud.invoke("EchoFunction", {"do": "abandon"}).outcome is Outcome.CRASH
    while group_members(environment.pid):  # killed, and gone as soon as the kernel gets to it
        SYSTEM_CLOCK.sleep_ms(1)


def test_a_handler_that_cannot_be_imported_fails_its_invocations(start: Start) -> None:
    """One environment an invocation and none more, each with the error of the import; none is left."""
    cloud = start()
    pending = [cloud.submit("BrokenFunction", {}) for _ in range(3)]
    for each in pending:
        done = each.result()
        assert done.outcome is Outcome.INIT_ERROR
        assert done.error is not None
        assert (done.error["errorType"], done.error["errorMessage"]) == ("ValueError", "no luck today")
    cloud.wait_idle()
    assert cloud.environments("BrokenFunction") == ()
    assert cloud.invoke("BrokenFunction", {}).environment == "BrokenFunction-4"


def test_an_interpreter_that_is_not_there_fails_invocations_too(start: Start) -> None:
    """And so does one without the runtime client; the error has its last word."""
    done = start(python="/nowhere/python").invoke("EchoFunction", {})
    assert done.outcome is Outcome.INIT_ERROR
    assert done.error is not None
    assert "No such file" in done.error["errorMessage"]
    bare = start(python=sys.executable, env={"PYTHONHOME": "/nowhere"}).invoke("EchoFunction", {})
    assert bare.error is not None
    assert bare.error["errorType"] == "Runtime.ExitError"
    assert "exit status 1: " in bare.error["errorMessage"]


def test_an_environment_that_is_not_ready_in_time_is_given_up(start: Start) -> None:
    """Init has a limit of its own; the function's timeout counts from the invocation."""
    done = start(init_timeout_ms=1).invoke("EchoFunction", {})
    assert done.outcome is Outcome.INIT_ERROR
    assert done.error == {"errorType": "Sandbox.Timedout", "errorMessage": "Init timed out after 0.00 seconds"}


def test_what_a_listener_raises_comes_out_where_somebody_waits(start: Start) -> None:
    """It changes nothing of the invocation, and is raised once."""

    def listen(_: object) -> None:
        raise ValueError("not again")

    cloud = start(on_invocation=listen)
    assert cloud.invoke("EchoFunction", {}).ok
    with pytest.raises(ValueError, match="not again"):
        cloud.wait_idle()
    cloud.wait_idle()


def test_between_invocations_nothing_in_the_process_moves(cloud: LocalLambda, tmp_path: Path) -> None:
    """A background thread stops with the answer, and goes on inside the next invocation."""
    ticks = tmp_path / "ticks"
    done = cloud.invoke("EchoFunction", {"do": "tick", "file": str(ticks)})
    cloud.wait_idle()
    (environment,) = [each for each in cloud.environments("EchoFunction") if each.name == done.environment]
    assert environment.frozen
    assert state(environment.pid) == "T"
    before = ticks.stat().st_size
    SYSTEM_CLOCK.sleep_ms(200)
    assert ticks.stat().st_size == before  # about 100 more if it had gone on
    thawed = cloud.invoke("EchoFunction", {"ticks": before + 100})
    assert (thawed.environment, thawed.outcome) == (done.environment, Outcome.OK)


def test_without_freezing_a_background_thread_goes_on(start: Start, tmp_path: Path) -> None:
    """The switch for tests that need it, and the proof that the frozen case is seen."""
    ticks = tmp_path / "ticks"
    cloud = start(freezing=False)
    cloud.invoke("EchoFunction", {"do": "tick", "file": str(ticks)})
    cloud.wait_idle()
    before, give_up = ticks.stat().st_size, SYSTEM_CLOCK.now().plus(60_000)
    while ticks.stat().st_size <= before + 50:
        assert SYSTEM_CLOCK.now().until(give_up) > 0, "the thread stands still"
        SYSTEM_CLOCK.sleep_ms(5)


def test_an_environment_can_be_frozen_and_thawed_in_the_middle(start: Start) -> None:
    """It does nothing meanwhile, and gets nothing new; then it goes on where it was."""
    cloud = start(concurrency=2)
    pending = cloud.submit("EchoFunction", {"do": "sleep", "ms": 50})
    (environment,) = wait_in_flight(cloud, "EchoFunction")
    environment.freeze()
    other = cloud.invoke("EchoFunction", {})
    assert not pending.done
    assert state(environment.pid) == "T"
    environment.thaw()
    done = pending.result()
    assert (done.environment, done.outcome) == (environment.name, Outcome.OK)
    assert other.environment != environment.name


def test_a_frozen_idle_environment_gets_no_work_until_it_is_thawed(start: Start) -> None:
    """What came meanwhile is handed out by the thaw itself."""
    cloud = start(concurrency=1)
    cloud.invoke("EchoFunction", {})
    cloud.wait_idle()
    (environment,) = cloud.environments("EchoFunction")
    environment.freeze()
    pending = cloud.submit("EchoFunction", {})
    SYSTEM_CLOCK.sleep_ms(30)
    assert not pending.done
    environment.thaw()
    assert pending.result().environment == environment.name


def test_a_frozen_idle_environment_is_passed_over(start: Start) -> None:
    """Another one is started, although this one is free."""
    cloud = start(concurrency=2)
    cloud.invoke("EchoFunction", {})
    cloud.wait_idle()
    (environment,) = cloud.environments("EchoFunction")
    environment.freeze()
    assert cloud.submit("EchoFunction", {}).result(10_000).environment != environment.name


def test_killing_the_owner_of_an_invocation_is_a_crash_of_that_one_alone(start: Start) -> None:
    """The others go on; `kill` returns when the process is gone and its caller has been told."""
    cloud = start(concurrency=2)
    cloud.warm("EchoFunction")
    pending = [cloud.submit("EchoFunction", {"do": "sleep", "ms": 300}) for _ in range(2)]
    wait_begun(cloud, 2)
    victim, _ = cloud.environments("EchoFunction")
    (lost_id,) = victim.request_ids
    victim.kill()
    assert state(victim.pid) in {"", "Z"}
    outcomes = {each.request_id: each.result().outcome for each in pending}
    assert outcomes.pop(lost_id) is Outcome.CRASH
    assert list(outcomes.values()) == [Outcome.OK]


def test_a_worker_killed_while_it_polls_swallows_nothing(start: Start) -> None:
    """Killed from outside, without our knowing, right before the invocation: another environment runs it.

    What was written to a process that never read it was never begun, so it is no crash either.
    """
    cloud = start(concurrency=1, freezing=False)
    for number in range(12):
        cloud.invoke("EchoFunction", {})
        cloud.wait_idle()
        (environment,) = cloud.environments("EchoFunction")
        if number % 2:  # stopped, it cannot even take in that it is given something
            environment._stop_or_go(parked=True)  # noqa: SLF001 - as the freeze does it
        os.kill(environment.pid, signal.SIGKILL)
        done = cloud.invoke("EchoFunction", {"number": number})
        assert done.outcome is Outcome.OK
        assert (done.cold_start, done.payload["calls"]) == (True, 1)


def test_work_written_to_a_stopped_process_goes_back_when_it_is_killed(start: Start) -> None:
    """The invocation is in the kernel's buffer, unread; its process dies; another one runs it, once."""
    cloud = start(concurrency=2, freezing=False)
    cloud.invoke("EchoFunction", {})
    cloud.wait_idle()
    (environment,) = cloud.environments("EchoFunction")
    os.kill(environment.pid, signal.SIGSTOP)  # behind the local Lambda's back
    while os.waitid(os.P_PID, environment.pid, os.WSTOPPED | os.WNOWAIT | os.WNOHANG) is None:
        SYSTEM_CLOCK.sleep_ms(1)  # until then it may still read what comes
    pending = cloud.submit("EchoFunction", {})
    wait_in_flight(cloud, "EchoFunction")
    SYSTEM_CLOCK.sleep_ms(30)
    assert not pending.done
    os.kill(environment.pid, signal.SIGKILL)
    done = pending.result()
    assert done.outcome is Outcome.OK
    assert done.environment != environment.name


def test_several_workers_share_an_environment(start: Start) -> None:
    """The runtime client forks as many as it is told; they run at the same time, and nothing freezes them."""
    cloud = start(workers_per_environment=4, concurrency=1)
    cloud.warm("EchoFunction")
    pending = [cloud.submit("EchoFunction", {"do": "sleep", "ms": 200}) for _ in range(4)]
    done = [each.result() for each in pending]
    assert len({each.payload["pid"] for each in done}) == 4
    assert {each.environment for each in done} == {"EchoFunction-1"}
    assert max(each.started_at_ms for each in done) < min(each.ended_at_ms for each in done)
    cloud.wait_idle()
    assert not cloud.environments("EchoFunction")[0].frozen


def test_a_worker_that_dies_fails_its_own_invocation_only(start: Start) -> None:
    """Its siblings go on, and take what comes next."""
    cloud = start(workers_per_environment=2, concurrency=1)
    cloud.warm("EchoFunction")
    long = cloud.submit("EchoFunction", {"do": "sleep", "ms": 900})
    crashed = cloud.invoke("EchoFunction", {"do": "die"})
    assert crashed.outcome is Outcome.CRASH
    assert not long.done
    assert cloud.submit("EchoFunction", {}).result().payload["pid"] == long.result().payload["pid"]


def test_a_worker_killed_while_it_polls_beside_others_swallows_nothing(start: Start) -> None:
    """Its closed connection is seen before the invocation is handed out, or after; a sibling runs it."""
    cloud = start(workers_per_environment=2, concurrency=1)
    cloud.warm("EchoFunction")
    (environment,) = cloud.environments("EchoFunction")
    # The one that polled last is the one that would be given work next.
    last = cloud.invoke("EchoFunction", {}).payload["pid"]
    cloud.wait_idle()
    assert last != environment.pid
    os.kill(last, signal.SIGKILL)
    done = cloud.invoke("EchoFunction", {})
    assert done.outcome is Outcome.OK
    assert done.payload["pid"] != last


def test_closing_ends_every_process_and_tells_who_waits(start: Start) -> None:
    """Frozen, running and starting ones; twice is fine; what comes later is refused at once."""
    cloud = start(concurrency=2)
    cloud.invoke("EchoFunction", {})
    running = cloud.submit("EchoFunction", {"do": "sleep", "ms": 60_000})
    wait_in_flight(cloud, "EchoFunction")
    waiting = [cloud.submit("EchoFunction", {"do": "sleep", "ms": 60_000}) for _ in range(2)]
    pids = [environment.pid for environment in cloud.environments() if environment.pid]
    cloud.close()
    cloud.close()
    assert {state(pid) for pid in pids} <= {"", "Z"}
    assert running.result().outcome is Outcome.CRASH
    assert {each.result(1_000).outcome for each in waiting} == {Outcome.CRASH}
    assert cloud.submit("EchoFunction", {}).result(1_000).outcome is Outcome.CRASH


def group_members(group: int) -> list[int]:
    """The living processes of a group."""
    members = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and state(int(folder.name)) not in {"", "Z"}:
            try:
                if os.getpgid(int(folder.name)) == group:
                    members.append(int(folder.name))
            except ProcessLookupError:
                continue
    return members
