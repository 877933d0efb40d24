"""What is published: the wheel, the sdist and the layer's zip, the same bytes at each build, checked and tried."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "layer" / "incumbent"
EPOCH = "1580601600"  # 2020-02-02: zip files know no date before 1980
ZIP_DATE = (2020, 2, 2, 0, 0, 0)
COMPILED = ".cpython-313.pyc"  # by layer/Makefile, for the runtime of the layer
SUFFIXES = {".html", ".json", ".lua", ".py", ".typed"}
BESIDE_THE_PACKAGE = {
    ".gitignore",
    "CHANGELOG.md",
    "LICENSE",
    "PKG-INFO",
    "README.md",
    "layer/Makefile",
    "layer/requirements.txt",
    "pyproject.toml",
}


class Unfit(Exception):
    """A file that must not be published; the text says why."""


def build_packages(folder: Path, source: Path = ROOT) -> tuple[Path, Path]:
    """Build the wheel and the sdist of a source folder; return both."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder)],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH},
        check=True,
        capture_output=True,
    )
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def build_layer(folder: Path) -> Path:
    """Build the layer as `sam build` does, by its makefile; return the folder that Lambda unpacks at /opt."""
    environment = {**os.environ, "ARTIFACTS_DIR": str(folder)}
    subprocess.run(
        [shutil.which("make") or "make", "-C", str(ROOT / "layer"), "build-IncumbentLayer", f"PYTHON={sys.executable}"],
        env=environment,
        check=True,
        capture_output=True,
    )
    return folder


