"""Calls that are due: placed by the clock, sent on a connection that is free, and repeated until they are answered.

Open loop: a call is due whatever the server takes. A worker that finds its connection in use opens another, as any
client with a pool does. What fails is repeated with exponential backoff and full jitter; `Retry-After` is honoured.
"""

import asyncio
import heapq
import itertools
import json
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.fleet_parts.connection import Connection, dial, request, retry_after, whole
from benchmarks.fleet_parts.ledger import Entry
from benchmarks.fleet_parts.records import Records

LINES = 3
"""Connections that a worker opens at most."""
RETRIED = frozenset({"busy", "draining", "unavailable", "limited"})


@dataclass(frozen=True)
class Timers:
    """Every time that a worker keeps, in seconds."""

    beat: float
    update: float
    task: float
    """How long the work of a task takes on the average."""
    backoff: float
    backoff_most: float
    patience: float
    """How long an answer is waited for."""
    connect: float
    """How long a connection is waited for."""
    retry_after: float = 1.0
    """What `Retry-After` is multiplied by, where time is compressed."""


class Worker:
    """A machine: its name, address and token, its connections, its tasks."""

    __slots__ = (
        "address", "alive", "asking", "beating", "counted", "heads", "heard", "idle", "lines", "name", "port",
        "serial", "tasks", "updating", "waiting",
    )  # fmt: skip

    def __init__(self, name: str, address: str, token: str, port: int) -> None:
        self.name = name
        self.address = address
        self.port = port
        self.heads = {call: request("POST", f"/fleet/v1/{call}", token) for call in CALLS}
        self.idle: list[Connection] = []
        self.lines = 0
        self.waiting: deque[Call] = deque()
        self.tasks: dict[int, Entry] = {}
        self.alive = False
        self.beating: Call | None = None
        self.updating: set[int] = set()
        self.asking = False
        self.serial = 0
        self.heard = 0.0
        self.counted = True


CALLS = ("hello", "request_task", "beat", "update_task", "complete_task")


class Call:
    """One request until it is answered, however often it is sent."""

    __slots__ = (
        "about",
        "data",
        "due",
        "first_due",
        "first_sent",
        "gone",
        "name",
        "on_line",
        "sent",
        "then",
        "tries",
        "worker",
    )

    def __init__(self, worker: Worker, name: str, data: bytes, due: float, then: "Then") -> None:
        self.worker = worker
        self.name = name
        self.data = data
        self.due = due
        self.first_due = due
        self.first_sent = 0.0
        self.sent = 0.0
        self.then = then
        self.tries = 0
        self.gone = False
        self.on_line = False
        self.about: tuple[Entry, ...] = ()


Then = Callable[[Call, int, bytes, bytes], None]


