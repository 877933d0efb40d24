"""DynamoDB's clients: which are taken, how incumbent's own are made, kept and closed, and what is known of each."""

import json
import math
import os
import threading
from types import SimpleNamespace
from typing import Any

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import NoRegionError

from incumbent.errors import ConfigurationError
from incumbent.providers.dynamodb import client as clients
from incumbent.providers.dynamodb.client import Clients


class Events:
    """What a client tells of its requests."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}
        self.kept: dict[str, tuple[str, str]] = {}

    def register(self, name: str, handler: Any, unique_id: str) -> None:
        """Note it."""
        self.told[name], self.kept[name] = handler, ("first", unique_id)

    def register_last(self, name: str, handler: Any, unique_id: str) -> None:
        """Note it."""
        self.told[name], self.kept[name] = handler, ("last", unique_id)


class Made:
    """A client."""

    def __init__(self, config: Any = None) -> None:
        self.meta = SimpleNamespace(config=config, events=Events())
        self.closed = 0

    def update_item(self) -> None:
        """Never called."""

    batch_get_item = query = update_item

    def close(self) -> None:
        """Count it."""
        self.closed += 1


class Session:
    """A session that makes such clients, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked: list[tuple[Any, ...]] = []
        self.made: list[Made] = []
        self.loader = SimpleNamespace(list_available_services=None)

    def client(self, name: str, *, config: Any, **more: Any) -> Made:
        """Make one."""
        if self.error is not None:
            raise self.error
        self.asked.append((name, more))
        self.made.append(Made(config))
        return self.made[-1]

    create_client = client

    def get_component(self, name: str) -> Any:
        """Return the one that is known."""
        return {"data_loader": self.loader}[name]


def of(given: Any = None, session: Any = None, config: Any = None) -> Clients:
    """The clients of a provider."""
    return Clients(given, session, config)


# --- which are taken


class Resource(Made):
    """The client of a resource: it changes the items that it is given."""

    def __init__(self) -> None:
        super().__init__(Config())
        self.meta.service_model = SimpleNamespace(operation_model="model of {}".format)
        events: Any = self.meta.events
        events.emit = self._emit

    @staticmethod
    def _emit(event: str, *, params: Any, model: str, context: Any) -> None:
        assert (event, params["TableName"], model, context) == (
            "before-parameter-build.dynamodb.PutItem",
            "t",
            "model of PutItem",
            {},
        )
        params["Item"] = {"pk": {"M": params["Item"]["pk"]}}


def without(*names: str) -> Any:
    """A client that lacks something."""
    kept = {name: print for name in ("update_item", "batch_get_item", "query") if name not in names}
    return SimpleNamespace(**kept, **({} if "meta" in names else {"meta": SimpleNamespace(config=Config())}))


Async = type("Async", (Made,), {"__module__": "aiobotocore.client"})


@pytest.mark.parametrize(
    "wrong",
    [
        *(without(name) for name in ("update_item", "batch_get_item", "query", "meta")),
        SimpleNamespace(**{**vars(without()), "query": 1}),
        SimpleNamespace(**{**vars(without()), "meta": 1}),
        Async(Config()),
        type("Own", (Async,), {"__module__": "mine"})(Config()),
        Resource(),
    ],
)
def test_what_cannot_ask_a_table_is_refused(wrong: Any) -> None:
    """The error says what to give."""
    with pytest.raises(ConfigurationError, match=r"^client is .*: give boto3\.client\('dynamodb', config=Config\("):
        of(wrong)


def test_client_that_is_given_is_used() -> None:
    """And stays its owner's."""
    for given in (without(), Made(Config(read_timeout=1))):
        ours = of(given)
        assert ours.client(None, "k") is given
        ours.close()
    assert given.closed == 0
    assert given.meta.events.told == {}


@pytest.mark.parametrize(
    ("session", "config", "said"),
    [
        ("default", None, r"^boto3_session is 'default': give a boto3\.session\.Session$"),
        (SimpleNamespace(client=1), None, "^boto3_session is "),
        (None, {"x": 1}, r"^boto_config is \{'x': 1\}: give a botocore\.config\.Config$"),
    ],
)
def test_what_is_not_a_session_or_a_config_is_refused(session: Any, config: Any, said: str) -> None:
    """Before anything is made of it."""
    with pytest.raises(ConfigurationError, match=said):
        of(None, session, config)


