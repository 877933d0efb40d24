"""The doctor on functions: what it makes of Lambda's, IAM's, EventBridge's and SQS' answers, which botocore checks."""

import functools
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from incumbent.doctor import Check, examine_functions, examine_wakes
from tests.unit.test_doctor import PAGE

ARN = "arn:aws:lambda:eu-central-1:123456789012:function:shop-orders"
TABLE_ARN = "arn:aws:dynamodb:eu-central-1:123456789012:table/leases"
ROLE = "arn:aws:iam::123456789012:role/shop-orders"
QUEUE = "arn:aws:sqs:eu-central-1:123456789012:orders"
STREAM = "arn:aws:kinesis:eu-central-1:123456789012:stream/orders"
STORE = {"INCUMBENT_PROVIDER": "dynamodb", "INCUMBENT_TABLE_NAME": "leases", "INCUMBENT_KEY_PREFIX": "shop"}
RIGHTS = [f"dynamodb:{name}" for name in ("GetItem", "PutItem", "UpdateItem", "DeleteItem", "Query")]

DOCUMENTED = {name.removeprefix("FUNCTION: ") for name in re.findall(r"`([^`|]+)`", PAGE)}


@functools.cache
def _client(service: str) -> Any:
    """Return the one client of a service, since making one takes long."""
    client: Any = boto3.client
    return client(service)


class Account:
    """An AWS account: each service answers what it was told to, in that order, and no more is asked of it."""

    def __init__(self) -> None:
        """Begin with an empty account."""
        self._stubs: dict[str, tuple[Any, Stubber]] = {}
        self._stack = ExitStack()

    def __call__(self, service: str) -> Any:
        """Return the service's client."""
        return self._of(service)[0]

    def _of(self, service: str) -> tuple[Any, Stubber]:
        if service not in self._stubs:
            client = _client(service)
            self._stubs[service] = client, self._stack.enter_context(Stubber(client))
        return self._stubs[service]

    def answers(self, service: str, operation: str, answer: Mapping[str, Any], **expected: Any) -> None:
        """Let the service's next answer be this one, to a request with these parameters."""
        self._of(service)[1].add_response(operation, dict(answer), expected or None)

    def refuses(self, service: str, operation: str, code: str = "AccessDeniedException") -> None:
        """Let the service's next answer be this error."""
        self._of(service)[1].add_client_error(operation, code, f"not authorized: {operation}", 403)

    def close(self) -> None:
        """Check that everything was asked."""
        for _, stub in self._stubs.values():
            stub.assert_no_pending_responses()
        self._stack.close()


@pytest.fixture
def account() -> Iterator[Account]:
    """An account of the test's own."""
    account = Account()
    yield account
    account.close()


def deploy(account: Account, **different: Any) -> None:
    """A function as it should be, but for what is different; a text is the code of an error, ``None`` never asked."""
    said: dict[str, Any] = {
        "get_function_configuration": {
            "FunctionArn": ARN,
            "Role": ROLE,
            "Timeout": 60,
            "Environment": {"Variables": STORE},
        },
        "simulate_wake": {"EvaluationResults": [allowed("lambda:InvokeFunction")]},
        "simulate_table": {"EvaluationResults": [allowed(right) for right in RIGHTS]},
        "get_function_recursion_config": {"RecursiveLoop": "Allow"},
        "get_function_event_invoke_config": "ResourceNotFoundException",
        "list_event_source_mappings": {"EventSourceMappings": []},
        **different,
    }
    for operation, answer in said.items():
        service = "iam" if operation.startswith("simulate") else "lambda"
        name = "simulate_principal_policy" if service == "iam" else operation
        if answer is None:
            continue
        if isinstance(answer, str):
            account.refuses(service, name, answer)
        elif operation == "simulate_wake":
            account.answers(
                service, name, answer, PolicySourceArn=ROLE, ActionNames=["lambda:InvokeFunction"], ResourceArns=[ARN]
            )
        elif operation == "simulate_table":
            account.answers(service, name, answer, PolicySourceArn=ROLE, ActionNames=RIGHTS, ResourceArns=[TABLE_ARN])
        else:
            account.answers(service, name, answer)


def allowed(action: str, decision: str = "allowed") -> dict[str, str]:
    """IAM's word on an action."""
    return {"EvalActionName": action, "EvalDecision": decision}


