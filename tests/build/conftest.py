"""What `sam build` makes of the application, for all tests of it; and where that is left out, the reason."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAM = ROOT / ".sam"
# Read before the tests' own environment is made, which knows none of our variables.
REQUIRED = os.environ.get("INCUMBENT_REQUIRE_SAM") == "1"


def why_no_sam() -> str | None:
    """Why nothing can be built here, for people to read; None when it can."""
    if not (SAM / ".installed").exists():
        return "SAM CLI is not installed: `make sam` does it where Python 3.13 is"
    return None


def pytest_report_header() -> list[str]:
    """Say at the top of a run what it leaves out."""
    reason = why_no_sam()
    return [] if reason is None else [f"left out: what sam build makes: {reason}"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs SAM CLI where it is not, unless it was said that it must be there."""
    if why_no_sam() is None or REQUIRED:
        return
    out = [each for each in items if "sam_home" in getattr(each, "fixturenames", ())]
    config.hook.pytest_deselected(items=out)
    items[:] = [each for each in items if each not in out]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The folder that `sam build` has made, and a Python as bare as Lambda's to run it."""

    folder: Path
    python: Path

    @property
    def template(self) -> Path:
        """The template that names the built folders."""
        return self.folder / "template.yaml"

    @property
    def layer(self) -> Path:
        """What comes before everything on the functions' path."""
        return self.folder / "IncumbentLayer" / "python"


def sam(*words: str, home: Path) -> "subprocess.CompletedProcess[str]":
    """Run SAM CLI in the project's folder, with nothing of ours around it; its own python is the one it builds with."""
    own: Mapping[str, str] = {
        "AWS_DEFAULT_REGION": "eu-central-1",  # it wants one, and asks nobody there
        "HOME": str(home),
        "PATH": f"{SAM / 'cli' / 'bin'}:/usr/bin:/bin",
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        "SAM_CLI_TELEMETRY": "0",
    }
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return subprocess.run(
        [str(SAM / "cli" / "bin" / "sam"), *words],
        cwd=ROOT,
        env={**pip, **own},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="session")
def sam_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home for SAM CLI's own files."""
    if (reason := why_no_sam()) is not None:
        pytest.fail(f"INCUMBENT_REQUIRE_SAM is 1, but {reason}")
    return tmp_path_factory.mktemp("sam-home")


@pytest.fixture(scope="session")
def built(sam_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The application, built as `sam build` builds it from this folder."""
    folder = tmp_path_factory.mktemp("built")
    done = sam("build", "--no-cached", "--build-dir", str(folder), home=sam_home)
    assert done.returncode == 0, done.stdout + done.stderr
    return Built(folder=folder, python=SAM / "runtime" / "bin" / "python")
