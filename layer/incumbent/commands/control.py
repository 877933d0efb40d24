"""``incumbent ls``, ``show``, ``stop``, ``hold``, ``resume``, ``cancel`` and ``release``: see and control live keys."""

import argparse
import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from incumbent import control_requests
from incumbent.clock import SYSTEM_CLOCK
from incumbent.commands.terminal import BAD, GOOD, add_store, complain, id_of, key_of, positive, printer, provider_of
from incumbent.control_requests import MAX_KEYS, Object
from incumbent.errors import ConfigurationError
from incumbent.operations import key_hint, similar_first
from incumbent.stand_in import clock_in_force
from incumbent.validation import json_text, printable, shown
from incumbent.wakers import LambdaWaker

Say: TypeAlias = Callable[[str], None]

WATCH_MS = 2_000
_HEAD = ("key", "state", "messages", "more")
_SHORT = 100
_FENCE_DIGITS = 19
_RISK = (
    "release frees a key whose run may still go on: the next run begins beside it. The late run cannot settle its "
    "messages any more, and each of them counts as a delivery that died and runs again; only the fence keeps the late "
    "run from other systems. Hold the key and stop its run first; then repeat this with --force"
)


class _Commands(Protocol):
    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser: ...  # noqa: A002 - argparse's


def add_control(commands: _Commands) -> None:
    """Add the commands."""
    listing = commands.add_parser("ls", help="list the keys that have a run or messages, or are held")
    listing.add_argument("--keyspace", metavar="NAME", help="only of this keyspace")
    which = listing.add_mutually_exclusive_group()
    for only, what in (("held", "are held"), ("running", "have an owner"), ("waiting", "have messages that wait")):
        which.add_argument(f"--{only}", action="store_const", const=only, dest="only", help=f"only keys that {what}")
    listing.add_argument("--limit", type=_keys, default=100, metavar="N", help="the maximum number (100)")
    listing.add_argument("--watch", action="store_true", help="list again every 2 s, until interrupted")
    listing.set_defaults(command=_ls)
    show = commands.add_parser("show", help="show a key: its run, its messages, and what holds it back")
    show.add_argument("--events", action="store_true", help="with the events of its messages")
    show.set_defaults(command=_show)
    stop = commands.add_parser("stop", help="ask the run of a key to stop")
    stop.add_argument("--fence", type=_fence, metavar="N", help="only if this is the fence of the run")
    stop.set_defaults(command=_stop)
    hold = commands.add_parser("hold", help="let no further run of a key begin, until it is resumed")
    hold.add_argument("--for", type=_seconds, dest="for_ms", metavar="SECONDS", help="end the hold by itself")
    hold.set_defaults(command=_hold)
    resume = commands.add_parser("resume", help="end a hold, and wake the function if a message is due")
    resume.set_defaults(command=_resume)
    cancel = commands.add_parser("cancel", help="remove a message that waits")
    cancel.set_defaults(command=_cancel)
    release = commands.add_parser("release", help="free a key whose run hangs; it says what that risks")
    release.add_argument("--force", action="store_true", help="take the risk")
    release.set_defaults(command=_release)
    for command in (stop, hold):
        command.add_argument("--reason", metavar="TEXT", help="why, for others who look at the key")
    for command in (show, stop, hold, resume, cancel, release):
        command.add_argument("key", help="the key, with its keyspace in front as the list shows it")
        command.add_argument("--keyspace", metavar="NAME", help="the keyspace; the key is then the application's own")
    cancel.add_argument("id", help="the message's id")
    for command in (listing, show, stop, hold, resume, cancel, release):
        command.add_argument("--json", action="store_true", help="print JSON, one object a line")
        command.add_argument(
            "--through", metavar="FUNCTION", help="let the sweeper's function do it, from inside its VPC"
        )
        add_store(command)


def _ask(arguments: argparse.Namespace) -> Callable[[Object], Object]:
    """Return what carries out requests: the sweeper's function, or this process."""
    if arguments.through:
        if any((arguments.provider, arguments.redis_url, arguments.table, arguments.key_prefix)):
            raise ConfigurationError("--through uses the store of that function: leave out the options that name one")
        return lambda request: control_requests.ask(arguments.through, request)
    provider = control_requests.controlled(provider_of(arguments))
    return lambda request: control_requests.carry_out(provider, request, make_waker=LambdaWaker)


def _ls(arguments: argparse.Namespace) -> int:
    ask = _ask(arguments)
    request = {"do": "keys", "keyspace": arguments.keyspace, "only": arguments.only, "limit": arguments.limit}
    if arguments.watch:
        return _watch(lambda: ask(request), arguments)
    answer = ask(request)
    if sys.stdout.isatty() and not arguments.json:
        _table_printer()(answer["keys"])
    else:
        _print_keys(answer["keys"], as_json=arguments.json)
    if not arguments.json:
        printer()(_end(answer, arguments))
    for each in answer["unread"]:
        complain(f"incumbent: {each}")
    if arguments.keyspace and not answer["there"]:
        complain(f"incumbent: {_no_keyspace(arguments.keyspace, answer['keyspaces'])}")
        return BAD
    return BAD if answer["unread"] else GOOD


