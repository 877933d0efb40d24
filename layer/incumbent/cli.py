"""``incumbent``: run functions on this machine (docs/local.md), and look after a store (docs/operations.md)."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from incumbent import __version__, doctor, operations
from incumbent.commands.control import add_control
from incumbent.commands.dead import add_dead
from incumbent.commands.terminal import (
    BAD,
    GOOD,
    INTERRUPTED,
    USAGE,
    add_store,
    complain,
    environment_of,
    fail,
    plain,
    plain_printer,
    positive,
    printer,
    provider_of,
    store_named_by,
)
from incumbent.commands.verify import add_verify
from incumbent.errors import ConfigurationError, IncumbentError, ListIncomplete, StoredFormatUnknown
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
from incumbent.sweeper import LIMIT
from incumbent.validation import (
    json_text,
    printable,
)
from incumbent.wakers import LambdaWaker

_MAX_MS = 1_800_000  # until nothing runs or is to be retried any more
MAX_SKIPPED = 20  # records that could not be read, a line each

QUIET = {"POWERTOOLS_METRICS_DISABLED": "true"}  # their lines are for CloudWatch; --env shows them all the same


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: success. 1: a message was lost or handled twice, runs overlapped, the function failed, a dead letter does not
    exist, a function could not be woken, some records could not be read, a check failed, or there was nothing to stop,
    release, resume, cancel or show. 2: the command could not start; one line on standard error says why. 130:
    interrupted.
    """
    arguments = _parser().parse_args(words)
    command: Callable[[argparse.Namespace], int] = arguments.command
    before = signal.signal(signal.SIGTERM, _interrupt)  # so that every process is ended then, too
    try:
        return command(arguments)
    except KeyboardInterrupt:
        return fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader has closed the pipe. What Python would flush at its end has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BAD
    except TimeoutError as error:
        return fail(str(error), BAD)
    except (StoredFormatUnknown, ListIncomplete) as error:
        if not error.skipped:
            return fail(str(error), USAGE)
        if isinstance(error, ListIncomplete):
            fail("keys are missing, since not all of the store could be asked:", BAD)
        else:
            fail(f"{len(error.skipped):,} of the records could not be read, and were left as they are:", BAD)
        for each in error.skipped[:MAX_SKIPPED]:
            complain(f"  {each}")
        if len(error.skipped) > MAX_SKIPPED:
            complain(f"  and {len(error.skipped) - MAX_SKIPPED:,} more")
        return BAD
    except (IncumbentError, CannotStart, NotStarted, ImportError) as error:
        return fail(str(error), USAGE)
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
    replay.add_argument("--answers", action="store_true", help="show what each invocation answered")
    replay.add_argument(
        "--sweep", action="store_true", help="invoke the sweeper's function every minute, until nothing waits"
    )
    replay.add_argument(
        "--skip-pauses", action="store_true", help="skip the time in which nothing runs (with --provider memory)"
    )
    replay.add_argument("--html", type=Path, metavar="FILE", help="draw what happened as an HTML page")
    replay.set_defaults(command=_replay)
    _add_common(replay, concurrency=8)

    invoke = commands.add_parser("invoke", help="invoke a function once and print its answer")
    invoke.add_argument("function", help="a function's logical id or name in the template")
    invoke.add_argument("-e", "--event", type=Path, required=True, metavar="FILE", help="the event's JSON file")
    invoke.add_argument("--async", action="store_true", dest="asynchronous", help="retry it when it fails")
    invoke.set_defaults(command=_invoke)
    _add_common(invoke, concurrency=1)

    sweep = commands.add_parser("sweep", help="wake the functions of keys with waiting messages, as the sweeper does")
    sweep.add_argument("--limit", type=positive, default=LIMIT, metavar="N", help=f"wakes at most ({LIMIT})")
    sweep.add_argument("--dry-run", action="store_true", help="only look")
    sweep.set_defaults(command=_sweep)
    add_store(sweep)

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
    add_store(checkup)
    add_verify(commands.add_parser("verify", help="try a store with everything that the package promises of one"))
    add_control(commands)
    add_dead(commands.add_parser("dead", help="look after dead letters: messages that are out of attempts"))
    return parser


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
        type=positive,
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
    with _live() as (say, follow):
        replay = Replay(scenario, say, show_logs=arguments.logs, show_answers=arguments.answers)
        skips = {"skip_pauses": True} if arguments.skip_pauses else {}
        with _cloud(arguments, TRACE, replay.on_log, replay.on_invocation, **skips) as (cloud, ready):
            say(f"{scenario.description or arguments.scenario.name} ({_header(arguments, ready)})")
            sweeper = _sweeper(ready) if arguments.sweep else None
            spec = find_function(ready.declared, scenario.functions[0])  # all of them use one store
            with archive({**spec.environment, **ready.env, **dict(arguments.env)}) as find:
                follow(lambda: replay.progress)
                summary = replay.run(cloud, find, cold=arguments.cold, sweeper=sweeper)
    say = plain_printer()
    if arguments.html is not None:
        _write_page(arguments.html, replay.page(scenario.description or arguments.scenario.name, summary))
    say("")
    for line in summary_lines(summary, replay.name):
        say(line)
    return GOOD if summary.good else BAD


