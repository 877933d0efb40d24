"""Functions as they are deployed: timeout, settings, rights, retries, event sources, and the sweeper's schedule."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from incumbent.doctor.check import Check, Clients, code_of, not_asked
from incumbent.doctor.settings import check_settings, ttl_of
from incumbent.errors import IncumbentError

STORE = ("INCUMBENT_PROVIDER", "INCUMBENT_TABLE_NAME", "INCUMBENT_KEY_PREFIX")
"""The variables that name a store and hold no password."""

_RIGHTS = ("dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem", "dynamodb:Query")
_VISIBILITY = 6  # times the function's timeout, as SQS recommends


def invoke(aws: Any, function: str, event: Mapping[str, Any]) -> Any:
    """Invoke a function and return its answer. Raises ``IncumbentError`` with the error that it raised."""
    answer = aws.invoke(FunctionName=function, Payload=json.dumps(event).encode())
    said = json.load(answer["Payload"])
    if answer.get("FunctionError"):
        raise IncumbentError(f"{function} raised {said.get('errorType')}: {said.get('errorMessage')}")
    return said


def check_wake(clients: Clients, function: str) -> Iterator[Check]:
    """Check whether this caller may invoke a function, by a dry run, which starts nothing."""
    name = f"{function}: wake"
    try:
        clients("lambda").invoke(FunctionName=function, InvocationType="DryRun", Payload=b"{}")
    except Exception as error:  # noqa: BLE001 - whatever a client raises is the finding
        check = not_asked(name, "lambda:InvokeFunction", error)
        if check.status == "not checked":  # that right is what is checked here
            advice = f"{check.advice}; inside a VPC this needs a NAT or an endpoint for Lambda"
            check = Check.failed(name, check.found, advice)
        yield check
    else:
        yield Check.ok(name, "this caller may invoke it")


def check_function(clients: Clients, function: str, environ: Mapping[str, str]) -> Iterator[Check]:
    """Check one function that runs messages. ``environ`` names the store that was checked."""
    try:
        aws = clients("lambda")
        said = aws.get_function_configuration(FunctionName=function)
    except Exception as error:  # noqa: BLE001 - as above
        yield not_asked(f"{function}: settings", "lambda:GetFunctionConfiguration", error)
        return
    variables = said.get("Environment", {}).get("Variables", {})
    timeout_ms = said.get("Timeout", 3) * 1_000
    for check in check_settings(variables):
        yield Check(name=f"{function}: {check.name}", status=check.status, found=check.found, advice=check.advice)
    yield _timeout(function, timeout_ms, ttl_of(variables))
    yield _store(function, variables, environ)
    if said.get("TenancyConfig"):
        found = "it has tenant isolation"
        yield Check.failed(f"{function}: tenants", found, "wakes carry no tenant: run messages in another function")
    yield from _rights(clients, function, said, variables)
    yield _recursion(aws, function)
    yield _retries(aws, function)
    yield _delayed(clients, f"{function}: delayed wakes", _queue_of(variables))
    yield from _mappings(clients, function, timeout_ms)


def check_schedule(clients: Clients, sweeper: str) -> Iterator[Check]:
    """Check whether an enabled rule of EventBridge invokes the sweeper's function."""
    name = f"{sweeper}: schedule"
    try:
        arn = clients("lambda").get_function_configuration(FunctionName=sweeper)["FunctionArn"]
    except Exception as error:  # noqa: BLE001 - as above
        yield not_asked(name, "lambda:GetFunctionConfiguration", error)
        return
    try:
        events = clients("events")
        names = events.list_rule_names_by_target(TargetArn=arn)["RuleNames"]
        rules = [events.describe_rule(Name=each) for each in names]
    except Exception as error:  # noqa: BLE001 - as above
        yield not_asked(name, "events:ListRuleNamesByTarget and events:DescribeRule", error)
        return
    enabled = [each.get("ScheduleExpression", "an event") for each in rules if each.get("State") == "ENABLED"]
    if enabled:
        yield Check.ok(name, ", ".join(enabled))
    elif rules:
        found = f"the rule {rules[0].get('Name', names[0])} is disabled"
        yield Check.failed(name, found, "enable it: messages that no invocation runs wait otherwise")
    else:
        found = "no rule of EventBridge invokes it"
        yield Check.warning(name, found, "unless EventBridge Scheduler does, add a schedule of a minute")


def _timeout(function: str, timeout_ms: int, ttl_ms: int) -> Check:
    name, found = f"{function}: timeout", f"{timeout_ms // 1_000:,} s, with a ttl of {ttl_ms / 1_000:,g} s"
    if ttl_ms > timeout_ms:
        advice = (
            "a killed run keeps its key for longer than any run lasts: shorten INCUMBENT_TTL_MS, or raise the timeout"
        )
        return Check.warning(name, found, advice)
    return Check.ok(name, found)


