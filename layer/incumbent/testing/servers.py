"""The stores of `incumbent.local.servers` for tests, and dynalite, a second implementation of DynamoDB.

A cluster of several nodes is in `redis_cluster`; Sentinel, TLS, restarts and limited users are in `redis_deployments`.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from incumbent.local.processes import NotStarted, supervised
from incumbent.local.servers import (
    AWS_ENVIRONMENT,
    HOST,
    TABLE,
    DynamoDBServer,
    ValkeyServer,
    create_table,
    locked_moto,
    valkey,
)

__all__ = [
    "AWS_ENVIRONMENT",
    "HOST",
    "TABLE",
    "DynamoDBServer",
    "NotStarted",
    "ValkeyServer",
    "create_table",
    "dynalite",
    "dynalite_available",
    "locked_moto",
    "valkey",
    "why_no_dynalite",
]

# A tenth less to do for each request: young objects are many and short-lived, and no thread helps where all are busy.
_NODE = ("--min-semi-space-size=64", "--max-semi-space-size=64", "--single-threaded")
_DYNALITE = """
const [, folder, host, tellsOld] = process.argv;
if (tellsOld) {
  const db = require(`${folder}/db`), check = db.checkConditional;
  db.checkConditional = (data, item) => {
    const refused = check(data, item);
    if (refused && item && data.ReturnValuesOnConditionCheckFailure === 'ALL_OLD') refused.body.Item = item;
    return refused;
  };
  for (const action of ['updateItem', 'putItem', 'deleteItem']) {
    require(`${folder}/validations/${action}`).types.ReturnValuesOnConditionCheckFailure = { type: 'String' };
  }
}
// A client that dies in the middle of a request is not the end of the server.
process.on('uncaughtException', (error) => {
  if (error.code !== 'ECONNRESET') throw error;
});
const server = require(folder)({ createTableMs: 0, deleteTableMs: 0, updateTableMs: 0 });
server.listen(0, host, () => console.log(server.address().port));
"""


@contextmanager
def dynalite(*, tells_old: bool = False) -> Iterator[DynamoDBServer]:
    """Run dynalite, an implementation of DynamoDB that shares nothing with moto, and is several times as quick.

    It knows no transactions. By itself it returns no old item with a failed condition; with ``tells_old`` it does, as
    AWS does.

    Raises `NotStarted`, also where `why_no_dynalite` has a reason.
    """
    folder = _dynalite_folder()
    if folder is None or not dynalite_available():
        raise NotStarted(f"dynalite cannot be started: {why_no_dynalite()}")
    with supervised(["node", *_NODE, "-e", _DYNALITE, str(folder), HOST, *["old"] * tells_old]) as process:
        yield DynamoDBServer(port=int(process.first_line()), process_group=process.process_group)


def dynalite_available() -> bool:
    """Whether `dynalite` can be started here."""
    return why_no_dynalite() is None


def why_no_dynalite() -> str | None:
    """Why `dynalite` cannot be started here, for people to read; None when it can."""
    if shutil.which("node") is None:
        return "node is not on PATH"
    if _dynalite_folder() is None:
        return "it is not installed: `make setup` does it where npm is"
    return None


def _dynalite_folder() -> Path | None:
    """The package from npm, in `.dynalite` of the working folder, of one above it, or of this checkout."""
    here = Path.cwd()
    for folder in (here, *here.parents, *Path(__file__).parents):
        package = folder / ".dynalite" / "node_modules" / "dynalite"
        if package.is_dir():
            return package
    return None
