"""One HTTP/1.1 connection, with bounds on what its sender may make the server hold, and for how long.

uvicorn leaves bodies to the application and bounds nothing before it. Here a request's line and headers are counted
before they are parsed, and a sender who stops sending, or reading, runs out of time. No request has a timer of its own:
`connections` looks at every connection once a second.
"""

import logging
from collections.abc import Callable
from typing import Any, Protocol

import httptools
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from kappa.app.api import problems
from kappa.app.api.middleware import ALWAYS_ANSWERED, SECURITY

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
"""Of a request line with its headers, and of anything else that is not a body: trailers, the sizes of chunks."""
MAX_HEADERS = 256
MAX_PIPELINE = 16
"""Requests that may wait for the answer to the one before them."""
MAX_DISCARDED_BYTES = 1 << 20
"""Read and dropped after a refusal: a connection that is closed with bytes unread loses the answer."""

HEAD_SECONDS = 20
BODY_SECONDS = 30
BODY_BYTES = 15_000
"""What of a body must come in that time: 500 bytes a second."""
ANSWER_SECONDS = 120
"""How long a receiver may take nothing of an answer."""
REFUSED_SECONDS = 5


class Registry(Protocol):
    """Who knows all connections: `connections`."""

    now: int

    def add(self, connection: "HttpProtocol") -> None: ...

    def remove(self, connection: "HttpProtocol") -> None: ...


