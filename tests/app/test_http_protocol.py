"""What a connection may send before anybody looks at it, how long it may take, and who goes when there are too many."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx2
import psutil
import pytest
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from kappa.app import serve
from kappa.app.connections import MAX_CONNECTIONS, OTHER_FILES, RESERVED, Connections, connection_limit
from kappa.app.door import Door
from kappa.app.http_protocol import (
    ANSWER_SECONDS,
    BODY_BYTES,
    BODY_SECONDS,
    HEAD_SECONDS,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_PIPELINE,
    REFUSED_SECONDS,
    HttpProtocol,
)
from kappa.app.settings import Settings
from tests.app.conftest import Up
from tests.app.patience import becomes
from tests.ground import PATIENCE, eventually

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
START = b"GET /healthz HTTP/1.1\r\nHost: kappa\r\n"
GET = START + b"\r\n"


@dataclass
class Served:
    """A server, and what its application does: reads the body and says how long it was, `/slow` when it is told to."""

    connections: Connections
    port: int = 0
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    begun: int = 0
    left: int = 0
    clients: list[asyncio.StreamWriter] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun += 1
        if scope["path"] == "/slow":
            await self.go_on.wait()
        size, more = 0, scope["path"] != "/refused"
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left += 1
                return
            size += len(message["body"])
            more = message["more_body"]
        body = b"x" * (32 << 20) if scope["path"] == "/large" else str(size).encode()
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})

    async def connect(self, sent: bytes = b"") -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.clients.append(writer)
        writer.write(sent)
        return reader, writer

    def pass_seconds(self, seconds: int) -> None:
        for _ in range(seconds):
            self.connections.sweep()

    async def hears(self, what: Callable[[HttpProtocol], bool], many: int = 1) -> None:
        """Wait until so many connections are as far as that."""
        await becomes(lambda: sum(map(what, self.connections._open)) == many, what="the server has read it")


@asynccontextmanager
async def served(most: int = 100, most_of_address: int = 100, proxies: str | None = None) -> AsyncGenerator[Served]:
    one = Served(Connections(most, most_of_address, Settings(trusted_proxies=proxies).proxies))
    config = serve._uvicorn_config(one)
    config.load()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1000)
        one.port = listening.getsockname()[1]
        door = Door(listening, partial(HttpProtocol, one.connections, config, ServerState()), one.connections.make_room)
        door.open()
        try:
            yield one
        finally:
            door.close()
            one.go_on.set()
            for connection in (*one.connections._open, *one.connections._reserved):
                connection.transport.abort()
            for writer in one.clients:
                writer.transport.abort()
            await becomes(lambda: len(one.connections) == 0, what="all connections are closed")


async def answer_of(connection: Connection) -> tuple[int, dict[str, str], bytes]:
    """The next answer."""
    reader, _ = connection
    async with asyncio.timeout(PATIENCE):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return int(head[0].split()[1]), headers, body


async def is_closed(connection: Connection) -> bool:
    """Whether there is nothing more to read."""
    try:
        async with asyncio.timeout(PATIENCE):
            return not await connection[0].read()
    except ConnectionError:
        return True


async def is_refused(connection: Connection, status: int, code: str) -> None:
    got, headers, body = await answer_of(connection)
    problem: dict[str, Any] = json.loads(body)
    assert (got, headers["connection"], headers["content-type"]) == (status, "close", "application/problem+json")
    assert (problem["status"], problem["code"]) == (status, code)
    assert headers["x-content-type-options"] == "nosniff"
    assert await is_closed(connection)


# Sizes


def headers_of(size: int) -> bytes:
    """A whole head of so many bytes."""
    return START + b"x-padding: ".ljust(size - len(START) - 4, b"x") + b"\r\n\r\n"


@pytest.mark.parametrize("slice_size", [1000, MAX_HEAD_BYTES, 1 << 20])
async def test_a_head_has_64_kb_at_most(slice_size: int) -> None:
    async with served() as server:
        for size, fits in ((MAX_HEAD_BYTES - 1, True), (MAX_HEAD_BYTES + 1, False)):
            connection, head = await server.connect(), headers_of(size)
            for start in range(0, len(head), slice_size):
                connection[1].write(head[start : start + slice_size])
                await connection[1].drain()
            if fits:
                assert (await answer_of(connection))[0] == 200
            else:
                await is_refused(connection, 431, "headers_too_large")
        assert server.begun == 1


@pytest.mark.parametrize("start", [b"GET /", START + b"x: ", START + b"x"], ids=["path", "value", "name"])
async def test_an_endless_line_is_refused_while_it_comes(start: bytes) -> None:
    async with served() as server:
        connection = await server.connect(start)
        for _ in range(MAX_HEAD_BYTES // 4096):
            connection[1].write(b"x" * 4096)
        await is_refused(connection, 431, "headers_too_large")


async def test_the_bound_is_of_each_request_not_of_their_connection() -> None:
    async with served() as server:
        connection = await server.connect()
        for _ in range(5):
            connection[1].write(headers_of(MAX_HEAD_BYTES // 2))
            assert (await answer_of(connection))[0] == 200


async def test_a_request_has_so_many_headers_at_most() -> None:
    async with served() as server:
        enough = b"".join(b"x-%d: 1\r\n" % number for number in range(MAX_HEADERS - 1))
        assert (await answer_of(await server.connect(START + enough + b"\r\n")))[0] == 200
        await is_refused(await server.connect(START + enough + b"one: more\r\n\r\n"), 431, "headers_too_large")


@pytest.mark.parametrize("rest", [b"0\r\nx-trailer: ", b"1;extension="], ids=["trailer", "extension"])
async def test_what_stands_between_pieces_of_a_body_is_bounded(rest: bytes) -> None:
    async with served() as server:
        connection = await server.connect(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + rest)
        for _ in range(2 * MAX_HEAD_BYTES // 4096):
            connection[1].write(b"x" * 4096)
        await is_refused(connection, 431, "headers_too_large")
        await becomes(lambda: server.left == 1, what="the application hears that its caller is gone")


async def test_a_large_body_passes() -> None:
    async with served() as server:
        size = 5_000_000
        connection = await server.connect(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
        assert (await answer_of(connection))[2] == str(size).encode()


async def test_requests_that_are_sent_before_an_answer_are_few() -> None:
    async with served() as server:
        few = await server.connect(GET * MAX_PIPELINE)
        assert [(await answer_of(few))[0] for _ in range(MAX_PIPELINE)] == [200] * MAX_PIPELINE
        assert await is_closed(await server.connect(GET * 2000))
        assert server.begun <= MAX_PIPELINE + 1


async def test_what_is_not_http_is_refused() -> None:
    async with served() as server:
        await is_refused(await server.connect(b"\x16\x03\x01 hello\r\n\r\n"), 400, "unreadable")
        await is_refused(await server.connect(b"CONNECT kappa:80 HTTP/1.1\r\nHost: kappa\r\n\r\n"), 400, "unreadable")


async def test_a_wish_for_another_protocol_is_not_granted() -> None:
    async with served() as server:
        connection = await server.connect(START + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n" + b"x" * 5000)
        status, headers, _ = await answer_of(connection)
        assert (status, headers["connection"]) == (200, "close")
        assert await is_closed(connection)


# Time


@pytest.mark.parametrize("sent", [b"", b"G", START, b"\r\n"], ids=["nothing", "a letter", "half", "a line end"])
async def test_a_head_that_does_not_come_is_waited_for_only_so_long(sent: bytes) -> None:
    async with served() as server:
        connection = await server.connect(sent)
        await server.hears(lambda one: one._unbounded == len(sent))
        server.pass_seconds(HEAD_SECONDS - 1)
        assert len(server.connections) == 1
        server.pass_seconds(1)
        await is_refused(connection, 408, "too_slow")


async def test_bytes_that_drip_gain_no_time() -> None:
    async with served() as server:
        connection = await server.connect(START)
        for number in range(HEAD_SECONDS):
            connection[1].write(b"x")
            await server.hears(lambda one, sent=number + 1: one._unbounded == len(START) + sent)  # type: ignore[misc]
            server.pass_seconds(1)
        await is_refused(connection, 408, "too_slow")


async def test_a_connection_that_rests_keeps_its_time_for_the_next_request() -> None:
    async with served() as server:
        connection = await server.connect()
        for _ in range(3):
            connection[1].write(GET)
            assert (await answer_of(connection))[0] == 200
            server.pass_seconds(2 * HEAD_SECONDS)
        connection[1].write(START)
        await server.hears(lambda one: one._unbounded > 0)
        server.pass_seconds(HEAD_SECONDS)
        await is_refused(connection, 408, "too_slow")


async def test_a_connection_that_rests_for_long_is_closed() -> None:
    async with served() as server:
        connection = await server.connect(GET)
        assert (await answer_of(connection))[0] == 200
        (one,) = server.connections._open
        server.pass_seconds(one.timeout_keep_alive - 1)
        assert not one.transport.is_closing()
        server.pass_seconds(1)
        assert await is_closed(connection)


async def test_a_body_that_stops_is_given_up() -> None:
    async with served() as server:
        connection = await server.connect(b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf")
        await server.hears(lambda one: one._in_body)
        server.pass_seconds(BODY_SECONDS)
        await is_refused(connection, 408, "too_slow")
        await becomes(lambda: server.left == 1, what="the application hears that its caller is gone")


async def test_a_slow_body_that_goes_on_is_waited_for() -> None:
    async with served() as server:
        pieces = 20
        head = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (pieces * BODY_BYTES)
        connection = await server.connect(head)
        for number in range(pieces):
            connection[1].write(b"x" * BODY_BYTES)
            await server.hears(lambda one, come=(number + 1) * BODY_BYTES: one._body_bytes == come)  # type: ignore[misc]
            server.pass_seconds(BODY_SECONDS)
        assert (await answer_of(connection))[2] == str(pieces * BODY_BYTES).encode()


async def test_who_waits_for_the_application_has_all_the_time() -> None:
    async with served() as server:
        expects = await server.connect(b"POST /slow HTTP/1.1\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n")
        large = await server.connect(b"POST /slow HTTP/1.1\r\nContent-Length: 5000000\r\n\r\n" + b"x" * 5_000_000)
        polls = await server.connect(b"GET /slow HTTP/1.1\r\n\r\n")
        await becomes(lambda: server.begun == 3, what="all have begun")
        await server.hears(lambda one: one._in_body and one._is_paused, 2)
        server.pass_seconds(10 * BODY_SECONDS)
        server.go_on.set()
        assert await asyncio.wait_for(expects[0].readuntil(b"\r\n\r\n"), PATIENCE) == b"HTTP/1.1 100 Continue\r\n\r\n"
        expects[1].write(b"x")
        assert [(await answer_of(one))[2] for one in (expects, large, polls)] == [b"1", b"5000000", b"0"]


async def test_a_body_that_nobody_reads_ends_with_its_time() -> None:
    async with served() as server:
        connection = await server.connect(b"POST /refused HTTP/1.1\r\nContent-Length: 5000000\r\n\r\nx")
        assert (await answer_of(connection))[0] == 200
        server.pass_seconds(BODY_SECONDS)
        assert await is_closed(connection)


async def test_an_answer_that_nobody_reads_is_given_up() -> None:
    async with served() as server:
        taken, _ = [await server.connect(b"GET /large HTTP/1.1\r\n\r\n") for _ in range(2)]
        await server.hears(lambda one: one.transport.get_write_buffer_size() > 0, 2)
        server.pass_seconds(ANSWER_SECONDS - 1)
        size = 0
        async with asyncio.timeout(PATIENCE):
            while size < 32 << 20:
                piece = await taken[0].read(1 << 20)
                assert piece
                size += len(piece)
        server.pass_seconds(2)
        await becomes(lambda: len(server.connections) == 1, what="who reads nothing is gone")


async def test_who_sends_on_after_a_refusal_is_cut_off() -> None:
    async with served() as server:
        connection = await server.connect(b"nonsense\r\n\r\n")
        assert (await answer_of(connection))[0] == 400
        server.pass_seconds(REFUSED_SECONDS)
        await becomes(lambda: len(server.connections) == 0, what="the connection is closed")


# Numbers


async def test_half_sent_requests_make_room_for_those_that_are_whole() -> None:
    async with served(most=20) as server:
        halves = [await server.connect(START) for _ in range(20)]
        await server.hears(lambda one: one._unbounded > 0, 20)
        for _ in range(30):
            status, headers, _ = await answer_of(await server.connect(b"GET / HTTP/1.1\r\n\r\n"))
            assert (status, "connection" in headers) == (200, False)
        assert len(server.connections) <= 20
        assert await is_closed(halves[0])


async def test_what_rests_goes_after_what_is_half_sent_and_the_oldest_first() -> None:
    async with served(most=4) as server:
        rests = await server.connect(GET)
        await answer_of(rests)
        server.pass_seconds(1)
        older = await server.connect(START)
        await server.hears(lambda one: one._unbounded > 0)
        server.pass_seconds(1)
        newer = await server.connect(START)
        await server.hears(lambda one: one._unbounded > 0, 2)
        await server.connect(b"GET /slow HTTP/1.1\r\n\r\n")
        await server.hears(lambda one: one.is_answering)
        for gone in (older, newer, rests):
            await server.connect(b"GET /slow HTTP/1.1\r\n\r\n")
            assert await is_closed(gone)
        await server.hears(lambda one: one.is_answering, 4)


async def test_one_address_has_its_share_and_leaves_the_rest() -> None:
    async with served(most_of_address=3) as server:
        for _ in range(10):
            await server.connect(START)
        last = await server.connect(b"GET / HTTP/1.1\r\n\r\n")
        assert (await answer_of(last))[0] == 200
        assert (len(server.connections), server.connections._of_address) == (3, {"127.0.0.1": 3})


async def test_a_trusted_proxy_has_no_share_of_its_own() -> None:
    async with served(most_of_address=3, proxies="10.0.0.0/8, 127.0.0.1") as server:
        for _ in range(10):
            await server.connect(START)
        last = await server.connect(b"GET / HTTP/1.1\r\n\r\n")
        assert (await answer_of(last))[0] == 200
        await becomes(lambda: server.connections._of_address == {"127.0.0.1": 11}, what="all are open")


async def test_a_server_that_is_full_of_work_still_answers_health_checks() -> None:
    async with served(most=5) as server:
        working = [await server.connect(b"GET /slow HTTP/1.1\r\n\r\n") for _ in range(5)]
        await server.hears(lambda one: one.is_answering, 5)
        for _ in range(2 * RESERVED):  # half-sent ones in the reserve keep nobody out
            await server.connect(START)
        await becomes(lambda: len(server.connections) == 5 + RESERVED, what="the reserve is in use")
        checked = await server.connect(GET)
        status, headers, _ = await answer_of(checked)
        assert (status, headers["connection"]) == (200, "close")
        await is_refused(await server.connect(b"GET /me HTTP/1.1\r\n\r\n"), 503, "too_many_connections")
        server.pass_seconds(REFUSED_SECONDS)
        await becomes(lambda: len(server.connections._reserved) < RESERVED, what="half-sent ones are refused")
        server.go_on.set()
        assert [(await answer_of(one))[0] for one in working] == [200] * 5


async def test_a_body_that_comes_is_not_closed_to_make_room() -> None:
    async with served(most=1) as server:
        upload = await server.connect(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n")
        await server.hears(lambda one: one._in_body)
        server.pass_seconds(REFUSED_SECONDS - 1)
        await is_refused(await server.connect(b"GET / HTTP/1.1\r\n\r\n"), 503, "too_many_connections")
        upload[1].write(b"12")
        assert (await answer_of(upload))[2] == b"2"


def test_files_are_left_for_other_uses() -> None:
    for files in (256, 1024, 4096, 65_536, 1 << 20):
        most = connection_limit(files)
        assert 1 <= most <= MAX_CONNECTIONS
        assert files - most - RESERVED >= min(OTHER_FILES, files // 2)
    assert connection_limit(65_536) > 20_000 * 2
    assert connection_limit(-1) == MAX_CONNECTIONS
    assert connection_limit(16) >= 1
    assert Connections(10)._most_of_address == 5


# A whole server


def test_one_endless_header_costs_a_server_nothing(start_up: Callable[..., Up]) -> None:
    up, sent = start_up(), 0
    process = psutil.Process(up.process.pid)
    before = process.memory_info().rss
    with socket.create_connection(_address(up), timeout=PATIENCE) as one:
        one.sendall(START + b"x: ")
        with suppress(ConnectionError):
            while sent < 64 << 20:
                one.sendall(b"x" * (1 << 20))
                sent += 1 << 20
        assert sent < 64 << 20, "the server takes it all"
    assert process.memory_info().rss - before < 32 << 20
    assert httpx2.get(f"{up.url}/healthz", timeout=PATIENCE).status_code == 200


def test_a_crowd_of_half_sent_requests_keeps_nobody_out(start_up: Callable[..., Up]) -> None:
    up = start_up(env={"KAPPA_MAX_CONNECTIONS": "100"})
    process = psutil.Process(up.process.pid)
    files = process.num_fds()
    with ExitStack() as stack:
        for _ in range(300):
            one = stack.enter_context(socket.create_connection(_address(up), timeout=PATIENCE))
            with suppress(ConnectionError):
                one.sendall(START)
        with up.client() as client:
            assert client.get("/healthz").status_code == 200
            assert client.get("/me").status_code == 200
        assert process.num_fds() - files < 250
        # All are given up, without anything else happening.
        eventually(lambda: process.num_fds() - files < 20, within=90, what="half-sent requests are given up")


def _address(up: Up) -> tuple[str, int]:
    host, port = up.url.removeprefix("http://").split(":")
    return host, int(port)