def checks_of(account: Account) -> dict[str, Check]:
    """What the doctor says of the function, without its name in front."""
    found = list(examine_functions(STORE, ["shop-orders"], clients=account))
    for check in found:
        assert check.name.partition(": ")[2] in DOCUMENTED or check.name == "sweeper", check
    return {check.name.removeprefix("shop-orders: "): check for check in found if check.name != "sweeper"}


def bad(checks: Mapping[str, Check]) -> dict[str, str]:
    """What is not ok, and how it is not."""
    return {name: check.status for name, check in checks.items() if check.status != "ok"}


def test_good_function_is_all_well(account: Account) -> None:
    """Each of its settings is named."""
    deploy(account)
    checks = checks_of(account)
    assert bad(checks) == {}
    assert set(checks) == {
        *("timings", "timeout", "store", "rights", "RecursiveLoop", "asynchronous retries", "delayed wakes")
    }
    assert checks["timeout"].found == "60 s, with a ttl of 30 s"


def configuration(variables: Mapping[str, str] | None = None, **different: Any) -> dict[str, Any]:
    """A function's configuration, with something else in it."""
    environment = {"Variables": {**STORE, **(variables or {})}}
    return {"FunctionArn": ARN, "Role": ROLE, "Timeout": 60, "Environment": environment, **different}


@pytest.mark.parametrize(
    ("different", "name", "status"),
    [
        ({"get_function_configuration": configuration(Timeout=10)}, "timeout", "warning"),
        ({"get_function_configuration": configuration({"INCUMBENT_KEY_PREFIX": "other"})}, "store", "failed"),
        ({"get_function_configuration": configuration({"INCUMBENT_TTL_MS": "0"})}, "timings", "failed"),
        (
            {"get_function_configuration": configuration(TenancyConfig={"TenantIsolationMode": "PER_TENANT"})},
            "tenants",
            "failed",
        ),
        ({"get_function_configuration": configuration({"INCUMBENT_DISABLED": "1"})}, "switch", "warning"),
        ({"get_function_recursion_config": {"RecursiveLoop": "Terminate"}}, "RecursiveLoop", "warning"),
        (
            {"get_function_event_invoke_config": {"MaximumRetryAttempts": 0, "MaximumEventAgeInSeconds": 60}},
            "asynchronous retries",
            "warning",
        ),
        ({"get_function_event_invoke_config": {"MaximumRetryAttempts": 1}}, "asynchronous retries", "ok"),
        (
            {"simulate_wake": {"EvaluationResults": [allowed("lambda:InvokeFunction", "implicitDeny")]}},
            "rights",
            "failed",
        ),
        (
            {"simulate_table": {"EvaluationResults": [allowed("dynamodb:PutItem", "explicitDeny")]}},
            "rights",
            "failed",
        ),
    ],
)
def test_what_is_set_otherwise_is_told(account: Account, different: dict[str, Any], name: str, status: str) -> None:
    """And nothing else than that."""
    deploy(account, **different)
    checks = checks_of(account)
    assert checks[name].status == status
    assert bad(checks) == ({} if status == "ok" else {name: status})


def test_what_may_not_be_asked_is_not_checked(account: Account) -> None:
    """With the right that would allow it."""
    account.answers("lambda", "get_function_configuration", configuration())
    account.refuses("iam", "simulate_principal_policy", "AccessDenied")
    for operation in ("get_function_recursion_config", "get_function_event_invoke_config"):
        account.refuses("lambda", operation)
    account.refuses("lambda", "list_event_source_mappings")
    checks = checks_of(account)
    unchecked = ("rights", "RecursiveLoop", "asynchronous retries", "event sources")
    assert bad(checks) == dict.fromkeys(unchecked, "not checked")
    assert "iam:SimulatePrincipalPolicy" in checks["rights"].found
    assert "lambda:ListEventSourceMappings" in checks["event sources"].found


def test_function_that_may_not_be_read_is_not_checked(account: Account) -> None:
    """One that does not exist has failed."""
    account.refuses("lambda", "get_function_configuration")
    account.refuses("lambda", "get_function_configuration", "ResourceNotFoundException")
    assert bad(checks_of(account)) == {"settings": "not checked"}
    assert bad(checks_of(account)) == {"settings": "failed"}


