"""What `make dist` builds: the same bytes each time, and nothing but the package; a build that is unfit is refused."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from incumbent import __version__
from tests.build import dist
from tests.build.conftest import Built

# `make dist`, which CI runs, also installs each file in a fresh environment.


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist."""
    return dist.build_packages(tmp_path_factory.mktemp("dist"))


def test_wheel_and_sdist_hold_the_package_and_its_metadata(packages: tuple[Path, Path]) -> None:
    """Every module and script, `py.typed`, the licence; no tests, no caches, one mode for all."""
    wheel, sdist = packages
    assert str(dist.check_wheel(wheel).version) == str(dist.check_sdist(sdist).version) == __version__
    assert {"incumbent/py.typed", "incumbent/__main__.py", "incumbent/local/__init__.py"} <= dist.modules()


def test_second_build_is_the_same_bytes(packages: tuple[Path, Path], tmp_path: Path) -> None:
    """Also of a copy with other times and modes, as a checkout on another machine has them."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in (*dist.BESIDE_THE_PACKAGE - {"PKG-INFO"}, *(f"layer/{name}" for name in dist.modules())):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(dist.ROOT / name, copy / name)
        os.utime(copy / name, (1, 1))
        (copy / name).chmod(0o600)
    again = dist.build_packages(tmp_path / "again", copy)
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in packages]


def test_wheel_of_the_sdist_is_the_wheel(packages: tuple[Path, Path], tmp_path: Path) -> None:
    """So those who build from source get what is published."""
    wheel, sdist = packages
    shutil.unpack_archive(sdist, tmp_path, filter="data")
    rebuilt, _ = dist.build_packages(tmp_path / "dist", tmp_path / sdist.name.removesuffix(".tar.gz"))
    assert rebuilt.read_bytes() == wheel.read_bytes()


def test_layer_is_packed_to_the_same_bytes(built: Built, tmp_path: Path) -> None:
    """Whatever times and modes its files have, without caches; the example runs on it in a Python with nothing else."""
    first = dist.zip_layer(built.layer.parent, tmp_path / "first.zip")
    dist.check_layer(first, dist.left_out())
    copy = tmp_path / "copy"
    shutil.copytree(built.layer.parent, copy, copy_function=shutil.copyfile)
    for file in copy.rglob("*"):
        os.utime(file, (1, 1))
    (copy / "python" / "incumbent" / "__pycache__").mkdir(exist_ok=True)
    (copy / "python" / "incumbent" / "__pycache__" / "x.pyc").write_bytes(b"")
    assert dist.zip_layer(copy, tmp_path / "second.zip").read_bytes() == first.read_bytes()
    dist.try_example(dist.environment(tmp_path / "bare"), path=str(copy / "python"))


def test_unpacked_wheel_is_a_command(packages: tuple[Path, Path], tmp_path: Path) -> None:
    """`python -m incumbent --version` says the wheel's version."""
    wheel, _ = packages
    shutil.unpack_archive(wheel, tmp_path, "zip")
    said = subprocess.run(
        [sys.executable, "-m", "incumbent", "--version"],
        env={"PYTHONPATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert said.stdout == f"incumbent {__version__}\n"


def test_file_that_does_not_belong_there_is_refused(packages: tuple[Path, Path], tmp_path: Path) -> None:
    """A wheel with a file too many, and one without the licence."""
    wheel, _ = packages
    more = tmp_path / wheel.name
    shutil.copyfile(wheel, more)
    with zipfile.ZipFile(more, "a") as packed:
        packed.writestr("incumbent/secret.txt", "")
    with pytest.raises(dist.Unfit, match=r"too many: \['incumbent/secret.txt'\]"):
        dist.check_wheel(more)
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(more, "w") as packed:
        for entry in whole.infolist():
            if not entry.filename.endswith("LICENSE"):
                packed.writestr(entry, whole.read(entry))
    with pytest.raises(dist.Unfit, match=r"missing: .*LICENSE"):
        dist.check_wheel(more)


def test_layer_with_what_it_leaves_out_is_refused(built: Built, tmp_path: Path) -> None:
    """The command line in it, or files where Lambda does not look."""
    layer = dist.zip_layer(built.layer.parent, tmp_path / "layer.zip")
    with pytest.raises(dist.Unfit, match=r"missing: .*incumbent/cli\.py"):
        dist.check_layer(layer, [])
    with zipfile.ZipFile(layer, "a") as packed:
        packed.writestr("incumbent/x.py", "")
    with pytest.raises(dist.Unfit, match="outside python/"):
        dist.check_layer(layer, dist.left_out())
