"""The API under a flood, and beside a bare application: `python -m benchmarks.api [--quick] [--json FILE]`.

A real `kg up` on an embedded server with durable defaults, its lanes in the same process, and as the limit a process
with nothing but Starlette's hello on the same uvicorn. The load comes from here over raw sockets: an HTTP library would
be slower than what it measures. What is compared is measured in turns; in the flood the bare application is asked as
well, at the same time on the same cores: what the machine lacks shows in both.
"""

import argparse
import asyncio
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

import psutil

from benchmarks.databases import create_database
from benchmarks.report import Report, console
from kappa.app import home
from kappa.engine.loops import loop_factory
from kappa.pg.embedded import EmbeddedServer

HELLO = """
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

async def hello(request):
    return JSONResponse({"status": "ok"})

class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)

Server(uvicorn.Config(Starlette(routes=[Route("/healthz", hello)]), port=0, log_config=None, access_log=False,
                      timeout_keep_alive=300)).run()
"""
SLOTS = 16
FLOODING = 4
"""Connections that enqueue, and as many that sign in."""
TRIES = 25
"""Sign-ins from one address; thirty failures close it, and then nothing is hashed any more."""
WRONG = {"name": "nobody", "password": "this is not the password"}
JOB = {"kind": "self_test", "payload": {"steps": 2}}

Ask = Callable[[], Awaitable[int]]


