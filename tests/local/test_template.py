"""What is read from a template."""

from pathlib import Path

import pytest

from incumbent.errors import ConfigurationError
from incumbent.local import FunctionSpec, LocalLambda, Template
from incumbent.local.in_process import InProcessLambda
from incumbent.local.template import find_function
from tests.local.conftest import PARAMETERS, TEMPLATE


def functions(**parameters: str) -> dict[str, FunctionSpec]:
    """Read the test's template."""
    template = Template.load(TEMPLATE, {**PARAMETERS, **parameters})
    return {spec.logical_id: spec for spec in template.functions()}


def write(folder: Path, text: str) -> Path:
    """Put a template beside a folder of code."""
    (folder / "code").mkdir()
    file = folder / "template.yaml"
    file.write_text(text)
    return file


def one_function(folder: Path, properties: str) -> Path:
    """Put a template there that has one function."""
    return write(folder, f"Resources: {{F: {{Type: AWS::Serverless::Function, Properties: {{{properties}}}}}}}")


def test_a_function_has_its_own_properties_before_those_of_globals() -> None:
    """Timeout, memory, handler and retries are the function's, else Globals', else Lambda's defaults."""
    short, echo = functions()["ShortFunction"], functions()["EchoFunction"]
    assert (short.timeout_ms, short.memory_mb, short.max_retry_attempts) == (1_000, 256, 1)
    assert (echo.timeout_ms, echo.memory_mb, echo.max_retry_attempts) == (20_000, 128, 2)
    assert (echo.handler, echo.runtime, echo.code.name) == ("app.handler", "python3.13", "echo")


def test_a_function_is_known_by_its_name_or_else_by_its_logical_id() -> None:
    """FunctionName is resolved; without one the logical id stands in for what SAM would make up."""
    assert functions()["EchoFunction"].name == "local-echo"
    assert functions()["EchoFunction"].arn.endswith(":function:local-echo")
    assert functions()["ShortFunction"].name == "ShortFunction"


def test_variables_are_resolved_and_strings() -> None:
    """Ref, Sub with words of its own, GetAtt, If and NoValue; numbers and booleans as CloudFormation has them."""
    assert functions(Greeting="good day")["EchoFunction"].environment == {
        "STAGE": "test",
        "GREETING": "good day, eu-central-1 ${kept}",
        "TABLE": "test-table",
        "TABLE_ARN": "arn:aws:dynamodb:eu-central-1:123456789012:table/test-table",
        "SECRET": "s3cret",
        "SOME_NUMBER": "7",
        "SOME_FLAG": "true",
    }
    assert functions()["ShortFunction"].environment == {"STAGE": "test", "GREETING": "common"}


def test_conditions_decide_what_is_there() -> None:
    """A function, a table and a variable appear only where their condition holds."""
    assert "LiveFunction" not in functions()
    live = functions(Stage="live")
    assert live["EchoFunction"].environment["LIVE_ONLY"] == "yes"
    assert "LiveFunction" in live
    tables = Template.load(TEMPLATE, {**PARAMETERS, "Stage": "live"}).tables()
    assert [table["TableName"] for table in tables] == ["live-table", "LiveTable"]


def test_a_table_is_what_create_table_takes() -> None:
    """Time to live and the like are other calls, so they are left out."""
    (table,) = Template.load(TEMPLATE, PARAMETERS).tables()
    assert table == {
        "TableName": "test-table",
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{"AttributeName": "pk", "AttributeType": "S"}],
        "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}],
    }


def test_a_layer_of_the_template_is_on_the_path_behind_the_code() -> None:
    """As it stands, or its python folder where it was built."""
    echo = functions()["EchoFunction"]
    assert [folder.name for folder in echo.path] == ["echo", "layer"]


def test_a_built_layer_is_its_python_folder(tmp_path: Path) -> None:
    """`sam build` puts a layer's packages where Lambda finds them."""
    (tmp_path / "built" / "python").mkdir(parents=True)
    file = write(
        tmp_path,
        """
        Resources:
          L: {Type: AWS::Serverless::LayerVersion, Properties: {ContentUri: built}}
          F:
            Type: AWS::Serverless::Function
            Properties:
              {CodeUri: code, Handler: a.b, Layers: [!Ref L, "arn:aws:lambda:eu-central-1:1:layer:other:1"]}
        """,
    )
    (spec,) = Template.load(file).functions()
    assert [str(folder.relative_to(tmp_path.resolve())) for folder in spec.path] == ["code", "built/python"]


