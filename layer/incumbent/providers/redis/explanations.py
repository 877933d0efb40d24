"""What an error of the server or of its client means, and what to do about it."""

import importlib
import ssl

import redis
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    ClusterError,
    InvalidResponse,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    SlotNotCoveredError,
    TryAgainError,
)

from incumbent.providers.redis.permissions import acl_rules
from incumbent.retry import causes

ERRORS: tuple[type[Exception], ...] = (RedisError, RedisClusterException, OSError)
REFUSED = (AuthenticationError, AuthorizationError, NoPermissionError)

_TLS_ALERT = "\\x15\\x03"  # how such a record begins, as redis-py's error quotes it
_MAYBE_LATER = ("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOREPLICAS", "TRYAGAIN")


def errors_of_valkey() -> tuple[type[Exception], ...]:
    """Load the errors of the package valkey."""
    errors = importlib.import_module("valkey.exceptions")
    return errors.ValkeyError, errors.ValkeyClusterException


def twin(error: Exception) -> Exception:
    """Return redis-py's equivalent of an error of its fork."""
    for kind in type(error).__mro__:
        found = getattr(redis.exceptions, kind.__name__.replace("Valkey", "Redis"), None)
        if isinstance(found, type) and issubclass(found, (RedisError, RedisClusterException)):
            return found(*error.args)
    return RedisError(*error.args)


def refusal(error: BaseException) -> BaseException:
    """Return the first error that a cluster's client met: the client wraps it, and guesses at the reason."""
    for each in causes(error):
        error = each
        if not isinstance(each, RedisClusterException):
            break
    return error


def is_odd_record(error: BaseException | None) -> bool:
    """Return whether an error concerns the records of one key, and not the server or other keys."""
    text = str(error)
    if not isinstance(error, ResponseError):
        return False
    # A script met a value that no version writes, and Lua raised. The server's errors in a script are named here.
    broken = text.startswith(("user_script:", "Error running script")) and not any(
        word in text for word in ("ACL", "MISCONF", "NOPERM", "OOM", "READONLY", "can't run this command")
    )
    return "WRONGTYPE" in text or broken


def is_migrating(error: BaseException | None) -> bool:
    """Return whether a node has refused a key because its slot is on its way to another node."""
    return isinstance(error, TryAgainError) or (isinstance(error, ClusterError) and "TTL exhausted" in str(error))


def classify_error(error: Exception, handled: BaseException | None = None) -> tuple[bool, str]:
    """Return whether another try may help after an error, and what to do about it.

    ``handled`` is what the caller was handling when it made the call: it did not cause this error.
    """
    about_tls = (_classify_tls(each) for each in causes(error, handled))
    return next(filter(None, about_tls), None) or _classify(error)


def _classify(error: Exception) -> tuple[bool, str]:  # noqa: C901 - one line for each kind of error
    text = str(error)
    status = getattr(error, "status_code", None) or text.partition(" ")[0]
    if isinstance(refusal(error), REFUSED):
        return False, (
            "the server refuses these credentials, or they do not permit this: check user, password and ACL "
            f"({acl_rules('<prefix>')})"
        )
    match error:
        case OutOfMemoryError():
            return False, "the server's memory is full: nothing was changed; make room, or raise maxmemory"
        case ReadOnlyError():
            return True, "this server is a replica: give the address of the primary"
        case _ if is_migrating(error):
            return True, (
                "the slot of this key is being moved to another node: nothing was changed; try again later, and if that"
                " never helps, end a move that was left half done (redis-cli --cluster fix)"
            )
        case ClusterDownError() | SlotNotCoveredError():
            return True, "the cluster is being rearranged: nothing was changed; try again later"
        case AskError():
            return False, "this server is a node of a cluster: add cluster=true to the URL, or give a RedisCluster"
        case RedisClusterException() if "cluster mode is not enabled" in text.lower():
            return False, "this server is not in cluster mode: leave cluster=true out of the URL"
        case ResponseError() if "WRONGTYPE" in text:
            return False, (
                "one of this key's names holds a value of another type, which was left as it is: choose another "
                "key_prefix, or remove it"
            )
        case ResponseError() if "OOM" in text:
            return False, "the server's memory is full: nothing was changed; make room, or raise maxmemory"
        case ResponseError():
            return status in _MAYBE_LATER, "the server refused the request: see its message"
        case redis.ConnectionError() | redis.TimeoutError() | RedisClusterException() | OSError():
            return True, (
                "check that the server is up and can be reached from here (address, port, security group; rediss:// "
                "if it requires TLS); the call may have taken effect, and repeating it is safe"
            )
        case _:
            return False, "the client could not send the request or parse the answer: see the cause"


def _classify_tls(error: BaseException) -> tuple[bool, str] | None:
    """Do so for a client and a server of which only one speaks TLS, or which do not trust one another."""
    match error:
        case ssl.SSLCertVerificationError():
            return False, (
                "the server's certificate is not trusted here, has expired, or is for another host: renew it, for an "
                "authority of your own add ssl_ca_certs=PATH to the URL, and name the host as the certificate does"
            )
        case ssl.SSLError() if "CERTIFICATE_REQUIRED" in str(error):
            return False, (
                "the server wants a certificate of its clients: add ssl_certfile=PATH and ssl_keyfile=PATH to the URL"
            )
        case ssl.SSLError() | TimeoutError() if isinstance(error, ssl.SSLError) or "handshake" in str(error):
            return True, (
                "the server took the connection but did not answer in TLS, so it probably speaks none on this port: "
                "write redis://, or give the port for TLS; nothing was sent"
            )
        case InvalidResponse() if _TLS_ALERT in str(error):
            return False, "the server speaks TLS on this port: write rediss://; nothing was changed"
        case ConnectionResetError() | redis.ConnectionError() if isinstance(
            error, ConnectionResetError
        ) or "closed by server" in str(error):
            return True, (
                "the server closed the connection without an answer: check that it is up and can be reached from here "
                "(rediss:// if it requires TLS); the call may have taken effect, and repeating it is safe"
            )
        case _:
            return None
