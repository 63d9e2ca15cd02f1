"""A fleet of up to ten thousand workers in one process, told what to do line by line: `python -m …simulator CORE`.

Each worker has a name, a token and an address of its own, beats and reports at a phase of its own, and keeps what it
was told in the ledger. What a worker does is due by its own clock, and latency counts from when it was due.
"""

import asyncio
import gc
import json
import os
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.fleet_parts.caller import Call, Caller, Timers, Worker, code_of
from benchmarks.fleet_parts.connection import request
from benchmarks.fleet_parts.ledger import End, Entry, Ledger
from benchmarks.fleet_parts.records import summary
from kappa.engine.loops import loop_factory

OTHER_FILES = 200
UNANSWERED = "people: not answered"
IMPATIENT = 20
"""Looks that a person leaves unanswered before the next."""
COUNT_EVERY = 1.0
"""Seconds between counts of those who hold a task; who exchanges one for the next is without for less."""
WORDS = "lorem ipsum dolor sit amet consectetur adipisici elit sed eiusmod tempor incidunt ut labore " * 40


class Simulator(Caller):
    """The fleet."""

    def __init__(self, timers: Timers, kinds: list[str], spare_lines: int) -> None:
        super().__init__(timers, spare_lines)
        self.kinds = kinds
        self.ledger = Ledger()
        self.workers: list[Worker] = []
        self.flooders: list[Worker] = []
        self._working = True
        self._people: list[Worker] = []
        self._unserved = 0
        """Of those that were told to ask."""
        self._without: set[Worker] = set()
        self._held: list[tuple[float, int]] = []
        """How many workers held a task, and when."""
        self.at(time.monotonic() + COUNT_EVERY, self.count_held)

    def count_held(self) -> None:
        now = time.monotonic()
        without = {worker for worker in self.workers if worker.alive and not worker.tasks}
        living = sum(worker.alive for worker in self.workers)
        self._held.append((now, living - len(without & self._without)))
        self._without = without
        self.at(now + COUNT_EVERY, self.count_held)

    def _longest_held(self, count: int) -> float:
        """The longest time in which so many held a task whenever they were counted."""
        longest, begun = 0.0, None
        for when, held in self._held:
            begun = (when if begun is None else begun) if held >= count else None
            longest = max(longest, 0.0 if begun is None else when - begun)
        return longest

    def begin(self, worker: Worker) -> None:
        """From now on it beats and reports, each at a phase of its own."""
        worker.alive = True
        now = time.monotonic()
        for what, every in ((self._beat, self.timers.beat), (self._update, self.timers.update)):
            first = now + self.chance.uniform(0, every)
            self.at(first, what, worker, first)

    def _beat(self, worker: Worker, due: float) -> None:
        if not worker.alive:
            return
        self.at(due + self.timers.beat, self._beat, worker, due + self.timers.beat)
        before = worker.beating
        if before is not None and not before.gone:
            self.records.counts["lost beats"] += 1
            if not before.on_line:  # the new one says all that it would have said
                self.records.add("beat", before.first_due, due)
                self.finish(before)
        if worker.tasks:
            worker.beating = self.call(worker, "beat", _beat_body(worker), due, self._beaten)
            worker.beating.about = tuple(entry for entry in worker.tasks.values() if entry.end is End.HELD)

    def _beaten(self, call: Call, status: int, head: bytes, body: bytes) -> None:
        if status != 200:
            self._fault(call, status, body)
            return
        self.records.add("beat", call.first_due, time.monotonic())
        told: dict[int, str] = {}
        if b'"notices":[]' not in body:
            told = {notice["task"]: notice["verdict"] for notice in json.loads(body)["notices"]}
        for entry in call.about:
            if entry.task in told:
                self._told(call.worker, entry, told[entry.task])
            else:
                self.ledger.heard(entry, call.sent)

    def _told(self, worker: Worker, entry: Entry, verdict: str) -> None:
        if entry.end is not End.HELD:
            return  # settled while the word was under way, and rightly unknown
        self.records.counts[f"told: {verdict}"] += 1
        entry.end = End.LOST
        if worker.tasks.get(entry.task) is entry:
            del worker.tasks[entry.task]
        if self._working:
            self.ask(worker, time.monotonic())

    def _fault(self, call: Call, status: int, body: bytes) -> None:
        self.records.counts["faults"] += 1
        if self.records.counts["faults"] <= 5:
            print(f"{call.name} of {call.worker.name}: {status} {body[:300]!r}", file=sys.stderr)

    def _update(self, worker: Worker, due: float) -> None:
        if not worker.alive or not self._working:
            return
        self.at(due + self.timers.update, self._update, worker, due + self.timers.update)
        for entry in list(worker.tasks.values()):
            if entry.end is not End.HELD or entry.task in worker.updating:
                continue
            ends = self.timers.task * (0.5 + entry.task * 0.618034 % 1)
            if due - entry.since > ends:
                self._complete(worker, entry, due)
            else:
                self._report(worker, entry, due)

    def _report(self, worker: Worker, entry: Entry, due: float) -> None:
        entry.sent = max(entry.sent, 0.0) + self.chance.randint(1, 5)
        value = entry.sent
        said: dict[str, Any] = {
            "worker": worker.name, "task": entry.task, "token": entry.token, "started": True, "done": value,
            "total": 1e6, "message": WORDS[: self.chance.randint(40, 300)],
        }  # fmt: skip
        if int(value) % 3 == 0:
            said["checkpoint"] = {"at": value, "state": WORDS[: self.chance.randint(200, 2500)]}

        def heard(call: Call, status: int, head: bytes, body: bytes) -> None:
            worker.updating.discard(entry.task)
            if status == 200:
                self.records.add("update_task", call.first_due, time.monotonic())
                entry.acknowledged = max(entry.acknowledged, value)
                self.ledger.heard(entry, call.sent)
            elif code_of(body) == "lost":
                self._told(worker, entry, "lost")
            else:
                self._fault(call, status, body)

        worker.updating.add(entry.task)
        self.call(worker, "update_task", json.dumps(said).encode(), due, heard)

    def _complete(self, worker: Worker, entry: Entry, due: float) -> None:
        said = {
            "worker": worker.name, "task": entry.task, "token": entry.token,
            "result": {"mark": entry.mark, "games": WORDS[: self.chance.randint(200, 2000)]},
        }  # fmt: skip
        entry.end = End.SETTLING

        def heard(call: Call, status: int, head: bytes, body: bytes) -> None:
            if status == 200:
                self.records.add("complete_task", call.first_due, time.monotonic())
                self.ledger.heard(entry, call.sent)
                entry.end = End.SETTLED
                worker.tasks.pop(entry.task, None)
            elif code_of(body) == "lost":
                entry.end = End.HELD
                self._told(worker, entry, "lost")
            else:
                self._fault(call, status, body)
            if self._working:
                self.ask(worker, time.monotonic())

        self.call(worker, "complete_task", json.dumps(said).encode(), due, heard)

    def ask(self, worker: Worker, due: float, then: Callable[[], None] | None = None) -> None:
        """For one task, until there is one."""
        worker.asking = True
        worker.serial += 1
        first_due = due

        def answered(call: Call, status: int, head: bytes, body: bytes) -> None:
            if status != 200:
                worker.asking = False
                self._fault(call, status, body)
                return
            now = time.monotonic()
            self.records.add("request_task", call.due, now)
            said = json.loads(body)
            for task in said["tasks"]:
                entry = self.ledger.assigned(task["task"], task["token"], worker.name, now)
                before = worker.tasks.get(entry.task)
                if before is not None and before is not entry and before.end is End.HELD:
                    before.end = End.LOST  # and given to the same worker again, before it was told
                    self.records.counts["told: lost"] += 1
                worker.tasks[entry.task] = entry
            if said["tasks"]:
                worker.asking = False
                self.records.add("request_task until served", first_due, now)
                if then is not None:
                    then()
            elif self._working:
                worker.serial += 1
                later = now + (said.get("retry_after") or 1.0) * self.timers.retry_after * self.chance.uniform(0.8, 1.2)
                self.at(later, lambda: self.call(worker, "request_task", self._wish(worker), later, answered))
            else:
                worker.asking = False

        self.call(worker, "request_task", self._wish(worker), due, answered)

    def _wish(self, worker: Worker, kind: str | None = None) -> bytes:
        said = {
            "worker": worker.name, "request_id": f"{worker.name}-{worker.serial}", "count": 1, "wait": 0,
            "kinds": [kind] if kind else self.kinds, "cores": 4, "memory_mb": 8192, "labels": ["x86-64", "linux"],
        }  # fmt: skip
        return json.dumps(said).encode()

    async def hello(self, count: int, rate: float) -> dict[str, Any]:
        """Connect so many workers, and let each say who it is."""
        done: set[str] = set()

        def welcomed(call: Call, status: int, head: bytes, body: bytes) -> None:
            if status != 200:
                self._fault(call, status, body)
            self.records.add("hello", call.due, time.monotonic())
            done.add(call.worker.name)

        begun = time.monotonic()
        for number, worker in enumerate(self.workers[:count]):
            said = {"worker": worker.name, "version": "bench", "slots": 2, "kinds": self.kinds, "cores": 4}
            due = begun + number / rate
            self.at(due, self.call, worker, "hello", json.dumps(said).encode(), due, welcomed)
        await self._until(lambda: len(done) == count, 60 + 3 * count / rate)
        return {"seconds": time.monotonic() - begun}

    async def acquire(self, first: int, last: int, at_once: int) -> dict[str, Any]:
        """A task for each of these workers, so many asking at a time."""
        todo = deque(self.workers[first:last])
        left = len(todo)
        begun = time.monotonic()

        def served() -> None:
            nonlocal left
            left -= 1
            if todo:
                self.ask(todo.popleft(), time.monotonic(), served)

        for _ in range(min(at_once, len(todo))):
            self.ask(todo.popleft(), time.monotonic(), served)
        await self._until(lambda: left == 0, 60 + (last - first) / 20)
        return {"seconds": time.monotonic() - begun}

    async def live(self, first: int, last: int) -> dict[str, Any]:
        for worker in self.workers[first:last]:
            self.begin(worker)
        return {}

    async def ramp(self, first: int, last: int, seconds: float) -> dict[str, Any]:
        """New workers, evenly over a time: each connects, asks for a task and begins to beat."""
        begun = time.monotonic()
        for number, worker in enumerate(self.workers[first:last]):
            due = begun + seconds * number / max(1, last - first)
            self._ask_all(worker, due, self.begin)
        return {}

    async def storm(self, seconds: float) -> dict[str, Any]:
        """Every connection breaks, and all workers are back within some seconds and ask for a task."""
        begun = time.monotonic()
        living = [worker for worker in self.workers if worker.alive]
        for worker in living:
            for connection in worker.idle:
                connection.abort()
        for worker in living:
            self._ask_all(worker, begun + self.chance.uniform(0, seconds))
        return {"begun": begun, "asking": len(living)}

    def _ask_all(self, worker: Worker, due: float, then: Callable[[Worker], None] | None = None) -> None:
        def served() -> None:
            self._unserved -= 1
            if then is not None:
                then(worker)

        self._unserved += 1
        self.at(due, self.ask, worker, due, served)

    async def unserved(self) -> dict[str, Any]:
        return {"unserved": self._unserved}

    async def flood(self, rate: float, seconds: float, kind: str) -> dict[str, Any]:
        """Requests for tasks of a kind that there is none of, at a rate, by workers that have nothing else to do."""
        begun = time.monotonic()
        counts = {"sent": 0, "held back": 0}

        def answered(call: Call, status: int, head: bytes, body: bytes) -> None:
            call.worker.asking = False
            self.records.add("flood", call.due, time.monotonic())

        def one(number: int, due: float) -> None:
            worker = self.flooders[number % len(self.flooders)]
            if worker.asking:
                counts["held back"] += 1
                return
            worker.asking = True
            worker.serial += 1
            counts["sent"] += 1
            self.call(worker, "flood", self._wish(worker, kind), due, answered, path="request_task")

        def some(number: int) -> None:
            now = time.monotonic()
            while (due := begun + number / rate) <= now:
                one(number, due)
                number += 1
            if due < begun + seconds:
                self.at(due, some, number)

        some(0)
        await asyncio.sleep(seconds)
        return {"begun": begun, **counts}

    async def closed_loop(self, count: int, seconds: float, warm: float) -> dict[str, Any]:
        """Beats as fast as they are answered, on so many connections."""
        chosen = self.workers[:count]
        answers = 0
        begun = time.monotonic() + warm
        until = begun + seconds

        def again(call: Call, status: int, head: bytes, body: bytes) -> None:
            nonlocal answers
            now = time.monotonic()
            if status != 200 or b'"notices":[]' not in body:
                self._fault(call, status, body)
                return
            if call.due >= begun and now < until:
                answers += 1
                self.records.add("beat, closed loop", call.due, now)
            if now < until:
                self.call(call.worker, "beat", bodies[call.worker], now, again)

        bodies = {worker: _beat_body(worker) for worker in chosen}
        for worker in chosen:
            self.call(worker, "beat", bodies[worker], time.monotonic(), again)
        await asyncio.sleep(until - time.monotonic())
        await self._until(lambda: not self.under_way, 30)
        return {"begun": begun, "ended": until, "rate": answers / seconds}

    async def watch(self, port: int, token: str, job: int, every: float) -> dict[str, Any]:
        """One of the people who use the API meanwhile: looks at a job and at the health, again and again."""
        reader = Worker("people", "127.0.0.1", token, port)
        reader.counted = False
        self._people.append(reader)
        reader.heads = {
            "people: job": request("GET", f"/jobs/{job}", token),
            "people: healthz": request("GET", "/healthz", token),
        }

        def seen(call: Call, status: int, head: bytes, body: bytes) -> None:
            self.records.add(call.name, call.first_due, time.monotonic())
            if status != 200 or call.tries:  # people don't try again
                self.records.counts[UNANSWERED] += 1

        def look(due: float) -> None:
            if len(reader.waiting) < IMPATIENT:
                for name in reader.heads:
                    self.call(reader, name, b"", due, seen)
            else:
                self.records.counts[UNANSWERED] += len(reader.heads)
            self.at(due + every, look, due + every)

        look(time.monotonic())
        return {}

    async def die(self, first: int, last: int) -> dict[str, Any]:
        """These fall silent, in the middle of whatever they do."""
        tasks: list[int] = []
        dying = set(self.workers[first:last])
        for call in [one for one in self.under_way if one.worker in dying]:
            self.finish(call)
        for worker in dying:
            worker.alive = False
            for connection in worker.idle:
                connection.abort()
            for entry in worker.tasks.values():
                entry.end = End.DEAD
                tasks.append(entry.task)
        return {"tasks": tasks}

    async def move(self, first: int, last: int, step: int, port: int, people: bool) -> dict[str, Any]:
        """These talk to another server from now on."""
        for worker in (*self.workers[first:last:step], *(self._people if people else ())):
            worker.port = port
            for connection in worker.idle:
                connection.abort()
        return {}

    async def hear(self, since: float) -> dict[str, Any]:
        """How many of the workers that live had an answer since an instant."""
        living = [worker for worker in self.workers if worker.alive]
        return {"heard": sum(worker.heard >= since for worker in living), "living": len(living)}

    async def read(self, begin: float, end: float, patience: float, raw: str) -> dict[str, Any]:
        """What was due in a window, once it is answered; what isn't counts with the time that it took so far."""
        with suppress(TimeoutError):
            await self._until(
                lambda: not any(begin <= call.first_due < end for call in self.under_way),
                patience,
            )
        now = time.monotonic()
        waiting: dict[str, list[float]] = {}
        for call in self.under_way:
            if begin <= call.first_due < end:
                waiting.setdefault(call.name, []).append(now - call.first_due)
        calls = {}
        for name, series in self.records.series.items():
            if took := series.between(begin, end) + waiting.get(name, []):
                calls[name] = {**summary(took), "unanswered": float(len(waiting.get(name, [])))}
        whole = self.records.series.get(raw)
        return {
            "calls": calls,
            "raw": [] if whole is None else whole.between(begin, end) + waiting.get(raw, []),
            "counts": dict(self.records.counts),
            "cpu": self.records.cpu(begin, end),
            "late": summary(self.records.late.between(begin, end)),
            "worst_second": self.records.worst_second(begin, end),
            "connections": sum(worker.lines for worker in self.workers),
            "held": min((held for when, held in self._held if begin <= when < end), default=0),
            "held_seconds": self._longest_held(len(self.workers)),
        }

    async def quiet(self, patience: float) -> dict[str, Any]:
        """Nothing new but beats; what is under way may end."""
        self._working = False
        with suppress(TimeoutError):
            await self._until(lambda: not self._words(), patience)
        return {"under_way": len(self._words())}

    def _words(self) -> list[Call]:
        """Under way, and more than a sign of life."""
        return [call for call in self.under_way if call.name != "beat" and call.worker.counted]

    async def write_ledger(self, path: str) -> dict[str, Any]:
        self.ledger.asking = sorted({call.worker.name for call in self.under_way if call.name == "request_task"})
        Path(path).write_text(json.dumps(self.ledger.dump()))  # noqa: ASYNC240
        return {}

    async def hang_up(self) -> dict[str, Any]:
        self._working = False
        for worker in self.workers:
            worker.alive = False
        everyone = (*self.workers, *self.flooders, *self._people)
        await self.end([connection for worker in everyone for connection in worker.idle])
        return {}

    async def _until(self, met: Callable[[], bool], patience: float) -> None:
        until = time.monotonic() + patience
        while not met():
            if time.monotonic() > until:
                raise TimeoutError(f"not within {patience:.0f} s; {dict(self.records.counts)}")
            await asyncio.sleep(0.02)


