"""What `sam build` makes: the layer holds what it should and no more, and the built functions run with it."""

import itertools
import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from incumbent import Message, Origin
from incumbent.clock import SYSTEM_CLOCK
from incumbent.local import FunctionSpec, LocalLambda, LogLine
from incumbent.local.report import Answer, Fact, read_facts, summarise
from incumbent.local.stores import prepared
from incumbent.providers import from_env
from tests.build import dist
from tests.build.conftest import ROOT, SAM, Built, sam

EVENTS = ROOT / "events"
PACKAGES = {"aws_lambda_powertools", "incumbent", "jmespath", "redis", "typing_extensions"}
QUIET_MS = 1_500  # the chat function's own
# What only people at a terminal and tests use.
LEFT_OUT = ("__main__.py", "cli.py", "commands", "local", "operations.py", "testing", "verify")


def test_sam_finds_nothing_wrong(sam_home: Path) -> None:
    """`sam validate --lint`: the template, and what SAM makes of it."""
    done = sam("validate", "--lint", home=sam_home)
    assert done.returncode == 0, done.stdout + done.stderr


def files(folder: Path) -> list[Path]:
    """Every file below a folder, as paths from there."""
    return sorted(each.relative_to(folder) for each in folder.rglob("*") if each.is_file())


# --- the layer


def test_every_module_that_functions_use_is_in_it(built: Built) -> None:
    """Each module, each script, and the mark of a typed package, as they stand in the source; nothing else of ours."""
    source = ROOT / "layer" / "incumbent"
    ours = [
        each
        for each in files(source)
        if (each.suffix in {".py", ".lua"} or each.name == "py.typed") and each.parts[0] not in LEFT_OUT
    ]
    assert len([each for each in ours if each.suffix == ".lua"]) > 10
    assert [each for each in files(built.layer / "incumbent") if each.suffix != ".pyc"] == ours
    for each in ours:
        assert (built.layer / "incumbent" / each).read_bytes() == (source / each).read_bytes(), each


def test_nothing_for_development_is_in_it(built: Built) -> None:
    """Its requirements and they alone: no pytest, no moto, and no boto3, which is the runtime's."""
    top = {each.name for each in built.layer.iterdir()}
    kept = {name for name in top if not re.search(r"\.(dist-info|data)$", name)} - {"requirements.txt", "__pycache__"}
    assert {name.removesuffix(".py") for name in kept} == PACKAGES
    told = {name.split("-")[0].lower().replace("_", "-") for name in top if name.endswith(".dist-info")}
    wanted = (ROOT / "layer" / "requirements.txt").read_text("utf-8")
    pinned = {name.lower().replace("_", "-") for name in re.findall(r"^([\w-]+)==", wanted, re.MULTILINE)}
    assert told == pinned


def test_layer_has_the_pinned_releases(built: Built) -> None:
    """The same ones that the tests run with."""
    wanted = (ROOT / "layer" / "requirements.txt").read_text("utf-8")
    pins = dict(re.findall(r"^([\w-]+)==(\S+)", wanted, re.MULTILINE))
    tested = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE))
    for name, version in pins.items():
        assert list(built.layer.glob(f"{name.replace('-', '_')}-{version}.dist-info")), name
        assert tested[name if name in tested else name.replace("-", "_")] == version


def test_nothing_is_compiled_for_another_processor(built: Built) -> None:
    """No machine code at all: arm64 or x86_64 makes no difference. A wheel that says otherwise is seen here."""
    compiled = [each for each in files(built.layer) if each.suffix in {".so", ".pyd", ".dylib"}]
    assert compiled == []
    for each in files(built.folder):
        with (built.folder / each).open("rb") as file:
            assert file.read(4) != b"\x7fELF", each
    for wheel in built.layer.glob("*.dist-info/WHEEL"):
        assert set(re.findall(r"^Tag: (.*)$", wheel.read_text("utf-8"), re.MULTILINE)) <= {
            "py3-none-any",
            "py2-none-any",
        }, wheel