class HttpProtocol(HttpToolsProtocol):
    """What comes and goes on one connection."""

    def __init__(self, connections: Registry, config: Config, state: ServerState) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self._connections = connections
        self.since = connections.now
        """The second in which what is waited for began."""
        self.is_reserved = False
        """Beyond the limit, for health checks only."""
        self._in_body = False
        self._unbounded = 0
        """Bytes of what is not a body since the parser last came to the end of a head, or to a piece of a body."""
        self._heard = connections.now
        self._body_bytes = 0
        self._body_bytes_before = 0
        self._discarded = 0
        self._unsent = 0
        self._stalled = 0
        self._drops_input = False
        self._is_refused = False
        self._refusal: tuple[int, str, str] | None = None

    @property
    def address(self) -> str:
        return self.client[0] if self.client else "local"

    @property
    def is_answering(self) -> bool:
        return self.had_request and not self.cycle.response_complete

    @property
    def had_request(self) -> bool:
        return bool(self.cycle)

    @property
    def is_waiting(self) -> bool:
        """Whether it is the sender's turn, so that closing the connection loses nothing that was asked for."""
        if self._in_body:
            return not self._is_paused and self._connections.now - self._heard >= REFUSED_SECONDS
        return not self.is_answering and not self.transport.get_write_buffer_size()

    @property
    def _is_paused(self) -> bool:
        """Whether the sender of a body waits for the application."""
        return self.is_answering and (self.flow.read_paused or self.cycle.waiting_for_100_continue)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        super().connection_lost(exc)

    def reserve(self) -> None:
        """Answer one health check, and nothing else."""
        self.is_reserved = True
        self.app = only_health(self.app)

    def data_received(self, data: bytes) -> None:
        self._heard = self._connections.now
        if self._drops_input:
            self._discarded += len(data)
            if self._discarded > MAX_DISCARDED_BYTES:
                self.transport.abort()
            return
        if not self._unbounded and not self._in_body:
            self.since = self._heard
        try:
            if self._unbounded + len(data) < MAX_HEAD_BYTES:
                self._unbounded += len(data)
                self.parser.feed_data(data)  # pyright: ignore[reportOptionalMemberAccess]
            else:
                self._feed_bounded(data)
        except httptools.HttpParserUpgrade:
            self._decline_upgrade()
        except httptools.HttpParserError:
            self._refuse(*(self._refusal or (400, "unreadable", "the request is not HTTP/1.1")))

    def _feed_bounded(self, data: bytes) -> None:
        """Of a head, never more than it may have; a body's bytes are bounded elsewhere."""
        while data:
            piece = data if self._in_body else data[: MAX_HEAD_BYTES - self._unbounded]
            data = data[len(piece) :]
            self._unbounded += len(piece)
            self.parser.feed_data(piece)  # pyright: ignore[reportOptionalMemberAccess]
            if self._unbounded >= MAX_HEAD_BYTES:
                what = f"a request line with its headers has less than {MAX_HEAD_BYTES} bytes"
                self._refusal = 431, "headers_too_large", what
                raise httptools.HttpParserError(what)

    def on_headers_complete(self) -> None:
        self._in_body, self._unbounded = True, 0
        self.since = self._connections.now
        self._body_bytes = self._body_bytes_before = 0
        if len(self.headers) > MAX_HEADERS:
            self._refusal = 431, "headers_too_large", f"a request has {MAX_HEADERS} headers at most"
            raise ValueError("too many headers")
        if len(self.pipeline) >= MAX_PIPELINE:
            raise ValueError("too many requests before the first was answered")
        super().on_headers_complete()
        if self.is_reserved:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._unbounded = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body, self._unbounded = False, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """As uvicorn's, without a timer until the next request: `check` sees to it."""
        self.since = self._connections.now
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def check(self) -> None:
        """End what takes too long; once a second."""
        unsent = self.transport.get_write_buffer_size()
        self._stalled = self._stalled + 1 if unsent and unsent >= self._unsent else 0
        self._unsent = unsent
        if self._stalled >= ANSWER_SECONDS:
            self.transport.abort()
        lasts = self._connections.now - self.since
        if lasts < REFUSED_SECONDS:
            return
        if self._is_refused:
            self.transport.abort()
        elif self._in_body:
            self._check_body(lasts)
        elif self.is_answering:
            return
        elif self.had_request and not self._unbounded:
            if lasts >= self.timeout_keep_alive:
                self.transport.close()
        elif lasts >= HEAD_SECONDS or self.is_reserved:
            self._refuse(408, "too_slow", f"a request line with its headers comes within {HEAD_SECONDS} seconds")

    def _check_body(self, lasts: int) -> None:
        if self._is_paused:
            self._next_piece()
        elif lasts >= BODY_SECONDS:
            if not self.is_answering:
                self.transport.abort()  # nobody will read the rest
            elif self._body_bytes - self._body_bytes_before < BODY_BYTES:
                self._refuse(408, "too_slow", f"a body comes at {BODY_BYTES // BODY_SECONDS} bytes a second at least")
            else:
                self._next_piece()

    def _next_piece(self) -> None:
        self.since, self._body_bytes_before = self._connections.now, self._body_bytes

    def _decline_upgrade(self) -> None:
        """Answered as what it would be without the wish, and closed: the parser reads nothing behind it."""
        self._drops_input = True
        self.cycle.keep_alive = False

    def _refuse(self, status: int, code: str, detail: str) -> None:
        """Say why, if nothing else is being said, and read no more."""
        log.info("%s: %d, %s", self.address, status, detail)
        self._is_refused = self._drops_input = True
        self.since = self._connections.now
        if self.is_answering:
            if self.cycle.response_started or self.pipeline or not self._in_body:
                self.transport.abort()  # the answer to another request is on its way
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(_answer(status, code, detail))
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()


def only_health(app: ASGIApp) -> Callable[..., Any]:
    """The application for a connection beyond the limit."""
    refusal = problems.response(
        503, "too_many_connections", "the server has as many connections as it may: try again",
        retry_after=5, headers={"Connection": "close", **SECURITY},
    )  # fmt: skip

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in ALWAYS_ANSWERED:
            await refusal(scope, receive, send)
        else:
            await app(scope, receive, send)

    return answer


def _answer(status: int, code: str, detail: str) -> bytes:
    response = problems.response(status, code, detail, headers={"Connection": "close", **SECURITY})
    head = [b"HTTP/1.1 %d %s\r\n" % (status, problems.TITLES[status].encode())]
    head += [b"%s: %s\r\n" % header for header in response.raw_headers]
    return b"".join([*head, b"\r\n", bytes(response.body)])
