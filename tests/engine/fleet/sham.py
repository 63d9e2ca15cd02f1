"""A server that speaks the wire and can be told to fail: it loses replies, is busy, goes away and comes back.

It is no copy of the real one: tasks are in its memory, and a lease stands until a test ends it.
"""

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from kappa.engine.fleet import wire
from kappa.engine.waiting import happens
from tests.app.patience import becomes

LOSE, CUT = "lose", "cut"
"""What was asked is done, and nobody hears so; or it isn't even done."""


@dataclass
class Said:
    """One call that arrived."""

    call: str
    body: dict[str, Any]


@dataclass
class Refuse:
    """An answer that says no."""

    status: int
    code: str
    retry_after: float | None = None


Fault = str | Refuse


@dataclass
class Sham:
    """What it was told, what it holds, and how it will fail."""

    beat_seconds: float = 0.05
    wait_seconds: float = 30.0
    protocol: int = wire.PROTOCOL
    accepts_stale_timeout: bool = True
    said: list[Said] = field(default_factory=list)
    faults: dict[str, deque[Fault]] = field(default_factory=lambda: defaultdict(deque))
    queue: deque[wire.Task] = field(default_factory=deque)
    held: dict[tuple[int, int], wire.Task] = field(default_factory=dict)
    given: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    settled: dict[tuple[int, int], Said] = field(default_factory=dict)
    notices: dict[int, wire.Notice] = field(default_factory=dict)
    cancel: dict[int, str] = field(default_factory=dict)
    port: int = 0

    def __post_init__(self) -> None:
        self._numbers = iter(range(1, 1_000_000))
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, asyncio.Task[Any]] = {}
        self._more = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def put(self, kind: str, payload: Any = None, **more: Any) -> wire.Task:
        """A task for whoever asks next."""
        number = next(self._numbers)
        facts: dict[str, Any] = {"attempt": 1, "max_attempts": 3, "seconds_left": 60, "lease_seconds": 60} | more
        task = wire.Task(task=number, token=1000 + number, kind=kind, lane="sham", payload=payload, **facts)
        self.queue.append(task)
        self._more.set()
        return task

    def fail(self, call: str, *faults: Fault) -> None:
        self.faults[call].extend(faults)

    def heard(self, call: str, task: wire.Task | None = None) -> list[dict[str, Any]]:
        """The bodies of a call, of a task if one is named."""
        return [
            one.body for one in self.said if one.call == call and (task is None or one.body.get("task") == task.task)
        ]

    async def settlement(self, task: wire.Task) -> Said:
        """How a task ended, once it did."""
        return await becomes(lambda: self.settled.get((task.task, task.token)), what=f"task {task.task} is settled")

    async def hears(self, call: str, task: wire.Task | None = None, times: int = 1) -> dict[str, Any]:
        bodies = await becomes(lambda: (b := self.heard(call, task))[times - 1 :] and b, what=f"{call} is said")
        return bodies[-1]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As if it was killed: every connection breaks, nobody listens."""
        if self._server is not None:
            self._server.close()
            for writer, serving in list(self._open.items()):
                writer.transport.abort()
                serving.cancel()
            await asyncio.gather(*self._open.values(), return_exceptions=True)
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.current_task()
        assert serving is not None
        self._open[writer] = serving
        try:
            while line := await reader.readline():
                length = 0
                while (header := await reader.readline()) not in (b"\r\n", b""):
                    name, _, value = header.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                body = json.loads(await reader.readexactly(length))
                call = line.split()[1].decode().removeprefix(wire.PREFIX)
                status, answer = await self._answer(call, body, reader.at_eof)
                if status == 0:
                    writer.transport.abort()
                    return
                content = json.dumps(answer).encode()
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(content)) + content)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            del self._open[writer]
            writer.close()

    async def _answer(self, call: str, body: dict[str, Any], gone: Callable[[], bool]) -> tuple[int, dict[str, Any]]:
        self.said.append(Said(call, body))
        fault = self.faults[call].popleft() if self.faults[call] else None
        if fault == CUT:
            return 0, {}
        if isinstance(fault, Refuse):
            return fault.status, self._problem(fault.code, fault.retry_after)
        if call == "request_task" and not await self._wait(wire.RequestTask.model_validate(body), gone):
            return 0, {}
        do: Callable[[dict[str, Any]], tuple[int, dict[str, Any]]] = getattr(self, f"_{call}")
        status, answer = do(body)
        return (0, {}) if fault == LOSE else (status, answer)

    async def _wait(self, asked: wire.RequestTask, gone: Callable[[], bool]) -> bool:
        """Until there is a task, or no more time. False if the caller left."""
        if not self.queue and asked.request_id not in self.given and asked.wait:
            self._more.clear()
            await happens(self._more, asked.wait)
        return not gone()

    def _problem(self, code: str, retry_after: float | None = None) -> dict[str, Any]:
        problem: dict[str, Any] = {"code": code, "detail": f"it is {code}"}
        return problem if retry_after is None else problem | {"retry_after": retry_after}

    def _lost(self) -> tuple[int, dict[str, Any]]:
        return 409, self._problem("lost")

    def _hello(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        wire.Hello.model_validate(body)
        welcome = wire.Welcome(
            protocol=self.protocol, server="sham", kinds=body["kinds"], beat_seconds=self.beat_seconds,
            lease_seconds=60, wait_seconds=self.wait_seconds, max_body=1_000_000,
            accepts_stale_timeout=self.accepts_stale_timeout,
        )  # fmt: skip
        return 200, welcome.model_dump()

    def _request_task(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        asked = wire.RequestTask.model_validate(body)
        if asked.request_id not in self.given:
            taken = [self.queue.popleft() for _ in range(min(asked.count, len(self.queue)))]
            self.held |= {(task.task, task.token): task for task in taken}
            self.given[asked.request_id] = [(task.task, task.token) for task in taken]
        tasks = [self.held[one] for one in self.given[asked.request_id] if one in self.held]
        return 200, wire.Tasks(tasks=tasks).model_dump(mode="json")

    def _beat(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        beat = wire.Beat.model_validate(body)
        notices = [self.notices[one.task] for one in beat.tasks if one.task in self.notices]
        lost = [one.task for one in beat.tasks if (one.task, one.token) not in self.held]
        notices += [wire.Notice(task=one, verdict=wire.Verdict.LOST) for one in lost]
        return 200, wire.Beaten(beat_seconds=self.beat_seconds, notices=notices).model_dump(mode="json")

    def _update_task(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        said = wire.UpdateTask.model_validate(body)
        if (said.task, said.token) not in self.held:
            return self._lost()
        return 200, {"cancel": self.cancel.get(said.task)}

    def _complete_task(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        wire.CompleteTask.model_validate(body)
        return self._settle("complete_task", body)

    def _fail_task(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        wire.FailTask.model_validate(body)
        return self._settle("fail_task", body)

    def _release_task(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        wire.ReleaseTask.model_validate(body)
        return self._settle("release_task", body)

    def _settle(self, call: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        held = (body["task"], body["token"])
        if held not in self.settled:
            if self.held.pop(held, None) is None:
                return self._lost()
            self.settled[held] = Said(call, body)
        return 200, {"state": self.settled[held].call}


@asynccontextmanager
async def sham(**facts: Any) -> AsyncIterator[Sham]:
    made = Sham(**facts)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
