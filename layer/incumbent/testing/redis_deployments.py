"""Redis as it is deployed: watched by Sentinels, with TLS, restarted from a file, used by a user of few rights."""

import datetime as dt
import ipaddress
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from incumbent.clock import SYSTEM_CLOCK
from incumbent.local.processes import supervised
from incumbent.local.servers import free_port, valkey_binary
from incumbent.providers.redis.permissions import acl_rules
from incumbent.testing.redis_cluster import wait_until
from incumbent.testing.servers import HOST, NotStarted, ValkeyServer, valkey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

OTHER_HOST = "127.0.0.2"
"""Another address of the server of `redis_with_tls`, for which its certificate is not."""

_NAME = "leases"
_SENTINELS = 3
_QUORUM = 2
_DOWN_AFTER_MS = 500
_FAILOVER_TIMEOUT_MS = 3_000


# --- Sentinel


class WatchedPrimary:
    """A primary, its replica, and three Sentinels, two of which must agree that the primary is away."""

    def __init__(self, stack: ExitStack) -> None:
        """Start the servers. Raises ``NotStarted``."""
        self._ends: dict[int, ExitStack] = {}
        primary = self._start(stack, None)
        self._start(stack, primary)
        self.sentinels = [_sentinel(stack, primary) for _ in range(_SENTINELS)]
        for client in (redis.Redis(port=port) for port in self.sentinels):
            stack.callback(client.close)
            wait_until(partial(_knows_all, client), "a Sentinel does not know the others")

    def sentinel(self) -> Sentinel:
        """Return redis-py's client of the Sentinels, whose connections repeat no command and wait half a second."""
        return Sentinel(  # type: ignore[no-untyped-call]
            [(HOST, port) for port in self.sentinels], socket_timeout=0.5, retry=Retry(NoBackoff(), 0)
        )

    def client(self) -> Any:
        """Return a client of the primary, whichever server that is. The caller closes it."""
        return self.sentinel().master_for(_NAME)  # type: ignore[no-untyped-call]

    @property
    def primary(self) -> int:
        """The port of the primary, as the first Sentinel says, also while that one is away."""
        with redis.Redis(port=self.sentinels[0]) as client:
            return int(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", _NAME)[1])

    def kill_primary(self) -> int:
        """End the primary by SIGKILL, and wait until the Sentinels have promoted its replica; return that port."""
        gone = self.primary
        self._ends.pop(gone).close()
        return self._promoted(gone)

    def fail_over(self, *, coordinated: bool) -> int:
        """Let the Sentinels promote the replica; ``coordinated`` makes the primary wait until it has all data."""
        before = self.primary
        words = ["SENTINEL", "FAILOVER", _NAME, *(["COORDINATED"] if coordinated else [])]
        with redis.Redis(port=self.sentinels[0]) as client:
            client.execute_command(*words)
        return self._promoted(before)

    def _promoted(self, before: int) -> int:
        wait_until(lambda: self.primary != before, "no replica was promoted")
        return self.primary

    def _start(self, stack: ExitStack, primary: ValkeyServer | None) -> ValkeyServer:
        end = stack.enter_context(ExitStack())
        server = end.enter_context(valkey(replica_of=primary))
        self._ends[server.port] = end
        return server


@contextmanager
def watched_primary() -> Iterator[WatchedPrimary]:
    """Run a primary, a replica and three Sentinels, in about three seconds. Raises `NotStarted`."""
    with ExitStack() as stack:
        yield WatchedPrimary(stack)


def _sentinel(stack: ExitStack, primary: ValkeyServer) -> int:
    """Start a Sentinel, which needs a file that it can write; return its port."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="incumbent-sentinel-")))
    port, file = free_port(), folder / "sentinel.conf"
    file.write_text(
        f"port {port}\nbind {HOST}\ndir {folder}\nloglevel warning\n"
        f"sentinel monitor {_NAME} {HOST} {primary.port} {_QUORUM}\n"
        f"sentinel down-after-milliseconds {_NAME} {_DOWN_AFTER_MS}\n"
        f"sentinel failover-timeout {_NAME} {_FAILOVER_TIMEOUT_MS}\n",
        "utf-8",
    )
    process = stack.enter_context(supervised([str(valkey_binary()), str(file), "--sentinel"]))
    with redis.Redis(port=port, retry=Retry(NoBackoff(), 0)) as client:
        process.wait_until(lambda: _answers(client))
    return port


def _answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def _knows_all(client: Any) -> bool:
    """Whether a Sentinel knows the replica and the other Sentinels."""
    state = client.sentinel_master(_NAME)
    return int(state["num-slaves"]) == 1 and int(state["num-other-sentinels"]) == _SENTINELS - 1


# --- TLS


@dataclass(frozen=True, slots=True, kw_only=True)
class TLSServer:
    """A Redis that speaks TLS on one port and none on another.

    Its certificate is for this machine's address and for ``localhost``, by an authority of its own; ``authority`` is
    that one's certificate, ``other_authority`` that of another.
    """

    port: int
    plain: ValkeyServer
    authority: Path
    other_authority: Path

    def url(self, *, authority: Path | None = None, host: str = HOST, port: int | None = None) -> str:
        """What a client takes that trusts the authority; without one, those that the machine trusts."""
        parameters = [f"ssl_ca_certs={authority}"] if authority else []
        if self.plain.cluster:
            parameters.append("cluster=true")
        return f"rediss://{host}:{port or self.port}/0{'?' if parameters else ''}{'&'.join(parameters)}"


def why_no_redis() -> str | None:
    """Why `redis_with_tls` cannot be started here, for people to read; None when it can."""
    return None if _redis_command() else "Debian's redis-server is not here: `make setup` fetches it where apt-get is"


@contextmanager
def redis_with_tls(*, cluster: bool = False, config: Mapping[str, str] | None = None) -> Iterator[TLSServer]:
    """Run Debian's Redis, since the embedded Valkey speaks no TLS. ``config`` holds further directives.

    With ``cluster`` it is the one node of a cluster, and tells its clients the port for TLS.

    Raises `NotStarted`, also where `why_no_redis` has a reason.
    """
    command = _redis_command()
    if command is None:
        raise NotStarted(f"Redis cannot be started: {why_no_redis()}")
    with tempfile.TemporaryDirectory(prefix="incumbent-tls-") as name:
        folder = Path(name)
        key, certificate = _authority("incumbent")
        _certify(folder, key, certificate)
        _, other = _authority("another")
        (folder / "authority.pem").write_bytes(_pem(certificate))
        (folder / "other.pem").write_bytes(_pem(other))
        port = free_port()
        settings = {
            "bind": f"{HOST} {OTHER_HOST}",
            "tls-port": str(port),
            "tls-cert-file": str(folder / "server.pem"),
            "tls-key-file": str(folder / "server.key"),
            "tls-ca-cert-file": str(folder / "authority.pem"),
            "tls-auth-clients": "no",
        }
        if cluster:
            settings["tls-cluster"] = "yes"
        with valkey(cluster=cluster, command=command, config=settings | dict(config or {})) as server:
            yield TLSServer(
                port=port, plain=server, authority=folder / "authority.pem", other_authority=folder / "other.pem"
            )


def _redis_command() -> Sequence[str] | None:
    """What starts Redis: Debian's, in `.redis` of this checkout or the working folder, or the machine's own."""
    here = Path.cwd()
    for folder in (here, *here.parents, *Path(__file__).parents):
        binary = folder / ".redis" / "usr" / "bin" / "redis-server"
        if binary.exists():
            libraries = ":".join(map(str, (folder / ".redis" / "usr" / "lib").glob("*-linux-gnu")))
            return ["env", f"LD_LIBRARY_PATH={libraries}", str(binary)]
    found = shutil.which("redis-server")
    return [found] if found else None


def _authority(name: str) -> tuple["EllipticCurvePrivateKey", "Certificate"]:
    """Make a key, and a certificate that it has signed for itself."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509 import BasicConstraints

    key = ec.generate_private_key(ec.SECP256R1())
    made = _certificate(name, name, key).add_extension(BasicConstraints(ca=True, path_length=None), critical=True)
    return key, made.sign(key, hashes.SHA256())


def _certify(folder: Path, authority_key: "EllipticCurvePrivateKey", authority: "Certificate") -> None:
    """Write a server's key, and a certificate for it by the authority."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509 import DNSName, IPAddress, SubjectAlternativeName

    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.subject.rdns[0].rfc4514_string().removeprefix("CN=")
    names = SubjectAlternativeName([IPAddress(ipaddress.ip_address(HOST)), DNSName("localhost")])
    made = _certificate("server", issuer, key).add_extension(names, critical=False)
    (folder / "server.pem").write_bytes(_pem(made.sign(authority_key, hashes.SHA256())))
    (folder / "server.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def _certificate(name: str, issuer: str, key: "EllipticCurvePrivateKey") -> Any:
    """Begin a certificate that is good today."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    now = dt.datetime.fromtimestamp(SYSTEM_CLOCK.now().wall_ms / 1_000, dt.UTC)
    day = dt.timedelta(days=1)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
    )


