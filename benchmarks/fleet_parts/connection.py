"""HTTP/1.1 by hand: one request at a time on a connection that is kept.

An HTTP library would be slower than what it measures. Answers have a Content-Length; whatever else comes is a fault.
"""

import asyncio
import re
import socket
from typing import Protocol

IP_BIND_ADDRESS_NO_PORT = 24
"""Linux: the port is chosen when the connection is made, so each address has all of them for each server."""

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_RETRY_AFTER = re.compile(rb"\r\nretry-after: *([\d.]+)", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)


class Receiver(Protocol):
    """Who is told what becomes of a connection's request."""

    def replied(self, connection: "Connection", status: int, head: bytes, body: bytes) -> None: ...

    def hung_up(self, connection: "Connection") -> None: ...


class Connection(asyncio.Protocol):
    """One connection of one worker."""

    __slots__ = ("_buffer", "_transport", "call", "receiver", "sent_at", "used", "worker")

    def __init__(self, receiver: Receiver, worker: object) -> None:
        self.receiver = receiver
        self.worker = worker
        self.call: object = None
        self.sent_at = 0.0
        self.used = 0
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def send(self, call: object, data: bytes, now: float) -> None:
        self.call = call
        self.sent_at = now
        assert self._transport is not None
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        end = data.find(b"\r\n\r\n")
        if end >= 0:
            head = data[: end + 2]
            found = _LENGTH.search(head)
            if found is None and data[9:12] != b"204":
                raise RuntimeError(f"an answer without a length: {head!r}")
            until = end + 4 + (int(found[1]) if found else 0)
            if len(data) >= until:
                self._buffer = b""
                self.used += 1
                if _CLOSE.search(head):
                    self.abort()
                self.receiver.replied(self, int(data[9:12]), head, data[end + 4 : until])
                return
        self._buffer = data

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.receiver.hung_up(self)

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def retry_after(head: bytes) -> float | None:
    found = _RETRY_AFTER.search(head)
    return float(found[1]) if found else None


async def dial(connection: Connection, address: str, port: int, patience: float) -> None:
    """Connect from an address of the worker's own."""
    loop = asyncio.get_running_loop()
    line = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        line.setblocking(False)
        line.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.bind((address, 0))
        async with asyncio.timeout(patience):
            await loop.sock_connect(line, ("127.0.0.1", port))
            await loop.create_connection(lambda: connection, sock=line)
    except BaseException:
        line.close()
        raise


def request(method: str, path: str, token: str) -> bytes:
    """A request's head, all but the length of its body."""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        "User-Agent: kappa-bench/1\r\nAccept: application/json\r\nContent-Type: application/json\r\nContent-Length: "
    ).encode()


def whole(head: bytes, body: bytes) -> bytes:
    return b"%b%d\r\n\r\n%b" % (head, len(body), body)