def _store(function: str, variables: Mapping[str, str], environ: Mapping[str, str]) -> Check:
    """Compare the function's store with the one that was checked. URLs, which may hold passwords, are left out."""
    name = f"{function}: store"
    if "INCUMBENT_PROVIDER" not in environ:
        return Check.unchecked(name, "no store was checked", "let the same command check the store")
    theirs, here = _named(variables), _named(environ)
    differ = [each for each in theirs if theirs[each] != here[each]]
    if differ:
        found = ", ".join(f"{each} is {theirs[each]!r}, here {here[each]!r}" for each in differ)
        return Check.failed(name, found, "check the function's store: set the same here, or correct the function")
    return Check.ok(name, "the one that was checked")


def _named(variables: Mapping[str, str]) -> dict[str, str]:
    named = {each: variables.get(each, "") for each in STORE}
    named["INCUMBENT_KEY_PREFIX"] = named["INCUMBENT_KEY_PREFIX"] or "incumbent"
    if named["INCUMBENT_PROVIDER"] != "dynamodb":
        named["INCUMBENT_TABLE_NAME"] = ""
    return named


def _rights(clients: Clients, function: str, said: Mapping[str, Any], variables: Mapping[str, str]) -> Iterator[Check]:
    """Ask IAM what the function's role permits: its wakes, at once and with a delay, and calls on its table."""
    name, arn = f"{function}: rights", str(said.get("FunctionArn", ""))
    parts, target = arn.split(":"), variables.get("INCUMBENT_TARGET") or arn
    woken = target if target.startswith("arn:") else ":".join([*parts[:6], target])
    needed: dict[str, tuple[str, ...]] = {woken: ("lambda:InvokeFunction",)}
    if variables.get("INCUMBENT_PROVIDER") == "dynamodb" and (table := variables.get("INCUMBENT_TABLE_NAME")):
        here = table if table.startswith("arn:") else f"arn:{parts[1]}:dynamodb:{parts[3]}:{parts[4]}:table/{table}"
        needed[here] = _RIGHTS
    if queue := _queue_of(variables):
        needed[_arn_of(queue, parts)] = ("sqs:SendMessage",)
    lacking: list[str] = []
    try:
        iam = clients("iam")
        for resource, actions in needed.items():
            results = iam.simulate_principal_policy(
                PolicySourceArn=said["Role"], ActionNames=list(actions), ResourceArns=[resource]
            )["EvaluationResults"]
            lacking += [each["EvalActionName"] for each in results if each["EvalDecision"] != "allowed"]
    except Exception as error:  # noqa: BLE001 - as above
        yield not_asked(name, "iam:SimulatePrincipalPolicy", error)
        return
    if lacking:
        yield Check.failed(name, f"its role lacks {', '.join(lacking)}", "allow them (docs/lambda.md)")
    else:
        yield Check.ok(name, "its role may send the wakes and make every call on the table")


def _recursion(aws: Any, function: str) -> Check:
    name = f"{function}: RecursiveLoop"
    try:
        said = aws.get_function_recursion_config(FunctionName=_plain(function))["RecursiveLoop"]
    except Exception as error:  # noqa: BLE001 - as above
        return not_asked(name, "lambda:GetFunctionRecursionConfig", error)
    if said == "Allow":
        return Check.ok(name, said)
    advice = "set RecursiveLoop: Allow: Lambda cuts a chain after 16 invocations, and its messages wait for the sweeper"
    return Check.warning(name, said, advice)


def _retries(aws: Any, function: str) -> Check:
    name = f"{function}: asynchronous retries"
    try:
        said = aws.get_function_event_invoke_config(FunctionName=function)
    except Exception as error:  # noqa: BLE001 - as above
        if code_of(error) == "ResourceNotFoundException":
            return Check.ok(name, "2, as Lambda does unless told otherwise")
        return not_asked(name, "lambda:GetFunctionEventInvokeConfig", error)
    retries, age_s = said.get("MaximumRetryAttempts", 2), said.get("MaximumEventAgeInSeconds", 21_600)
    found = f"{retries}, within {age_s:,} s"
    if retries == 0:
        advice = "an event that fails before it is stored is lost: allow retries, or add a destination OnFailure"
        return Check.warning(name, found, advice)
    return Check.ok(name, found)