def test_layer_is_compiled_for_its_runtime(built: Built) -> None:
    """Every module, so that a cold start compiles none; what is compiled names neither a clock nor a folder of here."""
    magic = subprocess.run(
        [built.python, "-c", "import importlib.util; print(importlib.util.MAGIC_NUMBER.hex())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    unchecked = bytes([1, 0, 0, 0])
    modules = [each for each in files(built.layer) if each.suffix == ".py"]
    for module in modules:
        compiled = (built.layer / dist.compiled_name(module.as_posix())).read_bytes()
        assert compiled[:8] == bytes.fromhex(magic) + unchecked, module
        assert str(built.folder).encode() not in compiled, module
    assert len(modules) == sum(each.suffix == ".pyc" for each in files(built.layer))


def test_layer_stays_as_small_as_the_documentation_says(built: Built) -> None:
    """Lambda unpacks it at each cold start, and allows 250 MB with the function. `make test` prints its size."""
    sizes = [(built.layer / each).stat().st_size for each in files(built.layer)]
    own = sum((built.layer / "incumbent" / each).stat().st_size for each in files(built.layer / "incumbent"))
    said = f"the built layer: {sum(sizes) / 1024**2:.1f} MB in {len(sizes)} files, {own / 1024**2:.1f} MB of it ours\n"
    (SAM / "size").write_text(said, "utf-8")
    documented = re.search(r"less than (\d+) MB unpacked", (ROOT / "docs" / "lambda.md").read_text("utf-8"))
    assert documented is not None
    assert sum(sizes) < int(documented[1]) * 1024**2
    assert own < 2.5 * 1024**2


# Imports every module of the built package, then runs a leased handler on the memory provider.
WITHOUT_THE_REST = """
import importlib, importlib.util, pkgutil, sys
import incumbent
from incumbent.providers.memory import MemoryProvider

for module in pkgutil.walk_packages(incumbent.__path__, "incumbent."):
    importlib.import_module(module.name)
for name in ("cli", "local", "operations", "testing"):
    assert importlib.util.find_spec(f"incumbent.{name}") is None, name
incumbent.powertools.PowertoolsMetrics("x")


@incumbent.leased(key_jmespath="id", provider=MemoryProvider(), keyspace="built")
def handler(event, context):
    return f"handled {event['id']}"


print(incumbent.__version__, incumbent.__file__, *sys.version_info[:2])
print(handler({"id": "k"}, None))
"""


def test_layer_is_all_that_a_handler_needs(built: Built) -> None:
    """On a Python with boto3 and the runtime client, as Lambda has it; and it is the built package that is imported."""
    done = subprocess.run(
        [built.python, "-W", "error", "-c", WITHOUT_THE_REST],
        env={"PYTHONPATH": str(built.layer), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    about, answer = done.stdout.splitlines()
    version, file, *python = about.split()
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", version)
    assert Path(file).is_relative_to(built.layer)
    assert python == ["3", "13"]
    assert answer == "handled k"


@dataclass(slots=True)
class Application:
    """The built application, running, and everything that it printed."""

    cloud: LocalLambda
    functions: list[FunctionSpec]
    env: dict[str, str]
    printed: list[LogLine]

    def invoke(self, function: str, event: Any) -> Any:
        """Invoke once and return the answer; a failure shows with its log."""
        invocation = self.cloud.invoke(function, event)
        assert invocation.ok, "\n".join(line.text for line in invocation.logs)
        return invocation.payload

    @property
    def facts(self) -> list[Fact]:
        """All that was told."""
        return [fact for line in self.printed for fact in read_facts(line.text)]

    def runs_of(self, message_id: str) -> list[str | None]:
        """How each run of a message ended."""
        return [fact.outcome for fact in self.facts if fact.fact == "run_ended" and message_id in fact.message_ids]

    @property
    def metrics(self) -> dict[str, float]:
        """The sum of each metric in CloudWatch's format."""
        sums: dict[str, float] = {}
        for line in list(self.printed):
            if line.text.startswith('{"_aws"'):
                blob = json.loads(line.text)
                (directive,) = blob["_aws"]["CloudWatchMetrics"]
                assert directive["Namespace"] == "local"
                for metric in directive["Metrics"]:
                    said = blob[metric["Name"]]
                    sums[metric["Name"]] = sums.get(metric["Name"], 0) + (sum(said) if isinstance(said, list) else said)
        return sums


def without_parameter_store(function: FunctionSpec) -> FunctionSpec:
    """The webhook takes its secret from the environment where no parameter is named: there is no Parameter Store."""
    environment = {**function.environment}
    if environment.pop("SLACK_SIGNING_SECRET_PARAMETER", None):
        environment["SLACK_SIGNING_SECRET"] = "example-signing-secret"
    return replace(function, environment=environment)


@pytest.fixture(scope="module", params=["redis", "dynamodb"])
def application(request: pytest.FixtureRequest, built: Built) -> Iterator[Application]:
    """The built application on a Valkey, then on moto, under a Python as bare as Lambda's."""
    parameters = {"SlackSigningSecretParameter": "/chat/slack-signing-secret"}
    with prepared(built.template, request.param, parameters=parameters) as ready:
        printed: list[LogLine] = []
        env = {**ready.env, "INCUMBENT_TRACE": "1", "THINK_MS": "20"}
        functions = [without_parameter_store(function) for function in ready.functions]
        with LocalLambda(functions, env=env, python=str(built.python), concurrency=3, on_log=printed.append) as cloud:
            names = {"INCUMBENT_KEY_PREFIX", "INCUMBENT_REDIS_URL", "INCUMBENT_TABLE_NAME"}
            told = {name: value for name, value in functions[0].environment.items() if name in names}
            yield Application(cloud, functions, {**env, **told}, printed)


def load(name: str) -> Any:
    """Read one sample event."""
    return json.loads((EVENTS / f"{name}.json").read_text("utf-8"))


def chat(thread_id: str, text: str) -> Any:
    """A message to a thread, as the HTTP API sends it."""
    event = load("chat-message")
    event["body"] = json.dumps({"thread_id": thread_id, "text": text})
    event["requestContext"]["requestId"] = text
    return event


# --- the functions


def test_burst_of_chat_messages_is_answered_by_one_owner_a_thread(application: Application) -> None:
    """Twelve at once for two threads: none waits for an answer, and one run answers the six of a thread.

    Where they come with more than the quiet period between them, as on a busy machine, there is a run more.
    """
    cloud = application.cloud
    cloud.warm("ThreadFunction")
    sent = {f"{thread}-{n}": chat(thread, f"{thread}-{n}") for n in range(6) for thread in ("one", "two")}
    pending = [cloud.submit("ThreadFunction", event, label=label) for label, event in sent.items()]
    answers = [each.result().payload for each in pending]
    cloud.wait_idle()
    assert {answer["statusCode"] for answer in answers} == {202}
    assert {json.loads(answer["body"])["status"] for answer in answers} == {"accepted"}
    for thread in ("one", "two"):
        facts = [fact for fact in application.facts if fact.key.endswith(f"/{thread}")]
        arrived = sorted(fact.t_ms for fact in facts if fact.fact == "routed")
        runs = [fact for fact in facts if fact.fact == "run_ended"]
        assert sorted(each for run in runs for each in run.message_ids) == [f"{thread}-{n}" for n in range(6)]
        assert len(arrived) == 6
        assert len(runs) <= 1 + sum(later - sooner > QUIET_MS for sooner, later in itertools.pairwise(arrived))
    summary = summarise(application.facts, [Answer.of(invocation) for invocation in cloud.invocations])
    assert (summary.sent, summary.handled_once, summary.lost, summary.overlaps) == (12, 12, (), ())


def test_batches_of_both_queues_are_applied(application: Application) -> None:
    """Record by record, and delivered again they change nothing."""
    for name in ("sqs-standard", "sqs-fifo"):
        batch = load(name)
        for record in batch["Records"]:
            record["messageId"] = f"{name}-{record['messageId']}"
        for _ in range(2):
            assert application.invoke("OrdersFunction", batch) == {"batchItemFailures": []}
        application.cloud.wait_idle()
        for record in batch["Records"]:
            assert application.runs_of(record["messageId"]) == ["handled"]


def test_signed_webhook_wakes_the_thread(application: Application) -> None:
    """Slack is answered at once, and the message runs in the other function."""
    event = load("slack")
    assert application.invoke("WebhookFunction", event)["statusCode"] == 200
    application.cloud.wait_idle()
    assert application.runs_of(json.loads(event["body"])["event_id"]) == ["handled"]


def test_sweeper_wakes_who_was_left_behind(application: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner died with its message: the next pass finds it, and the thread's function runs it."""
    for name, value in application.env.items():
        monkeypatch.setenv(name, value)
    mailbox: Any = from_env()
    (thread,) = (spec for spec in application.functions if spec.logical_id == "ThreadFunction")
    message = Message(id="left-behind", event=chat("left", "left-behind"))
    origin = Origin(keyspace=thread.name, target=thread.arn)
    mailbox.claim(f"{thread.name}/left", "died", 10, message, origin=origin)
    while not application.invoke("SweeperFunction", {})["woken"]:
        SYSTEM_CLOCK.sleep_ms(100)  # the dead owner's lease, and DynamoDB's skew, have to pass
    application.cloud.wait_idle()
    assert application.runs_of("left-behind") == ["handled"]


def test_metrics_are_printed_for_cloudwatch(application: Application) -> None:
    """Under the stack's name: what was run in the tests before, and at least one pass of the sweeper."""
    application.invoke("ThreadFunction", chat("measured", "measured"))
    application.invoke("SweeperFunction", {})
    found = application.metrics
    assert found["RunCompleted"] >= 1
    assert found["SweeperRan"] >= 1
    assert found["HoldMs"] >= 20
