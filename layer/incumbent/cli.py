"""``incumbent``: run functions on this machine (docs/local.md), and look after a store (docs/operations.md)."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from incumbent import __version__, doctor, operations
from incumbent.errors import ConfigurationError, IncumbentError, StoredFormatUnknown
from incumbent.keys import full_key, split_key
from incumbent.local.files import load_json
from incumbent.local.in_process import InProcessLambda
from incumbent.local.invocations import (
    RETRY_DELAYS_MS,
    CannotStart,
    Cloud,
    LogLine,
    OnInvocation,
    OnLog,
    check_size,
)
from incumbent.local.processes import NotStarted
from incumbent.local.replay import TRACE, Replay
from incumbent.local.report import summary_lines
from incumbent.local.scenario import load_scenario
from incumbent.local.service import LocalLambda
from incumbent.local.stores import PROVIDERS, Prepared, archive, prepared
from incumbent.local.template import find_function
from incumbent.providers import from_env
from incumbent.sweeper import LIMIT
from incumbent.validation import (
    MAX_LIMIT,
    check_key,
    encodable,
    fit_message_id,
    is_fitted,
    json_text,
    printable,
    shown,
)
from incumbent.wakers import LambdaWaker

GOOD, BAD, USAGE, INTERRUPTED = 0, 1, 2, 130

_MAX_MS = 1_800_000  # until nothing runs or is to be retried any more
MAX_SKIPPED = 20  # records that could not be read, a line each

QUIET = {"POWERTOOLS_METRICS_DISABLED": "true"}  # their lines are for CloudWatch; --env shows them all the same


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: success. 1: a message was lost or handled twice, runs overlapped, the function failed, a dead letter does not
    exist, a function could not be woken, some records could not be read, or a check failed. 2: the command could not
    start; one line on standard error says why. 130: interrupted.
    """
    arguments = _parser().parse_args(words)
    command: Callable[[argparse.Namespace], int] = arguments.command
    before = signal.signal(signal.SIGTERM, _interrupt)  # so that every process is ended then, too
    try:
        return command(arguments)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader has closed the pipe. What Python would flush at its end has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BAD
    except TimeoutError as error:
        return _fail(str(error), BAD)
    except StoredFormatUnknown as error:
        if not error.skipped:
            return _fail(str(error), USAGE)
        _fail(f"{len(error.skipped):,} of the records could not be read, and were left as they are:", BAD)
        for each in error.skipped[:MAX_SKIPPED]:
            _complain(f"  {each}")
        if len(error.skipped) > MAX_SKIPPED:
            _complain(f"  and {len(error.skipped) - MAX_SKIPPED:,} more")
        return BAD
    except (IncumbentError, CannotStart, NotStarted, ImportError) as error:
        return _fail(str(error), USAGE)
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="incumbent", description="Run incumbent's functions on this machine, and look after their store."
    )
    parser.add_argument("--version", action="version", version=f"incumbent {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    replay = commands.add_parser("replay", help="send a scenario's events, and report what became of them")
    replay.add_argument("scenario", type=Path, help="a scenario's JSON file")
    replay.add_argument("--cold", action="store_true", help="start with no environment ready")
    replay.add_argument("--logs", action="store_true", help="show what the functions print")
    replay.set_defaults(command=_replay)
    _add_common(replay, concurrency=8)

    invoke = commands.add_parser("invoke", help="invoke a function once and print its answer")
    invoke.add_argument("function", help="a function's logical id or name in the template")
    invoke.add_argument("-e", "--event", type=Path, required=True, metavar="FILE", help="the event's JSON file")
    invoke.add_argument("--async", action="store_true", dest="asynchronous", help="retry it when it fails")
    invoke.set_defaults(command=_invoke)
    _add_common(invoke, concurrency=1)

    sweep = commands.add_parser("sweep", help="wake the functions of keys with waiting messages, as the sweeper does")
    sweep.add_argument("--limit", type=_positive, default=LIMIT, metavar="N", help=f"wakes at most ({LIMIT})")
    sweep.add_argument("--dry-run", action="store_true", help="only look")
    sweep.set_defaults(command=_sweep)
    _add_store(sweep)

    checkup = commands.add_parser("doctor", help="check a deployment: its store, its functions and its sweeper")
    checkup.add_argument(
        "--function", action="append", default=[], metavar="NAME", help="a function that runs messages; repeatable"
    )
    checkup.add_argument("--sweeper", metavar="NAME", help="the sweeper's function, whose schedule is checked")
    checkup.add_argument(
        "--through", metavar="NAME", help="let the sweeper's function check the store, from inside its VPC"
    )
    checkup.add_argument("--json", action="store_true", help="print one JSON object per line")
    checkup.set_defaults(command=_doctor)
    _add_store(checkup)
    _add_dead(commands.add_parser("dead", help="look after dead letters: messages that are out of attempts"))
    return parser


def _add_dead(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser(
        "ls", help="list dead letters; without a key those of all keys, which reads the whole store"
    )
    listing.add_argument("key", nargs="?", help="a key, with its keyspace in front as the list shows it")
    listing.add_argument("--limit", type=_positive, default=100, metavar="N", help="the maximum number (100)")
    listing.add_argument("--json", action="store_true", help="print one JSON object per line, with the event")
    listing.set_defaults(command=_dead_ls)
    show = commands.add_parser("show", help="show a dead letter, with its event")
    show.set_defaults(command=_dead_show)
    redrive = commands.add_parser("redrive", help="put dead letters back into their mailbox, and wake the function")
    redrive.add_argument(
        "--target", metavar="FUNCTION", help="the function to wake, instead of the one recorded with the key"
    )
    redrive.set_defaults(command=_dead_redrive)
    purge = commands.add_parser("purge", help="remove dead letters for good")
    purge.set_defaults(command=_dead_purge)
    for command in (show, redrive, purge):
        command.add_argument("key", help="the key, with its keyspace in front as the list shows it")
    show.add_argument("id", help="the message's id")
    for command in (redrive, purge):
        command.add_argument("ids", nargs="*", metavar="id", help="the messages' ids")
        command.add_argument("--all", action="store_true", help="all dead letters of the key")
    for command in (listing, show, redrive, purge):
        command.add_argument("--keyspace", metavar="NAME", help="the keyspace; the key is then the application's own")
        _add_store(command)


def _add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--provider", choices=("redis", "dynamodb"), help="else INCUMBENT_PROVIDER")
    parser.add_argument("--redis-url", metavar="URL", help="else INCUMBENT_REDIS_URL")
    parser.add_argument("--table", metavar="NAME", help="else INCUMBENT_TABLE_NAME")
    parser.add_argument("--key-prefix", metavar="PREFIX", help="else INCUMBENT_KEY_PREFIX")


def _add_common(parser: argparse.ArgumentParser, *, concurrency: int) -> None:
    parser.add_argument(
        "--provider", choices=PROVIDERS, help="the store of leases and mailboxes (default: the template's)"
    )
    parser.add_argument("--redis-url", metavar="URL", help="an existing Redis, instead of an embedded Valkey")
    parser.add_argument(
        "--template", type=Path, default=Path("template.yaml"), metavar="FILE", help="a SAM template (template.yaml)"
    )
    parser.add_argument(
        "--concurrency",
        type=_positive,
        default=concurrency,
        metavar="N",
        help=f"the maximum number of environments of each function ({concurrency})",
    )
    parser.add_argument(
        "--retry-after",
        type=_pauses,
        default=RETRY_DELAYS_MS,
        metavar="SECONDS,SECONDS",
        help="the pauses in seconds before the retries of a failed asynchronous invocation (60,120, as on Lambda)",
    )
    for option, what in (
        ("--parameter", "set a parameter of the template"),
        ("--env", "set a variable in every function, instead of the template's"),
    ):
        parser.add_argument(option, type=_pair, action="append", default=[], metavar="NAME=VALUE", help=what)


def _replay(arguments: argparse.Namespace) -> int:
    scenario = load_scenario(arguments.scenario)
    say = _plain_printer()
    replay = Replay(scenario, say, show_logs=arguments.logs)
    with _cloud(arguments, TRACE, replay.on_log, replay.on_invocation) as (cloud, ready):
        say(f"{scenario.description or arguments.scenario.name} ({_header(arguments, ready)})")
        spec = find_function(ready.declared, scenario.functions[0])  # all of them use one store
        with archive({**spec.environment, **ready.env, **dict(arguments.env)}) as find:
            summary = replay.run(cloud, find, cold=arguments.cold)
    say("")
    for line in summary_lines(summary, replay.name):
        say(line)
    return GOOD if summary.good else BAD


def _invoke(arguments: argparse.Namespace) -> int:
    event = load_json(arguments.event, "the event")
    check_size(event, asynchronous=arguments.asynchronous)
    say, errors = _printer(), _printer(sys.stderr)

    def on_log(line: LogLine) -> None:
        errors(printable(line.text, keep="\t\\"))

    with _cloud(arguments, {}, on_log, lambda _: None) as (cloud, ready):
        cloud.check_function(arguments.function)
        errors(printable(f"{arguments.function} ({_header(arguments, ready)})"))
        invocation = cloud.submit(arguments.function, event, asynchronous=arguments.asynchronous).result()
        cloud.wait_idle(_MAX_MS)
    say(json_text(invocation.payload if invocation.ok else invocation.error, indent=2))
    return GOOD if invocation.ok else BAD


def _sweep(arguments: argparse.Namespace) -> int:
    waker = None if arguments.dry_run else LambdaWaker()
    good = operations.sweep_by_hand(_store(arguments), _printer(), limit=arguments.limit, waker=waker)
    return GOOD if good else BAD


def _doctor(arguments: argparse.Namespace) -> int:
    say, failed = _printer(), False

    def report(checks: Iterable[doctor.Check]) -> None:
        nonlocal failed
        for check in checks:
            failed = failed or check.status == "failed"
            say(check.json() if arguments.json else check.line())

    store = _environment(arguments)
    if arguments.through and any((arguments.provider, arguments.redis_url, arguments.table, arguments.key_prefix)):
        raise ConfigurationError("--through checks the store of that function: leave out the options that name another")
    if arguments.through:
        checks, store = doctor.examine_through(arguments.through, arguments.function)
        report(checks)
    else:
        report(doctor.examine_store(store))
        report(doctor.examine_wakes(arguments.function))
    report(doctor.examine_functions(store, arguments.function, sweeper=arguments.sweeper or arguments.through))
    return BAD if failed else GOOD


def _dead_ls(arguments: argparse.Namespace) -> int:
    found = operations.list_letters(
        _store(arguments),
        _printer(),
        key=_key(arguments) if arguments.key is not None else None,
        keyspace=arguments.keyspace,
        limit=arguments.limit,
        as_json=arguments.json,
        complain=_complain if arguments.json else None,
    )
    return GOOD if found else BAD


def _dead_show(arguments: argparse.Namespace) -> int:
    there = operations.show_letter(_store(arguments), _printer(), key=_key(arguments), message_id=_id(arguments.id))
    return GOOD if there else BAD


def _dead_redrive(arguments: argparse.Namespace) -> int:
    store, key, skipped = _store(arguments), _key(arguments), list[StoredFormatUnknown]()
    ids = _ids(arguments, store, key, skipped)
    there = bool(ids) and operations.redrive(
        store,
        _printer(),
        key=key,
        message_ids=ids,
        target=arguments.target,
        make_waker=LambdaWaker,
    )
    for each in skipped:
        raise each
    return GOOD if there else BAD


def _dead_purge(arguments: argparse.Namespace) -> int:
    store, key, skipped = _store(arguments), _key(arguments), list[StoredFormatUnknown]()
    ids = _ids(arguments, store, key, skipped)
    there = bool(ids) and operations.purge(store, _printer(), key=key, message_ids=ids)
    for each in skipped:
        raise each
    return GOOD if there else BAD


def _environment(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the environment, with the options that name a store in place of its variables."""
    said = {
        "INCUMBENT_PROVIDER": arguments.provider,
        "INCUMBENT_REDIS_URL": arguments.redis_url,
        "INCUMBENT_TABLE_NAME": arguments.table,
        "INCUMBENT_KEY_PREFIX": arguments.key_prefix,
    }
    return {**os.environ, **{name: value for name, value in said.items() if value}}


def _store(arguments: argparse.Namespace) -> operations.Store:
    environment = _environment(arguments)
    if environment.get("INCUMBENT_PROVIDER") == "memory":
        raise ConfigurationError("the memory provider's store is in the process that uses it: name redis or dynamodb")
    return operations.store_of(from_env(environment))


def _key(arguments: argparse.Namespace) -> str:
    """The provider's key, as the list shows it or with the application's key, of any length, behind the first slash.

    With --keyspace it is what stands behind that slash.
    """
    given = f"{arguments.keyspace}/{arguments.key}" if arguments.keyspace else arguments.key
    if is_fitted(given):
        return check_key(given)
    keyspace, key = split_key(given)
    return full_key(keyspace, key) if keyspace and (key or arguments.keyspace) else full_key("", given)


def _id(given: str) -> str:
    """The id as it is stored: the application's own, or as the list shows it."""
    return given if is_fitted(given) else str(fit_message_id(given))


def _ids(
    arguments: argparse.Namespace, store: operations.Store, key: str, skipped: list[StoredFormatUnknown]
) -> list[str]:
    if bool(arguments.ids) == arguments.all:
        raise ConfigurationError("give either the messages' ids or --all")
    if not arguments.all:
        return [_id(each) for each in arguments.ids]
    found = operations.all_of(store, key, skipped)
    if not found and not skipped:
        _printer()(operations.none_of(key))
    return found


@contextmanager
def _cloud(
    arguments: argparse.Namespace, env: Mapping[str, str], on_log: OnLog, on_invocation: OnInvocation
) -> Iterator[tuple[Cloud, Prepared]]:
    with (
        prepared(
            arguments.template,
            arguments.provider,
            redis_url=arguments.redis_url,
            parameters=dict(arguments.parameter),
            given=dict(arguments.env),
        ) as ready,
        _kind_of_cloud(ready.provider)(
            ready.declared,
            env={**QUIET, **ready.env, **env, **dict(arguments.env)},
            concurrency=arguments.concurrency,
            retry_delays_ms=arguments.retry_after,
            on_log=on_log,
            on_invocation=on_invocation,
        ) as cloud,
    ):
        yield cloud, ready


def _kind_of_cloud(provider: str) -> Any:
    return InProcessLambda if provider == "memory" else LocalLambda


def _header(arguments: argparse.Namespace, ready: Prepared) -> str:
    """On what it runs, and why, and what is not as on Lambda."""
    pauses = tuple(arguments.retry_after)
    if pauses == RETRY_DELAYS_MS:
        return f"{ready.provider}, {ready.why}"
    on_lambda = _seconds(RETRY_DELAYS_MS)
    return f"{ready.provider}, {ready.why}; retries after {_seconds(pauses)} s, on Lambda {on_lambda}"


def _seconds(pauses_ms: Sequence[int]) -> str:
    return ", ".join(f"{pause / 1_000:g}" for pause in pauses_ms)


def _plain_printer() -> Callable[[str], None]:
    """A printer of lines in which nothing is meant for the terminal."""
    say = _printer()
    return lambda line: say(printable(line, keep="\t\\"))


def _printer(stream: TextIO | None = None) -> Callable[[str], None]:
    out = stream or sys.stdout  # as it is now: in one process, what functions print is caught by replacing it

    def say(line: str) -> None:
        print(encodable(line, out.encoding or "utf-8"), file=out, flush=True)

    return say


def _fail(message: str, code: int) -> int:
    _complain(f"incumbent: {message}")
    return code


def _complain(line: str) -> None:
    line = printable(line, keep="\\")  # what is shown in it has its escapes already
    print(encodable(line, sys.stderr.encoding or "utf-8"), file=sys.stderr)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _positive(text: str) -> int:
    digits = text.lstrip("0")
    if not text.isascii() or not digits.isdigit() or len(digits) > len(str(MAX_LIMIT)) or int(digits) > MAX_LIMIT:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a whole number from 1 to {MAX_LIMIT:,}")
    return int(digits)


def _pauses(text: str) -> tuple[int, ...]:
    try:
        pauses = tuple(round(float(each) * 1_000) for each in text.split(","))
    except (ValueError, OverflowError):
        pauses = (-1,)
    if not all(0 <= pause <= _MAX_MS for pause in pauses):
        raise argparse.ArgumentTypeError(f"{text!r} is not one or more numbers of seconds, such as 60,120")
    return pauses


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
