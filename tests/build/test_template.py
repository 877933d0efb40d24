"""The template describes what the package needs: its tables, its rights and its layer."""

import ast
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from incumbent.observe import Fact
from incumbent.powertools import METRICS, PowertoolsMetrics

ROOT = Path(__file__).parents[2]
RUNTIME = "python3.13"
FUNCTIONS = ("OrdersFunction", "SweeperFunction", "ThreadFunction", "VerifyFunction", "WebhookFunction")
REDIS_PASSWORD = {"ReadTheRedisPassword": ({"secretsmanager:GetSecretValue"}, {"Ref": "RedisSecretArn"})}
MAILBOX = {
    "LeasesAndMailboxes": (
        {f"dynamodb:{name}" for name in ("GetItem", "PutItem", "UpdateItem", "DeleteItem", "Query")},
        {"Fn::GetAtt": "LeaseTable.Arn"},
    ),
}
LATER_WAKES = {"AskForLaterWakes": ({"sqs:SendMessage"}, {"Fn::GetAtt": "WakeQueue.Arn"})}
POLLERS = {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"}
SELF = "arn:${AWS::Partition}:lambda:${AWS::Region}:${AWS::AccountId}:function:${AWS::StackName}-"
TABLES = ("LeaseTable", "OrderTable", "TranscriptTable")
# What people call the services whose actions the policies allow.
SERVICES = {
    "bedrock": "Bedrock runtime",
    "dynamodb": "DynamoDB",
    "lambda": "Lambda",
    "secretsmanager": "Secrets Manager",
    "sqs": "SQS",
    "ssm": "SSM",
}


class CloudFormationLoader(yaml.SafeLoader):
    """YAML with the short forms of the intrinsic functions written out."""


def _intrinsic(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    value: Any = loader.construct_scalar(node) if isinstance(node, yaml.ScalarNode) else None
    if isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    return {suffix if suffix in {"Ref", "Condition"} else f"Fn::{suffix}": value}


CloudFormationLoader.add_multi_constructor("!", _intrinsic)


@pytest.fixture(scope="module")
def template() -> dict[str, Any]:
    """The template as CloudFormation reads it."""
    text = (ROOT / "template.yaml").read_text("utf-8")
    # The loader is a SafeLoader with three constructors more.
    return dict(yaml.load(text, Loader=CloudFormationLoader))  # noqa: S506


def resources(template: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    """Return the resources of one type, by name."""
    return {name: found for name, found in template["Resources"].items() if found["Type"] == kind}


def statements(function: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what a function may do, whatever the parameters say."""
    for policy in function["Properties"].get("Policies", []):
        for statement in policy["Statement"]:
            branches = statement["Fn::If"][1:] if "Fn::If" in statement else [statement]
            yield from (branch for branch in branches if branch != {"Ref": "AWS::NoValue"})


def rights(function: dict[str, Any]) -> dict[str, tuple[set[str], Any]]:
    """Return what a function may do, and on what, by the names of its statements."""
    return {each["Sid"]: (set(as_list(each["Action"])), each["Resource"]) for each in statements(function)}


def as_list(value: Any) -> list[Any]:
    """Return a list, also of what may stand alone."""
    return value if isinstance(value, list) else [value]


def texts(value: Any) -> Iterator[str]:
    """Yield every string inside a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from texts(inner)


def test_lease_table_has_the_stored_format_s_keys(template: dict[str, Any]) -> None:
    """Partition key pk, sort key sk, both strings."""
    table = template["Resources"]["LeaseTable"]["Properties"]
    types = {found["AttributeName"]: found["AttributeType"] for found in table["AttributeDefinitions"]}
    assert table["KeySchema"] == [
        {"AttributeName": "pk", "KeyType": "HASH"},
        {"AttributeName": "sk", "KeyType": "RANGE"},
    ]
    assert types == {"pk": "S", "sk": "S", "orphan_shard": "S", "orphan_since": "N"}


def test_orphans_are_found_by_a_sharded_index_that_renewals_do_not_write(template: dict[str, Any]) -> None:
    """The index carries its keys and what to wake, and none of what a renewal changes."""
    (index,) = template["Resources"]["LeaseTable"]["Properties"]["GlobalSecondaryIndexes"]
    assert index["IndexName"] == "orphans"
    assert index["KeySchema"] == [
        {"AttributeName": "orphan_shard", "KeyType": "HASH"},
        {"AttributeName": "orphan_since", "KeyType": "RANGE"},
    ]
    assert index["Projection"] == {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["lease_key", "target"]}


def test_expired_records_are_cleaned_up_by_expires_on(template: dict[str, Any]) -> None:
    """The lease table's TTL attribute is the stored format's, and transcripts have none."""
    tables = resources(template, "AWS::DynamoDB::Table")
    assert tables["LeaseTable"]["Properties"]["TimeToLiveSpecification"] == {
        "AttributeName": "expires_on",
        "Enabled": True,
    }
    assert "TimeToLiveSpecification" not in tables["TranscriptTable"]["Properties"]


@pytest.mark.parametrize("name", TABLES)
def test_tables_outlive_the_stack_and_can_be_restored(template: dict[str, Any], name: str) -> None:
    """Each table is retained, restorable to a point in time, and paid by request."""
    table = template["Resources"][name]
    assert table["DeletionPolicy"] == table["UpdateReplacePolicy"] == "Retain"
    assert table["Properties"]["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert table["Properties"]["BillingMode"] == "PAY_PER_REQUEST"


def test_every_table_is_covered_here(template: dict[str, Any]) -> None:
    """A table that joins the template joins the test above."""
    assert set(resources(template, "AWS::DynamoDB::Table")) == set(TABLES)


def test_no_policy_has_a_wildcard(template: dict[str, Any]) -> None:
    """No action and no resource of any function contains a star, and nothing is said by NotAction."""
    found = [
        each for function in resources(template, "AWS::Serverless::Function").values() for each in statements(function)
    ]
    assert found
    for statement in found:
        assert set(statement) <= {"Sid", "Effect", "Action", "Resource"}, statement
        assert not [text for text in texts([statement["Action"], statement["Resource"]]) if "*" in text], statement


def test_thread_function_may_do_what_it_does_and_no_more(template: dict[str, Any]) -> None:
    """Item calls on the leases, updates of transcripts, its own successor, the one model."""
    assert rights(template["Resources"]["ThreadFunction"]) == MAILBOX | REDIS_PASSWORD | LATER_WAKES | {
        "GoOnInTheNextInvocation": ({"lambda:InvokeFunction"}, {"Fn::Sub": f"{SELF}thread"}),
        "Transcripts": ({"dynamodb:UpdateItem"}, {"Fn::GetAtt": "TranscriptTable.Arn"}),
        "AskTheModel": (
            {"bedrock:InvokeModelWithResponseStream"},
            {"Fn::Sub": "arn:${AWS::Partition}:bedrock:${AWS::Region}::foundation-model/${ModelId}"},
        ),
    }


def test_orders_function_may_do_what_it_does_and_no_more(template: dict[str, Any]) -> None:
    """Item calls on the leases, updates of orders, its own successor, its two queues."""
    assert rights(template["Resources"]["OrdersFunction"]) == MAILBOX | REDIS_PASSWORD | LATER_WAKES | {
        "GoOnInTheNextInvocation": ({"lambda:InvokeFunction"}, {"Fn::Sub": f"{SELF}orders"}),
        "Orders": ({"dynamodb:UpdateItem"}, {"Fn::GetAtt": "OrderTable.Arn"}),
        "PollTheQueues": (
            POLLERS,
            [{"Fn::GetAtt": "OrderQueue.Arn"}, {"Fn::GetAtt": "OrderFifoQueue.Arn"}],
        ),
    }


def test_verify_function_may_store_messages_and_go_on_in_itself(template: dict[str, Any]) -> None:
    """It is there only where the parameter says so; a run that dies is left to the sweeper."""
    function = template["Resources"]["VerifyFunction"]
    assert function["Condition"] == "WithVerify"
    assert template["Parameters"]["Verify"]["Default"] == "false"
    assert function["Properties"]["EventInvokeConfig"] == {"MaximumRetryAttempts": 0}
    assert rights(function) == MAILBOX | REDIS_PASSWORD | LATER_WAKES | {
        "GoOnInTheNextInvocation": ({"lambda:InvokeFunction"}, {"Fn::Sub": f"{SELF}verify"}),
    }


@pytest.mark.parametrize("name", ["ThreadFunction", "OrdersFunction", "VerifyFunction"])
def test_function_that_goes_on_in_itself_is_not_cut_off(template: dict[str, Any], name: str) -> None:
    """Who may invoke itself, by the name that it has, allows the loop."""
    function = template["Resources"][name]["Properties"]
    own = function["FunctionName"]["Fn::Sub"]
    (invoke,) = (each for each in statements({"Properties": function}) if each["Action"] == "lambda:InvokeFunction")
    assert invoke["Resource"]["Fn::Sub"].endswith(f":function:{own}")
    assert function["RecursiveLoop"] == "Allow"


def test_sweeper_may_find_and_wake_and_control_and_nothing_else(template: dict[str, Any]) -> None:
    """It queries the index, reads leases, receives wakes and sends them on; for operators it makes item calls."""
    assert rights(template["Resources"]["SweeperFunction"]) == REDIS_PASSWORD | LATER_WAKES | {
        "WakeWhoKeepsMessages": (
            {"lambda:InvokeFunction"},
            [
                {"Fn::GetAtt": "ThreadFunction.Arn"},
                {"Fn::GetAtt": "OrdersFunction.Arn"},
                {"Fn::If": ["WithVerify", {"Fn::GetAtt": "VerifyFunction.Arn"}, {"Ref": "AWS::NoValue"}]},
            ],
        ),
        "FindKeysWithMessages": ({"dynamodb:Query"}, {"Fn::Sub": "${LeaseTable.Arn}/index/orphans"}),
        "SeeWhetherSomebodyOwnsThem": ({"dynamodb:BatchGetItem"}, {"Fn::GetAtt": "LeaseTable.Arn"}),
        "SeeAndControlKeys": (
            {f"dynamodb:{name}" for name in ("GetItem", "UpdateItem", "DeleteItem", "Query")},
            {"Fn::GetAtt": "LeaseTable.Arn"},
        ),
        "PollTheQueues": (POLLERS, {"Fn::GetAtt": "WakeQueue.Arn"}),
    }


def test_sweeper_accepts_control_through_its_alias_only(template: dict[str, Any]) -> None:
    """The schedule and the queue invoke the function by its name, so a right to do that is not one to stop runs."""
    alias = template["Resources"]["SweeperControlAlias"]["Properties"]
    assert alias["FunctionName"] == {"Ref": "SweeperFunction"}
    variables = template["Resources"]["SweeperFunction"]["Properties"]["Environment"]["Variables"]
    assert variables == {"INCUMBENT_CONTROL_ALIAS": alias["Name"]}


def test_later_wakes_go_through_one_queue(template: dict[str, Any]) -> None:
    """All functions are told of it, and those that store messages may send to it."""
    assert template["Globals"]["Function"]["Environment"]["Variables"]["INCUMBENT_WAKE_QUEUE_URL"] == {
        "Ref": "WakeQueue"
    }
    functions = resources(template, "AWS::Serverless::Function")
    assert all("AskForLaterWakes" in rights(function) for function in functions.values())
    # It sends a wake that is due in days to its own queue again, which Lambda would take for a loop.
    assert functions["SweeperFunction"]["Properties"]["RecursiveLoop"] == "Allow"


def test_sweeper_may_wake_every_function_that_keeps_messages(template: dict[str, Any]) -> None:
    """Whoever goes on in a next invocation may die before it: the sweeper has to reach it."""
    functions = resources(template, "AWS::Serverless::Function")
    keep = {name for name, function in functions.items() if "GoOnInTheNextInvocation" in rights(function)}
    assert keep
    _, woken = rights(functions["SweeperFunction"])["WakeWhoKeepsMessages"]
    named = [each["Fn::If"][1] if "Fn::If" in each else each for each in woken]
    assert {each["Fn::GetAtt"] for each in named} >= {f"{name}.Arn" for name in keep}


def test_sweeper_comes_every_minute_and_repeats_no_pass(template: dict[str, Any]) -> None:
    """A late or failed pass is worth nothing beside the next one."""
    function = template["Resources"]["SweeperFunction"]["Properties"]
    (event,) = function["Events"].values()
    assert (event["Type"], event["Properties"]) == ("Schedule", {"Schedule": "rate(1 minute)"})
    assert function["EventInvokeConfig"] == {"MaximumRetryAttempts": 0, "MaximumEventAgeInSeconds": 60}


def test_webhook_may_store_and_wake_and_read_its_secret(template: dict[str, Any]) -> None:
    """One parameter, one function; and it is there only where the parameter has a name."""
    function = template["Resources"]["WebhookFunction"]
    assert function["Condition"] == "HasSlack"
    assert rights(function) == REDIS_PASSWORD | LATER_WAKES | {
        "WakeTheThread": ({"lambda:InvokeFunction"}, {"Fn::GetAtt": "ThreadFunction.Arn"}),
        "ReadTheSigningSecret": (
            {"ssm:GetParameter"},
            {
                "Fn::Sub": "arn:${AWS::Partition}:ssm:${AWS::Region}:${AWS::AccountId}"
                ":parameter${SlackSigningSecretParameter}"
            },
        ),
        "LeasesAndMailboxes": (
            {f"dynamodb:{name}" for name in ("GetItem", "PutItem", "UpdateItem", "DeleteItem", "Query")},
            {"Fn::GetAtt": "LeaseTable.Arn"},
        ),
    }
    assert function["Properties"]["Environment"]["Variables"]["INCUMBENT_TARGET"] == {"Ref": "ThreadFunction"}


def test_layer_is_built_for_the_functions_runtime_and_architecture(template: dict[str, Any]) -> None:
    """Without a build method the layer has no python/ folder, and `sam build` reports no error."""
    functions = template["Globals"]["Function"]
    layer = template["Resources"]["IncumbentLayer"]
    assert functions["Runtime"] == RUNTIME
    assert functions["Architectures"] == ["arm64"]
    assert functions["Layers"] == [{"Ref": "IncumbentLayer"}]
    assert layer["Metadata"] == {"BuildMethod": "makefile"}
    assert layer["Properties"]["CompatibleRuntimes"] == [RUNTIME]
    assert layer["Properties"]["CompatibleArchitectures"] == ["arm64"]
    assert layer["Properties"]["RetentionPolicy"] == "Retain"
    content = ROOT / layer["Properties"]["ContentUri"]
    assert (content / "incumbent" / "__init__.py").is_file()
    assert (content / "requirements.txt").is_file()
    recipe = (content / "Makefile").read_text("utf-8")
    assert "\nbuild-IncumbentLayer:\n" in recipe
    assert f"\nRUNTIME := {RUNTIME.removeprefix('python')}\n" in recipe
    assert "--python-version $(RUNTIME)\n" in recipe


def test_every_handler_is_where_the_template_says(template: dict[str, Any]) -> None:
    """The file is there, and defines the function."""
    for name, function in resources(template, "AWS::Serverless::Function").items():
        *module, handler = function["Properties"]["Handler"].split(".")
        folder = ROOT / "layer" if module[0] == "incumbent" else ROOT / function["Properties"]["CodeUri"]
        tree = ast.parse(folder.joinpath(*module).with_suffix(".py").read_text("utf-8"))
        assert handler in {
            node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }, name


def test_every_log_group_forgets(template: dict[str, Any]) -> None:
    """Each function logs to a group of the template that keeps its lines for a bounded time."""
    groups = resources(template, "AWS::Logs::LogGroup")
    for name, function in resources(template, "AWS::Serverless::Function").items():
        group = groups[function["Properties"]["LoggingConfig"]["LogGroup"]["Ref"]]
        assert 1 <= group["Properties"]["RetentionInDays"] <= 365, name


def test_redis_password_stays_in_its_secret(template: dict[str, Any]) -> None:
    """A function's settings hold the name of the secret, and the URL is shown to nobody in case it holds one too."""
    variables = template["Globals"]["Function"]["Environment"]["Variables"]
    assert variables["INCUMBENT_REDIS_SECRET_ID"] == {
        "Fn::If": ["HasRedisSecret", {"Ref": "RedisSecretArn"}, {"Ref": "AWS::NoValue"}]
    }
    assert template["Parameters"]["RedisUrl"]["NoEcho"] is True
    assert "{{resolve:" not in (ROOT / "template.yaml").read_text("utf-8")


def test_every_function_is_covered_here(template: dict[str, Any]) -> None:
    """A function that joins the template gets its rights compared above."""
    assert set(resources(template, "AWS::Serverless::Function")) == set(FUNCTIONS)


def test_every_function_is_traced_and_measured(template: dict[str, Any]) -> None:
    """X-Ray, and metrics under the stack's own namespace; none of it is overridden."""
    common = template["Globals"]["Function"]
    assert common["Tracing"] == "Active"
    assert common["Environment"]["Variables"]["INCUMBENT_METRICS_NAMESPACE"] == {"Ref": "AWS::StackName"}
    for function in resources(template, "AWS::Serverless::Function").values():
        own = function["Properties"]
        assert not {"Tracing", "Runtime", "Architectures", "VpcConfig"} & own.keys()
        assert "INCUMBENT_METRICS_NAMESPACE" not in own.get("Environment", {}).get("Variables", {})


def test_stacks_that_share_a_redis_do_not_meet(template: dict[str, Any]) -> None:
    """Every function keeps its keys under the stack's name, so a sweeper finds those of its own stack."""
    assert template["Globals"]["Function"]["Environment"]["Variables"]["INCUMBENT_KEY_PREFIX"] == {
        "Ref": "AWS::StackName"
    }
    for function in resources(template, "AWS::Serverless::Function").values():
        assert "INCUMBENT_KEY_PREFIX" not in function["Properties"].get("Environment", {}).get("Variables", {})


def test_every_service_that_is_called_from_the_vpc_is_named(template: dict[str, Any]) -> None:
    """Where subnets are asked for, and where they are explained: private ones reach none of these by themselves."""
    called = {
        action.partition(":")[0]
        for function in resources(template, "AWS::Serverless::Function").values()
        for each in statements(function)
        if each["Sid"] != "PollTheQueues"  # which Lambda does, from outside
        for action in as_list(each["Action"])
    }
    _, _, page = (ROOT / "docs" / "lambda.md").read_text("utf-8").partition("## Redis in a VPC")
    for text in (template["Parameters"]["SubnetIds"]["Description"], page.partition("\n## ")[0]):
        assert {service for service, name in SERVICES.items() if name in text} == called


def test_longest_stack_name_is_told(template: dict[str, Any]) -> None:
    """A function's name has at most 64 characters, and the stack's is its beginning."""
    names = [
        each["Properties"]["FunctionName"]["Fn::Sub"]
        for each in resources(template, "AWS::Serverless::Function").values()
    ]
    assert all(name.startswith("${AWS::StackName}-") for name in names)
    longest = 64 - max(len(name.removeprefix("${AWS::StackName}")) for name in names)
    assert f"a stack name has at most {longest}" in (ROOT / "docs" / "lambda.md").read_text("utf-8")


def test_no_server_is_recommended_whose_eviction_cannot_be_switched_off() -> None:
    """Serverless caches of ElastiCache take no parameter group."""
    for page in [ROOT / "template.yaml", ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = re.sub(r"\s+", " ", page.read_text("utf-8"))
        for found in re.finditer("ElastiCache Serverless", text):
            assert re.search(r"(Not|cannot be) $", text[: found.start()].replace("**", "")), page


def test_functions_are_in_a_vpc_only_where_subnets_are_given(template: dict[str, Any]) -> None:
    """Redis needs one, DynamoDB does not."""
    condition, inside, outside = template["Globals"]["Function"]["VpcConfig"]["Fn::If"]
    assert (condition, outside) == ("InVpc", {"Ref": "AWS::NoValue"})
    assert inside == {"SubnetIds": {"Ref": "SubnetIds"}, "SecurityGroupIds": {"Ref": "SecurityGroupIds"}}


def test_queues_wait_long_enough_and_give_up(template: dict[str, Any]) -> None:
    """Six times the function's timeout, then a dead-letter queue of the same kind that keeps records for 14 days."""
    timeout_s = template["Globals"]["Function"]["Timeout"]
    for name in ("OrdersFunction", "SweeperFunction"):
        assert "Timeout" not in template["Resources"][name]["Properties"]
    queues = resources(template, "AWS::SQS::Queue")
    sources = {name: each["Properties"] for name, each in queues.items() if "RedrivePolicy" in each["Properties"]}
    assert set(sources) == {"OrderQueue", "OrderFifoQueue", "WakeQueue"}
    for source in sources.values():
        assert source["VisibilityTimeout"] >= 6 * timeout_s
        target = source["RedrivePolicy"]["deadLetterTargetArn"]["Fn::GetAtt"].removesuffix(".Arn")
        letters = queues[target]["Properties"]
        assert source["RedrivePolicy"]["maxReceiveCount"] >= 3
        assert letters.get("FifoQueue") == source.get("FifoQueue")
        assert letters["MessageRetentionPeriod"] == 14 * 24 * 3600


def test_batches_fail_record_by_record(template: dict[str, Any]) -> None:
    """Each queue has a mapping, and the function's report of failed records is asked for."""
    mappings = resources(template, "AWS::Lambda::EventSourceMapping").values()
    assert {
        each["Properties"]["EventSourceArn"]["Fn::GetAtt"]: each["Properties"]["FunctionName"]["Ref"]
        for each in mappings
    } == {
        "OrderQueue.Arn": "OrdersFunction",
        "OrderFifoQueue.Arn": "OrdersFunction",
        "WakeQueue.Arn": "SweeperFunction",
    }
    for mapping in mappings:
        assert mapping["Properties"]["FunctionResponseTypes"] == ["ReportBatchItemFailures"]


def alarmed(alarm: dict[str, Any]) -> tuple[str, str, frozenset[tuple[str, str]]]:
    """Return namespace, name and dimensions of the metric that an alarm looks at."""
    own = alarm["Properties"]
    if "Metrics" in own:
        (query,) = own["Metrics"]
        words = re.fullmatch(
            r'SELECT (?:SUM|MAX)\((\w+)\) FROM SCHEMA\("\$\{AWS::StackName\}", (\w+)\)', query["Expression"]["Fn::Sub"]
        )
        assert words is not None, query
        return OURS, words[1], frozenset({(words[2], "*")})
    dimensions = frozenset((each["Name"], str(each["Value"])) for each in own.get("Dimensions", []))
    return str(own["Namespace"]), own["MetricName"], dimensions


OURS = str({"Ref": "AWS::StackName"})
EVERY_KEYSPACE = frozenset({("keyspace", "*")})
LEASE_TABLE = frozenset({("TableName", str({"Ref": "LeaseTable"}))})
ORPHAN_INDEX = LEASE_TABLE | {("GlobalSecondaryIndexName", "orphans")}
LETTERS = "ApproximateNumberOfMessagesVisible"
ALARMS = {
    "LeaseLostAlarm": (OURS, "LeaseLost", EVERY_KEYSPACE),
    "DeadLetterAlarm": (OURS, "DeadLettered", EVERY_KEYSPACE),
    "KeyHeldTooLongAlarm": (OURS, "HoldingMs", EVERY_KEYSPACE),
    "LateWakesAlarm": (
        "AWS/SQS",
        "ApproximateAgeOfOldestMessage",
        frozenset({("QueueName", str({"Fn::GetAtt": "WakeQueue.QueueName"}))}),
    ),
    "StoreErrorsAlarm": (OURS, "StoreErrors", EVERY_KEYSPACE),
    "OldestWaitingMessageAlarm": (OURS, "OldestWaitingMs", frozenset()),
    "SweeperDidNotRunAlarm": (OURS, "SweeperRan", frozenset()),
    **{
        f"{queue}Alarm": ("AWS/SQS", LETTERS, {("QueueName", str({"Fn::GetAtt": f"{queue}.QueueName"}))})
        for queue in ("OrderDeadLetterQueue", "OrderFifoDeadLetterQueue")
    },
    **{
        f"{name}{kind}sThrottledAlarm": ("AWS/DynamoDB", f"{kind}ThrottleEvents", dimensions)
        for name, dimensions in {"LeaseTable": LEASE_TABLE, "OrphanIndex": ORPHAN_INDEX}.items()
        for kind in ("Read", "Write")
    },
}


def test_alarms_look_at_what_can_go_wrong(template: dict[str, Any]) -> None:
    """Each by the metric that tells of it, with its dimensions, and each tells the topic where there is one.

    Ours have the keyspace, and all keyspaces count; the sweeper's have none.
    """
    alarms = resources(template, "AWS::CloudWatch::Alarm")
    assert {name: alarmed(alarm) for name, alarm in alarms.items()} == ALARMS
    for alarm in alarms.values():
        assert alarm["Properties"]["AlarmActions"]["Fn::If"][0] == "HasAlarmTopic"
        assert alarm["Properties"]["AlarmDescription"]


def test_alarms_wait_for_numbers_that_come_late(template: dict[str, Any]) -> None:
    """M of N minutes, and no gap is filled: a 0 in the place of a number that is on its way would count as good."""
    for name, alarm in resources(template, "AWS::CloudWatch::Alarm").items():
        own = alarm["Properties"]
        period = own["Metrics"][0]["Period"] if "Metrics" in own else own["Period"]
        assert (period, own["EvaluationPeriods"]) == (60, 5), name
        assert own["DatapointsToAlarm"] in ({5} if name == "SweeperDidNotRunAlarm" else {1, 3}), name
    assert not [text for text in texts(resources(template, "AWS::CloudWatch::Alarm")) if "FILL" in text]


def test_silence_is_good_but_for_the_sweeper_s_which_a_new_stack_may_keep(template: dict[str, Any]) -> None:
    """No data means that nothing happened, except for the one that has to run every minute.

    Before its first pass it is silent too: its alarm begins without data, and tells when it gets there from OK. Of
    DynamoDB's metrics CloudWatch ignores missing data, whatever an alarm says.
    """
    alarms = resources(template, "AWS::CloudWatch::Alarm")
    missing = {name: alarm["Properties"]["TreatMissingData"] for name, alarm in alarms.items()}
    assert "breaching" not in missing.values()
    assert {name for name, how in missing.items() if how == "missing"} == {"SweeperDidNotRunAlarm"}
    assert {name for name, how in missing.items() if how == "ignore"} == {
        name for name in alarms if name.endswith("ThrottledAlarm")
    }
    telling = {name for name, alarm in alarms.items() if "InsufficientDataActions" in alarm["Properties"]}
    assert telling == {"SweeperDidNotRunAlarm"}


def test_every_alarm_is_explained(template: dict[str, Any]) -> None:
    """The page says what it means and what to do."""
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    explained = set(
        re.findall(r"`(\w+Alarm)`", "".join(re.findall(r"^- \*\*.*?\*\*:", page, re.MULTILINE | re.DOTALL)))
    )
    assert explained == set(resources(template, "AWS::CloudWatch::Alarm"))


def flattened(value: Any, name: str = "") -> dict[str, Any]:
    """Name the fields of a JSON line as Logs Insights does: ``a.b``, and ``a.0`` in a list."""
    if not isinstance(value, dict | list):
        return {name: value}
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    return {each: found for key, item in inner for each, found in flattened(item, f"{name}.{key}".lstrip(".")).items()}


@pytest.mark.parametrize("as_list", [True, False])
def test_query_of_the_page_finds_a_lost_lease(*, as_list: bool) -> None:
    """Every field that it asks for is in the line that is printed, whether a value stands there alone or in a list."""
    printed = io.StringIO()
    fact = Fact(fact="lost", key="shop/o", t_ms=1, keyspace="shop", request_id="r", owner="r.x", fence=7)
    PowertoolsMetrics("Shop", stream=printed)(fact)
    line = json.loads(printed.getvalue())
    value = line["LeaseLost"][0] if isinstance(line["LeaseLost"], list) else line["LeaseLost"]
    found = flattened({**line, "LeaseLost": [value] if as_list else value})
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    ((fields, condition),) = re.findall(
        r"^fields @timestamp, (.*?)\s*\| filter (.*?)\s*\| sort", page, re.MULTILINE | re.DOTALL
    )
    assert {found.get(each.strip()) for each in fields.split(",")} == {"shop/o", "r.x", 7, "r"}
    alternatives = condition.split(" or ")
    assert [each for each in alternatives if re.fullmatch(r"ispresent\(([\w.]+)\)", each)] == alternatives
    assert any(each.removeprefix("ispresent(").removesuffix(")") in found for each in alternatives)


def test_dashboard_shows_metrics_that_exist(template: dict[str, Any]) -> None:
    """Every metric of ours is on it, under the name that is written, and nothing else is."""
    (board,) = resources(template, "AWS::CloudWatch::Dashboard").values()
    body = json.loads(board["Properties"]["DashboardBody"]["Fn::Sub"])
    shown = {metric[1] for widget in body["widgets"] for metric in widget["properties"]["metrics"]}
    assert shown == METRICS


def test_cfn_lint_finds_nothing() -> None:
    """The template is clean, transformation included."""
    lint = "import sys; from cfnlint.runner import main; sys.exit(main())"
    command = [sys.executable, "-c", lint, "--regions", "eu-central-1", "--", "template.yaml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
