"""Stands before a server and lets each of its answers wait: ``python -m benchmarks.pacer PORT MS`` prints its own port.

A client that waits longer for an answer needs more CPU afterwards, and DynamoDB's stand-ins answer a longer request
later than a short one.
"""

import asyncio
import sys
from functools import partial

from incumbent.local.servers import HOST

_HEAD_END = b"\r\n\r\n"


async def _message(reader: asyncio.StreamReader) -> bytes:
    """Read a request or an answer, whose body has a length."""
    head = await reader.readuntil(_HEAD_END)
    lengths = (line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return head + await reader.readexactly(int(next(lengths, b"0")))


async def _serve(port: int, wait_s: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    server_reader, server_writer = await asyncio.open_connection(HOST, port)
    clock = asyncio.get_running_loop()
    try:
        while True:
            request = await _message(reader)
            due = clock.time() + wait_s
            server_writer.write(request)
            answer = await _message(server_reader)
            await asyncio.sleep(due - clock.time())
            writer.write(answer)
    except (asyncio.IncompleteReadError, ConnectionError):  # one of the two has gone
        pass
    finally:
        server_writer.close()
        writer.close()


async def _main(port: int, wait_s: float) -> None:
    listening = await asyncio.start_server(partial(_serve, port, wait_s), HOST, 0)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), float(sys.argv[2]) / 1_000))
