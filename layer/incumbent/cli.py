"""``incumbent``: replay scenarios and invoke functions on this machine. docs/local.md shows it."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from incumbent.errors import IncumbentError
from incumbent.local.in_process import InProcessLambda
from incumbent.local.invocations import CannotStart, Cloud, OnInvocation, OnLog
from incumbent.local.replay import TRACE, Replay
from incumbent.local.report import summary_lines
from incumbent.local.scenario import load_json, load_scenario
from incumbent.local.service import LocalLambda
from incumbent.local.stores import PROVIDERS, prepared
from incumbent.testing.processes import NotStarted

GOOD, BAD, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: all went well. 1: a message was lost or handled twice, runs overlapped, or the function failed. 2: it
    could not be tried; one line on standard error says why. 130: interrupted.
    """
    arguments = _parser().parse_args(words)
    command: Callable[[argparse.Namespace], int] = arguments.command
    before = signal.signal(signal.SIGTERM, _interrupt)  # so that every process is ended then, too
    try:
        return command(arguments)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Nobody reads any more. What Python would flush at its end has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BAD
    except TimeoutError as error:
        return _fail(str(error), BAD)
    except (IncumbentError, CannotStart, NotStarted, ImportError) as error:
        return _fail(str(error), USAGE)
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="incumbent", description="Run incumbent's functions on this machine.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    replay = commands.add_parser("replay", help="send what a scenario says, and tell what became of it")
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
    return parser


def _add_common(parser: argparse.ArgumentParser, *, concurrency: int) -> None:
    parser.add_argument("--provider", choices=PROVIDERS, default="redis")
    parser.add_argument("--redis-url", metavar="URL", help="a Redis of yours, in place of an embedded Valkey")
    parser.add_argument("--template", type=Path, default=Path("template.yaml"), metavar="FILE")
    parser.add_argument("--concurrency", type=_positive, default=concurrency, metavar="N", help="processes a function")
    for option, what in (("--parameter", "a parameter of the template"), ("--env", "a variable of the functions")):
        parser.add_argument(option, type=_pair, action="append", default=[], metavar="NAME=VALUE", help=what)


def _replay(arguments: argparse.Namespace) -> int:
    scenario = load_scenario(arguments.scenario)
    say = _printer()
    replay = Replay(scenario, say, show_logs=arguments.logs)
    with _cloud(arguments, TRACE, replay.on_log, replay.on_invocation) as cloud:
        if scenario.description:
            say(f"{scenario.description} ({arguments.provider})")
        summary = replay.run(cloud, cold=arguments.cold)
    say("")
    for line in summary_lines(summary):
        say(line)
    return GOOD if summary.good else BAD


def _invoke(arguments: argparse.Namespace) -> int:
    event = load_json(arguments.event, "the event")
    say, errors = _printer(), sys.stderr
    with _cloud(arguments, {}, lambda line: print(line.text, file=errors), lambda _: None) as cloud:
        invocation = cloud.submit(arguments.function, event, asynchronous=arguments.asynchronous).result()
        cloud.wait_idle()
    say(json.dumps(invocation.payload if invocation.ok else invocation.error, indent=2, ensure_ascii=False))
    return GOOD if invocation.ok else BAD


@contextmanager
def _cloud(
    arguments: argparse.Namespace, env: Mapping[str, str], on_log: OnLog, on_invocation: OnInvocation
) -> Iterator[Cloud]:
    kind: Any = InProcessLambda if arguments.provider == "memory" else LocalLambda
    with (
        prepared(
            arguments.template,
            arguments.provider,
            redis_url=arguments.redis_url,
            parameters=dict(arguments.parameter),
        ) as ready,
        kind(
            ready.functions,
            env={**ready.env, **env, **dict(arguments.env)},
            concurrency=arguments.concurrency,
            on_log=on_log,
            on_invocation=on_invocation,
        ) as cloud,
    ):
        yield cloud


def _printer() -> Callable[[str], None]:
    out = sys.stdout  # as it is now: in one process, what functions print is caught by replacing it

    def say(line: str) -> None:
        print(line, file=out, flush=True)

    return say


def _fail(message: str, code: int) -> int:
    print(f"incumbent: {message}", file=sys.stderr)
    return code


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
