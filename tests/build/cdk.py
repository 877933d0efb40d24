"""The CDK snippet of the table page, synthesised by the library of the CDK: `make cdk` says whether it is the table."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from incumbent.testing.servers import TABLE

ROOT = Path(__file__).parents[2]
APPLICATION = """
import aws_cdk

app = aws_cdk.App()
names = {"self": aws_cdk.Stack(app, "Stack")}
with open("snippet.py", encoding="utf-8") as snippet:
    exec(compile(snippet.read(), "snippet.py", "exec"), names)
app.synth()
"""


class Different(Exception):
    """The CDK makes something else than the table that the provider needs."""


def synthesised(python: Path, snippet: str) -> dict[str, Any]:
    """Return the properties of the one resource that the CDK makes of a snippet. ``python`` has ``aws_cdk``."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "snippet.py").write_text(snippet, "utf-8")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": folder,
            "CDK_OUTDIR": folder,
        }
        subprocess.run([str(python), "-c", APPLICATION], cwd=folder, env=environment, check=True)
        template = json.loads((Path(folder) / "Stack.template.json").read_text("utf-8"))
    (resource,) = template["Resources"].values()
    if (resource["Type"], resource["DeletionPolicy"]) != ("AWS::DynamoDB::GlobalTable", "Retain"):
        raise Different(f"the resource is {resource}")
    properties: dict[str, Any] = resource["Properties"]
    return properties


def check(properties: dict[str, Any]) -> None:
    """Compare with the table that the provider is tested on. The CDK makes it as a global table of one Region."""
    (replica,) = properties.pop("Replicas")
    wanted = {
        **TABLE,
        "TimeToLiveSpecification": {"AttributeName": "expires_on", "Enabled": True},
    }
    if _in_order(properties) != _in_order(wanted):
        raise Different(f"the CDK makes {properties}, not {wanted}")
    if (replica["Region"], replica["PointInTimeRecoverySpecification"]) != (
        {"Ref": "AWS::Region"},
        {"PointInTimeRecoveryEnabled": True},
    ):
        raise Different(f"its one replica is {replica}")


def _in_order(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def main(python: Path) -> None:
    """Synthesise the page's snippet, and compare."""
    page = (ROOT / "docs" / "table.md").read_text("utf-8")
    (snippet,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    check(synthesised(python, snippet))
    print("The CDK makes the table of docs/table.md.")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