class Connection:
    """One connection that is kept."""

    def __init__(self, port: int, token: str = "", address: str | None = None) -> None:
        self._port = port
        self._address = address
        self._head = f"Host: kappa\r\n{f'Authorization: Bearer {token}' if token else 'X-Nobody: 1'}\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        if self._streams is None:
            local = (self._address, 0) if self._address else None
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, local_addr=local)
        reader, writer = self._streams
        raw = b"" if body is None else json.dumps(body).encode()
        kind = "Content-Type: application/json\r\n" if raw else ""
        writer.write(f"{method} {path} HTTP/1.1\r\n{self._head}{kind}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        said = await reader.readexactly(int(length[1])) if length else b""
        return int(head[9:12]), said

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def latencies(asks: dict[str, Ask], seconds: float, pause: float = 0.002) -> dict[str, list[float]]:
    """Milliseconds of each, asked in turns."""
    found: dict[str, list[float]] = {name: [] for name in asks}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for name, ask in asks.items():
            begun = time.perf_counter()
            status = await ask()
            found[name].append(1000 * (time.perf_counter() - begun))
            if status != 200:
                raise RuntimeError(f"{name} answered {status}")
            await asyncio.sleep(pause)
    return found


def p(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


class Up:
    """`kg up`, its token, and what it says of itself."""

    def __init__(self, process: psutil.Popen, url: str, token: str) -> None:
        self.process = process
        self.port = int(url.rsplit(":", 1)[1])
        self.token = token

    def connection(self, address: str | None = None) -> Connection:
        return Connection(self.port, self.token, address)


class Sampler:
    """Reads /metrics again and again while a block runs."""

    def __init__(self, up: Up, every: float) -> None:
        self._connection = up.connection()
        self._process = up.process
        self._every = every
        self.samples: list[dict[str, float]] = []

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._connection.close()

    async def _run(self) -> None:
        while True:
            status, page = await self._connection.ask("GET", "/metrics")
            assert status == 200, page
            lines = [line.rsplit(" ", 1) for line in page.decode().splitlines() if not line.startswith("#")]
            values = {name: float(value) for name, value in lines}
            self.samples.append({**values, "threads": float(self._process.num_threads()), "at": time.monotonic()})
            await asyncio.sleep(self._every)

    def mean(self, name: str) -> float:
        """Over time: a sample that came late stands for all the time since the one before."""
        lasted = [after["at"] - before["at"] for before, after in itertools.pairwise(self.samples)]
        return statistics.fmean((sample.get(name, 0.0) for sample in self.samples[1:]), lasted)

    def most(self, name: str) -> float:
        return max(sample.get(name, 0.0) for sample in self.samples)

    def rise(self, *parts: str) -> float:
        """By how much the counters rose whose names have all of these parts."""
        names = [name for name in self.samples[-1] if all(part in name for part in parts)]
        return sum(self.samples[-1][name] - self.samples[0].get(name, 0.0) for name in names)


QUEUE_IN_USE = 'kappa_pool_connections_in_use{pool="queue"}'
AUTH_IN_USE = 'kappa_pool_connections_in_use{pool="auth"}'
THREADS_IN_USE = "kappa_http_threads_in_use"
IN_FLIGHT = "kappa_http_requests_in_flight"


class Bench:
    """One run."""

    def __init__(self, up: Up, hello: int, quick: bool) -> None:
        self.up = up
        self.hello = hello
        self.seconds = 2.0 if quick else 6.0
        self.rounds = 1 if quick else 3
        self.report = Report("bars of the API")

    async def run(self) -> None:
        self.probe, self.bare = self.up.connection(), Connection(self.hello)
        status, said = await self.probe.ask("POST", "/jobs", {**JOB, "delay": 86400})
        assert status == 201, said
        self.job = f"/jobs/{json.loads(said)['id']}"
        await self.rates()
        await self.little()
        await self.flood()
        self.report.show()

    def _asks(self) -> dict[str, Ask]:
        async def ask(connection: Connection, path: str) -> int:
            return (await connection.ask("GET", path))[0]

        return {
            "healthz": lambda: ask(self.probe, "/healthz"),
            "job read": lambda: ask(self.probe, self.job),
            "bare app": lambda: ask(self.bare, "/healthz"),
        }

    async def _closed_loop(self, port: int, count: int, method: str, path: str, body: object, expect: int) -> float:
        """Answers a second that so many connections get, each asking again at once."""
        connections = [Connection(port, self.up.token) for _ in range(count)]
        answers, until = 0, 0.0

        async def ask(connection: Connection) -> None:
            nonlocal answers
            while time.monotonic() < until:
                status, said = await connection.ask(method, path, body)
                assert status == expect, said
                answers += 1

        until = time.monotonic() + 0.3
        await asyncio.gather(*map(ask, connections))
        answers, begun = 0, time.monotonic()
        until = begun + self.seconds
        await asyncio.gather(*map(ask, connections))
        took = time.monotonic() - begun
        for connection in connections:
            connection.close()
        return answers / took

    async def rates(self) -> None:
        console.print("[bold]answers/s, beside a bare application on the same server software[/]")
        for count in (1, 16, 64):
            found: dict[str, list[float]] = {}
            later = {**JOB, "delay": 86400}
            for _ in range(self.rounds):
                for name, port, method, path, body, expect in (
                    ("bare app", self.hello, "GET", "/healthz", None, 200),
                    ("healthz", self.up.port, "GET", "/healthz", None, 200),
                    ("job read", self.up.port, "GET", self.job, None, 200),
                    ("enqueue", self.up.port, "POST", "/jobs", later, 201),
                ):
                    rate = await self._closed_loop(port, count, method, path, body, expect)
                    found.setdefault(name, []).append(rate)
            medians = {name: statistics.median(values) for name, values in found.items()}
            for name, rate in medians.items():
                self.report.figure(f"{name}, {count} connections: answers/s", rate)
            for name in ("healthz", "job read", "enqueue"):
                self.report.figure(f"{name} / bare app, {count} connections", medians[name] / medians["bare app"])
            self.rate = medians["job read"]
            if count == 16:
                self.paced = medians["job read"] / 4
                # FIELD.md 2: FastAPI with one statement in an async pool makes a quarter of a bare route. A job read is
                # two statements, the token's and the job's.
                self.report.bar("job read / bare app, 16 connections", medians["job read"] / medians["bare app"], 0.125)

    async def _open_loop(self, rate: float) -> tuple[float, Sampler]:
        """Job reads at a given rate, whatever the answers take; the rate that came out, and what was in use."""
        idle: list[Connection] = [self.up.connection() for _ in range(32)]
        everyone, under_way = list(idle), set[asyncio.Task[None]]()
        answers = 0

        async def one(connection: Connection) -> None:
            nonlocal answers
            await connection.ask("GET", self.job)
            answers += 1
            idle.append(connection)

        async with Sampler(self.up, 0.02) as sampler:
            begun = time.monotonic()
            for number in itertools.count():
                due = begun + number / rate
                if due > begun + self.seconds:
                    break
                if (wait := due - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                if idle:
                    task = asyncio.create_task(one(idle.pop()))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
            took = time.monotonic() - begun
        await asyncio.gather(*under_way)
        for connection in everyone:
            connection.close()
        return answers / took, sampler

    async def little(self) -> None:
        console.print("[bold]Little's law: what job reads hold at a rate, and at twice the rate[/]")
        slow, at_slow = await self._open_loop(self.paced)
        fast, at_fast = await self._open_loop(2 * self.paced)
        figure = self.report.figure
        figure("job reads/s, paced", fast)
        for name, gauge in (("pool queue", QUEUE_IN_USE), ("pool auth", AUTH_IN_USE)):
            held = at_slow.mean(gauge) / slow
            figure(f"{name}: a read holds a connection, ms", 1000 * held)
            figure(f"{name}: connections in use, predicted from half the rate", fast * held)
            figure(f"{name}: connections in use, measured", at_fast.mean(gauge))
        seconds = at_fast.rise("kappa_http_request_seconds_sum", "/jobs/{job_id}")
        count = at_fast.rise("kappa_http_request_seconds_count", "/jobs/{job_id}")
        predicted = fast * seconds / count
        measured = at_fast.mean(IN_FLIGHT)
        figure("requests under way, rate x time of one", predicted)
        figure("requests under way, measured", measured)
        figure("threads that the API's tokens are for, in use", at_fast.mean(THREADS_IN_USE))
        # An instant is looked at some dozen times, and by a request of the same server.
        self.report.bar("Little: |measured / predicted - 1|", abs(measured / predicted - 1), 0.5, at_most=True)

    async def flood(self) -> None:
        figure = self.report.figure
        console.print("[bold]latency when quiet, ms[/]")
        self.probe.close()  # idle for too long: the servers have hung up
        self.bare.close()
        quiet = await latencies(self._asks(), 2 * self.seconds)
        for name, values in quiet.items():
            figure(f"quiet: {name} p50", p(values, 0.5))
            figure(f"quiet: {name} p99", p(values, 0.99))

        console.print("[bold]how long a password takes, ms[/]")
        signing = Connection(self.up.port, address="127.0.9.9")
        hashed = []
        for _ in range(10):
            begun = time.perf_counter()
            status, said = await signing.ask("POST", "/sessions", {**WRONG, "name": f"nobody{len(hashed)}"})
            assert status == 401, said
            hashed.append(1000 * (time.perf_counter() - begun))
        signing.close()
        figure("quiet: a sign-in that fails p50", service := p(hashed, 0.5))

        console.print(f"[bold]the same with {SLOTS} slow handlers, enqueues and sign-ins as fast as they go[/]")
        self.probe.close()
        await self._fill_slots()
        counts = {"enqueued": 0, "hashed": 0, "throttled": 0}
        floods = [asyncio.create_task(self._enqueue(counts)) for _ in range(FLOODING)]
        floods += [asyncio.create_task(self._sign_in(number, counts)) for number in range(FLOODING)]
        try:
            await asyncio.sleep(1.0)
            before, begun = dict(counts), time.monotonic()
            async with Sampler(self.up, 0.25) as sampler:
                flooded = await latencies(self._asks(), 4 * self.seconds)
            took = time.monotonic() - begun
        finally:
            for task in floods:
                task.cancel()
            ended = await asyncio.gather(*floods, return_exceptions=True)
        broken = [error for error in ended if not isinstance(error, asyncio.CancelledError)]
        assert not broken, broken
        for name, count in counts.items():
            figure(f"flood: {name}/s", (count - before[name]) / took)
        for name, values in flooded.items():
            figure(f"flood: {name} p50", p(values, 0.5))
            figure(f"flood: {name} p99", p(values, 0.99))
            figure(f"flood: {name} p50, flood / quiet", p(values, 0.5) / p(quiet[name], 0.5))
            figure(f"flood: {name} p99, flood / quiet", p(values, 0.99) / p(quiet[name], 0.99))
        rate = (counts["hashed"] - before["hashed"]) / took
        figure("flood: sign-ins wanted at once, rate x time of one when quiet", rate * service / 1000)
        figure("flood: threads that the API's tokens are for, most in use", sampler.most(THREADS_IN_USE))
        figure("flood: threads of the process, most", sampler.most("threads"))
        figure("flood: handlers that run", sampler.mean('kappa_lane_slots_used{lane="checks"}'))
        for name, gauge in (("queue", QUEUE_IN_USE), ("auth", AUTH_IN_USE)):
            figure(f"flood: pool {name}, connections in use", sampler.mean(gauge))
        bare = p(flooded["bare app"], 0.99)
        # Two cores are asked for by two hashes of four threads each, the database, the load and two servers: whoever
        # wakes up waits for its turn, and so does the bare application. What is ours is what comes on top.
        self.report.bar("flood: healthz p99 / bare app p99", p(flooded["healthz"], 0.99) / bare, 3.0, at_most=True)
        self.report.bar("flood: job read p99 / bare app p99", p(flooded["job read"], 0.99) / bare, 10.0, at_most=True)
        # A handler on the API's loop would make this a thousand: a step of these handlers is 100 ms of sleep.
        ratio = p(flooded["healthz"], 0.99) / p(quiet["healthz"], 0.99)
        self.report.bar("healthz p99, flood / quiet", ratio, 50.0, at_most=True)

    async def _fill_slots(self) -> None:
        status, said = await self.probe.ask("PATCH", "/admin/workers/lanes/checks", {"max_slots": SLOTS})
        assert status == 200, said
        for _ in range(10 * SLOTS):  # each lasts a minute
            slow = {"kind": "self_test", "payload": {"steps": 600, "seconds": 60}, "priority": 10}
            status, said = await self.probe.ask("POST", "/jobs", slow)
            assert status == 201, said
        until = time.monotonic() + 30
        while time.monotonic() < until:
            _, said = await self.probe.ask("GET", "/admin/workers/lanes")
            used = {lane["name"]: lane["slots_used"] for lane in json.loads(said)}
            if used["checks"] == SLOTS:
                return
            await asyncio.sleep(0.1)
        raise RuntimeError(f"the slots didn't fill: {used}")

    async def _enqueue(self, counts: dict[str, int]) -> None:
        with closing(self.up.connection()) as connection:
            while True:
                status, said = await connection.ask("POST", "/jobs", JOB)
                assert status == 201, said
                counts["enqueued"] += 1

    async def _sign_in(self, number: int, counts: dict[str, int]) -> None:
        for host in itertools.count(1):
            address = f"127.{1 + number}.{host // 250}.{1 + host % 250}"
            with closing(Connection(self.up.port, address=address)) as connection:
                for attempt in range(TRIES):
                    wrong = {**WRONG, "name": f"nobody-{number}-{host}-{attempt}"}
                    status, said = await connection.ask("POST", "/sessions", wrong)
                    assert status in (401, 429), said
                    counts["hashed" if status == 401 else "throttled"] += 1


@contextmanager
def started(command: list[str], env: dict[str, str], **options: object) -> Generator[psutil.Popen]:
    process = psutil.Popen(command, env=env, **options)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait()


def server_url(process: psutil.Popen, place: Path) -> str:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        for running in home.running(place):
            if running.pid == process.pid:
                return running.url
        time.sleep(0.05)
    raise RuntimeError("kg up didn't listen")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="shorter and a single round: about a minute")
    parser.add_argument("--json", type=Path, help="write bars and figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kappa-bench-") as place:
        server = EmbeddedServer(Path(place), settings={"max_connections": "200"}, say=console.print)
        with server.hold("the benchmark"):
            url = create_database(server, "bench_api")
            clean = {name: value for name, value in os.environ.items() if not name.startswith("KAPPA_")}
            at = Path(place) / "up"
            env = {
                **clean, "KAPPA_HOME": str(at), "KAPPA_DATABASE_URL": url, "KAPPA_PORT": "0", "KAPPA_GRACE": "1",
            }  # fmt: skip
            quiet = subprocess.DEVNULL
            up = started([sys.executable, "-m", "kappa.app.cli.entry", "up"], env, stdout=quiet, stderr=quiet)
            bare = started([sys.executable, "-c", HELLO], clean, stdout=subprocess.PIPE, text=True)
            with up as kappa, bare as hello:
                port = int(hello.stdout.readline())
                address = server_url(kappa, at)
                bench = Bench(Up(kappa, address, home.token_file(at).read_text().strip()), port, arguments.quick)
                with asyncio.Runner(loop_factory=loop_factory()) as runner:
                    runner.run(bench.run())
    if arguments.json:
        bench.report.write(arguments.json)


if __name__ == "__main__":
    main()