# --- how long they wait


@pytest.mark.parametrize(
    ("given", "config", "longest"),
    [
        (True, Config(read_timeout=2, connect_timeout=9), 2_000),
        (True, Config(), 60_000),
        (True, Config(read_timeout=None), math.inf),
        (True, SimpleNamespace(), math.inf),
        (False, Config(read_timeout=2), 2_000),
        (False, Config(read_timeout=None), math.inf),
        (False, Config(), 0),
        (False, None, 0),
    ],
)
def test_wait_that_the_user_has_set_is_shorter_than_the_lease(
    given: bool,  # noqa: FBT001 - pytest
    config: Any,
    longest: float,
) -> None:
    """Where it is set at all; botocore's 60 s count of a client that is given."""
    session = Session()
    ours = of(Made(config)) if given else of(None, session, config)
    for ttl_ms in (1, 1_999, 2_000, 59_999, 60_000, 86_400_000):
        if ttl_ms >= longest:
            ours.check_ttl(ttl_ms)
            ours.client(ttl_ms, "k")
            continue
        for ask, key in (
            (lambda ttl_ms=ttl_ms: ours.client(ttl_ms, "k"), "k"),
            (lambda t=ttl_ms: ours.check_ttl(t), None),
        ):
            with pytest.raises(
                ConfigurationError, match=r"longer than the lease lives .* Set connect_timeout and"
            ) as no:
                ask()
            assert no.value.key == key
    ours.client(None, "k")


@pytest.mark.parametrize(
    ("config", "waits_ms"),
    [
        (Config(connect_timeout=2, read_timeout=3), 3_000),
        (Config(connect_timeout=4, read_timeout=0.5), 4_000),
        (Config(connect_timeout=None, read_timeout=3), math.inf),
        (Config(connect_timeout=3, read_timeout=None), math.inf),
        (SimpleNamespace(read_timeout=3), math.inf),
        (SimpleNamespace(connect_timeout=3), math.inf),
    ],
)
def test_wait_of_a_client(config: Any, waits_ms: float) -> None:
    """The longer of both."""
    client: Any = Made(config)
    assert clients.waits_ms(client) == waits_ms


@pytest.mark.parametrize(
    ("retries", "metadata", "tried"),
    [
        ({"total_max_attempts": 1}, {"RetryAttempts": 0}, False),
        ({"total_max_attempts": 1}, {"RetryAttempts": 2}, True),
        ({"total_max_attempts": 1}, {}, False),
        ({"total_max_attempts": 1}, None, False),
        ({"total_max_attempts": 2}, {"RetryAttempts": 0}, False),
        ({"total_max_attempts": 2}, {"RetryAttempts": 1}, True),
        ({"total_max_attempts": 2}, {}, True),
        (None, {}, True),
        (None, None, True),
    ],
)
def test_client_may_have_repeated_a_request(retries: Any, metadata: Any, tried: bool) -> None:  # noqa: FBT001 - pytest
    """R9: it tells how often, and what does not tell may have."""
    client: Any = Made(SimpleNamespace() if retries is None else Config(retries=retries))
    assert clients.tried_inside(client, {} if metadata is None else {"ResponseMetadata": metadata}) is tried


# --- incumbent's own


@pytest.mark.parametrize(("ttl_ms", "wait_s"), [(None, 1), (30_000, 1), (12_000, 0.5), (6_000, 0.25), (1, 0.25)])
def test_own_client_repeats_nothing_and_waits_as_the_ttl_allows(ttl_ms: int | None, wait_s: float) -> None:
    """What the user has set goes before."""
    session = Session()
    ours = of(None, session)
    made: Any = ours.client(ttl_ms, "k")
    config = made.meta.config
    assert session.asked == [("dynamodb", {})]
    assert (config.connect_timeout, config.read_timeout) == (wait_s, wait_s)
    assert config.retries == {"total_max_attempts": 1, "mode": "standard"}
    assert (config.tcp_keepalive, config.parameter_validation) == (True, False)
    assert ours.client(ttl_ms, "k2") is made
    theirs: Any = of(None, session, Config(connect_timeout=7, user_agent_extra="mine")).client(ttl_ms, "k")
    config = theirs.meta.config
    assert (config.connect_timeout, config.read_timeout, config.user_agent_extra) == (7, wait_s, "mine")
    assert config.parameter_validation is False