def test_the_projects_own_template_can_be_read() -> None:
    """With either provider; the tables are there only where DynamoDB is."""
    file = Path(__file__).parents[2] / "template.yaml"
    on_redis = Template.load(file, {"Provider": "redis", "RedisUrl": "redis://here"})
    (thread,) = [spec for spec in on_redis.functions() if spec.logical_id == "ThreadFunction"]
    assert thread.environment["INCUMBENT_REDIS_URL"] == "redis://here"
    assert "INCUMBENT_TABLE_NAME" not in thread.environment
    assert on_redis.tables() == ()
    assert "LeaseTable" in [table["TableName"] for table in Template.load(file).tables()]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Resources: [", "is not YAML, line 1"),
        ("[1, 2]", "is not a template"),
    ],
)
def test_what_is_no_template_is_refused(tmp_path: Path, text: str, told: str) -> None:
    """One error, which says what is wrong."""
    with pytest.raises(ConfigurationError, match=told):
        Template.load(write(tmp_path, text))


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ("", "F: Handler must look like module.function, not None"),
        ("Handler: app, CodeUri: code", "F: Handler must look like module.function, not 'app'"),
        ("Handler: a.b, CodeUri: {Bucket: b}", "F: CodeUri must be a folder"),
        ("Handler: a.b, CodeUri: nowhere", "F: CodeUri nowhere is not a folder"),
        ("Handler: a.b, CodeUri: code, Timeout: soon", "F: Timeout must be a whole number, not 'soon'"),
        ("Handler: a.b, CodeUri: code, Timeout: !GetAZs x", "F: Timeout: the template uses GetAZs"),
        (
            "Handler: a.b, CodeUri: code, Timeout: !If [Nothing, 1, 2]",
            "Timeout: the template has no condition 'Nothing'",
        ),
        ("Handler: a.b, CodeUri: code, Timeout: !If [1]", "Timeout: the template's If cannot be resolved"),
        ("Handler: a.b, CodeUri: code, Timeout: !FindInMap [a, b, c]", "mapping a.b.c is not there"),
        (
            "Handler: a.b, CodeUri: code, Timeout: !Ref Nope",
            "Timeout: the template has no parameter and no resource 'Nope'",
        ),
        (
            "Handler: a.b, CodeUri: code, Environment: {Variables: {A: [1]}}",
            r"F: the variable A: it must be a string, not \[1\]",
        ),
        (
            "Handler: a.b, CodeUri: code, Environment: {Variables: {A: !ImportValue x}}",
            r"F: the variable A: the template uses ImportValue, .* \(--env A=VALUE goes before it\)",
        ),
        ("PackageType: Image, ImageUri: x", "F: PackageType Image is not run here, only Python from a folder"),
        ("Handler: a.b, CodeUri: code, Runtime: nodejs20.x", r"F: nodejs20\.x is not run here, only Python"),
        ("FunctionName: !ImportValue x", "F: its name: the template uses ImportValue"),
    ],
)
def test_a_function_that_cannot_run_is_named_when_it_is_asked_for(tmp_path: Path, properties: str, told: str) -> None:
    """One error with the function and the property; all others can be run."""
    declared = Template.load(one_function(tmp_path, properties)).declared()
    with pytest.raises(ConfigurationError, match=told):
        find_function(declared, "F")


def test_one_foreign_function_stops_no_other(tmp_path: Path) -> None:
    """What cannot be read of the one is not looked at for the other, nor is a variable that is given."""
    file = write(
        tmp_path,
        """
        Conditions: {HasSlack: !Equals [a, b]}
        Resources:
          Foreign: {Type: AWS::Serverless::Function, Properties: {Runtime: nodejs20.x, Handler: a.b, CodeUri: code}}
          Webhook: {Type: AWS::Serverless::Function, Condition: HasSlack, Properties: {Handler: a.b, CodeUri: code}}
          F:
            Type: AWS::Serverless::Function
            Properties:
              CodeUri: code
              Handler: a.b
              Environment:
                Variables: {BUCKET: !ImportValue bucket, ROLE: !Ref ForeignRole, API: !Ref ServerlessHttpApi}
        """,
    )
    template = Template.load(file)
    assert template.functions() == ()
    (spec,) = template.functions(given={"BUCKET"})
    assert (spec.logical_id, spec.environment) == ("F", {"ROLE": "ForeignRole", "API": "ServerlessHttpApi"})
    with pytest.raises(ConfigurationError, match=r"^Webhook is left out by its Condition HasSlack$"):
        find_function(template.declared(), "Webhook")
    for kind in (LocalLambda, InProcessLambda):
        cloud: LocalLambda | InProcessLambda = kind(template.declared({"BUCKET"}))
        with cloud:
            cloud.check_function("F")
            with pytest.raises(ConfigurationError, match=r"^Foreign: nodejs20\.x is not run here"):
                cloud.submit("Foreign", {})
    with LocalLambda.from_template(file, env={"BUCKET": "b"}) as given:
        given.check_function("F")


def test_a_missing_template_and_unknown_parameters_are_told(tmp_path: Path) -> None:
    """So is a parameter that has no value."""
    with pytest.raises(ConfigurationError, match=r"cannot read the template .*none.yaml: No such file"):
        Template.load(tmp_path / "none.yaml")
    with pytest.raises(ConfigurationError, match="no parameter 'Colour'; it has Greeting, Secret, Stage"):
        Template.load(TEMPLATE, {"Colour": "red"})
    with pytest.raises(ConfigurationError, match="parameter 'Secret' has no default"):
        find_function(Template.load(TEMPLATE).declared(), "EchoFunction")
