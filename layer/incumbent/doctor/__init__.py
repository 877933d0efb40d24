"""A check-up of a deployment: its store, its settings, its functions and its sweeper.

``incumbent doctor`` prints it at a terminal. The sweeper's function answers it inside a VPC, to the event
``{"incumbent": {"doctor": {"functions": [...]}}}``. Nothing that a function runs otherwise imports this package.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from incumbent.clock import SYSTEM_CLOCK, Clock
from incumbent.doctor.calls import reach, try_calls
from incumbent.doctor.check import AwsClients, Check, Clients, code_of, text_of
from incumbent.doctor.functions import STORE, check_function, check_schedule, check_wake, invoke
from incumbent.doctor.settings import check_settings, ttl_of
from incumbent.errors import ConfigurationError
from incumbent.keyspaces import full_key
from incumbent.owners import random_name
from incumbent.providers import from_env
from incumbent.validation import shown

__all__ = ["Check", "answer", "examine_functions", "examine_store", "examine_through", "examine_wakes"]

KEYSPACE = "incumbent-doctor"
"""The keyspace of the key on which calls are tried."""

_MAX_FUNCTIONS = 100
_FUNCTION_S = 70  # the sweeper's timeout, and its start


def examine_store(
    environ: Mapping[str, str],
    *,
    sweeping: bool = False,
    clients: Clients | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Iterator[Check]:
    """Check the settings, the store that they name, and every call on a key of its own, which is removed afterwards.

    ``sweeping``: the caller has the rights of a sweeper, which on DynamoDB are not those of the functions. Raises
    ``ConfigurationError`` if the settings name no store.
    """
    clients = clients or AwsClients()
    provider: Any = from_env(environ)
    name, prefix = environ["INCUMBENT_PROVIDER"], environ.get("INCUMBENT_KEY_PREFIX") or "incumbent"
    key = full_key(KEYSPACE, random_name())
    yield from check_settings(environ, provider)
    if name in ("none", "memory"):
        yield Check.warning("store", f"INCUMBENT_PROVIDER is {name}", "name redis or dynamodb where it is deployed")
        return
    of_functions = not sweeping or name == "redis"  # a server has one login, a table a right for each call
    try:
        check, error = reach(provider, key, of_functions=of_functions)
        yield check
        if error is None:
            ttl_ms, one_login, left = ttl_of(environ), name == "redis", list[Check]()
            try:
                yield from try_calls(provider, key, ttl_ms, of_functions=of_functions, one_login=one_login)
            finally:  # also after Ctrl-C, and when the reader of a pipe has left
                if of_functions:
                    left += _remove(environ, key, prefix, clients)
            yield from left
        elif name == "redis" or not code_of(error):
            return  # else DynamoDB itself refused the call, and the table's description may say why
        if name == "redis":
            from incumbent.doctor.server import check_server

            yield from check_server(environ, prefix, clock)
        else:
            from incumbent.doctor.table import check_table

            yield from check_table(clients("dynamodb"), environ["INCUMBENT_TABLE_NAME"], prefix, clock)
    finally:
        getattr(provider, "close", lambda: None)()


def _remove(environ: Mapping[str, str], key: str, prefix: str, clients: Clients) -> Iterator[Check]:
    """Remove the doctor's key; yield a check only if that fails."""
    if environ["INCUMBENT_PROVIDER"] == "redis":
        from incumbent.doctor.server import remove

        return remove(environ, prefix, key)
    from incumbent.doctor.table import remove_record

    return remove_record(clients("dynamodb"), environ["INCUMBENT_TABLE_NAME"], prefix, key)


def examine_functions(
    environ: Mapping[str, str],
    functions: Iterable[str],
    *,
    sweeper: str | None = None,
    clients: Clients | None = None,
) -> Iterator[Check]:
    """Check how functions are set up, and the schedule of the sweeper's function, with the rights of the caller."""
    clients = clients or AwsClients()
    named = list(functions)
    for function in named:
        yield from check_function(clients, function, environ)
    if not named:
        yield Check.unchecked("functions", "no function is named", "name those that run messages with --function")
    if sweeper is None:
        yield Check.unchecked("sweeper", "no sweeper is named", "name its function with --sweeper")
    else:
        yield from check_schedule(clients, sweeper)


def examine_wakes(functions: Iterable[str], *, clients: Clients | None = None) -> Iterator[Check]:
    """Check whether the caller may invoke these functions, by dry runs that start nothing."""
    clients = clients or AwsClients()
    for function in functions:
        yield from check_wake(clients, function)


def examine_through(
    sweeper: str, functions: Iterable[str], *, clients: Clients | None = None
) -> tuple[list[Check], dict[str, str]]:
    """Let the sweeper's function make the checks of `examine_store` and `examine_wakes` from where it runs.

    Return its checks, and the variables that name its store. The caller needs ``lambda:InvokeFunction`` on it.
    """
    clients = clients or AwsClients(read_s=_FUNCTION_S)
    try:
        said = invoke(clients("lambda"), sweeper, {"incumbent": {"doctor": {"functions": list(functions)}}})
        return [Check(**each) for each in said["checks"]], dict(said["store"])
    except Exception as error:  # noqa: BLE001 - whatever the function or a client raises is the finding
        advice = "is its layer as new as this command, and its role's network open to the store?"
        return [Check.failed(f"{sweeper}: doctor", text_of(error), advice)], {}


def answer(request: object, *, clients: Clients | None = None) -> dict[str, Any]:
    """Answer the sweeper's function's event: check the store and the wakes from where the function runs.

    ``request`` is a JSON object; its ``functions`` are the names of functions to wake, a hundred at most. The answer is
    ``{"checks": [...], "store": {...}}``: each check has ``name``, ``status``, ``found`` and ``advice``; ``store`` has
    the variables that name it, without its URL. Raises ``ConfigurationError``.
    """
    match request:
        case {"functions": [*named], **rest} if not rest and all(isinstance(each, str) for each in named):
            functions = named[:_MAX_FUNCTIONS]
        case {**rest} if not rest:
            functions = []
        case _:
            raise ConfigurationError(f"the doctor's event is {shown(request)}: give {{}} or {{'functions': [names]}}")
    clients = clients or AwsClients()
    checks = [
        *examine_store(os.environ, sweeping=True, clients=clients),
        *examine_wakes(functions, clients=clients),
    ]
    store = {name: os.environ[name] for name in STORE if name in os.environ}
    return {"checks": [asdict(check) for check in checks], "store": store}
