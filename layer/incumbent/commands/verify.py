"""``incumbent verify``: try a store, or a deployed stack, with everything that the package promises."""

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

from incumbent.commands.terminal import BAD, GOOD, USAGE, add_store, complain, fail, positive, printer, store_named_by
from incumbent.doctor import Check
from incumbent.errors import ConfigurationError

PARTS = ("pairs", "replies", "conformance", "failover")


def add_verify(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--only", action="append", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}; repeatable"
    )
    parser.add_argument("--matching", default="", metavar="TEXT", help="only tests and calls with this in their name")
    parser.add_argument("--fail-over", action="store_true", help="trigger a coordinated fail-over of a cluster")
    parser.add_argument("--seconds", type=positive, default=30, metavar="N", help="of load around the fail-over (30)")
    parser.add_argument("--remove", type=_run_name, metavar="RUN", help="only remove what a killed run has left")
    parser.add_argument("--stack", metavar="NAME", help="try the functions of a stack instead, by its outputs")
    parser.add_argument("--yes", action="store_true", help="do not ask before the first request")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    for what, default in (("writes", 0.625), ("reads", 0.125)):
        parser.add_argument(
            f"--price-{what}", type=float, default=default, metavar="DOLLARS", help=f"for a million units ({default})"
        )
    parser.set_defaults(command=_verify)
    add_store(parser)


def _verify(arguments: argparse.Namespace) -> int:
    if arguments.stack:
        return _verify_stack(arguments)
    if find_spec("pytest") is None:
        return fail("verify needs pytest: pip install pytest", USAGE)
    from incumbent.verify import run
    from incumbent.verify.store import store_of

    report = _Report(as_json=arguments.json)
    store = store_of(store_named_by(arguments))
    if arguments.remove:
        report.add([run.removed(store, arguments.remove)])
        return report.code
    parts = [part for part in PARTS if part in (arguments.only or PARTS)]
    prices = {"price_writes": arguments.price_writes, "price_reads": arguments.price_reads}
    report.add(run.planned(store, parts, matching=arguments.matching, **prices))
    if report.code == GOOD and _may_begin(yes=arguments.yes):
        fail_over = _fail_over(arguments, store)
        try:
            report.add(
                run.verified(store, parts, matching=arguments.matching, fail_over=fail_over, seconds=arguments.seconds)
            )
        finally:  # also after Ctrl-C
            report.add(run.emptied(store, **prices))
    else:
        store.close()
    return report.code


def _verify_stack(arguments: argparse.Namespace) -> int:
    of_store = ("provider", "redis_url", "table", "key_prefix", "only", "matching", "fail_over", "remove")
    if any(getattr(arguments, name) for name in of_store):
        raise ConfigurationError("--stack sends messages to the stack's functions: leave out the options of a store")
    from incumbent.verify.stack import INVOCATIONS, Stack, StackTrial

    report = _Report(as_json=arguments.json)
    stack = Stack(arguments.stack)
    found = f"about {INVOCATIONS} invocations of {stack.function} and {stack.sweeper}, and the requests that they make"
    report.add([Check.ok("plan", found)])
    if _may_begin(yes=arguments.yes):
        report.add(StackTrial(stack).checks())
    return report.code


class _Report:
    """Prints checks, and knows whether one has failed."""

    def __init__(self, *, as_json: bool) -> None:
        self.code = GOOD
        self._as_json = as_json
        self._say = printer()

    def add(self, checks: Iterable[Check]) -> None:
        for check in checks:
            if check.status == "failed":
                self.code = BAD
            self._say(check.json() if self._as_json else check.line())


def _run_name(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{8}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a run: eight hexadecimal digits")
    return text


def _may_begin(*, yes: bool) -> bool:
    """Ask whether to begin."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigurationError("verify asks before its first write, and there is no terminal to ask: add --yes")
    complain("Begin? [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _fail_over(arguments: argparse.Namespace, store: Any) -> Callable[[], str | None] | None:
    """Return what triggers the fail-over: this command, or an operator who is asked; ``None`` for neither."""
    from incumbent.verify.run import own_fail_over

    if arguments.fail_over:
        return own_fail_over(store)
    if "failover" not in (arguments.only or ()) and not sys.stdin.isatty():
        return None

    def ask() -> None:
        complain(f"Trigger the fail-over now: the load goes on for {arguments.seconds} s")

    return ask