@pytest.mark.parametrize(
    ("reports", "attributes", "statuses"),
    [
        (True, {"VisibilityTimeout": "360", "RedrivePolicy": '{"maxReceiveCount": 5}'}, ["ok"]),
        (True, {"VisibilityTimeout": "30", "RedrivePolicy": '{"maxReceiveCount": 5}'}, ["warning"]),
        (True, {"VisibilityTimeout": "360"}, ["warning"]),
        (False, {"VisibilityTimeout": "360", "RedrivePolicy": '{"maxReceiveCount": 5}'}, ["failed"]),
        (False, {"VisibilityTimeout": "30"}, ["failed", "warning"]),
    ],
)
def test_queue_and_its_mapping_are_checked(
    account: Account, *, reports: bool, attributes: dict[str, str], statuses: list[str]
) -> None:
    """Partial failures, six times the function's timeout, and a queue for what never succeeds."""
    mapping = {"EventSourceArn": QUEUE, "FunctionResponseTypes": ["ReportBatchItemFailures"] if reports else []}
    deploy(account, list_event_source_mappings={"EventSourceMappings": [mapping]})
    url = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders"
    account.answers(
        "sqs", "get_queue_url", {"QueueUrl": url}, QueueName="orders", QueueOwnerAWSAccountId="123456789012"
    )
    account.answers("sqs", "get_queue_attributes", {"Attributes": attributes})
    found = examine_functions(STORE, ["shop-orders"], clients=account)
    assert [check.status for check in found if check.name == "shop-orders: sqs orders"] == statuses


WAKES = "https://sqs.eu-central-1.amazonaws.com/123456789012/wakes"
WAKES_ARN = "arn:aws:sqs:eu-central-1:123456789012:wakes"
REDRIVE = '{"maxReceiveCount": 5}'


@pytest.mark.parametrize(
    ("attributes", "mappings", "status", "word"),
    [
        ({"RedrivePolicy": REDRIVE}, [{"State": "Enabled"}], "ok", WAKES),
        ({}, [{"State": "Enabled"}], "warning", "dead-letter"),
        ({"RedrivePolicy": REDRIVE}, [{"State": "Disabled"}], "failed", "mapping"),
        ({"RedrivePolicy": REDRIVE}, [], "failed", "mapping"),
    ],
)
def test_queue_of_delayed_wakes_is_checked(
    account: Account, attributes: dict[str, str], mappings: list[dict[str, str]], status: str, word: str
) -> None:
    """A function must take its messages, and the role may send to it."""
    variables = {"INCUMBENT_WAKE_QUEUE_URL": WAKES}
    deploy(account, get_function_configuration=configuration(variables), list_event_source_mappings=None)
    account.answers(
        "iam",
        "simulate_principal_policy",
        {"EvaluationResults": [allowed("sqs:SendMessage")]},
        PolicySourceArn=ROLE,
        ActionNames=["sqs:SendMessage"],
        ResourceArns=[WAKES_ARN],
    )
    account.answers(
        "sqs",
        "get_queue_attributes",
        {"Attributes": {"QueueArn": WAKES_ARN, **attributes}},
        QueueUrl=WAKES,
        AttributeNames=["QueueArn", "RedrivePolicy"],
    )
    account.answers("lambda", "list_event_source_mappings", {"EventSourceMappings": mappings}, EventSourceArn=WAKES_ARN)
    account.answers("lambda", "list_event_source_mappings", {"EventSourceMappings": []})
    checks = checks_of(account)
    assert checks["delayed wakes"].status == status
    assert word in checks["delayed wakes"].found
    assert checks["rights"].status == "ok"


def test_queue_of_delayed_wakes_that_cannot_be_is_told(account: Account) -> None:
    """A FIFO queue, one that may not be looked at, mappings that may not, and a role that may not send."""
    fifo = configuration({"INCUMBENT_WAKE_QUEUE_URL": f"{WAKES}.fifo"})
    plain = configuration({"INCUMBENT_WAKE_QUEUE_URL": WAKES})
    for said, refused, status in (
        (fifo, [], "failed"),
        (plain, ["AccessDenied"], "not checked"),
        (plain, ["AWS.SimpleQueueService.NonExistentQueue"], "failed"),
    ):
        deploy(account, get_function_configuration=said, list_event_source_mappings=None)
        account.answers(
            "iam",
            "simulate_principal_policy",
            {"EvaluationResults": [allowed("sqs:SendMessage", "implicitDeny")]},
        )
        for code in refused:
            account.refuses("sqs", "get_queue_attributes", code)
        account.answers("lambda", "list_event_source_mappings", {"EventSourceMappings": []})
        assert bad(checks_of(account)) == {"rights": "failed", "delayed wakes": status}