def zip_layer(folder: Path, target: Path) -> Path:
    """Pack a built layer: sorted, one date, one mode, no other caches, so that the same files are the same bytes."""
    files = [each for each in folder.rglob("*") if each.is_file()]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for file in sorted(each for each in files if each.suffix != ".pyc" or each.name.endswith(COMPILED)):
            entry = zipfile.ZipInfo(file.relative_to(folder).as_posix(), ZIP_DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, whatever machine packs it
            entry.external_attr = 0o100644 << 16
            packed.writestr(entry, file.read_bytes())
    return target


# --- what is inside


def modules() -> set[str]:
    """The package's files, as paths from the folder that holds it."""
    files = (each.relative_to(PACKAGE.parent) for each in PACKAGE.rglob("*") if each.is_file())
    return {each.as_posix() for each in files if each.suffix in SUFFIXES or each.name == "py.typed"}


def check_wheel(wheel: Path) -> Metadata:
    """Check a wheel: the package and its metadata, nothing else. Return the metadata."""
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
        (info,) = {name.partition("/")[0] for name in names if ".dist-info/" in name}
        wanted = {f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")}
        _same(wheel, names, modules() | wanted)
        _plain(wheel, {entry.external_attr >> 16 for entry in packed.infolist()})
        if packed.read(f"{info}/licenses/LICENSE") != (ROOT / "LICENSE").read_bytes():
            raise Unfit(f"{wheel.name}: its licence is not this project's")
        return _metadata(wheel, packed.read(f"{info}/METADATA"))


def check_sdist(sdist: Path) -> Metadata:
    """Check an sdist: the package, and what building it and its layer takes. Return the metadata."""
    top = sdist.name.removesuffix(".tar.gz")
    with tarfile.open(sdist) as packed:
        entries = packed.getmembers()
        wanted = {f"{top}/layer/{name}" for name in modules()} | {f"{top}/{name}" for name in BESIDE_THE_PACKAGE}
        _same(sdist, {entry.name for entry in entries}, wanted)
        if not all(entry.isreg() for entry in entries):
            raise Unfit(f"{sdist.name}: it holds links or the like")
        _plain(sdist, {entry.mode for entry in entries})
        info = packed.extractfile(f"{top}/PKG-INFO")
        if info is None:
            raise Unfit(f"{sdist.name}: it has no PKG-INFO")
        return _metadata(sdist, info.read())


def check_layer(layer: Path, left_out: Iterable[str]) -> None:
    """Check a layer's zip: below `python/`, the package without what is left out, and the pinned requirements."""
    pins = re.findall(r"^([\w-]+)==", (ROOT / "layer" / "requirements.txt").read_text("utf-8"), re.MULTILINE)
    out = tuple(f"incumbent/{name}" for name in left_out)
    with zipfile.ZipFile(layer) as packed:
        names = {name.removeprefix("python/") for name in packed.namelist()}
    if names & set(packed.namelist()):
        raise Unfit(f"{layer.name}: it has files outside python/, where Lambda does not look")
    compiled = {name for name in names if name.endswith(COMPILED)}
    if compiled:  # all of them, or none where the layer's Python is not on the machine that builds it
        _same(layer, compiled, {compiled_name(name) for name in names if name.endswith(".py")})
    ours = {name for name in names - compiled if name.startswith("incumbent/")}
    _same(layer, ours, {name for name in modules() if not name.startswith(out)})
    told = {name.partition("-")[0].lower() for name in names if ".dist-info/" in name}
    _same(layer, told, {pin.lower().replace("-", "_") for pin in pins})


def compiled_name(module: str) -> str:
    """Return where a module's compiled form stands."""
    folder, _, name = module.rpartition("/")
    return f"{folder}/__pycache__/{name.removesuffix('.py')}{COMPILED}".removeprefix("/")


def _metadata(file: Path, text: bytes) -> Metadata:
    """Read metadata by the rules of the package index. Raises what `packaging` raises where it breaks them."""
    metadata = Metadata.from_email(text, validate=True)
    lacking = [
        name
        for name in ("author", "classifiers", "description", "keywords", "license_expression", "requires_python")
        if not getattr(metadata, name, None)
    ]
    if "author" in lacking and metadata.author_email:
        lacking.remove("author")
    if lacking or metadata.license_files != ["LICENSE"] or metadata.description_content_type != "text/markdown":
        raise Unfit(f"{file.name}: its metadata lacks {', '.join(lacking) or 'the licence file or the README'}")
    return metadata


def _same(file: Path, found: set[str], wanted: set[str]) -> None:
    if found != wanted:
        more, less = sorted(found - wanted)[:5], sorted(wanted - found)[:5]
        raise Unfit(f"{file.name}: too many: {more or 'none'}; missing: {less or 'none'}")


def _plain(file: Path, modes: set[int]) -> None:
    if {mode & 0o777 for mode in modes} != {0o644}:
        raise Unfit(f"{file.name}: its files have the modes {sorted(map(oct, modes))}, not 0o644")


# --- what runs


def environment(folder: Path, *requirements: str) -> Path:
    """Make an environment with these installed, and nothing else; return its Python."""
    venv.create(folder, with_pip=bool(requirements), symlinks=True)
    python = folder / "bin" / "python"
    if requirements:
        subprocess.run([str(python), "-m", "pip", "install", "-qq", *requirements], check=True, cwd=folder)
    return python


def try_example(python: Path, *, path: str = "") -> None:
    """Run the README's first example there: of three events at once one runs, with the messages of all."""
    example = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)[0]
    lines = _output(python, "-W", "error", "-c", example, env={"PYTHONPATH": path} if path else {}).splitlines()
    answers = sorted((ast.literal_eval(line) for line in lines), key=lambda said: said["status"])
    if [said["status"] for said in answers] != ["accepted", "accepted", "answered"] or len(answers[2]["heard"]) != len(
        answers
    ):
        raise Unfit(f"the README's example answers {answers}")


def try_commands(python: Path, version: str) -> None:
    """Run `incumbent --version`, both ways, and `incumbent --help`."""
    script = python.parent / "incumbent"
    for words in ((python, "-m", "incumbent"), (script,)):
        if (said := _output(*words, "--version")) != f"incumbent {version}\n":
            raise Unfit(f"{words[-1]} --version says {said!r}")
    _output(script, "--help")


def _output(*words: str | Path, env: Mapping[str, str] | None = None) -> str:
    """Run a command away from this checkout; return what it printed."""
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run(
            [str(word) for word in words],
            cwd=elsewhere,
            env={"PATH": os.environ["PATH"], **(env or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    if done.returncode:
        raise Unfit(f"{words[0]} failed: {done.stderr}")
    return done.stdout


# --- all of it


def left_out() -> list[str]:
    """What the layer's makefile leaves out of the package."""
    found = re.search(r"^NOT_IN_THE_LAYER := (.*)$", (ROOT / "layer" / "Makefile").read_text("utf-8"), re.MULTILINE)
    if found is None:
        raise Unfit("layer/Makefile does not say what it leaves out")
    return found[1].split()


def build_all(folder: Path) -> tuple[Path, Path, Path]:
    """Build and check the three files; return them."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel, sdist = build_packages(folder)
    version = str(check_wheel(wheel).version)
    if str(check_sdist(sdist).version) != version:
        raise Unfit(f"{wheel.name} and {sdist.name} name different versions")
    with tempfile.TemporaryDirectory() as built:
        layer = zip_layer(build_layer(Path(built)), folder / f"incumbent-layer-{version}.zip")
    check_layer(layer, left_out())
    return wheel, sdist, layer


def main(folder: Path) -> None:
    """Build the three files into a folder, twice, then install each in a fresh environment and try it."""
    shutil.rmtree(folder, ignore_errors=True)
    files = wheel, sdist, layer = build_all(folder)
    with tempfile.TemporaryDirectory() as scratch:
        again = Path(scratch)
        for first, second in zip(files, build_all(again / "again"), strict=True):
            if first.read_bytes() != second.read_bytes():
                raise Unfit(f"{first.name}: two builds of the same source differ")
        version = str(check_wheel(wheel).version)
        for file in (wheel, sdist):
            python = environment(again / file.name / "venv", str(file))
            try_example(python)
            try_commands(python, version)
        shutil.unpack_archive(layer, again / "opt")
        try_example(environment(again / "bare"), path=str(again / "opt" / "python"))
    for file in files:
        print(f"{file.stat().st_size:>9,} bytes  {file}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
