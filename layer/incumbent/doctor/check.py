"""One check's result, and what the errors of a request mean for it."""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, TypeAlias

from incumbent.retry import causes
from incumbent.validation import json_text, printable

Status: TypeAlias = Literal["ok", "warning", "failed", "not checked"]
Clients: TypeAlias = Callable[[str], Any]
"""Makes, or returns, a boto3 client of the service with that name."""

_REFUSED = frozenset({"AccessDenied", "AccessDeniedException", "AuthorizationError", "UnauthorizedOperation"})
_NO_QUEUE = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist")
_MISSING = frozenset({"NotFoundException", "ResourceNotFoundException", "ValidationException", *_NO_QUEUE})
_MAX_FOUND = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What one check has found. ``advice`` says what to do, and is empty where nothing needs doing.

    ``not checked``: the check needs a right or a name that it was not given; ``advice`` names it.
    """

    name: str
    status: Status
    found: str
    advice: str = ""

    @classmethod
    def ok(cls, name: str, found: str) -> Self:
        """Make the result of a check that found nothing to do."""
        return cls(name=name, status="ok", found=found)

    @classmethod
    def warning(cls, name: str, found: str, advice: str) -> Self:
        """Make the result of a check that found something to decide."""
        return cls(name=name, status="warning", found=found, advice=advice)

    @classmethod
    def failed(cls, name: str, found: str, advice: str) -> Self:
        """Make the result of a check that found what cannot work, or loses messages."""
        return cls(name=name, status="failed", found=found, advice=advice)

    @classmethod
    def unchecked(cls, name: str, found: str, advice: str) -> Self:
        """Make the result of a check that could not be made."""
        return cls(name=name, status="not checked", found=found, advice=advice)

    def line(self) -> str:
        """Return the result as one line for a terminal."""
        return printable(f"{self.status:<11}  {self.name}: {self.found}" + (f"; {self.advice}" if self.advice else ""))

    def json(self) -> str:
        """Return the result as a JSON object on one line."""
        return json_text(asdict(self))


class AwsClients:
    """Makes a boto3 client for each service, with short waits, once."""

    def __init__(self, *, read_s: int = 5) -> None:
        """Make no client yet. ``read_s`` is how many seconds a client waits for an answer."""
        self._read_s = read_s
        self._session: Any = None
        self._made: dict[str, Any] = {}

    def __call__(self, service: str) -> Any:
        """Return the client. Raises boto3's errors, such as that of a missing Region."""
        if service not in self._made:
            import boto3
            from botocore.config import Config

            config = Config(
                connect_timeout=2, read_timeout=self._read_s, retries={"total_max_attempts": 2, "mode": "standard"}
            )
            self._session = self._session or boto3.session.Session(region_name=os.environ.get("AWS_REGION") or None)
            self._made[service] = self._session.client(service, config=config)
        return self._made[service]


def code_of(error: BaseException | None) -> str:
    """Return the code of an error of AWS, also of one that caused the given one; empty for any other error."""
    for each in causes(error):
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
    return ""


def is_refused(error: BaseException | None) -> bool:
    """Return whether AWS, or the server's access control, does not permit the request."""
    return code_of(error) in _REFUSED or any(
        type(each).__name__ == "NoPermissionError" or str(each).startswith("NOPERM") for each in causes(error)
    )


def text_of(error: BaseException) -> str:
    """Return an error on one line, not too long."""
    text = f"{type(error).__name__}: {error}".replace("\n", " ")
    return text if len(text) <= _MAX_FOUND else f"{text[:_MAX_FOUND]}..."


def not_asked(name: str, right: str, error: BaseException) -> Check:
    """Make the result of a check whose request was not answered: ``right`` is the permission that it needs."""
    if is_refused(error):
        return Check.unchecked(name, f"this caller lacks {right}", "allow it to have this checked")
    if code_of(error) in _MISSING:
        return Check.failed(name, text_of(error), "check the name and the Region")
    return Check.unchecked(name, text_of(error), f"{right} was not answered: check credentials, Region and network")
