"""CloudFormation in the documentation: cfn-lint, which knows every resource's properties, finds nothing in it."""

import json
import re
from pathlib import Path
from typing import Any

import cfnlint.api
import pytest
import yaml

from tests.build.test_template import CloudFormationLoader

ROOT = Path(__file__).parents[2]
BLOCKS = [
    pytest.param(text, id=f"{page.name} {number}")
    for page in sorted((ROOT / "docs").glob("**/*.md"))
    for number, text in enumerate(
        re.findall(r"^```yaml\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    )
    if "Type: AWS::" in text
]
TEMPLATE = (ROOT / "template.yaml").read_text("utf-8")


def load(text: str) -> dict[str, Any]:
    """Read YAML with CloudFormation's short functions."""
    return dict(yaml.load(text, Loader=CloudFormationLoader))  # noqa: S506 - a SafeLoader with three constructors more


def linted(text: str) -> list[str]:
    """What cfn-lint says of a template that has a block's resources, and those of template.yaml that they name."""
    block = load(text)
    whole = block if "Resources" in block else {"Resources": block}
    of_the_template = load(TEMPLATE)["Resources"]
    named = set(re.findall(r'"(?:Ref|Fn::GetAtt)": "([A-Z]\w+)', json.dumps(whole)))
    others = {name: of_the_template[name] for name in named - set(whole["Resources"])}
    for resource in others.values():
        resource.pop("Condition", None)
    template = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Transform": "AWS::Serverless-2016-10-31",
        **whole,
        "Resources": {**whole["Resources"], **others},
    }
    return [str(each) for each in cfnlint.api.lint(json.dumps(template))]


@pytest.mark.parametrize("text", BLOCKS)
def test_block_is_valid(text: str) -> None:
    """As part of a template, with what it refers to."""
    assert linted(text) == []


def test_mistake_is_seen() -> None:
    """A property that the resource does not have, and a name that stands for nothing."""
    found = " ".join(linted("Leases:\n  Type: AWS::DynamoDB::Table\n  Properties: {Keys: []}\n"))
    assert "Keys" in found
    assert len(BLOCKS) == 4, "a page has a new block, or lost one"
