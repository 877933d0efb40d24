"""The AWS that functions find on this machine: a cloud of ours, and nothing that is real."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from incumbent import addresses
from incumbent.local.http_server import HOST
from incumbent.local.intrinsics import REGION

NOWHERE = f"http://{HOST}:1"  # a port on which no process listens


def closed(url: str) -> Mapping[str, str]:
    """The variables under which boto3 asks ``url`` alone, with credentials that open nothing.

    The server at that address knows the Invoke API, and answers every other service with an error.
    """
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ENDPOINT_URL_LAMBDA": url,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_SESSION_TOKEN": "local",
        # No file of the user's that holds others.
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextmanager
def closed_process(variables: Mapping[str, str]) -> Iterator[None]:
    """Have this very process find meanwhile what ``variables`` say, and nothing else of AWS or incumbent."""
    before = dict(os.environ)
    own = {name: value for name, value in before.items() if not name.startswith(("AWS_", "INCUMBENT_"))}
    past_proxies = {"no_proxy": ",".join(filter(None, [before.get("no_proxy") or before.get("NO_PROXY"), HOST]))}
    session = _swap_session(None)
    _forget_clients()
    _set_environ({**own, **past_proxies, **variables})
    try:
        yield
    finally:
        _set_environ(before)
        _forget_clients()
        _swap_session(session)


def _set_environ(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


def _swap_session(session: object) -> object:
    """Put a session behind ``boto3.client``, which remembers its credentials; return the one that was there."""
    boto3 = sys.modules.get("boto3")
    before = getattr(boto3, "DEFAULT_SESSION", None)
    if boto3 is not None:
        setattr(boto3, "DEFAULT_SESSION", session)  # noqa: B010 - a module that may not be there has no types
    return before


def _forget_clients() -> None:
    """Have ``send`` and its like make their clients anew: those that they keep look where they were made for."""
    addresses.provider_from_env.cache_clear()
    addresses.auto_waker.cache_clear()