def test_own_clients_are_kept_by_wait_and_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of another process are its own, and are closed by no other; a later call makes new ones."""
    session = Session()
    ours: Any = of(None, session)
    parent = ours.client(30_000, "k"), ours.client(6_000, "k")
    assert parent[0] is not parent[1]
    assert (ours.client(None, "k"), ours.client(20_000, "k")) == (parent[0], parent[0])
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        assert ours.client(30_000, "k") not in parent
        ours.close()
    assert [each.closed for each in session.made] == [0, 0, 1]
    assert ours.client(30_000, "k") is session.made[3]
    ours.close()
    ours.close()
    assert [each.closed for each in session.made] == [0, 0, 1, 1]


def test_client_that_another_thread_has_made_meanwhile_is_used() -> None:
    """The lock is held by one of them at a time."""
    session = Session()
    ours: Any = of(None, session)

    class Slow:
        """A lock for which this thread has to wait."""

        def __enter__(self) -> None:
            ours._lock = threading.Lock()  # noqa: SLF001 - no test can make a thread wait just there
            ours.client(30_000, "k")

        def __exit__(self, *_: object) -> None:
            """Leave it."""

    ours._lock = Slow()  # noqa: SLF001 - as above
    assert ours.client(30_000, "k") is session.made[0]
    assert len(session.made) == 1


@pytest.mark.parametrize(("region", "asked"), [("eu-central-1", "eu-central-1"), ("", None), (None, None)])
def test_client_without_a_session_is_botocores(
    monkeypatch: pytest.MonkeyPatch, region: str | None, asked: str | None
) -> None:
    """In Lambda's Region, and without a search for services."""
    session = Session()
    monkeypatch.setattr(botocore.session, "get_session", lambda: session)
    monkeypatch.delenv("AWS_REGION", raising=False)
    if region is not None:
        monkeypatch.setenv("AWS_REGION", region)
    made: Any = of().client(30_000, "k")
    assert made is session.made[0]
    assert session.asked == [("dynamodb", {"region_name": asked})]
    listing: Any = session.loader.list_available_services
    assert listing("service-2", x=1) == ["dynamodb"]
    assert (made.meta.config.read_timeout, made.meta.config.parameter_validation) == (1, False)


@pytest.mark.parametrize(
    ("error", "advice"), [(NoRegionError(), "set AWS_REGION"), (ValueError("odd"), "check boto3_session")]
)
def test_client_that_cannot_be_made_is_an_error_of_the_settings(error: Exception, advice: str) -> None:
    """With what to do."""
    with pytest.raises(ConfigurationError, match=rf"^cannot make a client for DynamoDB \(.*\): {advice}$") as found:
        of(None, Session(error)).client(30_000, "k")
    assert found.value.__cause__ is error


def test_updates_pass_as_they_are_written() -> None:
    """Others may look at the key; what cannot be read is left to botocore."""
    made: Any = of(None, Session()).client(30_000, "k")
    events = made.meta.events
    names = [f"{each}.dynamodb.UpdateItem" for each in ("provide-client-params", "before-call", "before-parse")]
    assert list(events.told) == names
    assert list(events.kept.values()) == [
        ("last", "incumbent-keep"),
        ("first", "incumbent-write"),
        ("first", "incumbent-read"),
    ]
    keep, write, read = (events.told[name] for name in names)
    asked, context = {"TableName": "t", "Key": {"pk": {"S": "é"}}, "UpdateExpression": "SET a = :a"}, dict[str, Any]()
    assert keep(params=asked, context=context, model=1) == {"TableName": "t", "Key": {"pk": {"S": "é"}}}
    sent: dict[str, Any] = {"headers": 1}
    write(params=sent, context=context, model=1)
    assert (json.loads(sent.pop("body")), sent, context) == (asked, {"headers": 1}, {})
    for status, body, found, left in (
        (200, b'{"Attributes": {}}', {"x": 1, "Attributes": {}}, b"{}"),
        (400, b'{"__type": "x"}', {"x": 1}, b'{"__type": "x"}'),
        (200, b'{"Attri', {"x": 1}, b'{"Attri'),
    ):
        answer, said = {"status_code": status, "body": body}, {"x": 1}
        read(response_dict=answer, customized_response_dict=said, model=1)
        assert (said, answer) == (found, {"status_code": status, "body": left})
