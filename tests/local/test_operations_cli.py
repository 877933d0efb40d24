"""``incumbent dead`` and ``incumbent sweep`` as somebody at a terminal meets them, on Valkey and on DynamoDB."""

import io
import json
import os
import sys
import uuid
from collections.abc import Callable

import boto3
import pytest
import redis

from incumbent import Failure, Message, Origin, Policy, send
from incumbent.cli import main
from incumbent.keyspaces import full_key
from incumbent.operations import Store, store_of
from incumbent.providers import from_env
from incumbent.providers.redis import RedisProvider
from incumbent.testing.servers import DynamoDBServer, ValkeyServer, create_table
from tests.redis_records import edit

TTL_MS = 30_000
ONCE = Policy(max_attempts=1)

Run = Callable[..., tuple[int, list[str]]]


@pytest.fixture(params=["redis", "dynamodb"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Store, list[str]]:
    """A store, and the options that name it."""
    prefix = f"cli-{uuid.uuid4().hex[:8]}"
    if request.param == "redis":
        server: ValkeyServer = request.getfixturevalue("valkey_server")
        options = ["--provider", "redis", "--redis-url", server.url]
        environment = {"INCUMBENT_REDIS_URL": server.url}
    else:
        table: DynamoDBServer = request.getfixturevalue("dynamodb_server")
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", table.endpoint_url)
        create_table(boto3.client("dynamodb", endpoint_url=table.endpoint_url), prefix)
        options = ["--provider", "dynamodb", "--table", prefix]
        environment = {"INCUMBENT_TABLE_NAME": prefix}
    environment |= {"INCUMBENT_PROVIDER": request.param, "INCUMBENT_KEY_PREFIX": prefix}
    return store_of(from_env(environment)), [*options, "--key-prefix", prefix]


@pytest.fixture
def run(place: tuple[Store, list[str]], capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line on the store; return its exit code and its lines."""
    _, options = place

    def run(*words: str) -> tuple[int, list[str]]:
        code = main([*words, *options])
        out, err = capsys.readouterr()
        return code, (out or err).splitlines()

    return run


@pytest.fixture
def letters(place: tuple[Store, list[str]]) -> Store:
    """Two dead letters of one key."""
    store, _ = place
    for number in (1, 2):
        message = Message(id=f"m{number}", event={"number": number})
        store.claim("orders/a", f"o{number}", TTL_MS, message, policy=ONCE, origin=Origin(keyspace="orders"))
        store.release_lease("orders/a", f"o{number}")
    store.claim("orders/a", "o3", TTL_MS, None, policy=ONCE)
    return store


def test_dead_letters_are_listed_shown_and_purged(letters: Store, run: Run) -> None:
    """By the whole key as it is listed, or by the application's own with its keyspace."""
    code, lines = run("dead", "ls")
    assert code == 0
    assert [line.split()[:2] for line in lines[:2]] == [["orders/a", "m1"], ["orders/a", "m2"]]
    assert run("dead", "ls", "a", "--keyspace", "orders") == (0, lines)
    code, lines = run("dead", "show", "a", "m2", "--keyspace", "orders")
    assert (code, json.loads("\n".join(lines))["event"]) == (0, {"number": 2})
    assert run("dead", "purge", "orders/a", "m2") == (0, ["m2 is gone from the dead letters of orders/a"])
    assert run("dead", "show", "orders/a", "m2") == (1, ["orders/a has no dead letter m2"])
    assert run("dead", "purge", "orders/a", "--all") == (0, ["m1 is gone from the dead letters of orders/a"])
    assert run("dead", "ls", "orders/a") == (0, ["0 dead letters"])
    hint = "a key is given with its keyspace in front, such as my-worker/a, or with --keyspace my-worker"
    assert run("dead", "ls", "a") == (0, ["0 dead letters", hint])
    assert run("dead", "show", "a", "m1") == (1, [f"a has no dead letter m1: {hint}"])
    assert run("dead", "ls", "a", "--json") == (0, [])


@pytest.fixture
def spoil(place: tuple[Store, list[str]], letters: Store, request: pytest.FixtureRequest) -> None:
    """One of the two dead letters of orders/a is of a later version."""
    _, options = place
    if isinstance(letters, RedisProvider):
        bare = redis.Redis.from_url(options[3])
        edit(bare, f"{{{options[-1]}:lease:orders/a}}:letters", {1: 2}, field="mm1")
    else:
        server: DynamoDBServer = request.getfixturevalue("dynamodb_server")
        client = boto3.client("dynamodb", endpoint_url=server.endpoint_url)
        (letter,) = client.query(
            TableName=options[3],
            KeyConditionExpression="pk = :pk AND begins_with(sk, :names)",
            ExpressionAttributeValues={":pk": {"S": f"{options[-1]}#orders/a"}, ":names": {"S": "dead#m1#"}},
        )["Items"]
        client.update_item(
            TableName=options[3],
            Key={"pk": letter["pk"], "sk": letter["sk"]},
            UpdateExpression="SET v = :v",
            ExpressionAttributeValues={":v": {"N": "2"}},
        )


def test_odd_letter_hides_no_other(
    spoil: None, place: tuple[Store, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """M12: the others are listed, shown, put back and purged; which one could not be read is said at the end."""

    def run(*words: str) -> tuple[int, list[str], str]:
        code = main([*words, *place[1]])
        out, err = capsys.readouterr()
        return code, out.splitlines(), err

    for words in (("dead", "ls"), ("dead", "ls", "orders/a"), ("dead", "ls", "--keyspace", "orders")):
        code, lines, err = run(*words)
        assert (code, [line.split()[1] for line in lines]) == (1, ["m2", "dead"]), words
        assert "1 of the records could not be read" in err
        assert "'orders/a'" in err
        assert "m1" in err
    code, lines, err = run("dead", "ls", "--json")
    assert (code, [json.loads(line)["id"] for line in lines]) == (1, ["m2"])
    assert run("dead", "show", "orders/a", "m2")[0] == 0
    code, lines, err = run("dead", "show", "orders/a", "m1")
    assert (code, lines) == (1, ["orders/a has no dead letter m1 that can be read"])
    assert "could not be read" in err
    code, lines, err = run("dead", "purge", "orders/a", "m1", "m9")
    assert (code, len(lines)) == (1, 2)
    assert "version" in lines[0]
    code, lines, err = run("dead", "redrive", "orders/a", "--all")
    assert (code, lines[0]) == (1, "m2 is back in the mailbox of orders/a")
    assert "could not be read" in err
    code, lines, err = run("dead", "purge", "orders/a", "--all")
    assert (code, lines) == (1, [])
    assert "could not be read" in err


def test_dead_letters_are_redriven(letters: Store, run: Run) -> None:
    """All of a key; what is not there is an error."""
    code, lines = run("dead", "redrive", "orders/a", "--all")
    assert code == 1  # as of a sweep that could not wake
    assert lines[:2] == ["m1 is back in the mailbox of orders/a", "m2 is back in the mailbox of orders/a"]
    assert lines[2].startswith("no function was woken, since no target is known")
    assert [message.id for message in letters.peek("orders/a")] == ["m1", "m2"]
    assert run("dead", "redrive", "orders/a", "m1") == (1, ["orders/a has no dead letter m1"])


def test_orphans_are_looked_at(letters: Store, run: Run) -> None:
    """The dry run wakes nobody and says whom it would."""
    run("dead", "redrive", "orders/a", "--all")
    code, lines = run("sweep", "--dry-run")
    assert code == 0
    assert lines == ["orders/a  2 messages for 0 s  no target is recorded", "1 orphan; no function was woken"]
    code, lines = run("sweep")
    assert code == 1
    assert lines[-1] == "1 orphan: 1 without a target"


@pytest.mark.parametrize("words", [("dead", "redrive", "orders/a", "--all", "--target", "orders:live"), ("sweep",)])
def test_a_wake_without_a_region_is_told_in_a_line(
    letters: Store, run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Both commands say what to set, and exit with the same code."""
    assert letters.redrive("orders/a", "m1")
    letters.claim(  # leaves a target behind
        "orders/a", "o4", TTL_MS, Message(id="m9", event={}), origin=Origin(keyspace="orders", target="orders:live")
    )
    letters.release_lease("orders/a", "o4")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    code, lines = run(*words)
    assert code == (1 if isinstance(letters, RedisProvider) else 2)  # DynamoDB needs it for its own client
    assert "set AWS_REGION" in "".join(lines)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["dead", "ls", "--provider", "redis", "--redis-url", "redis://127.0.0.1:1/0"], "gave no answer"),
        (["dead", "ls"], "no store is named: give --redis-url or --table"),
        (["doctor"], "no store is named: give --redis-url or --table"),
        (["verify"], "no store is named: give --redis-url or --table"),
        (["dead", "ls", "--redis-url", "redis://127.0.0.1:1/0"], "gave no answer"),
        (["sweep", "--provider", "dynamodb"], "INCUMBENT_TABLE_NAME is not set"),
        (["dead", "purge", "k", "--provider", "redis", "--redis-url", "redis://127.0.0.1:1/0"], "--all"),
        (["dead", "show", "", "m1", "--provider", "redis", "--redis-url", "redis://127.0.0.1:1/0"], "key"),
    ],
)
def test_what_cannot_be_tried_is_told_in_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and what to do about it on standard error."""
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert told in err


def test_memory_has_no_store_to_look_at(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty list would be a wrong answer."""
    monkeypatch.setenv("INCUMBENT_PROVIDER", "memory")
    assert main(["dead", "ls"]) == 2
    assert "memory" in capsys.readouterr().err


def test_long_names_are_given_whole_or_as_they_are_listed(place: tuple[Store, list[str]], run: Run) -> None:
    """With --keyspace the application's own name of a key and of a message will do, as with ``send``."""
    store, _ = place
    key, message_id = "incoming/" + "k" * 1_015, "m" * 300
    send(key, {"number": 7}, message_id=message_id, keyspace="orders", provider=store, waker=None, policy=ONCE)
    store.claim(full_key("orders", key), "o1", TTL_MS, None, policy=ONCE)
    store.release_lease(full_key("orders", key), "o1")
    store.claim(full_key("orders", key), "o2", TTL_MS, None, policy=ONCE)
    code, lines = run("dead", "ls", key, "--keyspace", "orders")
    assert (code, len(lines)) == (0, 2)
    shown_key, shown_id = lines[0].split()[:2]
    for words in (
        (key, message_id, "--keyspace", "orders"),
        (shown_key, shown_id),
        (shown_key.removeprefix("orders/"), shown_id, "--keyspace", "orders"),
        (f"orders/{key}", message_id),
    ):
        code, lines = run("dead", "show", *words)
        assert (code, json.loads("\n".join(lines))["event"]) == (0, {"number": 7})
    assert run("dead", "purge", key, message_id, "--keyspace", "orders")[0] == 0
    assert run("dead", "ls", shown_key) == (0, ["0 dead letters"])


@pytest.mark.parametrize("key", ["k" * 2_000, "/" + "k" * 2_000, "orders/" + "k" * 2_000])
def test_long_key_that_is_not_there_has_no_dead_letters(place: tuple[Store, list[str]], run: Run, key: str) -> None:
    """It is fitted, not refused."""
    assert place
    assert run("dead", "ls", key)[0] == 0
    assert run("dead", "show", key, "m1")[0] == 1


@pytest.mark.parametrize("command", [("dead", "ls"), ("sweep", "--dry-run")])
def test_limit_beyond_all_numbers_is_refused(capsys: pytest.CaptureFixture[str], command: tuple[str, ...]) -> None:
    """In one line, whatever its length."""
    for limit in ("1000000001", "9" * 20, "9" * 5_000, "0", "-1", "1.5"):
        with pytest.raises(SystemExit) as stopped:
            main([*command, "--limit", limit])
        assert stopped.value.code == 2
        assert "is not a whole number from 1 to 1,000,000,000" in capsys.readouterr().err


EVIL = "orders/a\nFORGED  m9  now\x1b[2J\x9b2J\u202etxt.exe\u2028\x7f"


def test_keys_and_ids_cannot_speak_to_the_terminal(place: tuple[Store, list[str]], run: Run) -> None:
    """Control characters, line breaks and bidirectional marks are escaped by every command; JSON stays JSON."""
    store, _ = place
    error = "ValueError: \x1b]0;title\x07\u202e"
    message = Message(id=EVIL, event={"text": EVIL, EVIL: "\ud800"})
    origin = Origin(keyspace="orders", target=EVIL)
    store.claim(EVIL, "o1", TTL_MS, message, policy=ONCE, origin=origin)
    store.settle(EVIL, "o1", ttl_ms=TTL_MS, failed=[Failure(id=EVIL, error=error)], policy=ONCE)
    for words in (
        ("dead", "ls"),
        ("dead", "ls", EVIL),
        ("dead", "ls", "--keyspace", EVIL.partition("/")[2]),
        ("dead", "ls", "--json"),
        ("dead", "show", EVIL, EVIL),
        ("dead", "show", EVIL, f"{EVIL}?"),
        ("dead", "redrive", EVIL, EVIL, f"{EVIL}?"),
        ("sweep", "--dry-run"),
        ("sweep",),
        ("dead", "purge", EVIL, EVIL),
        ("dead", "purge", EVIL, "--all"),
    ):
        code, lines = run(*words)
        assert code in (0, 1), words
        assert lines
        for line in lines:
            assert line.isprintable(), (words, line)
            assert not line.startswith("FORGED"), words
        if "--json" in words:
            assert json.loads(lines[0])["key"] == EVIL
        if words == ("dead", "show", EVIL, EVIL):
            assert json.loads("\n".join(lines))["event"] == message.event


@pytest.mark.parametrize("as_json", [False, True])
def test_terminal_without_unicode_is_shown_escapes(
    place: tuple[Store, list[str]], monkeypatch: pytest.MonkeyPatch, *, as_json: bool
) -> None:
    """And no traceback, whatever the terminal's encoding is."""
    store, options = place
    store.claim("orders/é", "o1", TTL_MS, Message(id="🐍", event="é🐍"), policy=ONCE)
    store.settle("orders/é", "o1", ttl_ms=TTL_MS, failed=[Failure(id="🐍", error="no")], policy=ONCE)
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["dead", "ls", *(["--json"] if as_json else []), *options]) == 0
    out.seek(0)
    text = out.read().splitlines()[0]
    if as_json:
        assert json.loads(text)["event"] == "é🐍"
    else:
        assert text.startswith("orders/\\u00e9  \\ud83d\\udc0d  ")


def test_keyspace_that_is_not_there_is_told_which_are(
    place: tuple[Store, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The one with a like name first; and a script sees by the exit code that the list is empty."""
    store, options = place

    def run(*words: str) -> tuple[int, str, str]:
        code = main([*words, *options])
        out, err = capsys.readouterr()
        return code, out, err

    code, out, _ = run("dead", "ls", "--keyspace", "orders")
    assert code == 1
    assert "no other has any: check --key-prefix" in out
    for keyspace in ("apply", "order-items", "orders.app.apply", "zebra"):
        store.claim(f"{keyspace}/a", "o1", TTL_MS, Message(id="m1", event={}), policy=ONCE)
        store.settle(f"{keyspace}/a", "o1", ttl_ms=TTL_MS, failed=[Failure(id="m1", error="no")], policy=ONCE)
    store.claim("waiting/a", "o1", TTL_MS, Message(id="m1", event={}), as_ticket=True)
    store.release_lease("waiting/a", "o1")
    code, out, _ = run("dead", "ls", "--keyspace", "orders")
    assert (code, out.splitlines()[0]) == (1, "0 dead letters")
    (names,) = (line.partition(" are ")[2] for line in out.splitlines()[1:])
    assert names.split(", ")[:2] == ["orders.app.apply", "order-items"]
    assert set(names.split(", ")) == {"apply", "order-items", "orders.app.apply", "waiting", "zebra"}
    code, out, err = run("dead", "ls", "--keyspace", "orders", "--json")
    assert (code, out) == (1, "")
    assert "orders.app.apply" in err
    assert run("dead", "ls", "a", "--keyspace", "orders")[0] == 1
    assert run("dead", "ls", "--keyspace", "waiting")[0] == 1
    assert run("dead", "ls", "--keyspace", "orders.app.apply")[0] == 0
    for words in (("redrive", "--all"), ("purge", "--all")):
        code, out, _ = run("dead", words[0], "a", words[1], "--keyspace", "orders")
        assert (code, out) == (1, "orders/a has no dead letters\n")
