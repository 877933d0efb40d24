"""Powertools' asynchronous batches run a ``leased_function`` by the wrapper that docs/policies.md shows."""

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aws_lambda_powertools.utilities.batch import AsyncBatchProcessor, EventType, async_process_partial_response
from aws_lambda_powertools.utilities.batch.exceptions import BatchProcessingError

from incumbent import Lease, leased_function
from incumbent.providers.memory import MemoryProvider
from incumbent.stand_in import STAND_IN
from tests.functions.conftest import FUNCTIONS, Context

PAGE = (FUNCTIONS.parent / "docs" / "policies.md").read_text("utf-8")
BATCH = (FUNCTIONS.parent / "events" / "sqs-standard.json").read_text("utf-8")


@pytest.fixture
def provider() -> Iterator[MemoryProvider]:
    """A store of the test's own."""
    provider = MemoryProvider()
    token = STAND_IN.set(provider)
    yield provider
    STAND_IN.reset(token)


@pytest.fixture
def page(tmp_path: Path) -> dict[str, Any]:
    """What the page's example defines."""
    (example,) = re.findall(r"```python\n(import asyncio\n.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "app.py"
    file.write_text(example, "utf-8")
    return runpy.run_path(str(file))


@pytest.mark.usefixtures("provider")
def test_every_record_runs_under_the_lease_of_its_key(page: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Each is run once, two of one order one after the other, and none is reported."""
    event = json.loads(BATCH)
    assert page["handler"](event, Context(aws_request_id="request-1")) == {"batchItemFailures": []}
    expected = [f"{json.loads(record['body'])['order_id']}: {record['body']}" for record in event["Records"]]
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(expected)


def test_failed_record_is_the_only_failure_of_its_batch(page: dict[str, Any], provider: MemoryProvider) -> None:
    """What the run raises in its thread is the record's failure."""
    event = json.loads(BATCH)
    event["Records"][1]["body"] = "no JSON"  # it has no key
    reported = page["handler"](event, Context(aws_request_id="request-1"))
    assert reported == {"batchItemFailures": [{"itemIdentifier": event["Records"][1]["messageId"]}]}
    assert provider.peek("app.apply/order-1001") == ()


@pytest.mark.usefixtures("provider")
def test_coroutine_without_a_thread_is_refused_by_an_error_that_names_the_way() -> None:
    """The processor's loop runs already: nothing is claimed, and every record fails."""

    @leased_function(key_jmespath="powertools_json(body).order_id")
    async def apply(record: Any, *, lease: Lease) -> None:
        """Never called."""

    with pytest.raises(BatchProcessingError, match=r"asyncio\.to_thread"):
        async_process_partial_response(
            event=json.loads(BATCH),
            record_handler=apply,
            processor=AsyncBatchProcessor(event_type=EventType.SQS),
            context=Context(aws_request_id="request-1"),  # type: ignore[arg-type]
        )
