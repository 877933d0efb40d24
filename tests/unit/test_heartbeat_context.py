"""The heartbeat's thread sees the context of its run, and clients that X-Ray has patched work in it (H8)."""

import contextvars
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import boto3
import pytest

import incumbent
from incumbent import Lease, current_lease
from incumbent.testing.servers import DynamoDBServer, create_table
from tests.unit.test_runs import Line

PACKAGE = Path(incumbent.__file__).parent  # the one that is tested: perhaps a copy with a fault

PATCHED = """
import sys, threading
import boto3
from aws_xray_sdk.core import patch, xray_recorder
from incumbent import leased
from incumbent.providers import from_env

xray_recorder.configure(sampling=False, context_missing={missing!r}, plugins=())
patch(["botocore", "httplib"])
told = []

@leased(key="k", provider=from_env(), keyspace="orders", ttl_ms=1_500, observer=told.append, waker=None)
def handler(event, context, *, lease):
    for _ in range(1_000):
        if lease.stop is not None or lease._heartbeat.held_until.mono_ms > event["began"] + 2_600:
            break
        threading.Event().wait(0.005)
    return str(lease.stop)

from incumbent.clock import SYSTEM_CLOCK
with xray_recorder.in_segment("invocation") as segment:
    answer = handler({{"began": SYSTEM_CLOCK.now().mono_ms}}, None)
print(answer, sorted({{fact.fact for fact in told}} & {{"lost", "store_error"}}))
"""


@pytest.mark.parametrize("missing", ["RUNTIME_ERROR", "LOG_ERROR"])
def test_clients_that_xray_has_patched_renew_outside_lambda(missing: str, moto_server: DynamoDBServer) -> None:
    """X-Ray's SDK keeps its segment for each thread, and its clients raise, or log, where there is none."""
    table = f"xray-{uuid4().hex[:8]}"
    create_table(boto3.client("dynamodb", endpoint_url=moto_server.endpoint_url, region_name="eu-central-1"), table)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(PACKAGE.parent),
        "INCUMBENT_PROVIDER": "dynamodb",
        "INCUMBENT_TABLE_NAME": table,
        **moto_server.environment,
    }
    code = PATCHED.format(missing=missing)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "None []\n", done.stdout + done.stderr
    assert "cannot find the current segment" not in done.stderr


def test_heartbeat_sees_the_context_of_its_run() -> None:
    """OpenTelemetry traces by context variables: it finds the renewal's parent, and a hook finds the lease."""
    line, span = Line(), contextvars.ContextVar[str]("span")
    seen: list[tuple[str, Lease | None]] = []

    def work(_: object, lease: Lease) -> None:
        span.set("of the handler, which comes later than the heartbeat")
        line.clock.advance(line.clock.next_pause_ms())
        line.clock.next_pause_ms()

    line.store.before["beat"] = lambda: seen.append((span.get("none"), current_lease()))
    line.during["m1"] = work
    span.set("of the invocation")
    line.come("m1")
    assert [(of, held is not None) for of, held in seen] == [("of the invocation", True)]
