"""What the commands at a terminal share: how they print and fail, and which store and key their options name."""

import argparse
import os
import sys
from collections.abc import Callable
from typing import TextIO

from incumbent.errors import ConfigurationError
from incumbent.keyspaces import full_key, split_key
from incumbent.providers import from_env
from incumbent.stand_in import STAND_IN
from incumbent.validation import MAX_LIMIT, check_key, encodable, fit_message_id, is_fitted, printable, shown

GOOD, BAD, USAGE, INTERRUPTED = 0, 1, 2, 130


def plain(line: str) -> str:
    """A line of a function, in which nothing is meant for the terminal.

    The runtime client indents tracebacks by U+00A0, which is printed as a space.
    """
    return printable(line.replace("\xa0", " "), keep="\t\\")


def plain_printer(stream: TextIO | None = None) -> Callable[[str], None]:
    """A printer of such lines to standard output, or to the given stream."""
    say = printer(stream)
    return lambda line: say(plain(line))


def printer(stream: TextIO | None = None) -> Callable[[str], None]:
    """Return a printer of lines to standard output, or to the given stream."""
    out = stream or sys.stdout  # as it is now: in one process, what functions print is caught by replacing it

    def say(line: str) -> None:
        print(encodable(line, out.encoding or "utf-8"), file=out, flush=True)

    return say


def fail(message: str, code: int) -> int:
    """Print why the command failed, and return its exit code."""
    complain(f"incumbent: {message}")
    return code


def complain(line: str) -> None:
    """Print a line to standard error."""
    line = printable(line, keep="\\")  # what is shown in it has its escapes already
    print(encodable(line, sys.stderr.encoding or "utf-8"), file=sys.stderr)


def positive(text: str) -> int:
    """Read a whole number from 1."""
    digits = text.lstrip("0")
    if not text.isascii() or not digits.isdigit() or len(digits) > len(str(MAX_LIMIT)) or int(digits) > MAX_LIMIT:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a whole number from 1 to {MAX_LIMIT:,}")
    return int(digits)


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a store."""
    parser.add_argument("--provider", choices=("redis", "dynamodb"), help="else INCUMBENT_PROVIDER")
    parser.add_argument("--redis-url", metavar="URL", help="else INCUMBENT_REDIS_URL")
    parser.add_argument("--table", metavar="NAME", help="else INCUMBENT_TABLE_NAME")
    parser.add_argument("--key-prefix", metavar="PREFIX", help="else INCUMBENT_KEY_PREFIX")


def environment_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the environment, with the options that name a store in place of its variables.

    A Redis or a table that is named is the store, whatever ``INCUMBENT_PROVIDER`` says.
    """
    implied = {"redis": arguments.redis_url, "dynamodb": arguments.table}
    stores = [name for name, given in implied.items() if given]
    said = {
        "INCUMBENT_PROVIDER": arguments.provider or (stores[0] if len(stores) == 1 else None),
        "INCUMBENT_REDIS_URL": arguments.redis_url,
        "INCUMBENT_TABLE_NAME": arguments.table,
        "INCUMBENT_KEY_PREFIX": arguments.key_prefix,
    }
    return {**os.environ, **{name: value for name, value in said.items() if value}}


def store_named_by(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the environment, if it or the options name a store. Raises ``ConfigurationError``."""
    environment = environment_of(arguments)
    if not environment.get("INCUMBENT_PROVIDER"):
        raise ConfigurationError("no store is named: give --redis-url or --table, or set INCUMBENT_PROVIDER")
    return environment


def provider_of(arguments: argparse.Namespace) -> object:
    """Return the provider of the store that the options or the environment name; a test's stand-in goes before it."""
    if STAND_IN.provider is not None:
        return STAND_IN.provider
    environment = store_named_by(arguments)
    if environment["INCUMBENT_PROVIDER"] == "memory":
        raise ConfigurationError("the memory provider's store is in the process that uses it: name redis or dynamodb")
    return from_env(environment)


def key_of(arguments: argparse.Namespace) -> str:
    """The provider's key, as the list shows it or with the application's key, of any length, behind the first slash.

    With --keyspace it is what stands behind that slash.
    """
    given = f"{arguments.keyspace}/{arguments.key}" if arguments.keyspace else arguments.key
    if is_fitted(given):
        return check_key(given)
    keyspace, key = split_key(given)
    return full_key(keyspace, key) if keyspace and (key or arguments.keyspace) else full_key("", given)


def id_of(given: str) -> str:
    """The id as it is stored: the application's own, or as the list shows it."""
    return given if is_fitted(given) else str(fit_message_id(given))
