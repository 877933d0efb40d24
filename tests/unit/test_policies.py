"""One policy for all who use a keyspace: said in the environment, and a difference is noticed."""

import warnings
from typing import Any

import pytest

from incumbent import ConfigurationError, Policy, cancel, leased, leased_function, send, status, wait
from incumbent.policies import policy_in_force
from tests.unit.stage import Meddled, context
from tests.unit.test_decorators import Shop

SAID = '{"window_ms": 900000, "max_attempts": 3, "pauses_ms": [1, 20], "on_error": "block", "max_pending": 7}'
POLICY = Policy(window_ms=900_000, max_attempts=3, pauses_ms=(1, 20), on_error="block", max_pending=7)


class Asked(Meddled):
    """A store that notes the policy of each call."""

    def __init__(self, provider: Any) -> None:
        """Stand before ``provider``."""
        super().__init__(provider)
        self.policies: dict[str, Policy] = {}

    def __getattr__(self, name: str) -> Any:
        """Note it, and pass the call on."""
        method = super().__getattr__(name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            if "policy" in kwargs:
                self.policies[name] = kwargs["policy"]
            return method(*args, **kwargs)

        return noted


@pytest.fixture
def shop() -> Shop:
    """A store of the test's own, which notes what it is asked."""
    shop = Shop()
    shop.store = Asked(shop.store)
    return shop


def nothing(event: object, context: object = None) -> None:
    """Do nothing, as a handler."""


def use(shop: Shop, decorate: Any, policy: Policy | None) -> dict[str, Policy]:
    """Let all who use a keyspace use it; what the store was told."""
    more: dict[str, Any] = {} if policy is None else {"policy": policy}
    shop.store.policies.clear()
    options = {"key": "a", "keyspace": "shop", "provider": shop.store, "clock": shop.clock, "waker": None}
    decorate(**options, **more)(nothing)({}, context(shop.clock))
    told = dict(shop.store.policies)
    send("b", {}, message_id="m", keyspace="shop", provider=shop.store, waker=None, **more)
    status("b", "m", keyspace="shop", provider=shop.store, **more)
    return {**told, "send": shop.store.policies["claim"], "status": shop.store.policies["find"]}


@pytest.mark.parametrize("decorate", [leased, leased_function])
def test_policy_is_read_from_one_place(shop: Shop, monkeypatch: pytest.MonkeyPatch, decorate: Any) -> None:
    """The environment, for the handler, its batches, the sender, and who asks what became of a message."""
    monkeypatch.setenv("INCUMBENT_POLICY", SAID)
    told = use(shop, decorate, None)
    assert told == dict.fromkeys(["claim", "settle", "send", "status"], POLICY)


@pytest.mark.parametrize("decorate", [leased, leased_function])
@pytest.mark.parametrize("policy", [POLICY, None])
def test_policy_that_was_given_wins(shop: Shop, decorate: Any, policy: Policy | None) -> None:
    """Without the variable nothing is said, as long as all give the same one."""
    assert set(use(shop, decorate, policy).values()) == {policy or Policy()}
    assert set(use(shop, decorate, policy).values()) == {policy or Policy()}


def uses(shop: Shop, policy: Policy | None, keyspace: str = "shop") -> dict[str, Any]:
    """All ways to use a keyspace, without the variable."""
    options: dict[str, Any] = {"keyspace": keyspace, "provider": shop.store, "policy": policy}
    more = {**options, "key": "a", "clock": shop.clock}
    return {
        "leased": lambda: leased(**more, waker=None)(nothing)({}, context(shop.clock)),
        "leased_function": lambda: leased_function(**more)(nothing)({}, context(shop.clock)),
        "send": lambda: send("b", {}, message_id="m", waker=None, **options),
        "status": lambda: status("b", "m", **options),
        "wait": lambda: wait("b", "m", timeout_ms=0, **options),
        "cancel": lambda: cancel("b", "m", **options),
    }


@pytest.mark.parametrize("second", ["leased", "leased_function", "send", "status", "wait", "cancel"])
@pytest.mark.parametrize("first", ["leased", "leased_function", "send", "status"])
def test_two_policies_of_a_keyspace_are_noticed_within_a_process(shop: Shop, first: str, second: str) -> None:
    """Where the second one is used: by any of them after any of them, also if one of the two gives none."""
    uses(shop, POLICY)[first]()
    uses(shop, Policy(), keyspace="other")[second]()
    for policy in (None, Policy()):
        with pytest.warns(RuntimeWarning, match=r"keyspace 'shop' is used with two policies.*max_attempts: 5, not 3"):
            uses(shop, policy)[second]()
    uses(shop, POLICY)[second]()


def test_two_stores_may_have_two_policies_for_one_keyspace(shop: Shop) -> None:
    """They share no message."""
    uses(shop, POLICY)["send"]()
    uses(Shop(), None)["send"]()


def test_store_of_the_environment_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes a provider of it."""
    monkeypatch.setenv("INCUMBENT_PROVIDER", "memory")
    monkeypatch.setenv("INCUMBENT_KEY_PREFIX", "two-policies")
    options: dict[str, Any] = {"key": "a", "keyspace": "two-policies"}
    leased(**options, policy=POLICY)(nothing)({}, None)
    with pytest.warns(RuntimeWarning, match="two policies"):
        leased(**options)(nothing)({}, None)
    with pytest.warns(RuntimeWarning, match="two policies"):
        status("a", "m", keyspace="two-policies")


def test_difference_is_told_once_where_the_variable_is_set(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variable's own warning."""
    monkeypatch.setenv("INCUMBENT_POLICY", SAID)
    uses(shop, None)["send"]()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        uses(shop, Policy())["send"]()
    assert ["differs from INCUMBENT_POLICY" in str(each.message) for each in told] == [True]


def test_difference_is_noticed_by_each_of_them(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gives one that differs from the variable is told which fields, with both values."""
    monkeypatch.setenv("INCUMBENT_POLICY", SAID)
    mine = Policy(window_ms=900_000, max_attempts=3, pauses_ms=(1, 20), on_error="skip", max_pending=8)
    said = r"max_pending: 8, not 7, on_error: 'skip', not 'block'"
    with pytest.warns(RuntimeWarning, match=said):
        leased(key="a", policy=mine)
    with pytest.warns(RuntimeWarning, match=said):
        leased_function(key="a", policy=mine)
    with pytest.warns(RuntimeWarning, match=said):
        send("b", {}, message_id="m", keyspace="shop", provider=shop.store, waker=None, policy=mine)
    assert shop.store.policies["claim"] == mine
    with pytest.warns(RuntimeWarning, match=said):
        status("b", "m", keyspace="shop", provider=shop.store, policy=mine)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        leased(key="a", policy=POLICY)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "INCUMBENT_POLICY"),
        ("[]", "a JSON object of max_pending"),
        ("7", "a JSON object"),
        ('{"windows_ms": 1}', "windows_ms; a Policy has max_pending"),
        ('{"window_ms": 1}', "INCUMBENT_POLICY: window_ms"),
        ('{"window_ms": "900000"}', "INCUMBENT_POLICY: window_ms"),
        ('{"window_ms": null}', "INCUMBENT_POLICY: window_ms"),
        ('{"pauses_ms": 7}', "a list of milliseconds"),
        ('{"pauses_ms": "77"}', "a list of milliseconds"),
        ('{"pauses_ms": []}', "pauses_ms is empty"),
        ('{"on_error": ["skip"]}', "on_error"),
    ],
)
def test_variable_that_cannot_be_read_is_refused_by_each_of_them(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    """Where the handler is decorated, and before anything is stored."""
    monkeypatch.setenv("INCUMBENT_POLICY", text)
    for use_it in (
        lambda: leased(key="a"),
        lambda: leased_function(key="a"),
        lambda: send("b", {}, keyspace="shop", provider=shop.store),
        lambda: status("b", "m", keyspace="shop", provider=shop.store),
    ):
        with pytest.raises(ConfigurationError, match=said):
            use_it()
    assert shop.store.policies == {}


@pytest.mark.parametrize("policy", [{}, "skip", Policy, 7])
def test_what_is_not_a_policy_is_refused(policy: Any) -> None:
    """Also by ``send`` and ``status``, before anything is asked."""
    with pytest.raises(ConfigurationError, match="give a Policy"):
        policy_in_force(policy)


def test_empty_variable_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a template's empty parameter has it."""
    monkeypatch.setenv("INCUMBENT_POLICY", " ")
    assert policy_in_force(None) == Policy()
    assert policy_in_force(None, environ={"INCUMBENT_POLICY": "{}"}) == Policy()