def _watch(look: Callable[[], Object], arguments: argparse.Namespace) -> int:
    """List again and again: in a terminal in one place, else below one another, each time that the list differs."""
    clock, before = clock_in_force(SYSTEM_CLOCK), None
    try:
        if sys.stdout.isatty() and not arguments.json:
            from rich.live import Live

            with Live(auto_refresh=False) as live:
                while True:
                    answer = look()
                    live.update(_table(answer["keys"], caption=_end(answer, arguments)), refresh=True)
                    clock.sleep_ms(WATCH_MS)
        while True:
            answer = look()
            lines = [_line(each) for each in answer["keys"]]
            if lines != before:
                _print_keys(answer["keys"], as_json=arguments.json)
                if not arguments.json:
                    printer()(_end(answer, arguments))
                before = lines
            clock.sleep_ms(WATCH_MS)
    except KeyboardInterrupt:  # how it ends
        return GOOD


def _show(arguments: argparse.Namespace) -> int:
    ask, key, say = _ask(arguments), key_of(arguments), printer()
    found = ask({"do": "show", "key": key, "events": arguments.events})["key"]
    if arguments.json:
        say(json_text(found))
    else:
        for line in _sheet(found):
            say(printable(line))
    there = bool(found["owner"] or found["running"] or found["waiting"] or found["held"])
    if not there and not arguments.json:
        _hint(key)
    return GOOD if there else BAD


def _stop(arguments: argparse.Namespace) -> int:
    answer, tell = _carry_out(arguments, "stop", fence=arguments.fence, reason=arguments.reason)
    found = answer["key"]
    if answer["fence"] is not None:
        tell(f"{found['key']}: its run with fence {answer['fence']} was asked to stop")
        return GOOD
    if found["owner"]:
        tell(f"{found['key']}: no run with fence {arguments.fence} to stop; its run has fence {found['fence']}")
    else:
        tell(f"{found['key']}: no run to stop; the key has no owner")
        _hint(found["key"])
    return BAD


def _hold(arguments: argparse.Namespace) -> int:
    answer, tell = _carry_out(arguments, "hold", for_ms=arguments.for_ms, reason=arguments.reason)
    found = answer["key"]
    until = f"until {found['held_until']}" if found["held_until"] else "until it is resumed"
    tell(f"{found['key']} is held {until}" + (f"; {_owner(found)} goes on" if found["owner"] else ""))
    return GOOD


def _resume(arguments: argparse.Namespace) -> int:
    answer, tell = _carry_out(arguments, "resume")
    was = "was held, and is not any more" if answer["held"] else "was not held"
    good = _tell_wake(answer, tell, f"{answer['key']['key']} {was}")
    return GOOD if good and answer["held"] else BAD


def _cancel(arguments: argparse.Namespace) -> int:
    message_id = id_of(arguments.id)
    answer, tell = _carry_out(arguments, "cancel", id=message_id)
    key, message = answer["key"]["key"], answer["message"]
    match message["state"]:
        case "cancelled":
            tell(f"{message_id} of {key} is cancelled")
            return GOOD
        case "running":
            tell(f"{message_id} of {key} runs with fence {message['fence']}: stop its run instead")
        case "unknown":
            tell(f"{message_id} of {key} is not known: it was never stored, or is forgotten")
            _hint(key)
        case state:
            tell(f"{message_id} of {key} is {state} already")
    return BAD


def _release(arguments: argparse.Namespace) -> int:
    if not arguments.force:
        raise ConfigurationError(f"{key_of(arguments)}: {_RISK}")
    answer, tell = _carry_out(arguments, "release")
    key, was = answer["key"]["key"], answer["released"]
    if was is None:
        tell(f"{key} has no owner: there is nothing to release")
        _hint(key)
        return BAD
    good = _tell_wake(answer, tell, f"{key} was released from {was['owner']} with fence {was['fence']}")
    return GOOD if good else BAD


def _carry_out(arguments: argparse.Namespace, do: str, **said: Any) -> tuple[Object, Say]:
    """Carry out a request on one key. Return its answer, and what prints text: nothing if the answer was printed."""
    answer = _ask(arguments)({"do": do, "key": key_of(arguments), **said})
    say = printer()
    if arguments.json:
        say(json_text(answer))
        return answer, lambda _: None
    return answer, lambda line: say(printable(line))


def _tell_wake(answer: Object, tell: Say, done: str) -> bool:
    """Print what was done and who runs the key next. Return whether no wake failed."""
    found = answer["key"]
    if answer["wake_error"]:
        tell(f"{done}; no function could be woken ({answer['wake_error']}): the next message or the sweeper starts it")
        return False
    if answer["woken"]:
        tell(f"{done}; woke {answer['woken']}")
    elif found["owner"]:
        tell(f"{done}; {_owner(found)} goes on")
    elif found["held"]:
        tell(f"{done}; it is held, so no run begins")
    else:
        tell(f"{done}; nothing is due")
    return True


