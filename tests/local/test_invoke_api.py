"""The Invoke API, asked by boto3."""

import base64
import json
from typing import TYPE_CHECKING

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from incumbent.local import LocalLambda

if TYPE_CHECKING:
    from mypy_boto3_lambda import LambdaClient


@pytest.fixture(scope="module")
def client(cloud: LocalLambda) -> "LambdaClient":
    """A client of the local Lambda."""
    return boto3.client(
        "lambda",
        endpoint_url=cloud.url,
        region_name="eu-central-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(retries={"total_max_attempts": 1}),
    )


def test_a_synchronous_invocation_brings_the_answer(client: "LambdaClient") -> None:
    """The payload, the version, and on request the end of the log."""
    answer = client.invoke(
        FunctionName="EchoFunction",
        Payload=json.dumps({"do": "print", "text": "to be seen"}),
        LogType="Tail",
        ClientContext=base64.b64encode(b'{"custom": {"a": "b"}}').decode(),
    )
    assert answer.get("FunctionError") is None
    payload = json.load(answer["Payload"])
    assert (answer["StatusCode"], answer["ExecutedVersion"]) == (200, "$LATEST")
    assert payload["event"] == {"do": "print", "text": "to be seen"}
    assert payload["client"] == {"a": "b"}
    assert payload["request_id"] == answer["ResponseMetadata"]["RequestId"]
    assert base64.b64decode(answer["LogResult"]).decode() == "to be seen\nTO BE SEEN\n"


@pytest.mark.parametrize(
    ("name", "qualifier", "arn"),
    [
        ("EchoFunction", None, "local-echo"),
        ("local-echo:live", None, "local-echo:live"),
        ("local-echo", "live", "local-echo:live"),
        ("123456789012:function:local-echo:7", None, "local-echo:7"),
        ("arn:aws:lambda:eu-central-1:123456789012:function:local-echo:live", None, "local-echo:live"),
    ],
)
def test_the_invoked_arn_keeps_the_alias(client: "LambdaClient", name: str, qualifier: str | None, arn: str) -> None:
    """However the function is named: a successor must be sought under the same alias."""
    if qualifier is None:
        answer = client.invoke(FunctionName=name)
    else:
        answer = client.invoke(FunctionName=name, Qualifier=qualifier)
    payload = json.load(answer["Payload"])
    assert payload["arn"] == f"arn:aws:lambda:eu-central-1:123456789012:function:{arn}"


def test_a_function_error_is_an_answer(client: "LambdaClient") -> None:
    """Status 200, FunctionError, and the error as the payload."""
    answer = client.invoke(FunctionName="EchoFunction", Payload=json.dumps({"do": "raise", "text": "no"}))
    assert (answer["StatusCode"], answer["FunctionError"]) == (200, "Unhandled")
    assert json.load(answer["Payload"])["errorMessage"] == "no"


def test_an_asynchronous_invocation_is_accepted_at_once(client: "LambdaClient", cloud: LocalLambda) -> None:
    """202 and a request id, under which it runs later."""
    answer = client.invoke(FunctionName="EchoFunction", InvocationType="Event", Payload=b'{"do": "sleep", "ms": 50}')
    assert answer["StatusCode"] == 202
    request_id = answer["ResponseMetadata"]["RequestId"]
    assert request_id not in {each.request_id for each in cloud.invocations}
    cloud.wait_idle()
    (done,) = [each for each in cloud.invocations if each.request_id == request_id]
    assert (done.asynchronous, done.ok) == (True, True)


def test_a_dry_run_runs_nothing(client: "LambdaClient", cloud: LocalLambda) -> None:
    """204 where the function is there, the usual error where it is not."""
    before = len(cloud.invocations)
    assert client.invoke(FunctionName="EchoFunction", InvocationType="DryRun")["StatusCode"] == 204
    cloud.wait_idle()
    assert len(cloud.invocations) == before
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.invoke(FunctionName="Nope", InvocationType="DryRun")


def test_refusals_have_lambdas_names(client: "LambdaClient") -> None:
    """No such function, no JSON, too large for its kind."""
    with pytest.raises(client.exceptions.ResourceNotFoundException, match="no function 'Nope'"):
        client.invoke(FunctionName="Nope")
    with pytest.raises(client.exceptions.InvalidRequestContentException):
        client.invoke(FunctionName="EchoFunction", Payload=b"{")
    with pytest.raises(client.exceptions.RequestTooLargeException):
        client.invoke(FunctionName="EchoFunction", InvocationType="Event", Payload=b'"' + b"x" * 1_048_576 + b'"')
    with pytest.raises(ClientError, match="UnknownOperationException"):
        client.get_function(FunctionName="EchoFunction")


def test_a_large_event_and_answer_come_through(client: "LambdaClient") -> None:
    """Megabytes, both ways."""
    text = "ä" * 1_500_000
    answer = client.invoke(FunctionName="EchoFunction", Payload=json.dumps({"text": text}, ensure_ascii=False))
    assert json.load(answer["Payload"])["event"] == {"text": text}
