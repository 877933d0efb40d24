"""The Redis and Valkey provider: a key's lease and mailbox in one hash slot, one Lua script per call."""

from collections.abc import Callable, Sequence

from incumbent.clock import SYSTEM_CLOCK, Clock
from incumbent.providers.redis.archive import Archives
from incumbent.providers.redis.clients import Client
from incumbent.providers.redis.control import Controls
from incumbent.providers.redis.leases import Leases
from incumbent.providers.redis.mailbox import Mailboxes
from incumbent.providers.redis.search import ScanPlace


class RedisProvider(Leases, Mailboxes, Controls, Archives):
    """Leases, mailboxes and dead letters in Redis (5 or newer) or Valkey; standalone, replicated or in cluster mode.

    Every call is one request, an EVALSHA. Further requests: one EVAL when the server has forgotten the script; those
    that a cluster's client sends after MOVED; for ``orphans``, ``keys`` and ``dead_letters(None)`` the SCANs, one
    request for each key found, and in a cluster one for its nodes; two for each message whose body cannot be read,
    when it is claimed; and, with ``url``, one INFO after the first call, which warns if the server may evict leases.
    Replicas are refused: they may be behind.

    The lease is the plain string ``<key_prefix>:lease:<key>`` with the owner as its value and PX as its expiry, so
    other programs that use the same string and incumbent exclude each other. A lease that another program has written
    is *foreign*: messages for its key are stored and promised, and wait for the next owner that reads this mailbox.

    Promised messages are as durable as the server: without AOF a crash, and with asynchronous replication a fail-over,
    can lose the last accepted messages, or let two owners run. Pass ``fence`` to every system that you write to.
    """

    def __init__(
        self,
        *,
        url: str | Sequence[str] | None = None,
        client: Client | None = None,
        password: Callable[[], str] | None = None,
        key_prefix: str = "incumbent",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Take a URL, or a client of the package redis or of its fork valkey. Sends nothing before the first call.

        ``url`` has redis-py's form: ``redis://user:password@host:6379/0``, ``rediss://`` for TLS, parameters such
        as ``socket_timeout=0.3`` (seconds; default a twentieth of the ttl, from 0.25 to 1). ``cluster=true`` says
        that the server is in cluster mode; then several nodes may be named, of which one suffices to find the others:
        ``redis://a:6379,b:6379/?cluster=true``, or a list of URLs that differ in host and port. A client made from the
        URL repeats no command, and a call ends well before the next renewal is due.

        ``password`` is called for the password whenever a connection is made (``SecretPassword``, or a callable that
        makes tokens); the URL then holds at most the user.

        ``client`` keeps its settings, and the caller closes it. A client that repeats commands, as redis-py does by
        default, does not say which try was answered: a transfer or settle by an owner that has lost then raises
        ``LeaseUnavailable``, since it may have taken effect (R9). Prefer a client with ``retry=Retry(NoBackoff(), 0)``
        and timeouts of a tenth of the ttl.

        Raises ``ConfigurationError``; so does each call with a ttl that is shorter than a ``socket_timeout`` set in
        the URL or in the client (redis-py's default is 5 seconds).
        """
        super().__init__(url=url, client=client, password=password, key_prefix=key_prefix, clock=clock)
        self._sought = ScanPlace()