class Caller:
    """Places calls when they are due, and again until they are answered."""

    def __init__(self, timers: Timers, spare_lines: int) -> None:
        """`spare_lines`: connections that there may be beside one for each worker."""
        self.timers = timers
        self._spare_lines = spare_lines
        self.records = Records()
        self._loop = asyncio.get_running_loop()
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        self._wake: asyncio.TimerHandle | None = None
        self._wake_at = float("inf")
        self.under_way: set[Call] = set()
        self._busy: set[Connection] = set()
        self._dialling: set[asyncio.Task[None]] = set()
        self.chance = random.Random(7)
        self.at(time.monotonic() + 0.25, self._look_after)

    def at(self, when: float, what: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._heap, (when, next(self._numbers), what, args))
        if when < self._wake_at:
            if self._wake is not None:
                self._wake.cancel()
            self._sleep_until(when)

    def _tick(self) -> None:
        self._wake, self._wake_at = None, float("-inf")  # what is added meanwhile needs no timer of its own
        now = time.monotonic()
        while self._heap and self._heap[0][0] <= now:
            _, _, what, args = heapq.heappop(self._heap)
            what(*args)
        self._wake_at = float("inf")
        if self._heap:
            self._sleep_until(self._heap[0][0])

    def _sleep_until(self, when: float) -> None:
        # uvloop counts in milliseconds: a timer that ends early would be set again and again until its time is there.
        self._wake_at = when
        self._wake = self._loop.call_later(max(0.001, when - time.monotonic() + 0.0007), self._tick)

    def _look_after(self) -> None:
        self.records.sample()
        now = time.monotonic()
        for connection in [one for one in self._busy if now - one.sent_at > self.timers.patience]:
            self.records.counts["unanswered"] += 1
            connection.abort()
        self.at(now + 0.25, self._look_after)

    def call(self, worker: Worker, name: str, body: bytes, due: float, then: Then, path: str | None = None) -> Call:
        made = Call(worker, name, whole(worker.heads[path or name], body), due, then)
        self.under_way.add(made)
        self.records.late.add(due, time.monotonic() - due)
        self._place(made)
        return made

    def _place(self, call: Call) -> None:
        if call.gone:
            return
        worker = call.worker
        while worker.idle:
            connection = worker.idle.pop()
            if connection.open:
                self._send(connection, call)
                return
        if worker.lines == 0 or (worker.lines < LINES and self._spare_lines > 0):
            self._open(worker, +1)
            task = self._loop.create_task(self._dial(worker, call))
            self._dialling.add(task)
            task.add_done_callback(self._dialling.discard)
        else:
            worker.waiting.append(call)

    def _open(self, worker: Worker, change: int) -> None:
        """One more line of a worker's, or one less. The first doesn't count: there is one for everybody."""
        if max(worker.lines, worker.lines + change) > 1:
            self._spare_lines -= change
        worker.lines += change

    async def _dial(self, worker: Worker, call: Call | None) -> None:
        connection = Connection(self, worker)
        if worker.counted:
            self.records.sent[int(time.monotonic())] += 1
            self.records.counts["connections"] += 1
        try:
            await dial(connection, worker.address, worker.port, self.timers.connect)
        except (OSError, TimeoutError):
            self._open(worker, -1)
            self.records.counts["refused connections"] += 1
            self._again_later(*([] if call is None else [call]), *worker.waiting)
            worker.waiting.clear()
            return
        if call is None:
            self._free(connection)
        else:
            self._send(connection, call)

    def _send(self, connection: Connection, call: Call) -> None:
        now = time.monotonic()
        call.first_sent = call.first_sent or now
        call.sent = now
        call.on_line = True
        if call.worker.counted:
            self.records.sent[int(now)] += 1
        self._busy.add(connection)
        connection.send(call, call.data, now)

    def _free(self, connection: Connection) -> None:
        worker: Worker = connection.worker  # type: ignore[assignment]
        if not connection.open:
            return
        if worker.waiting:
            self._send(connection, worker.waiting.popleft())
        else:
            worker.idle.append(connection)

    def replied(self, connection: Connection, status: int, head: bytes, body: bytes) -> None:
        call: Call = connection.call  # type: ignore[assignment]
        connection.call = None
        call.on_line = False
        self._busy.discard(connection)
        self._free(connection)
        if call.gone:
            return
        if status != 200:
            code = code_of(body)
            self.records.counts[f"{call.name}: {status} {code}"] += 1
            if code in RETRIED or (status == 503 and code == ""):
                now = time.monotonic()
                if call.name == "request_task":
                    self.records.add("request_task refused", call.due, now)
                wait = (retry_after(head) or 1.0) * self.timers.retry_after
                call.tries += 1
                call.due = now + wait * self.chance.uniform(1.0, 1.5) * 1.3 ** min(call.tries - 1, 8)
                self.at(call.due, self._place, call)
                return
        self.finish(call)
        call.worker.heard = time.monotonic()
        call.then(call, status, head, body)

    def hung_up(self, connection: Connection) -> None:
        worker: Worker = connection.worker  # type: ignore[assignment]
        self._open(worker, -1)
        self._busy.discard(connection)
        if connection in worker.idle:
            worker.idle.remove(connection)
        self._again_later(*worker.waiting)
        worker.waiting.clear()
        call: Call | None = connection.call  # type: ignore[assignment]
        if call is None or call.gone:
            return
        call.on_line = False
        self.records.counts["broken requests"] += 1
        if connection.used and call.tries == 0:
            call.tries = 1  # it was kept, and closed as the request came: at once on a new one, and only once
            self._place(call)
        else:
            self._again_later(call)

    def _again_later(self, *calls: Call) -> None:
        for call in calls:
            most = min(self.timers.backoff_most, self.timers.backoff * 2**call.tries)
            call.tries += 1
            self.at(time.monotonic() + self.chance.uniform(0, most), self._place_again, call)

    def _place_again(self, call: Call) -> None:
        if not call.gone:
            self.records.counts["repeated requests"] += 1
            self._place(call)

    def finish(self, call: Call) -> None:
        call.gone = True
        self.under_way.discard(call)

    async def end(self, idle: Iterable[Connection]) -> None:
        """Hang up and forget everything that is due."""
        self._heap.clear()
        for call in list(self.under_way):
            self.finish(call)
        for connection in [*idle, *self._busy]:
            connection.abort()
        for task in self._dialling:
            task.cancel()
        await asyncio.sleep(0.2)
        if self._wake is not None:
            self._wake.cancel()


def code_of(body: bytes) -> str:
    """Why a call was refused."""
    try:
        return str(json.loads(body).get("code", ""))
    except (ValueError, AttributeError):
        return ""
