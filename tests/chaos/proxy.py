"""A TCP proxy in front of PostgreSQL that cuts, swallows and delays, one door for each who connects.

It has a thread and a loop of its own. A door that swallows takes what it is sent and passes nothing on, as a network
does that lost its way; bytes are missing afterwards, so what was connected then is cut when the door heals.

A door may also have a trap for a statement: when the server has done it, something happens before its reply is passed
on, or instead of that.
"""

import asyncio
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kappa.pg.queries import Query

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
CHUNK = 65536


def beginning(query: Query) -> bytes:
    """How a statement begins, up to its first parameter: it is sent in several ways, which differ from there on."""
    return query.sql.partition(b"%(")[0]


ENCRYPTION_REQUESTS = (80877103, 80877104)
"""For TLS and for GSSAPI. The server answers each with a single byte."""
IDLE = b"I"
"""The server's word that no transaction is open: what was done is committed."""


@dataclass
class Trap:
    """For the next statement of a door whose text contains `needle`. One at several doors is for the first of them.

    Without `act` its reply is lost: its connection is cut as soon as it is committed, be it by a later statement. With
    it, `act` is called when the statement is done, committed or not, and the reply is passed on after that.
    """

    needle: bytes
    act: Callable[[], None] | None = None
    caught: threading.Event = field(default_factory=threading.Event)
    """Set when the statement came."""
    sprung: threading.Event = field(default_factory=threading.Event)
    """Set when it happened."""


class _Conversation:
    """What goes over one connection, message by message."""

    def __init__(self, door: "Door", cut: Callable[[], None]) -> None:
        self._door = door
        self._cut = cut
        self._asked = b""
        self._answered = b""
        self._started = False
        self._single_bytes = 0
        self._statements: dict[bytes, bytes] = {}
        self._outstanding = 0
        """Replies that are on their way: more than one in a pipeline."""
        self._trap: Trap | None = None
        self._trap_after = 0
        self._withheld = b""

    def ask(self, data: bytes) -> None:
        """What the client sent: it is passed on as it came."""
        self._asked += data
        at = 0
        while True:
            start = at + self._started
            if len(self._asked) < start + 4:
                break
            (length,) = struct.unpack_from("!i", self._asked, start)
            if len(self._asked) < start + length:
                break
            kind, body = self._asked[at:start], self._asked[start + 4 : start + length]
            at = start + length
            if self._started:
                self._message(kind, body)
            elif struct.unpack_from("!i", body)[0] in ENCRYPTION_REQUESTS:
                self._single_bytes += 1
            else:
                self._started = True
                self._outstanding = 1  # for the whole of the log-in
        self._asked = self._asked[at:]

    def _message(self, kind: bytes, body: bytes) -> None:
        match kind:
            case b"P":
                name, text, _ = body.split(b"\0", 2)
                self._statements[name] = text
            case b"B":
                _, name, _ = body.split(b"\0", 2)
                self._look(self._statements.get(name, b""))
            case b"Q":
                self._look(body)
                self._outstanding += 1
            case b"S":
                self._outstanding += 1
            case _:
                pass

    def _look(self, statement: bytes) -> None:
        trap = self._door.trap
        if trap is None or self._trap is not None or trap.caught.is_set():
            return
        if trap.needle in statement:
            self._trap, self._trap_after = trap, self._outstanding
            trap.caught.set()

    def answer(self, data: bytes) -> bytes:
        """What the server sent: what of it is to be passed on now."""
        if self._single_bytes and not self._started:
            self._single_bytes -= 1
            return data
        self._answered += data
        at = 0
        passed: list[bytes] = []
        while len(self._answered) >= at + 5:
            end = at + 1 + struct.unpack_from("!i", self._answered, at + 1)[0]
            if len(self._answered) < end:
                break
            message, at = self._answered[at:end], end
            if self._trap is not None and not self._trap_after:
                self._withheld += message
            else:
                passed.append(message)
            if message[:1] == b"Z":
                self._outstanding -= 1
                passed.append(self._reply_is_whole(message[5:6]))
        self._answered = self._answered[at:]
        return b"".join(passed)

    def _reply_is_whole(self, transaction: bytes) -> bytes:
        """Of the messages that were withheld, those that are passed on."""
        if self._trap is None:
            return b""
        if self._trap_after:
            self._trap_after -= 1
            return b""
        trap = self._trap
        if trap.act is not None:
            trap.act()
            self._trap = None
        elif transaction == IDLE:
            self._cut()
            self._withheld = b""
        if trap.act is not None or transaction == IDLE:
            trap.sprung.set()
        withheld, self._withheld = self._withheld, b""
        return withheld


class Door:
    """One listening port and what is connected through it."""

    def __init__(self, target: Callable[[], int]) -> None:
        self.port = 0
        self.swallows = False
        self.delay = 0.0
        self.trap: Trap | None = None
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
            ends = (writer, upstream)
            conversation = _Conversation(self, lambda: [end.transport.abort() for end in ends] and None)

            def ask(data: bytes) -> bytes:
                conversation.ask(data)
                return data

            pumps = [
                asyncio.ensure_future(self._pump(reader, upstream, ask)),
                asyncio.ensure_future(self._pump(answers, writer, conversation.answer)),
            ]
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

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, through: Callable[[bytes], bytes]
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                if self.delay:
                    await asyncio.sleep(self.delay)
                if not self.swallows:
                    writer.write(through(data))
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

    def set_trap(self, name: str, trap: Trap | None) -> None:
        """For the next such statement; None takes the trap away."""
        self.door(name).trap = trap

    def heal(self, name: str) -> None:
        self.set_trap(name, None)
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
