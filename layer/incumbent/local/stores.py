"""The store that functions use in a local run: started here, or the caller's own Redis."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from incumbent.backends import is_archive
from incumbent.contract import Archive
from incumbent.errors import ConfigurationError
from incumbent.local.isolated_aws import NOWHERE, closed, closed_process
from incumbent.local.servers import DynamoDBServer, create_table, locked_moto, valkey
from incumbent.local.template import Function, FunctionSpec, Template
from incumbent.providers import from_env
from incumbent.values import MessageState

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

PROVIDERS = ("redis", "dynamodb", "memory", "none")

_PROVIDER_VARIABLE = "INCUMBENT_PROVIDER"
_TABLE_VARIABLE = "INCUMBENT_TABLE_NAME"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Functions with their store running: ``env`` is what each of them needs to find it.

    ``why`` says for people by what the provider was chosen.
    """

    declared: tuple[Function, ...]
    provider: str
    why: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def functions(self) -> tuple[FunctionSpec, ...]:
        """Those that can be run."""
        return tuple(each for each in self.declared if isinstance(each, FunctionSpec))


@contextmanager
def prepared(
    template: Path | str,
    provider: str | None = None,
    *,
    redis_url: str | None = None,
    parameters: Mapping[str, str] | None = None,
    given: Mapping[str, str] | None = None,
) -> Iterator[Prepared]:
    """Read the template for ``provider``, and keep its store running meanwhile.

    Unless given, ``provider`` is that of ``redis_url``, else what ``given`` or the template name
    (``INCUMBENT_PROVIDER``), else ``redis``. ``redis``: a Valkey of its own on a free port, unless ``redis_url`` names
    one. ``dynamodb``: moto behind one lock, with the tables that the template describes (with the provider's own, where
    it has none).
    The template's parameters ``Provider`` and ``RedisUrl`` are set where it has them and ``parameters`` does
    not. ``given`` are variables that the functions get from elsewhere: the template's values are not read.

    Raises:
        ConfigurationError: the template cannot be read, its functions name several providers, or ``redis_url`` goes
            with another provider than ``redis``.
    """
    given = given or {}
    provider, why = _chosen(template, provider, redis_url, parameters or {}, given)
    parameter_names = Template.load(template).parameters

    def load(**own: str) -> Template:
        known = {name: value for name, value in own.items() if name in parameter_names}
        return Template.load(template, {**known, **(parameters or {})})

    declared = load(Provider=provider, RedisUrl="").declared(given)  # errors are told before a server starts
    env = {_PROVIDER_VARIABLE: provider}
    with ExitStack() as stack:
        if provider == "redis":
            url = redis_url or stack.enter_context(valkey()).url
            env["INCUMBENT_REDIS_URL"] = url
            declared = load(Provider=provider, RedisUrl=url).declared(given)
        elif provider == "dynamodb":
            moto = stack.enter_context(locked_moto())
            env |= moto.environment
            client = _client(moto)
            for table in load(Provider=provider).tables():
                client.create_table(**table)
            named = (_TABLE_VARIABLE in each.environment for each in declared if isinstance(each, FunctionSpec))
            if _TABLE_VARIABLE not in given and not any(named):
                create_table(client, "incumbent")
                env[_TABLE_VARIABLE] = "incumbent"
        yield Prepared(declared=declared, provider=provider, why=why, env=env)


def _chosen(
    template: Path | str,
    provider: str | None,
    redis_url: str | None,
    parameters: Mapping[str, str],
    given: Mapping[str, str],
) -> tuple[str, str]:
    """The provider, and by what it was chosen."""
    if redis_url and provider not in (None, "redis"):
        raise ConfigurationError(f"a Redis URL is given, but the provider is {provider}: leave one of the two out")
    if provider:
        return provider, "--provider"
    if redis_url:
        return "redis", "--redis-url"
    if _PROVIDER_VARIABLE in given:
        named, why = {given[_PROVIDER_VARIABLE]}, f"--env {_PROVIDER_VARIABLE}"
    else:
        functions = Template.load(template, parameters).functions(given)
        named = {each.environment[_PROVIDER_VARIABLE] for each in functions if _PROVIDER_VARIABLE in each.environment}
        why = f"as {Path(template).name} says"
    if not named:
        return "redis", f"since {Path(template).name} names no provider"
    if len(named) > 1:
        names = ", ".join(sorted(named))
        raise ConfigurationError(f"the functions of {template} name several providers ({names}): choose by --provider")
    (name,) = named
    if name not in PROVIDERS:
        raise ConfigurationError(f"{_PROVIDER_VARIABLE} is {name!r} ({why}); known here are {', '.join(PROVIDERS)}")
    return name, why


@contextmanager
def archive(env: Mapping[str, str]) -> Iterator[Callable[[str, str], MessageState | None]]:
    """Give what asks the store of functions with these variables for a message, by its key and id.

    Raises:
        ConfigurationError: the variables name no store.
    """
    provider: object = from_env(env)
    if not is_archive(provider):
        yield lambda _key, _message_id: None
        return

    with closed_process({**closed(NOWHERE), **env}):  # a client of boto3 is made with the first question
        try:
            yield lambda key, message_id: _state(provider, key, message_id)
        finally:
            getattr(provider, "close", lambda: None)()


def _state(archive: Archive, key: str, message_id: str) -> MessageState | None:
    state = archive.find(key, message_id).state
    return None if state == "unknown" else state


def _client(server: DynamoDBServer) -> "DynamoDBClient":
    import boto3

    given = server.environment
    return boto3.client(
        "dynamodb",
        endpoint_url=server.endpoint_url,
        region_name=given["AWS_REGION"],
        aws_access_key_id=given["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=given["AWS_SECRET_ACCESS_KEY"],
    )