def _hint(key: str) -> None:
    if hint := key_hint(key):
        complain(f"incumbent: {hint}")


def _no_keyspace(wanted: str, known: list[str]) -> str:
    none = f"keyspace {wanted} has no key that runs, waits or is held"
    if not known:
        return f"{none}. If you expect one, check --key-prefix"
    return f"{none}; the keyspaces that have one are {similar_first(wanted, known)}"


def _end(answer: Object, arguments: argparse.Namespace) -> str:
    number = len(answer["keys"])
    if answer["more"]:
        return f"the first {number:,} keys; --limit shows more"
    kind = f"{arguments.only} " if arguments.only else ""
    return f"{number:,} {kind}key{'' if number == 1 else 's'}"


def _print_keys(keys: list[Object], *, as_json: bool) -> None:
    say = printer()
    for each in keys:
        say(json_text(each) if as_json else _line(each))


def _line(found: Object) -> str:
    return "  ".join(printable(cell) for cell in _cells(found) if cell)


def _cells(found: Object) -> tuple[str, str, str, str]:
    """Return what a list shows of a key: its name, who has it, what waits, and what else there is to know."""
    state = [f"{_owner(found)} for {_span(found['age_ms'])}"] if found["owner"] else []
    state += [_held(found)] if found["held"] else []
    state += [f"quiet until {found['quiet_until']}"] if found["quiet_until"] else []
    waits = f"{found['waiting']:,} waiting for {_span(found['oldest_ms'])}" if found["waiting"] else ""
    more = [_stop_mark(found)] if found["stop"] is not None else []
    more += [f"note {json_text(found['note'])[:_SHORT]}"] if found["note"] is not None else []
    return found["key"], ", ".join(state) or "free", waits, ", ".join(more)


def _owner(found: Object) -> str:
    return f"the run with fence {found['fence']}"


def _held(found: Object) -> str:
    until = f"until {found['held_until']}" if found["held_until"] else "until it is resumed"
    return f"held {until}" + (f": {found['held_reason']}" if found["held_reason"] else "")


def _stop_mark(found: Object) -> str:
    return "asked to stop" + (f": {found['stop']}" if found["stop"] else "")


def _sheet(found: Object) -> list[str]:
    """Return the lines that show one key."""
    lines = [found["key"]]
    if found["owner"]:
        ends = _span(found["expires_in_ms"])
        lines.append(f"  run       {found['owner']}, fence {found['fence']}, since {found['since']}")
        lines.append(f"            for {_span(found['age_ms'])}; its lease ends in {ends} unless it is renewed")
    else:
        lines.append("  run       none")
    if found["held"]:
        lines.append(f"  hold      {_held(found)}")
    if found["quiet_until"]:
        lines.append(f"  quiet     until {found['quiet_until']}: a burst is collected")
    if found["stop"] is not None:
        lines.append(f"  stop      {_stop_mark(found)}")
    if found["note"] is not None:
        lines.append(f"  note      {json_text(found['note'])}")
    lines.append(f"  function  {found['target'] or 'none is recorded'}")
    for name in ("running", "waiting"):
        lines.append(f"  {name}   {len(found[name]):,}")
        lines += [f"    {_message(each)}" for each in found[name]]
    return lines


def _message(message: Object) -> str:
    words = [message["id"], f"stored {message['stored_at']}, {_span(message['age_ms'])} ago"]
    words.append(f"delivered {message['attempts']}" + (" time" if message["attempts"] == 1 else " times"))
    if message["due_in_ms"]:
        words.append(f"due in {_span(message['due_in_ms'])}")
    if message["last_error"]:
        words.append(message["last_error"].partition("\n")[0][:_SHORT])
    if "event" in message:
        words.append(json_text(message["event"]))
    return "  ".join(words)


def _span(ms: int | None) -> str:
    return "?" if ms is None else f"{ms // 1_000:,} s"


def _table_printer() -> Callable[[list[Object]], None]:
    from rich.console import Console

    console = Console()
    return lambda keys: console.print(_table(keys))


def _table(keys: list[Object], *, caption: str | None = None) -> Any:
    """Return a table of rich; what is stored is shown as text, never as rich's markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*_HEAD, caption=caption)
    for each in keys:
        table.add_row(*(Text(printable(cell)) for cell in _cells(each)))
    return table


def _keys(text: str) -> int:
    number = positive(text)
    if number > MAX_KEYS:
        raise argparse.ArgumentTypeError(f"{text} is more than {MAX_KEYS:,}")
    return number


def _fence(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _FENCE_DIGITS):
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a fence: give the whole number that show prints")
    return int(text)


def _seconds(text: str) -> int:
    try:
        ms = round(float(text) * 1_000)
    except (ValueError, OverflowError):
        ms = 0
    if ms < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, such as 600")
    return ms
