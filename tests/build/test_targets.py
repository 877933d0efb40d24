"""What the Makefile's targets install, and what they do where a registry cannot be reached."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNREACHABLE = "http://127.0.0.1:9"


def make(*words: str, **environment: str) -> str:
    """Run make, and return what it prints."""
    outside = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL"}}
    done = subprocess.run(
        ["make", "--no-print-directory", *words],  # noqa: S607 - it is on PATH, or the tests would not run
        cwd=ROOT,
        env={**outside, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


@pytest.mark.parametrize(("provider", "extra"), [("redis", "demo"), ("memory", "demo"), ("dynamodb", "local")])
def test_demo_installs_only_what_a_replay_needs(tmp_path: Path, provider: str, extra: str) -> None:
    """Neither npm nor what the tests need; moto for DynamoDB alone."""
    planned = make("--dry-run", "demo", f"PROVIDER={provider}", f"VENV={tmp_path}")
    assert f"-e '.[{extra}]'" in planned
    assert planned.count("-e '.[") == 1
    assert "npm" not in planned


def test_setup_goes_on_without_dynalite_where_npm_cannot_install_it(tmp_path: Path) -> None:
    """It says what the tests leave out, and leaves no half of it behind."""
    folder = tmp_path / "dynalite"
    printed = make(f"DYNALITE={folder}", f"{folder}/.installed", npm_config_registry=UNREACHABLE)
    assert "the tests leave" in printed
    assert "dynalite" in printed
    assert not (folder / "node_modules").exists()
    assert not (folder / ".installed").exists()


def test_setup_goes_on_without_redis_where_apt_cannot_fetch_it(tmp_path: Path) -> None:
    """It says what the tests leave out, and leaves nothing behind."""
    folder = tmp_path / "redis"
    printed = make(f"REDIS={folder}", "APT=false", f"{folder}/.installed")
    assert "the tests leave out Redis with TLS" in printed
    assert not folder.exists()