@contextmanager
def _live() -> Iterator[tuple[Callable[[str], None], Callable[[Callable[[], str]], None]]]:
    """Give a printer of lines, and what shows below them how far it is: in a terminal only."""
    if not sys.stdout.isatty():
        yield plain_printer(), lambda _: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    told: list[Callable[[], str]] = []
    console = Console(file=sys.stdout, highlight=False)  # as it is now, like that of a printer
    live = Live(
        get_renderable=lambda: Text(told[-1]() if told else "starting", style="dim"),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with live:
        yield lambda line: console.print(Text(plain(line)), soft_wrap=True), told.append


def _sweeper(ready: Prepared) -> str:
    """Return the template's sweeper."""
    for spec in ready.functions:
        if spec.handler == "incumbent.sweeper.handler":
            return spec.logical_id
    raise ConfigurationError("--sweep: no function of the template has the handler incumbent.sweeper.handler")


def _write_page(file: Path, page: str) -> None:
    try:
        file.write_text(page, "utf-8", errors="replace")
    except OSError as cause:
        raise ConfigurationError(f"cannot write {file}: {cause.strerror}") from cause


def _invoke(arguments: argparse.Namespace) -> int:
    event = load_json(arguments.event, "the event")
    check_size(event, asynchronous=arguments.asynchronous)
    say, errors, logs = printer(), printer(sys.stderr), plain_printer(sys.stderr)

    def on_log(line: LogLine) -> None:
        logs(line.text)

    with _cloud(arguments, {}, on_log, lambda _: None) as (cloud, ready):
        cloud.check_function(arguments.function)
        errors(printable(f"{arguments.function} ({_header(arguments, ready)})"))
        invocation = cloud.submit(arguments.function, event, asynchronous=arguments.asynchronous).result()
        cloud.wait_idle(_MAX_MS)
    say(json_text(invocation.payload if invocation.ok else invocation.error, indent=2))
    return GOOD if invocation.ok else BAD


def _sweep(arguments: argparse.Namespace) -> int:
    waker = None if arguments.dry_run else LambdaWaker()
    good = operations.sweep_by_hand(
        operations.store_of(provider_of(arguments)), printer(), limit=arguments.limit, waker=waker
    )
    return GOOD if good else BAD


def _doctor(arguments: argparse.Namespace) -> int:
    say, failed = printer(), False

    def report(checks: Iterable[doctor.Check]) -> None:
        nonlocal failed
        for check in checks:
            failed = failed or check.status == "failed"
            say(check.json() if arguments.json else check.line())

    store = environment_of(arguments)
    if arguments.through and any((arguments.provider, arguments.redis_url, arguments.table, arguments.key_prefix)):
        raise ConfigurationError("--through checks the store of that function: leave out the options that name another")
    if arguments.through:
        checks, store = doctor.examine_through(arguments.through, arguments.function)
        report(checks)
    else:
        report(doctor.examine_store(store_named_by(arguments)))
        report(doctor.examine_wakes(arguments.function))
    report(doctor.examine_functions(store, arguments.function, sweeper=arguments.sweeper or arguments.through))
    return BAD if failed else GOOD


@contextmanager
def _cloud(
    arguments: argparse.Namespace, env: Mapping[str, str], on_log: OnLog, on_invocation: OnInvocation, **settings: bool
) -> Iterator[tuple[Cloud, Prepared]]:
    with (
        prepared(
            arguments.template,
            arguments.provider,
            redis_url=arguments.redis_url,
            parameters=dict(arguments.parameter),
            given=dict(arguments.env),
        ) as ready,
        _kind_of_cloud(ready.provider, settings)(
            ready.declared,
            env={**QUIET, **ready.env, **env, **dict(arguments.env)},
            concurrency=arguments.concurrency,
            retry_delays_ms=arguments.retry_after,
            on_log=on_log,
            on_invocation=on_invocation,
            **settings,
        ) as cloud,
    ):
        yield cloud, ready


def _kind_of_cloud(provider: str, settings: Mapping[str, bool]) -> Any:
    if provider == "memory":
        return InProcessLambda
    if settings.get("skip_pauses"):
        raise ConfigurationError("--skip-pauses needs --provider memory: a server's time cannot be skipped")
    return LocalLambda


def _header(arguments: argparse.Namespace, ready: Prepared) -> str:
    """On what it runs, and why, and what is not as on Lambda."""
    pauses = tuple(arguments.retry_after)
    if pauses == RETRY_DELAYS_MS:
        return f"{ready.provider}, {ready.why}"
    on_lambda = _seconds(RETRY_DELAYS_MS)
    return f"{ready.provider}, {ready.why}; retries after {_seconds(pauses)} s, on Lambda {on_lambda}"


def _seconds(pauses_ms: Sequence[int]) -> str:
    return ", ".join(f"{pause / 1_000:g}" for pause in pauses_ms)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


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
