"""Asynchronous invocations: accepted at once, retried when they fail."""

from itertools import pairwise

import pytest

from incumbent.errors import ConfigurationError
from incumbent.local import LocalLambda, Outcome
from tests.local.conftest import Start


def attempts(cloud: LocalLambda, request_id: str) -> list[tuple[int, Outcome]]:
    """What became of each attempt, in order."""
    return [(each.attempt, each.outcome) for each in cloud.invocations if each.request_id == request_id]


def test_a_crashed_one_is_retried_with_the_same_request_id(cloud: LocalLambda) -> None:
    """Three attempts, each in an environment of its own, after growing pauses; then it is given up."""
    pending = cloud.invoke_async("EchoFunction", {"do": "exit", "code": 1})
    last = pending.result()
    assert attempts(cloud, pending.request_id) == [
        (1, Outcome.CRASH),
        (2, Outcome.CRASH),
        (3, Outcome.CRASH),
    ]
    assert last.id == f"{pending.request_id}#3"
    mine = [each for each in cloud.invocations if each.request_id == pending.request_id]
    assert len({each.environment for each in mine}) == 3
    pauses = [later.started_at_ms - earlier.ended_at_ms for earlier, later in pairwise(mine)]
    assert pauses[0] >= 20
    assert pauses[1] >= 40
    assert [each.id for each in cloud.failures if each.request_id == pending.request_id] == [last.id]


def test_one_that_raises_is_retried_as_often_as_the_template_says(cloud: LocalLambda) -> None:
    """MaximumRetryAttempts of EventInvokeConfig: here one."""
    pending = cloud.invoke_async("ShortFunction", {"do": "raise", "text": "again"})
    assert pending.result().attempt == 2
    assert attempts(cloud, pending.request_id) == [(1, Outcome.ERROR), (2, Outcome.ERROR)]


def test_one_that_goes_well_is_not_repeated(cloud: LocalLambda) -> None:
    """One attempt, no failure."""
    pending = cloud.invoke_async("EchoFunction", {})
    assert pending.result().ok
    cloud.wait_idle()
    assert attempts(cloud, pending.request_id) == [(1, Outcome.OK)]
    assert pending.request_id not in {each.request_id for each in cloud.failures}


def test_a_synchronous_one_is_never_repeated(cloud: LocalLambda) -> None:
    """Its caller has the error and may do as it likes."""
    done = cloud.invoke("EchoFunction", {"do": "raise", "text": "once"})
    cloud.wait_idle()
    assert attempts(cloud, done.request_id) == [(1, Outcome.ERROR)]
    assert done.request_id not in {each.request_id for each in cloud.failures}


def test_waiting_until_idle_waits_for_retries_too(start: Start) -> None:
    """The pause before a retry is no idleness; what takes too long is told."""
    cloud = start(retry_delays_ms=(300,))
    pending = cloud.invoke_async("ShortFunction", {"do": "raise", "text": "again"})
    with pytest.raises(TimeoutError, match="1 invocations were not over after 50 ms"):
        cloud.wait_idle(50)
    with pytest.raises(TimeoutError, match=f"invocation {pending.request_id} was not over"):
        pending.result(1)
    cloud.wait_idle()
    assert pending.done


def test_wrong_settings_and_names_are_refused(start: Start) -> None:
    """Before anything starts."""
    for wrong in (0, -1, True, "8"):
        with pytest.raises(ConfigurationError, match="concurrency must be a whole number of at least 1"):
            start(concurrency=wrong)
    with pytest.raises(ConfigurationError, match="no function 'Nope'; it has BrokenFunction, EchoFunction"):
        start().invoke("Nope", {})
