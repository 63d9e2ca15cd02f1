"""A TCP proxy in front of PostgreSQL that cuts, swallows and delays, one door for each who connects.

It has a thread and a loop of its own. A door that swallows takes what it is sent and passes nothing on, as a network
does that lost its way; bytes are missing afterwards, so what was connected then is cut when the door heals.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
CHUNK = 65536


class Door:
    """One listening port and what is connected through it."""

    def __init__(self, target: Callable[[], int]) -> None:
        self.port = 0
        self.swallows = False
        self.delay = 0.0
        self._target = target
        self._links: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._enter, LOOPBACK, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Reset every connection, on both sides."""
        for writer in self._links:
            writer.transport.abort()

    def heal(self) -> None:
        self.delay = 0.0
        if self.swallows:
            self.swallows = False
            self.cut()

    def has(self, port: int) -> bool:
        """Whether the server knows one of this door's connections by that port."""
        return any((writer.get_extra_info("sockname") or (0, 0))[1] == port for writer in tuple(self._links))

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._links.add(writer)
        upstream: asyncio.StreamWriter | None = None
        try:
            if self.swallows:
                while await reader.read(CHUNK):
                    pass
                return
            answers, upstream = await asyncio.open_connection(LOOPBACK, self._target())
            self._links.add(upstream)
            pumps = [asyncio.ensure_future(self._pump(*ends)) for ends in ((reader, upstream), (answers, writer))]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass
        finally:
            for end in (writer, upstream):
                if end is not None:
                    self._links.discard(end)
                    end.close()
            self._tasks.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                if self.delay:
                    await asyncio.sleep(self.delay)
                if not self.swallows:
                    writer.write(data)
                    await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()


class Proxy:
    """All doors to one server, whose port may change when it starts again."""

    def __init__(self) -> None:
        self.target = 0
        self.doors: dict[str, Door] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-proxy", daemon=True)
        self._thread.start()

    def door(self, name: str) -> Door:
        """The door of that name, made when it is first asked for."""
        if name not in self.doors:
            door = self.doors[name] = Door(lambda: self.target)
            self._do(door.open())
        return self.doors[name]

    def cut(self, name: str) -> None:
        self._soon(self.doors[name].cut)

    def swallow(self, name: str) -> None:
        self.doors[name].swallows = True

    def delay(self, name: str, seconds: float) -> None:
        self.doors[name].delay = seconds

    def heal(self, name: str) -> None:
        self._soon(self.doors[name].heal)

    def close(self) -> None:
        for door in self.doors.values():
            self._do(door.close())
        self._soon(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def _soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(call)
