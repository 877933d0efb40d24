"""``incumbent ls``, ``show``, ``stop``, ``hold``, ``resume``, ``cancel`` and ``release`` as an operator meets them."""

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest

from incumbent import Claimed, Message, Origin, Wake
from incumbent.cli import main
from incumbent.operations import Store, store_of
from incumbent.providers import from_env
from incumbent.providers.dynamodb import DynamoDBProvider
from incumbent.providers.memory import MemoryProvider
from incumbent.providers.redis import RedisProvider
from incumbent.testing import stand_in
from incumbent.testing.servers import DynamoDBServer, ValkeyServer, create_table
from tests.unit.stage import StepClock

TTL_MS = 30_000
ARN = "arn:aws:lambda:eu-central-1:123456789012:function:shop-orders:live"
METHODS = ("stop", "watch", "hold", "resume", "cancel", "show", "keys")
BESIDE_MEMORY = [
    name
    for name, kind in {"redis": RedisProvider, "dynamodb": DynamoDBProvider}.items()
    if all(hasattr(kind, method) for method in METHODS)
]

Run = Callable[..., tuple[int, list[str], list[str]]]


@pytest.fixture(params=["memory", *BESIDE_MEMORY])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Store, list[Wake]]]:
    """A store that stands in, and what is woken instead of a function."""
    prefix = f"control-{uuid.uuid4().hex[:8]}"
    wakes: list[Wake] = []
    if request.param == "memory":
        with stand_in(MemoryProvider(), wakes=wakes) as provider:
            yield store_of(provider), wakes
        return
    if request.param == "redis":
        server: ValkeyServer = request.getfixturevalue("valkey_server")
        environment = {"INCUMBENT_REDIS_URL": server.url}
    else:
        table: DynamoDBServer = request.getfixturevalue("dynamodb_server")
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", table.endpoint_url)
        create_table(boto3.client("dynamodb", endpoint_url=table.endpoint_url), prefix)
        environment = {"INCUMBENT_TABLE_NAME": prefix}
    provider = from_env({"INCUMBENT_PROVIDER": request.param, "INCUMBENT_KEY_PREFIX": prefix, **environment})
    with stand_in(provider, wakes=wakes):
        yield store_of(provider), wakes


