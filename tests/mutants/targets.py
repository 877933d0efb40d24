"""Which files of the package random faults are put into, and which tests must notice, the quickest first."""

from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from incumbent.testing.servers import dynalite_available
from tests.mutants.faults import DYNAMODB, MEMORY, REDIS, RULES, TABLE, VALKEY

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "layer" / "incumbent"

# What runs at a terminal, what is for tests, and what only declares.
LEFT_OUT = (
    "local/*",
    "testing/*",
    "cli.py",
    "commands/*",
    "doctor/*",
    "verify/*",
    "contract.py",
    "errors.py",
    "*/secrets.py",
    "*__init__.py",
)

CONFORMANCE = "tests/conformance/test_dynamodb.py"
REDIS_RULES = "tests/unit/test_redis_rules.py"
EMULATOR = f"{CONFORMANCE}::{'TestDynalite' if dynalite_available() else 'TestMoto'}"
Stages = tuple[tuple[str, ...], ...]

# Of a module that knows no store, all unit tests but those of the stores.
UNIT = ("tests/unit", *(f"--ignore={file}" for file in (REDIS, DYNAMODB, REDIS_RULES, "tests/unit/test_servers.py")))
ON_REDIS = ("-k", "valkey or redis or Valkey or Redis or resp or RESP")
ON_DYNAMODB = ("-k", "moto or dynalite or dynamodb or Moto or Dynalite or DynamoDB")
# What DynamoDB's items and requests are, as a whole.
WRITTEN_IN = ("attributes", "item", "quick", "change", "steps", "provider", "dynamodb_transcripts")
WRITTEN = tuple(f"tests/unit/test_{name}.py" for name in WRITTEN_IN)
# What is written out for every module: limits, and the arguments of the contract.
WRITTEN_OUT = ("tests/unit/test_limits.py", "tests/unit/test_contract.py")
OF_STORES = ("tests/unit/test_properties.py", "tests/unit/test_from_env.py")
SCHEDULES = "tests/simulation/test_simulation.py::test_every_rule_holds_in_every_schedule"
EVERY_STORE = "tests/end_to_end/test_every_store.py"

# By the path in the package, the first that fits. A stage is one run of pytest, by its words,
# that ends with its first failure.
STAGES: tuple[tuple[str, Stages], ...] = (
    ("traces*", ((RULES, MEMORY), UNIT, (SCHEDULES, REDIS_RULES))),
    ("rules*", ((RULES, MEMORY), UNIT, (SCHEDULES, REDIS_RULES))),
    ("providers/[su]*", ((MEMORY,), UNIT, (SCHEDULES, EVERY_STORE))),  # what the providers share
    ("providers/memory*", ((MEMORY,), UNIT, (EVERY_STORE, "-k", "memory"))),
    (
        "providers/redis/*",
        (
            ("tests/unit/test_redis_words.py", *WRITTEN_OUT),
            (REDIS,),
            (VALKEY, REDIS_RULES, "tests/unit/test_secrets.py", *OF_STORES),
            ("tests/faults", EVERY_STORE, "tests/unit", *ON_REDIS),
            ("tests/conformance/test_redis.py",),
        ),
    ),
    (
        "providers/dynamodb/*",
        (
            (*WRITTEN, *WRITTEN_OUT),
            (DYNAMODB,),
            ("tests/unit/test_dynamodb_control.py", "tests/unit/test_dynamodb_costs.py", *OF_STORES),
            (TABLE,),
            (EMULATOR,),
            (f"{CONFORMANCE}::TestSeveral",),
            (SCHEDULES,),
            ("tests/linearizability/test_calls_between_requests.py", "tests/faults", EVERY_STORE, *ON_DYNAMODB),
        ),
    ),
    ("*", (UNIT, (SCHEDULES, EVERY_STORE, "tests/functions"), ("tests/faults",))),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A file, by its path in the package, and the stages of its tests."""

    file: str
    stages: Stages

    @property
    def suffix(self) -> str:
        """Which language it is."""
        return Path(self.file).suffix


def targets() -> list[Target]:
    """List the files that take part."""
    files = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*") if path.suffix in {".py", ".lua"}]
    return [
        Target(file=file, stages=_stages(file))
        for file in sorted(files)
        if not any(fnmatch(file, pattern) for pattern in LEFT_OUT)
    ]


def _stages(file: str) -> Stages:
    """The tests that are named after the file come first."""
    found = next(stages for pattern, stages in STAGES if fnmatch(file, pattern))
    tests = f"test_{Path(file).stem}*.py"
    named = [path for folder in ("unit", "local") for path in sorted((ROOT / "tests" / folder).glob(tests))]
    mine = tuple(path.relative_to(ROOT).as_posix() for path in named)
    return (mine, *found) if mine and mine != found[0] else found
