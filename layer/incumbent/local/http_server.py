"""A small HTTP/1.1 server on the loopback interface, for the Runtime API and the Invoke API."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOST = "127.0.0.1"


class Server(ThreadingHTTPServer):
    """Listens on a free port; one thread a connection. It knows which connections are still open."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, handler: type["Handler"], owner: Any) -> None:
        """Bind and listen. ``owner`` is what the handlers work for."""
        super().__init__((HOST, 0), handler)
        self.owner = owner
        self._open = 0
        self._changed = threading.Condition()
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.05}, name="incumbent-http", daemon=True
        )

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{HOST}:{self.server_address[1]}"

    def start(self) -> None:
        """Accept connections from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Accept no more; what is open goes on until its peer hangs up."""
        if self._thread.ident is not None:
            self.shutdown()
            self._thread.join()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Count the connection and serve it."""
        with self._changed:
            self._open += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close the connection and count it no more."""
        super().shutdown_request(request)
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def wait_all_closed(self, timeout_ms: int) -> bool:
        """Wait until no connection is open; say whether that was so in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._open == 0, timeout_ms / 1_000)


class Handler(BaseHTTPRequestHandler):
    """Keep-alive, no Nagle (45 ms a call with it), one write an answer, silent."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave in one write
    server: Server

    def handle(self) -> None:
        """Serve the connection until its peer is gone, and tell `connection_ended` how that was."""
        broken = False
        try:
            super().handle()
        except ConnectionError:
            broken = True
        finally:
            self.connection_ended(broken=broken)

    def finish(self) -> None:
        """Close both files; that the peer is gone was told already."""
        try:
            super().finish()
        except ConnectionError:
            self.rfile.close()

    def connection_ended(self, *, broken: bool) -> None:
        """Nothing, unless a subclass wants to know."""

    def read_body(self) -> bytes:
        """Read the request's body, of known length or in chunks."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = bytearray()
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():  # trailers
            pass
        return bytes(body)

    def reply(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        """Answer."""
        self.send_response_only(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
        """Nothing: what happened is told by invocations and log lines."""
