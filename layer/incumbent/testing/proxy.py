"""A network that fails on command: stands between a client and a real server, request by request.

It understands just enough of a protocol to know where a request ends and where its answer does: RESP for Redis and
Valkey, HTTP/1.1 for DynamoDB. A test says what is to happen to the next requests; nothing is left to chance::

    with fault_proxy(server.port, RESP) as network:
        provider = RedisProvider(url=f"redis://127.0.0.1:{network.port}")
        network.next(LoseReply())          # the first request is carried out, its answer is lost
        assert provider.acquire_lease("k", "A", 30_000).acquired

Not understood: TLS, pipelining (a client that sends before it was answered is served in turn), SUBSCRIBE.
"""

import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

HOST = "127.0.0.1"

_BACKLOG = 128
_CHUNK = 65_536
_STUCK_S = 30.0  # a test that holds a request for so long has forgotten it


# --- what is sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as it was sent. ``name`` is the command (RESP), or the operation of DynamoDB (HTTP)."""

    name: str
    data: bytes


class Stream:
    """What comes over a connection, in lines and by size."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._waiting = b""

    @property
    def waiting(self) -> bool:
        """Whether something has come that was not read yet."""
        return bool(self._waiting)

    def line(self) -> bytes:
        """Read a line, its end included; nothing when the other side has gone."""
        while b"\n" not in self._waiting:
            if not self._more():
                return b""
        return self.read(self._waiting.index(b"\n") + 1)

    def read(self, size: int) -> bytes:
        """Read so many bytes; fewer when the other side has gone."""
        while len(self._waiting) < size and self._more():
            pass
        data, self._waiting = self._waiting[:size], self._waiting[size:]
        return data

    def _more(self) -> bool:
        came = self._connection.recv(_CHUNK)
        self._waiting += came
        return bool(came)


class Wire(Protocol):
    """How a protocol marks where a request and an answer end."""

    def request(self, stream: Stream) -> Request | None:
        """Read one request; ``None`` when the client has gone."""
        ...

    def answer(self, stream: Stream) -> bytes:
        """Read the answer to one request. Raises ``ConnectionError`` when the server has gone."""
        ...

    def matters(self, request: Request) -> bool:
        """Whether faults are for this request; what clients say when they connect goes through unseen."""
        ...


class _Resp:
    """RESP 2 and 3."""

    _SETUP = frozenset({"AUTH", "CLIENT", "CLUSTER", "COMMAND", "HELLO", "INFO", "SELECT"})

    def request(self, stream: Stream) -> Request | None:
        head = stream.line()
        if not head:
            return None
        data, words = head, list[bytes]()
        for _ in range(int(head[1:])):
            size = _line(stream)
            word = _exactly(stream, int(size[1:]) + 2)
            words.append(word[:-2])
            data += size + word
        return Request(name=words[0].decode().upper(), data=data)

    def answer(self, stream: Stream) -> bytes:
        head = _line(stream)
        kind, rest = head[:1], head[1:-2]
        if kind in b"$=!" and rest != b"-1":
            return head + _exactly(stream, int(rest) + 2)
        if kind in b"*~>%" and rest != b"-1":
            parts = int(rest) * (2 if kind == b"%" else 1)
            return head + b"".join(self.answer(stream) for _ in range(parts))
        return head

    def matters(self, request: Request) -> bool:
        return request.name not in self._SETUP


class _Http:
    """HTTP/1.1 with bodies of a stated length, or in chunks."""

    def request(self, stream: Stream) -> Request | None:
        first = stream.line()
        if not first:
            return None
        data, headers = self._rest(stream, first)
        return Request(name=headers.get(b"x-amz-target", first).decode().rpartition(".")[2].strip(), data=data)

    def answer(self, stream: Stream) -> bytes:
        return self._rest(stream, _line(stream))[0]

    def matters(self, request: Request) -> bool:
        return True

    @staticmethod
    def _rest(stream: Stream, data: bytes) -> tuple[bytes, dict[bytes, bytes]]:
        headers: dict[bytes, bytes] = {}
        while (line := _line(stream)) != b"\r\n":
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip()
            data += line
        data += b"\r\n"
        if headers.get(b"transfer-encoding") == b"chunked":
            size = -1
            while size:
                head = _line(stream)
                size = int(head, 16)
                data += head + _exactly(stream, size + 2)
        return data + _exactly(stream, int(headers.get(b"content-length", b"0"))), headers


RESP: Wire = _Resp()
HTTP: Wire = _Http()


def _line(stream: Stream) -> bytes:
    line = stream.line()
    if not line:
        raise ConnectionError("the other side has gone")
    return line


def _exactly(stream: Stream, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise ConnectionError("the other side has gone")
    return data


# --- what may happen to it

# Whatever a test wants to do between a fault and the moment at which the client notices it.
Meanwhile: TypeAlias = Callable[[], object]


def _nothing() -> None:
    """Nothing happens meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """It arrives, and so does its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseRequest:
    """It never arrives. The connection breaks or, if ``silent``, nothing is heard until the client gives up."""

    silent: bool = False
    meanwhile: Meanwhile = field(default=_nothing, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseReply:
    """It is carried out, and its answer never arrives. ``silent`` as in `LoseRequest`."""

    silent: bool = False
    meanwhile: Meanwhile = field(default=_nothing, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRequest:
    """The connection breaks when half of it has arrived: the server drops it."""

    meanwhile: Meanwhile = field(default=_nothing, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutReply:
    """It is carried out, and the connection breaks when half of its answer has arrived, or what ``keeps`` says."""

    keeps: float = 0.5
    meanwhile: Meanwhile = field(default=_nothing, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """It waits until ``until`` is set, then goes through."""

    until: threading.Event
    meanwhile: Meanwhile = field(default=_nothing, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """It is carried out twice, one right after the other. The client hears the first answer, or the ``last``."""

    last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """It is held back and the client's connection breaks (or is ``silent``); `Network.late` has it from then on."""

    silent: bool = False
    meanwhile: Meanwhile = field(default=_nothing, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """It never arrives, and the client is told ``data`` instead."""

    data: bytes


Fault: TypeAlias = Pass | LoseRequest | LoseReply | CutRequest | CutReply | Delay | Duplicate | Stall | Answer


def dynamodb_error(code: str, *, status: int = 400, message: str = "said by the test") -> Answer:
    """What DynamoDB says when it refuses a request: ``dynamodb_error("ThrottlingException")``."""
    body = f'{{"__type":"com.amazonaws.dynamodb.v20120810#{code}","message":"{message}"}}'.encode()
    head = f"HTTP/1.1 {status} Said\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: {len(body)}\r\n\r\n"
    return Answer(data=head.encode() + body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """A request that was held back. The client has given it up; the server has not seen it yet."""

    request: Request
    deliver: Callable[[], bytes]
    """Carry it out now, once, and return what the server said to it."""


# --- the network


@dataclass(slots=True, kw_only=True)
class Network:
    """A running proxy; `fault_proxy` makes one. Safe to use from several threads."""

    port: int
    sent: list[Request] = field(default_factory=list)
    """The requests that mattered, in the order in which they came."""

    late: list[Late] = field(default_factory=list)
    """What a `Stall` holds back."""

    _faults: list[Fault] = field(default_factory=list)
    _choose: Callable[[Request], Fault] = field(default=lambda _: Pass())
    _cut: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _sockets: set[socket.socket] = field(default_factory=set)

    def next(self, *faults: Fault) -> None:
        """Say what happens to the next requests, one each; those after them are chosen, or pass."""
        with self._lock:
            self._faults = list(faults)

    def choose(self, choose: Callable[[Request], Fault]) -> None:
        """Have ``choose`` say what happens to each request for which `next` has said nothing."""
        with self._lock:
            self._choose = choose

    def cut(self) -> None:
        """Break all connections, and let none through until `mend`."""
        with self._lock:
            self._cut = True
            sockets = list(self._sockets)
        for each in sockets:
            _break(each)

    def mend(self) -> None:
        """Let connections through again."""
        with self._lock:
            self._cut = False

    def forget(self) -> None:
        """Forget what was sent and what is held back."""
        with self._lock:
            self.sent.clear()
            self.late.clear()

    # --- what the connections ask

    def fault_for(self, request: Request) -> Fault:
        """What is to happen to a request that has just come."""
        with self._lock:
            self.sent.append(request)
            return self._faults.pop(0) if self._faults else self._choose(request)

    def hold(self, late: Late) -> None:
        """Hold a request back."""
        with self._lock:
            self.late.append(late)

    def opened(self, connection: socket.socket) -> bool:
        """A client has connected; say whether it may."""
        with self._lock:
            if not self._cut:
                self._sockets.add(connection)
            return not self._cut

    def closed(self, connection: socket.socket) -> None:
        """A client has gone."""
        with self._lock:
            self._sockets.discard(connection)


@contextmanager
def fault_proxy(server_port: int, wire: Wire | None, *, host: str = HOST) -> Iterator[Network]:
    """Run a proxy to a server on this machine for as long as the context lasts.

    With ``wire=None`` it passes bytes on whatever they say, and can only be `Network.cut`: for what is no exchange of
    requests and answers, such as a replica's connection to its primary.
    """
    stopping = threading.Event()
    with socket.create_server((host, 0), backlog=_BACKLOG) as listener:
        network = Network(port=listener.getsockname()[1])
        threads: list[threading.Thread] = []

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                if stopping.is_set() or not network.opened(client):
                    _break(client)
                    client.close()
                    continue
                line = _Connection(network, client, (host, server_port), stopping)
                thread = threading.Thread(target=line.serve, args=(wire,), name="incumbent-proxy", daemon=True)
                threads.append(thread)
                thread.start()

        acceptor = threading.Thread(target=accept, name="incumbent-proxy", daemon=True)
        acceptor.start()
        try:
            yield network
        finally:
            stopping.set()
            network.cut()
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            acceptor.join()
            for thread in threads:
                thread.join()


class _Connection:
    """One client's connection, and the proxy's own to the server for it."""

    def __init__(
        self, network: Network, client: socket.socket, server: tuple[str, int], stopping: threading.Event
    ) -> None:
        self._network = network
        self._client = client
        self._server = server
        self._stopping = stopping

    def serve(self, wire: Wire | None) -> None:
        """Serve the client until it, or the server, or a fault ends it."""
        try:
            with suppress(OSError), self._client, self._connect() as server:
                if wire is None:
                    self._relay(server)
                else:
                    self._exchange(wire, server)
        finally:
            self._network.closed(self._client)

    def _connect(self) -> socket.socket:
        server = socket.create_connection(self._server)
        for each in (server, self._client):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return server

    def _exchange(self, wire: Wire, server: socket.socket) -> None:
        asks, answers = Stream(self._client), Stream(server)
        while self._comes_before_the_end(server, asks) and (request := wire.request(asks)) is not None:
            fault: Fault = Pass()
            if wire.matters(request):
                fault = self._network.fault_for(request)
            if not self._happens(fault, wire, request, server, answers):
                break

    def _comes_before_the_end(self, server: socket.socket, asks: Stream) -> bool:
        """Wait for the next request; end when the server does, which a client is to notice as it would without us."""
        if asks.waiting:
            return True
        ready = select.poll()
        ready.register(self._client, select.POLLIN)
        ready.register(server, select.POLLIN)
        while True:
            readable = {number for number, _ in ready.poll()}
            if server.fileno() in readable and not server.recv(1, socket.MSG_PEEK):
                return False
            if self._client.fileno() in readable:
                return True

    def _happens(  # noqa: C901 - one case for each fault
        self, fault: Fault, wire: Wire, request: Request, server: socket.socket, answers: Stream
    ) -> bool:
        """Let it happen; say whether the connection lives on."""

        def carry_out() -> bytes:
            server.sendall(request.data)
            return wire.answer(answers)

        match fault:
            case Answer(data=data):
                self._client.sendall(data)
                return True
            case Pass() | Delay():
                if isinstance(fault, Delay):
                    fault.meanwhile()
                    fault.until.wait(_STUCK_S)
                self._client.sendall(carry_out())
                return True
            case Duplicate(last=last):
                told = [carry_out(), carry_out()]
                self._client.sendall(told[-1 if last else 0])
                return True
            case CutRequest():
                server.sendall(request.data[: len(request.data) // 2])
            case CutReply(keeps=keeps):
                answer = carry_out()
                self._client.sendall(answer[: int(len(answer) * keeps)])
            case LoseReply():
                carry_out()
            case Stall():
                self._network.hold(Late(request=request, deliver=lambda: self._deliver(wire, request)))
            case LoseRequest():
                pass
        self._break(fault)
        return False

    def _break(self, fault: LoseRequest | LoseReply | CutRequest | CutReply | Stall) -> None:
        """End the connection as the fault says."""
        fault.meanwhile()
        if isinstance(fault, CutReply):
            return  # in order: what is on its way is to arrive, and a reset would overtake it
        if not isinstance(fault, CutRequest) and fault.silent:
            with suppress(OSError):
                while self._client.recv(_CHUNK):  # until the client has given up
                    pass
        with suppress(OSError):
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset

    def _deliver(self, wire: Wire, request: Request) -> bytes:
        """Carry a late request out, over a connection of its own: the client's is gone."""
        with socket.create_connection(self._server) as server:
            server.sendall(request.data)
            return wire.answer(Stream(server))

    def _relay(self, server: socket.socket) -> None:
        def pass_on(source: socket.socket, target: socket.socket) -> None:
            with suppress(OSError):
                while data := source.recv(_CHUNK):
                    target.sendall(data)
            _break(source)
            _break(target)

        back = threading.Thread(target=pass_on, args=(server, self._client), name="incumbent-proxy", daemon=True)
        back.start()
        pass_on(self._client, server)
        back.join()


def _break(connection: socket.socket) -> None:
    """End a connection for its readers, here and at the other end."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