def _beat_body(worker: Worker) -> bytes:
    held = ",".join(
        f'{{"task":{entry.task},"token":{entry.token}}}' for entry in worker.tasks.values() if entry.end is End.HELD
    )
    return f'{{"worker":"{worker.name}","tasks":[{held}]}}'.encode()


def set_up(identities: str, port: int, timers: dict[str, float], kinds: list[str], flooders: int) -> Simulator:
    everyone = [Worker(name, address, token, port) for name, address, token in json.loads(Path(identities).read_text())]
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    made = Simulator(Timers(**timers), kinds, max(0, files - len(everyone) - OTHER_FILES))
    made.workers = everyone[: len(everyone) - flooders]
    made.flooders = everyone[len(everyone) - flooders :]
    for worker in made.flooders:
        worker.alive = True
        worker.heads["flood"] = worker.heads["request_task"]
    return made


async def obey() -> None:
    """Commands as lines of JSON, answers likewise."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def listen() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=listen, daemon=True).start()
    fleet: Simulator | None = None
    while line := await lines.get():
        command = json.loads(line)
        name = command.pop("do")
        try:
            if name == "set_up":
                fleet = set_up(**command)
                gc.collect()
                gc.freeze()
                answer: dict[str, Any] = {}
            else:
                assert fleet is not None
                act: Callable[..., Awaitable[dict[str, Any]]] = getattr(fleet, name)
                answer = await act(**command)
        except (TimeoutError, AssertionError, OSError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def main() -> None:
    os.sched_setaffinity(0, {int(sys.argv[1])})
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.disable()  # ten thousand workers are walked through for nothing, and everyone's latency pays for it
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(obey())


if __name__ == "__main__":
    main()
