"""Who comes in by the door, and how many at a time."""

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from kappa.app.door import AT_ONCE, Door

CROWD = 10 * AT_ONCE


class _Full(socket.socket):
    """One that the process can't take connections from, as often as it is told."""

    refusals = 0

    def accept(self) -> "tuple[socket.socket, object]":
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


class _Greeter(asyncio.Protocol):
    def __init__(self, made: Callable[[], None]) -> None:
        made()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


@asynccontextmanager
async def _door(
    listening: socket.socket, made: Callable[[], None] = lambda: None, make_room: Callable[[], bool] = lambda: False
) -> AsyncGenerator[Door]:
    listening.bind(("127.0.0.1", 0))
    listening.listen(CROWD)
    door = Door(listening, lambda: _Greeter(made), make_room)
    with listening:
        yield door
        door.close()


def _come(listening: socket.socket) -> socket.socket:
    came = socket.create_connection(listening.getsockname())
    came.setblocking(False)
    return came


async def _hears(came: socket.socket) -> bytes:
    with came:
        return await asyncio.get_running_loop().sock_recv(came, 10)


async def test_a_crowd_comes_in_a_few_at_each_turn_of_the_loop() -> None:
    turn, entered = 0, Counter[int]()
    loop = asyncio.get_running_loop()

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(next_turn)

    def made() -> None:
        entered[turn] += 1

    async with _door(socket.socket(), made) as door:
        crowd = [_come(door._listening) for _ in range(CROWD)]
        next_turn()
        door.open()
        assert {await _hears(one) for one in crowd} == {b"hello"}
    assert entered.total() == CROWD
    assert max(entered.values()) <= AT_ONCE


async def test_a_process_without_files_left_looks_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kappa.app.door.REST", 0.01)
    listening = _Full()
    async with _door(listening) as door:
        listening.refusals = 2
        came = _come(listening)
        door.open()
        assert await _hears(came) == b"hello"
    assert caplog.text.count("nobody can come in") == 2


async def test_a_process_without_files_left_makes_room_and_lets_the_next_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kappa.app.door.REST", 1e6)
    listening = _Full()
    looks = 0

    def make_room() -> bool:
        nonlocal looks
        looks += 1
        return True

    async with _door(listening, make_room=make_room) as door:
        listening.refusals = 3
        came = _come(listening)
        door.open()
        assert await _hears(came) == b"hello"
    assert looks == 3


async def test_a_closed_door_stays_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kappa.app.door.REST", 0.0)
    listening = _Full()
    async with _door(listening) as door:
        listening.refusals = 1
        with _come(listening):
            door._let_in()
            door.close()
            for _ in range(5):  # the time for the next look has come
                await asyncio.sleep(0)
            assert not asyncio.get_running_loop().remove_reader(listening)
