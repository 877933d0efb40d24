"""The page on the table describes the one that the provider is tested with and that the template makes, three times."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import hcl2
import pytest
import yaml

from incumbent.testing.servers import TABLE
from tests.build.test_template import CloudFormationLoader

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "table.md").read_text("utf-8")

# What `create_table` does not take, so that no test of the provider can miss it.
BESIDES: dict[str, Any] = {
    "TimeToLiveSpecification": {"AttributeName": "expires_on", "Enabled": True},
    "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True},
}


def block(language: str) -> str:
    """The page's one block of that language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def key_schema(partition: str, sort: str) -> list[dict[str, str]]:
    """Two keys, as CloudFormation has them."""
    return [{"AttributeName": partition, "KeyType": "HASH"}, {"AttributeName": sort, "KeyType": "RANGE"}]


def unquoted(value: Any) -> Any:
    """What the parser of HCL gives, with its strings as they are meant and without its marks."""
    match value:
        case str():
            return value.strip('"')
        case list():
            return [unquoted(each) for each in value]
        case dict():
            return {unquoted(name): unquoted(each) for name, each in value.items() if not name.startswith("__")}
        case _:
            return value


@pytest.mark.parametrize("file", ["docs/table.md", "template.yaml"])
def test_cloudformation_makes_the_table(file: str) -> None:
    """The page's resource and the template's are one and the same, and the one that tests are run on."""
    if file == "template.yaml":
        # The loader is a SafeLoader with three constructors more.
        text = (ROOT / file).read_text("utf-8")
        resource = yaml.load(text, Loader=CloudFormationLoader)["Resources"]["LeaseTable"]  # noqa: S506
        assert resource.pop("Condition") == "OnDynamoDB"
    else:
        resource = yaml.safe_load(block("yaml"))["LeaseTable"]
    assert resource == {
        "Type": "AWS::DynamoDB::Table",
        "DeletionPolicy": "Retain",
        "UpdateReplacePolicy": "Retain",
        "Properties": {**TABLE, **BESIDES},
    }


READ = """
const { parse } = require(process.argv[1]);
parse("page.tf", require("fs").readFileSync(0, "utf-8")).then((read) => console.log(JSON.stringify(read)));
"""
HCL2JSON = ROOT / ".dynalite" / "node_modules" / "@cdktf" / "hcl2json"


def read_by_hashicorps_parser(text: str) -> dict[str, Any]:
    """The one resource of a text, as the parser says that Terraform has, compiled for node."""
    node = shutil.which("node")
    if not (node and HCL2JSON.is_dir()) and os.environ.get("INCUMBENT_REQUIRE_DYNALITE") != "1":
        pytest.skip("HashiCorp's parser of HCL is not here: `make setup` installs it where npm is")
    done = subprocess.run(
        [str(node), "-e", READ, str(HCL2JSON)], input=text, capture_output=True, text=True, check=True, timeout=60
    )
    ((resource,),) = json.loads(done.stdout)["resource"]["aws_dynamodb_table"].values()
    return dict(resource)


def read_in_python(text: str) -> dict[str, Any]:
    """The one resource of a text, as a parser written in Python reads it."""
    (resource,) = unquoted(hcl2.loads(text))["resource"]
    return dict(resource["aws_dynamodb_table"]["leases"])


@pytest.mark.parametrize("read", [read_in_python, read_by_hashicorps_parser])
def test_terraform_makes_the_table(read: Callable[[str], dict[str, Any]]) -> None:
    """The same keys, index, projection and time to live."""
    table = read(block("hcl"))
    (index,), (ttl,), (recovery,) = table["global_secondary_index"], table["ttl"], table["point_in_time_recovery"]
    assert {
        "BillingMode": table["billing_mode"],
        "AttributeDefinitions": [
            {"AttributeName": each["name"], "AttributeType": each["type"]} for each in table["attribute"]
        ],
        "KeySchema": key_schema(table["hash_key"], table["range_key"]),
        "GlobalSecondaryIndexes": [
            {
                "IndexName": index["name"],
                "KeySchema": key_schema(index["hash_key"], index["range_key"]),
                "Projection": {
                    "ProjectionType": index["projection_type"],
                    "NonKeyAttributes": index["non_key_attributes"],
                },
            }
        ],
        "TimeToLiveSpecification": {"AttributeName": ttl["attribute_name"], "Enabled": ttl["enabled"]},
        "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": recovery["enabled"]},
    } == {**TABLE, **BESIDES}


class Named:
    """Stands for whatever the CDK has: it knows by which name it was reached, and with what it was called."""

    def __init__(self, name: str, said: dict[str, Any] | None = None) -> None:
        self.name = name
        self.said = said or {}

    def __getattr__(self, name: str) -> "Named":
        return Named(f"{self.name}.{name}")

    def __call__(self, *_: object, **said: Any) -> "Named":
        """Keep the arguments that have names."""
        return Named(f"{self.name}()", said)


def test_cdk_makes_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same keys, index, projection and time to live. `make cdk` lets the CDK itself synthesise them."""
    module = ModuleType("aws_cdk")
    vars(module).update(aws_dynamodb=Named("dynamodb"), RemovalPolicy=Named("RemovalPolicy"))
    monkeypatch.setitem(sys.modules, "aws_cdk", module)
    names: dict[str, Any] = {"self": None}
    exec(block("python"), names)  # noqa: S102 - the documentation's own example
    table = names["leases"]
    (index,) = table.said["global_secondary_indexes"]
    letters = {"dynamodb.AttributeType.STRING": "S", "dynamodb.AttributeType.NUMBER": "N"}
    attributes = [each.said[key].said for each in (table, index) for key in ("partition_key", "sort_key")]
    assert (table.name, index.name) == ("dynamodb.TableV2()", "dynamodb.GlobalSecondaryIndexPropsV2()")
    assert table.said["billing"].name == "dynamodb.Billing.on_demand()"
    assert table.said["removal_policy"].name == "RemovalPolicy.RETAIN"
    recovery = table.said["point_in_time_recovery_specification"]
    assert recovery.name == "dynamodb.PointInTimeRecoverySpecification()"
    assert recovery.said == {"point_in_time_recovery_enabled": True}
    assert table.said["time_to_live_attribute"] == BESIDES["TimeToLiveSpecification"]["AttributeName"]
    assert [
        {"AttributeName": each["name"], "AttributeType": letters[each["type"].name]} for each in attributes
    ] == TABLE["AttributeDefinitions"]
    (of_the_tests,) = TABLE["GlobalSecondaryIndexes"]
    assert key_schema(attributes[0]["name"], attributes[1]["name"]) == TABLE["KeySchema"]
    assert {
        "IndexName": index.said["index_name"],
        "KeySchema": key_schema(attributes[2]["name"], attributes[3]["name"]),
        "Projection": {
            "ProjectionType": index.said["projection_type"].name.rpartition(".")[2],
            "NonKeyAttributes": index.said["non_key_attributes"],
        },
    } == of_the_tests


def test_table_of_the_page_names_every_part() -> None:
    """Its words are those of the snippets."""
    words = set(re.findall(r"`(\w+)`", PAGE.partition("## CloudFormation")[0]))
    named = {each["AttributeName"] for each in TABLE["AttributeDefinitions"]}
    assert named | {"orphans", "lease_key", "target", "expires_on"} <= words
