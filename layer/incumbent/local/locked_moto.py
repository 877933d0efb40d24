"""moto's DynamoDB behind one lock, as a program: prints its port, then serves until it is killed.

moto keeps its tables in dictionaries that no lock guards, so that of 320 parallel appends it loses some.
Its own server also closes the connection after each answer. This one keeps it open, with Nagle's algorithm
off, so that a call costs what moto needs for it and no more.
"""

import io
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


def locked(application: "WSGIApplication") -> "WSGIApplication":
    """Let one request at a time into the application, from its first line to the last byte of its answer."""
    lock = threading.Lock()

    def one_at_a_time(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        with lock:
            return [b"".join(application(environ, start_response))]

    return one_at_a_time


def serve(application: "WSGIApplication", host: str, announce: Callable[[int], None]) -> None:
    """Serve on a free port, which is announced, a thread a connection, until the process ends."""

    class Handler(_Handler):
        app = staticmethod(application)

    with _Server((host, 0), Handler) as server:
        announce(server.server_address[1])
        server.serve_forever()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    """HTTP/1.1 with connections that stay open, for requests that say their length."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body of an answer in one packet
    app: "WSGIApplication"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status, headers = "500 Internal Server Error", [("Content-Type", "application/x-amz-json-1.0")]

        def start_response(*args: Any) -> Callable[[bytes], object]:
            nonlocal status, headers
            status, headers = args[0], args[1]
            return self.wfile.write  # for applications of an older kind; moto is none

        try:
            answer = b"".join(self.app(self._environ(body), start_response))
        except Exception:  # noqa: BLE001 - whatever it is, the client is told, as DynamoDB would tell it
            traceback.print_exc()
            answer = b'{"__type":"com.amazonaws.dynamodb.v20120810#InternalServerError"}'
        code, _, reason = status.partition(" ")
        self.send_response(int(code), reason)
        for name, value in headers:
            if name.lower() != "content-length":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name for it
        """Say nothing of requests that went well."""

    def _environ(self, body: bytes) -> dict[str, Any]:
        path, _, query = self.path.partition("?")
        return {
            "REQUEST_METHOD": self.command,
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote(path, "latin-1"),
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": self.request_version,
            "REMOTE_ADDR": self.client_address[0],
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
            **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in self.headers.items()},
        }


def _use_short_serializer() -> None:
    """Let moto serialize the one member that an attribute value has.

    Its general serializer looks for each of the ten members of every value under four names, which takes a third of
    its time. A release of moto without this registry gives the same answers, later.
    """
    from moto.core import serialize

    registry = getattr(serialize, "SERVICE_SPECIFIC_SERIALIZERS", None)
    if registry is None:
        return

    class Serializer(serialize.JSONSerializer):
        def _serialize_type_structure(self, serialized: Any, value: Any, shape: Any, key: str) -> None:
            if shape.name != "AttributeValue" or type(value) is not dict or not key:
                super()._serialize_type_structure(serialized, value, shape, key)
                return
            members: dict[str, Any] = {}
            serialized[key] = members
            for name, member in value.items():
                self._serialize(members, member, shape.members[name], name)

    registry["dynamodb"] = {"json": Serializer}


def main() -> None:
    """Serve moto's DynamoDB on the host that the first argument names."""
    from moto.moto_server.werkzeug_app import create_backend_app

    _use_short_serializer()
    serve(locked(create_backend_app("dynamodb")), sys.argv[1], lambda port: print(port, flush=True))


if __name__ == "__main__":
    main()
