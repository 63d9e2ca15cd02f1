"""A peer measured through its driver processes; this side only starts them, watches the database and divides.

The drivers' line protocol is described in drivers/protocol.py.
"""

from __future__ import annotations

import json
import os
import queue
import random
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import psycopg

from benchmarks.peers.environment import ensure
from benchmarks.peers.settings import Settings

WARM_JOBS = 2000
PATIENCE = 300.0  # seconds without any news from a driver
SETTLE = 2.0  # seconds for a started worker to come to rest
FLUSH = 12.0  # seconds until even an idle backend has reported the transactions of its start
ACTIVITY = "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"


class Driven:
    """`benchmarks.peers.Peer` for a queue with a driver program."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.name

    def install(self, url: str) -> None:
        ensure()
        self._call("install", url)

    def enqueue_one(self, url: str, seconds: float) -> float:
        return _rate(self._call("one", url, str(seconds)))

    def enqueue_crowd(self, url: str, seconds: float, callers: int, connections: int) -> float:
        return _rate(self._call("crowd", url, str(seconds), str(callers), str(connections)))

    def enqueue_batch(self, url: str, jobs: int, batch: int = 1000) -> float:
        return _rate(self._call("batch", url, str(jobs), str(batch)))

    def configs(self) -> Sequence[str]:
        return list(self.settings.configs)

    def best_config(self, processes: int) -> str:
        return self.settings.best[max(n for n in self.settings.best if n <= processes)]

    @contextmanager
    def crew(self, url: str, processes: int, config: str | None = None) -> Generator[Callable[[int], float]]:
        """Warm workers, and what has them drain so many jobs and gives the rate. In between they are at rest."""
        with ExitStack() as stack:
            workers = [
                stack.enter_context(self._worker(url, config or self.best_config(processes))) for _ in range(processes)
            ]
            observer = stack.enter_context(psycopg.connect(url, autocommit=True))
            self._round(url, observer, workers, WARM_JOBS)
            yield lambda jobs: jobs / self._round(url, observer, workers, jobs)

    def latency(self, url: str, samples: int) -> list[float]:
        waits: list[float] = []
        with (
            psycopg.connect(url, autocommit=True) as observer,
            self._worker(url, self.settings.idle) as worker,
            self._driver("pulse", url) as enqueuer,
        ):
            worker.tell("start")
            for _ in range(10):  # the first one comes unasked
                enqueuer.hear("committed")
                worker.hear("ran")
                enqueuer.tell("one")
            enqueuer.hear("committed")
            worker.hear("ran")
            self._wait_settled(observer)
            time.sleep(SETTLE)
            for _ in range(samples):
                time.sleep(random.uniform(0.01, 0.06))
                enqueuer.tell("one")
                committed = enqueuer.hear("committed")["at"]
                waits.append((worker.hear("ran")["last"] - committed) / 1e6)
            worker.tell("stop")
            worker.hear("stopped")
        return waits

    def idle_tps(self, url: str, seconds: float) -> float:
        with self._worker(url, self.settings.idle) as worker:
            worker.tell("start")
            time.sleep(FLUSH)
            began, before = time.monotonic(), _activity(url)
            time.sleep(seconds)
            # The first look's own transaction is in the second's figure, the second's is not in it yet.
            caused, passed = _activity(url) - before - 1, time.monotonic() - began
            worker.tell("stop")
            worker.hear("stopped")
        return caused / passed

    def _round(self, url: str, observer: psycopg.Connection, workers: Sequence[_Driver], jobs: int) -> float:
        """Fill, start, wait until everything is settled, stop; the seconds from first start to that."""
        self._call("batch", url, str(jobs), "1000")
        observer.execute("vacuum (analyze)")  # nobody is to meet statistics from when the table was empty
        with suppress(psycopg.errors.InsufficientPrivilege):
            observer.execute("checkpoint")
        progress: dict[int, dict[str, Any]] = {}
        news: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
        for number, worker in enumerate(workers):
            worker.forward("ran", partial(_number, news, number))
            worker.tell("start")
        while sum(said["count"] for said in progress.values()) < jobs:
            number, message = news.get(timeout=PATIENCE)
            if message["event"] == "gone":
                raise RuntimeError(f"a worker process of {self.name} died")
            progress[number] = message
        self._wait_settled(observer)
        finished = time.monotonic_ns()
        ran = sum(said["count"] for said in progress.values())
        if ran != jobs:
            raise RuntimeError(f"{self.name} ran {ran} handlers for {jobs} jobs")
        for worker in workers:
            worker.tell("stop")
            worker.hear("stopped")
        return (finished - min(said["first"] for said in progress.values())) / 1e9

    def _wait_settled(self, observer: psycopg.Connection) -> None:
        deadline = time.monotonic() + PATIENCE
        while observer.execute(self.settings.unfinished).fetchone() != (False,):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} left jobs unsettled")
            time.sleep(0.001)

    def _call(self, *arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [*self.settings.command, *arguments],
            env=os.environ | self.settings.env,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        if done.returncode:
            raise RuntimeError(f"{self.name} {arguments[0]} failed:\n{done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}

    @contextmanager
    def _worker(self, url: str, config: str) -> Generator[_Driver]:
        with self._driver("work", url, json.dumps(self.settings.configs[config])) as worker:
            worker.hear("ready")
            yield worker

    @contextmanager
    def _driver(self, *arguments: str) -> Generator[_Driver]:
        process = subprocess.Popen(
            [*self.settings.command, *arguments],
            env=os.environ | self.settings.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield _Driver(self.name, process)
        finally:
            assert process.stdin
            with suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class _Driver:
    """A running driver: lines to it, messages from it."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self._name = name
        self._process = process
        self._messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._forwards: dict[str, Callable[[dict[str, Any]], None]] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            message = json.loads(line)
            if take := self._forwards.get(message["event"]):
                take(message)
            else:
                self._messages.put(message)
        self._messages.put(None)
        for take in self._forwards.values():
            take({"event": "gone"})

    def tell(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def forward(self, event: str, take: Callable[[dict[str, Any]], None]) -> None:
        """From now on hand messages of that event to `take`, on the reader's thread."""
        self._forwards[event] = take

    def hear(self, event: str) -> dict[str, Any]:
        message = self._messages.get(timeout=PATIENCE)
        if message is None or message["event"] != event:
            raise RuntimeError(f"{self._name}: expected {event}, got {message}")
        return message


def _number(news: queue.Queue[tuple[int, dict[str, Any]]], number: int, message: dict[str, Any]) -> None:
    news.put((number, message))


def _rate(answer: dict[str, Any]) -> float:
    return answer["jobs"] / answer["seconds"]


def _activity(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(ACTIVITY).fetchone()
    assert row
    return int(row[0])