def _pem(certificate: "Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


# --- a restart


class DurableValkey:
    """A Valkey that writes every change to a file before it answers, and reads it when it starts again."""

    def __init__(self, stack: ExitStack, appendfsync: str) -> None:
        """Start the server. Raises ``NotStarted``."""
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="incumbent-durable-"))
        self._config = {"dir": folder, "appendonly": "yes", "appendfsync": appendfsync}
        self._end = stack.enter_context(ExitStack())
        self.server = self._end.enter_context(valkey(config=self._config))

    def kill(self) -> None:
        """End the server by SIGKILL, which leaves it no time to write anything."""
        os.killpg(self.server.process_group, signal.SIGKILL)
        self._end.close()

    def start(self) -> None:
        """Start it again where its clients look for it, with what is in its file."""
        self.server = self._end.enter_context(valkey(config=self._config, port=self.server.port))


@contextmanager
def durable_valkey(*, appendfsync: str = "always") -> Iterator[DurableValkey]:
    """Run a Valkey with an append-only file. Raises `NotStarted`."""
    with ExitStack() as stack:
        yield DurableValkey(stack, appendfsync)


# --- users


class LimitedUser:
    """A user who may do what the provider's calls need, on each of the given servers, and no more."""

    def __init__(self, servers: Sequence[ValkeyServer], key_prefix: str, name: str) -> None:
        """Make the user, with a password."""
        self._servers = servers
        self._name = name
        self._rules = acl_rules(key_prefix).split()
        self.password = ""
        self.rotate("first")

    @property
    def url(self) -> str:
        """What the Redis provider takes, with the password that is valid now."""
        first = self._servers[0]
        return f"redis://{self._name}:{self.password}@{HOST}:{first.port}{'?cluster=true' if first.cluster else ''}"

    @property
    def url_without_password(self) -> str:
        """The same, for a provider that gets the password elsewhere."""
        return self.url.replace(f":{self.password}@", "@")

    def rotate(self, password: str) -> None:
        """Replace the password. Connections that are open stay so, as on every server."""
        self.password = password
        self._tell("ACL", "SETUSER", self._name, "reset", "on", f">{password}", *self._rules)

    def disconnect(self) -> None:
        """Close the user's connections."""
        self._tell("CLIENT", "KILL", "USER", self._name)

    def refused(self) -> list[str]:
        """Return what the servers refused to the user: commands, keys, logins."""
        found: list[str] = []
        for server in self._servers:
            with redis.Redis.from_url(server.url, decode_responses=True) as client:
                log = client.acl_log()
            found += [f"{each['reason']}: {each['object']}" for each in log if each["username"] == self._name]
        return found

    def remove(self) -> None:
        """Delete the user."""
        self._tell("ACL", "DELUSER", self._name)

    def _tell(self, *words: str) -> None:
        for server in self._servers:
            with redis.Redis.from_url(server.url) as client:
                client.execute_command(*words)


@contextmanager
def limited_user(*servers: ValkeyServer, key_prefix: str, name: str = "limited") -> Iterator[LimitedUser]:
    """Make a user with the rights that the documentation names, on each of the servers, for as long as this lasts."""
    user = LimitedUser(servers, key_prefix, name)
    try:
        yield user
    finally:
        user.remove()