@pytest.fixture
def run(place: tuple[Store, list[Wake]], capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line on the store; return its exit code, what it printed, and what it complained of."""

    def run(*words: str) -> tuple[int, list[str], list[str]]:
        code = main(words)
        out, err = capsys.readouterr()
        return code, out.splitlines(), err.splitlines()

    return run


@pytest.fixture
def hanging(place: tuple[Store, list[Wake]]) -> Claimed:
    """A run that hangs, with a message behind it."""
    store, _ = place
    origin = Origin(keyspace="shop-orders", target=ARN)
    claimed = store.claim("shop-orders/a", "hangs", TTL_MS, Message(id="m1", event={"n": 1}), origin=origin)
    assert isinstance(claimed, Claimed)
    store.claim("shop-orders/a", "o2", TTL_MS, Message(id="m2", event={"n": 2}), origin=origin)
    return claimed


def test_keys_are_listed_a_line_each(run: Run, hanging: Claimed) -> None:
    """Who has it, for how long, and what waits for how long."""
    code, lines, _ = run("ls")
    assert code == 0
    assert lines == [
        f"shop-orders/a  the run with fence {hanging.fence} for 0 s  1 waiting for 0 s",
        "1 key",
    ]
    assert run("ls", "--running")[1][-1] == "1 running key"
    assert run("ls", "--held") == (0, ["0 held keys"], [])
    assert run("ls", "--keyspace", "shop-orders", "--waiting")[0] == 0
    code, lines, _ = run("ls", "--json")
    assert [json.loads(line)["key"] for line in lines] == ["shop-orders/a"]


def test_keyspace_that_has_no_keys_is_told_from_those_that_have(run: Run, hanging: Claimed) -> None:
    """As by ``dead ls``."""
    code, lines, errors = run("ls", "--keyspace", "orders")
    assert (code, lines) == (1, ["0 keys"])
    told = "keyspace orders has no key that runs, waits or is held; the keyspaces that have one are shop-orders"
    assert errors == [f"incumbent: {told}"]
    assert run("ls", "--keyspace", "orders", "--json")[:2] == (1, [])


def test_keyspace_that_has_drained_is_no_alarm(
    run: Run, place: tuple[Store, list[Wake]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what an operator waits for; a list that goes on says no more than that there are no keys."""
    told = "keyspace orders has no key that runs, waits or is held. If you expect one, check --key-prefix"
    assert run("ls", "--keyspace", "orders") == (1, ["0 keys"], [f"incumbent: {told}"])
    clock = StepClock()

    def end() -> None:
        raise Ended

    clock.while_sleeping = end
    monkeypatch.setattr("incumbent.commands.control.clock_in_force", lambda _: clock)
    assert run("ls", "--keyspace", "orders", "--watch") == (0, ["0 keys"], [])


def test_key_is_shown_whole(run: Run, hanging: Claimed) -> None:
    """By the whole name, or by the application's own with its keyspace; events only when asked for."""
    code, lines, _ = run("show", "shop-orders/a")
    assert code == 0
    assert lines[0] == "shop-orders/a"
    assert lines[1].startswith(f"  run       hangs, fence {hanging.fence}, since 20")
    assert "unless it is renewed" in lines[2]
    assert lines[3] == f"  function  {ARN}"
    assert lines[4] == "  running   1"
    assert lines[5].startswith("    m1  stored 20")
    assert lines[5].endswith("delivered 1 time")
    assert lines[6] == "  waiting   1"
    assert '{"n": 2}' in run("show", "a", "--keyspace", "shop-orders", "--events")[1][-1]
    code, (line,), _ = run("show", "shop-orders/a", "--json")
    assert [each["id"] for each in json.loads(line)["waiting"]] == ["m2"]
    assert "event" not in json.loads(line)["waiting"][0]
    code, lines, errors = run("show", "a")
    assert (code, lines[1]) == (1, "  run       none")
    assert errors == [
        "incumbent: a key is given with its keyspace in front, such as my-worker/a, or with --keyspace my-worker"
    ]


def test_run_is_asked_to_stop(run: Run, place: tuple[Store, list[Wake]], hanging: Claimed) -> None:
    """The live one; with the fence of another none, and the answer says which one is."""
    store, _ = place
    other = hanging.fence + 1
    assert run("stop", "shop-orders/a", "--fence", str(other)) == (
        1,
        [f"shop-orders/a: no run with fence {other} to stop; its run has fence {hanging.fence}"],
        [],
    )
    code, lines, _ = run("stop", "a", "--keyspace", "shop-orders", "--reason", "hangs\x1b[2J")
    assert (code, lines) == (0, [f"shop-orders/a: its run with fence {hanging.fence} was asked to stop"])
    assert store.beat("shop-orders/a", "hangs", TTL_MS).stop == "hangs\x1b[2J"
    assert "asked to stop: hangs\\x1b[2J" in run("ls")[1][0]
    assert run("stop", "shop-orders/b")[:2] == (1, ["shop-orders/b: no run to stop; the key has no owner"])


def test_key_is_held_and_resumed(run: Run, place: tuple[Store, list[Wake]], hanging: Claimed) -> None:
    """The run goes on; after it no other begins, until the key is resumed and its function woken."""
    store, wakes = place
    code, lines, _ = run("hold", "shop-orders/a", "--reason", "incident 12")
    assert (code, lines) == (
        0,
        [f"shop-orders/a is held until it is resumed; the run with fence {hanging.fence} goes on"],
    )
    store.settle("shop-orders/a", "hangs", ttl_ms=TTL_MS, handled=["m1"])
    assert run("ls", "--held")[1][0].startswith("shop-orders/a  held until it is resumed: incident 12  1 waiting for ")
    assert run("resume", "shop-orders/a")[:2] == (0, [f"shop-orders/a was held, and is not any more; woke {ARN}"])
    assert [(wake.key, wake.target) for wake in wakes] == [("shop-orders/a", ARN)]
    code, lines, _ = run("resume", "shop-orders/a", "--json")
    assert (code, json.loads(lines[0])["held"]) == (1, False)


def test_hold_has_an_end_if_it_is_said(run: Run) -> None:
    """In seconds."""
    code, lines, _ = run("hold", "shop-orders/b", "--for", "600", "--json")
    assert code == 0
    assert json.loads(lines[0])["key"]["held_until"].startswith("20")
    assert run("hold", "shop-orders/b", "--for", "0.5")[1][0].startswith("shop-orders/b is held until 20")


def test_waiting_message_is_cancelled(run: Run, hanging: Claimed) -> None:
    """One that runs is not, and the answer says what to do."""
    assert run("cancel", "shop-orders/a", "m2")[:2] == (0, ["m2 of shop-orders/a is cancelled"])
    assert run("cancel", "shop-orders/a", "m1")[:2] == (
        1,
        [f"m1 of shop-orders/a runs with fence {hanging.fence}: stop its run instead"],
    )
    assert run("cancel", "shop-orders/a", "m9")[:2] == (
        1,
        ["m9 of shop-orders/a is not known: it was never stored, or is forgotten"],
    )


def test_handled_message_is_not_cancelled(run: Run, place: tuple[Store, list[Wake]], hanging: Claimed) -> None:
    """Too late."""
    store, _ = place
    store.settle("shop-orders/a", "hangs", ttl_ms=TTL_MS, handled=["m1"])
    assert run("cancel", "shop-orders/a", "m1")[:2] == (1, ["m1 of shop-orders/a is handled already"])


def test_release_says_what_it_risks_before_it_does_it(
    run: Run, place: tuple[Store, list[Wake]], hanging: Claimed
) -> None:
    """With ``--force`` the next run begins at once."""
    store, wakes = place
    code, lines, errors = run("release", "shop-orders/a")
    assert (code, lines) == (2, [])
    assert "the next run begins beside it" in errors[0]
    assert "--force" in errors[0]
    assert store.get_lease_owner("shop-orders/a") == "hangs"
    code, lines, _ = run("release", "shop-orders/a", "--force")
    said = f"shop-orders/a was released from hangs with fence {hanging.fence}; woke {ARN}"
    assert (code, lines) == (0, [said])
    assert store.get_lease_owner("shop-orders/a") is None
    assert len(wakes) == 1
    assert run("release", "shop-orders/a", "--force")[:2] == (
        1,
        ["shop-orders/a has no owner: there is nothing to release"],
    )


@pytest.mark.parametrize(
    "words",
    [
        ("ls", "--limit", "1001"),
        ("ls", "--held", "--running"),
        ("stop", "a", "--fence", "-1"),
        ("stop", "a", "--fence", "9" * 5_000),
        ("hold", "a", "--for", "soon"),
        ("cancel", "a"),
    ],
)
def test_wrong_use_is_told(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """By the parser, with what is allowed."""
    with pytest.raises(SystemExit) as error:
        main(words)
    assert error.value.code == 2
    assert "usage: incumbent" in capsys.readouterr().err


def test_memory_has_no_store_to_look_at(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in another process; and --through leaves no choice of a store."""
    monkeypatch.setenv("INCUMBENT_PROVIDER", "memory")
    assert main(["ls"]) == 2
    assert "in the process that uses it" in capsys.readouterr().err
    assert main(["ls", "--through", "shop-sweeper", "--table", "leases"]) == 2
    assert "--through uses the store of that function" in capsys.readouterr().err


class Ended(KeyboardInterrupt):
    """What ends a watch."""


@pytest.mark.parametrize("as_json", [False, True])
def test_watch_prints_a_list_below_the_other_when_it_differs(
    capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    """When piped; it ends well when it is interrupted."""
    clock = StepClock()
    store: Any = MemoryProvider(clock=clock)
    store.staged_clock = clock
    looks = 0

    def meanwhile() -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            store.hold("shop-orders/a", reason="[red]incident[/red]")
        elif looks == 4:
            raise Ended

    clock.while_sleeping = meanwhile
    with stand_in(store):
        assert main(["ls", "--watch", *(["--json"] if as_json else [])]) == 0
    lines = capsys.readouterr().out.splitlines()
    if as_json:
        assert [json.loads(line)["held_reason"] for line in lines] == ["[red]incident[/red]"]
    else:
        assert lines == [
            "0 keys",
            "shop-orders/a  held until it is resumed: [red]incident[/red]",
            "1 key",
        ]


def test_terminal_gets_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Live with ``--watch``; what is stored is text in it, neither markup nor escapes."""
    clock = StepClock()
    store: Any = MemoryProvider(clock=clock)
    store.staged_clock = clock
    store.hold("shop-orders/a", reason="[red]\x1b[2J")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "120")

    def end() -> None:
        raise Ended

    clock.while_sleeping = end
    for words in (["ls"], ["ls", "--watch"]):
        with stand_in(store):
            assert main(words) == 0
        text = capsys.readouterr().out
        assert "held until it is resumed: [red]\\x1b[2J" in text
        assert "1 key" in text
        assert "\x1b[2J" not in text
