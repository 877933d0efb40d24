"""``incumbent dead``: look after dead letters."""

import argparse

from incumbent import operations
from incumbent.commands.terminal import BAD, GOOD, add_store, complain, id_of, key_of, positive, printer, provider_of
from incumbent.errors import ConfigurationError
from incumbent.wakers import LambdaWaker


def add_dead(parser: argparse.ArgumentParser) -> None:
    """Add the commands."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser(
        "ls", help="list dead letters; without a key those of all keys, which reads the whole store"
    )
    listing.add_argument("key", nargs="?", help="a key, with its keyspace in front as the list shows it")
    listing.add_argument("--limit", type=positive, default=100, metavar="N", help="the maximum number (100)")
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
        add_store(command)


def _dead_ls(arguments: argparse.Namespace) -> int:
    found = operations.list_letters(
        _store(arguments),
        printer(),
        key=key_of(arguments) if arguments.key is not None else None,
        keyspace=arguments.keyspace,
        limit=arguments.limit,
        as_json=arguments.json,
        complain=complain if arguments.json else None,
    )
    return GOOD if found else BAD


def _dead_show(arguments: argparse.Namespace) -> int:
    there = operations.show_letter(_store(arguments), printer(), key=key_of(arguments), message_id=id_of(arguments.id))
    return GOOD if there else BAD


def _dead_redrive(arguments: argparse.Namespace) -> int:
    store, key, skipped = _store(arguments), key_of(arguments), list[operations.Unread]()
    ids = _ids(arguments, store, key, skipped)
    there = bool(ids) and operations.redrive(
        store,
        printer(),
        key=key,
        message_ids=ids,
        target=arguments.target,
        make_waker=LambdaWaker,
    )
    for each in skipped:
        raise each
    return GOOD if there else BAD


def _dead_purge(arguments: argparse.Namespace) -> int:
    store, key, skipped = _store(arguments), key_of(arguments), list[operations.Unread]()
    ids = _ids(arguments, store, key, skipped)
    there = bool(ids) and operations.purge(store, printer(), key=key, message_ids=ids)
    for each in skipped:
        raise each
    return GOOD if there else BAD


def _ids(
    arguments: argparse.Namespace, store: operations.Store, key: str, skipped: list[operations.Unread]
) -> list[str]:
    if bool(arguments.ids) == arguments.all:
        raise ConfigurationError("give either the messages' ids or --all")
    if not arguments.all:
        return [id_of(each) for each in arguments.ids]
    found = operations.all_of(store, key, skipped)
    if not found and not skipped:
        printer()(operations.none_of(key))
    return found


def _store(arguments: argparse.Namespace) -> operations.Store:
    return operations.store_of(provider_of(arguments))