def test_stream_that_retries_for_ever_is_a_warning(account: Account) -> None:
    """A bound on either is enough."""
    mappings = [{"EventSourceArn": STREAM}, {"EventSourceArn": STREAM, "MaximumRetryAttempts": 3}]
    deploy(account, list_event_source_mappings={"EventSourceMappings": mappings})
    found = examine_functions(STORE, ["shop-orders"], clients=account)
    statuses = [check.status for check in found if check.name.startswith("shop-orders: kinesis")]
    assert statuses == ["warning", "ok"]


def test_recursion_is_asked_of_the_function_behind_an_alias(account: Account) -> None:
    """Lambda knows no such setting of an alias."""
    account.answers("lambda", "get_function_configuration", configuration(), FunctionName=f"{ARN}:live")
    account.refuses("iam", "simulate_principal_policy", "AccessDenied")
    account.answers("lambda", "get_function_recursion_config", {"RecursiveLoop": "Allow"}, FunctionName=ARN)
    account.refuses("lambda", "get_function_event_invoke_config", "ResourceNotFoundException")
    account.answers("lambda", "list_event_source_mappings", {"EventSourceMappings": []})
    list(examine_functions(STORE, [f"{ARN}:live"], clients=account))


@pytest.mark.parametrize(
    ("rules", "status", "word"),
    [
        ([{"State": "ENABLED", "ScheduleExpression": "rate(1 minute)"}], "ok", "rate"),
        ([{"State": "DISABLED", "Name": "sweep"}], "failed", "sweep"),
        ([], "warning", "no rule"),
    ],
)
def test_schedule_of_the_sweeper_is_checked(
    account: Account, rules: list[dict[str, str]], status: str, word: str
) -> None:
    """It must have one that is enabled."""
    account.answers("lambda", "get_function_configuration", {"FunctionArn": ARN})
    account.answers("events", "list_rule_names_by_target", {"RuleNames": ["sweep" for _ in rules]}, TargetArn=ARN)
    for rule in rules:
        account.answers("events", "describe_rule", rule, Name="sweep")
    functions, sweeper = examine_functions({}, [], sweeper="shop-sweeper", clients=account)
    assert functions.status == "not checked"
    assert (sweeper.status, sweeper.name) == (status, "shop-sweeper: schedule")
    assert word in sweeper.found


def test_wake_is_tried_without_starting_anything(account: Account) -> None:
    """A dry run; what is refused has failed, since it is that right which is checked."""
    expected = {"FunctionName": "shop-orders", "InvocationType": "DryRun", "Payload": b"{}"}
    account.answers("lambda", "invoke", {"StatusCode": 204}, **expected)
    account.refuses("lambda", "invoke")
    good, refused = examine_wakes(["shop-orders", "shop-orders"], clients=account)
    assert (good.status, refused.status) == ("ok", "failed")
    assert "lambda:InvokeFunction" in refused.found


def test_target_that_is_named_is_the_one_to_wake(account: Account) -> None:
    """By its name, in the same account and Region."""
    variables = {**STORE, "INCUMBENT_TARGET": "shop-worker:live"}
    account.answers("lambda", "get_function_configuration", configuration(variables))
    worker = "arn:aws:lambda:eu-central-1:123456789012:function:shop-worker:live"
    account.answers(
        "iam",
        "simulate_principal_policy",
        {"EvaluationResults": [allowed("lambda:InvokeFunction", "implicitDeny")]},
        PolicySourceArn=ROLE,
        ActionNames=["lambda:InvokeFunction"],
        ResourceArns=[worker],
    )
    account.answers("iam", "simulate_principal_policy", {"EvaluationResults": []})
    account.answers("lambda", "get_function_recursion_config", {"RecursiveLoop": "Allow"})
    account.refuses("lambda", "get_function_event_invoke_config", "ResourceNotFoundException")
    account.answers("lambda", "list_event_source_mappings", {"EventSourceMappings": []})
    assert "lambda:InvokeFunction" in checks_of(account)["rights"].found


def test_prefix_that_is_left_out_is_the_default(account: Account) -> None:
    """On Redis no table is compared."""
    variables = {"INCUMBENT_PROVIDER": "redis", "INCUMBENT_TABLE_NAME": "other"}
    said = configuration(Environment={"Variables": variables})
    deploy(account, get_function_configuration=said, simulate_table=None)
    store = {"INCUMBENT_PROVIDER": "redis", "INCUMBENT_KEY_PREFIX": "incumbent"}
    found = list(examine_functions(store, ["shop-orders"], clients=account))
    assert [check.status for check in found if check.name == "shop-orders: store"] == ["ok"]