def _delayed(clients: Clients, name: str, url: str) -> Check:
    """Check the queue of wakes with a delay: that it is one, that a function takes its messages, and its retries."""
    if not url:
        return Check.ok(name, "INCUMBENT_WAKE_QUEUE_URL is not set: a message with a delay waits for the sweeper")
    if url.endswith(".fifo"):
        return Check.failed(
            name, f"{url} is a FIFO queue", "use a standard queue: a FIFO queue delays no single message"
        )
    try:
        said = clients("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn", "RedrivePolicy"])
        about = said["Attributes"]
    except Exception as error:  # noqa: BLE001 - as above
        return not_asked(name, "sqs:GetQueueAttributes", error)
    try:
        mappings = clients("lambda").list_event_source_mappings(EventSourceArn=about["QueueArn"])["EventSourceMappings"]
    except Exception as error:  # noqa: BLE001 - as above
        return not_asked(name, "lambda:ListEventSourceMappings", error)
    if not any(each.get("State") in ("Enabled", "Enabling") for each in mappings):
        advice = "map the sweeper's function to it (docs/control.md): its wakes are never sent otherwise"
        return Check.failed(name, f"no enabled mapping takes messages of {url}", advice)
    if not json.loads(about.get("RedrivePolicy") or "{}"):
        return Check.warning(
            name, f"{url} has no dead-letter queue", "add a RedrivePolicy: a wake that fails never ends"
        )
    return Check.ok(name, url)


def _queue_of(variables: Mapping[str, str]) -> str:
    return variables.get("INCUMBENT_WAKE_QUEUE_URL", "").strip()


def _arn_of(queue_url: str, function_arn: Sequence[str]) -> str:
    """Return the ARN of a queue, from its URL and the parts of the ARN of the function that sends to it."""
    host, account, queue = ["", "", "", *queue_url.split("/")][-3:]
    region = host.split(".")[1] if host.startswith("sqs.") else function_arn[3]
    return f"arn:{function_arn[1]}:sqs:{region}:{account}:{queue}"


def _mappings(clients: Clients, function: str, timeout_ms: int) -> Iterator[Check]:
    try:
        pages = clients("lambda").get_paginator("list_event_source_mappings").paginate(FunctionName=function)
        mappings = [each for page in pages for each in page["EventSourceMappings"]]
    except Exception as error:  # noqa: BLE001 - as above
        yield not_asked(f"{function}: event sources", "lambda:ListEventSourceMappings", error)
        return
    for mapping in mappings:
        source = str(mapping.get("EventSourceArn", ""))
        service, last = (source.split(":") + [""] * 3)[2], source.rpartition(":")[2]
        name = f"{function}: {service or 'source'} {last}"
        reports = "ReportBatchItemFailures" in (mapping.get("FunctionResponseTypes") or ())
        if service == "sqs":
            yield from _queue(clients, name, source, timeout_ms, reports=reports)
        elif service in ("kinesis", "dynamodb"):
            yield _stream(name, mapping)


def _queue(clients: Clients, name: str, arn: str, timeout_ms: int, *, reports: bool) -> Iterator[Check]:
    if not reports:
        advice = "set FunctionResponseTypes: [ReportBatchItemFailures]: records that failed would be deleted"
        yield Check.failed(name, "the mapping does not take partial failures", advice)
    _, _, _, region, account, queue = arn.split(":", 5)
    try:
        sqs = clients("sqs")
        url = sqs.get_queue_url(QueueName=queue, QueueOwnerAWSAccountId=account)["QueueUrl"]
        said = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout", "RedrivePolicy"])[
            "Attributes"
        ]
    except Exception as error:  # noqa: BLE001 - as above
        yield not_asked(name, "sqs:GetQueueUrl and sqs:GetQueueAttributes", error)
        return
    visible_s, wanted_s = int(said.get("VisibilityTimeout", 30)), _VISIBILITY * timeout_ms // 1_000
    found = f"a record stays invisible for {visible_s:,} s, of a function of {timeout_ms // 1_000:,} s ({region})"
    if visible_s < wanted_s:
        yield Check.warning(name, found, f"set VisibilityTimeout to {wanted_s:,}, six times the function's timeout")
    elif not json.loads(said.get("RedrivePolicy") or "{}"):
        yield Check.warning(name, f"{found}; no dead-letter queue", "add a RedrivePolicy: a poison record never ends")
    elif reports:
        yield Check.ok(name, found)


def _stream(name: str, mapping: Mapping[str, Any]) -> Check:
    retries, age_s = mapping.get("MaximumRetryAttempts", -1), mapping.get("MaximumRecordAgeInSeconds", -1)
    if retries == -1 and age_s == -1:
        found, advice = (
            "a failed batch is retried until its records expire",
            "set MaximumRecordAgeInSeconds and retries",
        )
        return Check.warning(name, found, advice)
    return Check.ok(name, f"retries: {retries}, age: {age_s} s")


def _plain(function: str) -> str:
    """Return a function's name or ARN without its qualifier."""
    parts = function.split(":")
    if len(parts) == 8:  # noqa: PLR2004 - arn:aws:lambda:REGION:ACCOUNT:function:NAME:QUALIFIER
        return ":".join(parts[:-1])
    return parts[0] if len(parts) == 2 else function  # noqa: PLR2004 - NAME:QUALIFIER
