"""The cluster under test: a server of its own, a proxy in front, a pooler for some, worker processes.

Everything is started here and ended here, by pid; what is mounted here is unmounted here.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from kappa.engine import Client, Engine
from kappa.pg import Bounds
from kappa.pg.embedded import EmbeddedServer
from tests.chaos import artifacts, handlers, history, journal
from tests.chaos.artifacts import Disk
from tests.chaos.client import read_ledger
from tests.chaos.health import END
from tests.chaos.proxy import LOOPBACK, Proxy
from tests.chaos.record import CLIENT, SERVER, Entry, Outage, Record, RowLock, WorkerLife
from tests.chaos.worker import CLOCK, FOLLOW, LANES
from tests.ground import eventually, memory

ROOT = Path(__file__).parents[2]
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")

# Killed servers are under test, power cuts are not: without fsync nothing that a kill can't lose is lost.
SETTINGS = {
    "fsync": "off",
    "max_connections": "300",
    "track_commit_timestamp": "on",
    "autovacuum_naptime": "5s",
}

END_WITHIN = 45.0
FROZEN_AT_ONCE = 8
RECOVERY = timedelta(seconds=1.5)
"""For connections that broke to be made anew: a pool tries at once, and again after 1, 2, 4 s, and so on. So after an
outage it takes as long again at most, and this."""
LONGEST_RETRY = timedelta(seconds=4)
BEHIND_POOLER = timedelta(seconds=1.5)
"""More, for workers behind a pooler that has to come back first."""
IN_CLUSTER = "KAPPA_CHAOS_CLUSTER"
WORKER, POOLED = "worker", "pooled"
"""How the names of workers begin: with connections of their own, and behind the pooler."""
BOUNCER = "bouncer"
"""The door of the pooler."""


@dataclass
class WorkerProcess:
    """A worker, and what is known of it from outside."""

    name: str
    process: subprocess.Popen[str]
    output: Path
    cluster: str
    journal: Path
    leads: bool = True
    """Whether it may."""
    lanes: tuple[str, ...] | None = None
    """Those that it serves; None if all."""
    stopped: bool = False
    ended: datetime | None = None
    """When it was killed or told to end."""
    outages: list[tuple[str, datetime, datetime | None]] = field(default_factory=list)
    """What kept it from working, and from when to when, if that is over."""

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if not self.alive:
            return
        if number == signal.SIGSTOP:
            self.is_out("stopped")
        elif number in (signal.SIGKILL, signal.SIGTERM):
            self.ended = self.ended or datetime.now(UTC)
        self.process.send_signal(number)
        if number == signal.SIGCONT:
            self.recovers("stopped")
        self.stopped = number == signal.SIGSTOP or (self.stopped and number != signal.SIGCONT)

    def freeze(self) -> None:
        """As SIGSTOP; it does nothing more when this returns."""
        self.signal(signal.SIGSTOP)
        with suppress(psutil.Error):
            process = psutil.Process(self.process.pid)
            eventually(lambda: process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE), what="it is stopped")

    def is_out(self, what: str) -> None:
        """It can't work from now on."""
        self.outages.append((what, datetime.now(UTC), None))

    def recovers(self, *what: str) -> None:
        """That is over, and a moment later it can work again."""
        until = datetime.now(UTC) + RECOVERY + (BEHIND_POOLER if self.is_pooled else timedelta())
        self.outages = [(why, begin, end or until if why in what else end) for why, begin, end in self.outages]

    @property
    def is_pooled(self) -> bool:
        return self.name.startswith(POOLED)

    @property
    def owner(self) -> str | None:
        """What it calls itself, if it has said so."""
        return self.output.read_text().partition("ready ")[2].partition("\n")[0].strip() or None

    def where(self) -> str:
        """What each of its tasks and threads does now, in its own words."""
        before = len(self.output.read_text())
        self.signal(signal.SIGUSR1)
        with suppress(AssertionError):
            eventually(lambda: "Current thread" in self.output.read_text()[before:], within=3)
        return f"{self.name} (pid {self.process.pid}):\n{self.output.read_text()[before:]}"

    def kin(self) -> list[psutil.Process]:
        """Every process of its session: itself, and the children that handlers run in.

        A session of long ago may have its number again, in the hands of strangers: they lack this cluster's word.
        """
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with suppress(ProcessLookupError, psutil.Error):
                if os.getsid(process.pid) != self.process.pid or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if process.environ().get(IN_CLUSTER) == self.cluster:
                    found.append(process)
        return found


@dataclass
class ClientProcess:
    """A client beside the run's own, which may be frozen for good."""

    name: str
    process: subprocess.Popen[bytes]
    ledger: Path
    frozen: bool = False

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        self.frozen = True


class Cluster:
    """The server, the ways to it, and the workers. Use as a context manager."""

    def __init__(
        self, *, lease: float = 2.0, slots: dict[str, int] | None = None, env: dict[str, str] | None = None
    ) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="kappa-chaos-", dir=memory()))
        self.lease = lease
        self.slots = slots or handlers.SLOTS
        self.env = env or {}
        self.workers: dict[str, WorkerProcess] = {}
        self.frozen: list[WorkerProcess] = []
        """Stopped for good. Others have taken their places."""
        self.past: list[WorkerProcess] = []
        self._every: list[WorkerProcess] = []
        self.leaks: list[str] = []
        self.proxy = Proxy()
        self.disk = Disk(self.home / "disk")
        self.server = EmbeddedServer(self.home / "server", settings=SETTINGS, say=lambda line: None)
        self._bouncer: subprocess.Popen[bytes] | None = None
        self._started = 0
        self._clients: list[ClientProcess] = []
        self._outages: list[Outage] = []
        self._row_locks: list[RowLock] = []

    def __enter__(self) -> Self:
        try:
            self.disk.mount()
            self.start_server()
            self.engine.install()
            with self.connect() as connection:
                history.install(connection)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The server itself: what the harness uses to look."""
        return self.server.url()

    @property
    def engine(self) -> Engine:
        return handlers.declare(self.url, self.lease, self.slots)

    def through(self, door: str) -> str:
        """The server through a door of the proxy."""
        return make_conninfo(self.url, port=self.proxy.door(door).port)

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url, autocommit=True, application_name="chaos harness")

    def client(self, door: str | None = CLIENT) -> Client:
        """Through a door of the proxy, or straight to the server."""
        url = make_conninfo(self.through(door) if door else self.url, options=f"-c chaos.owner={CLIENT}")
        engine = handlers.declare(url, self.lease, self.slots)
        return engine.client(bounds=Bounds(0, 2, wait=5.0))

    def start_server(self) -> None:
        self.server.start()
        port = self.server.status().port
        assert port is not None
        self.proxy.target = port

    def restart_server(self) -> None:
        """As an operator does: sessions are ended, what is committed is kept."""
        with self._server_outage("server restart"):
            self.server.stop(force=True)
            self.start_server()

    def kill_server(self) -> None:
        """Every process of the server at once, as a kernel short of memory does it."""
        with self._server_outage("server kill"):
            self._kill_server()
            self.start_server()

    def _kill_server(self) -> None:
        doomed = self._server_processes()
        for process in doomed:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(doomed, timeout=END_WITHIN)

    def _server_processes(self) -> list[psutil.Process]:
        pid = self.server.status().pid
        assert pid is not None
        postmaster = psutil.Process(pid)
        return [postmaster, *postmaster.children(recursive=True)]

    def freeze_server(self, seconds: float, *, kill: bool) -> None:
        """Every process of the server stands still. Nobody can serve in its place, so then it goes on, or is killed and
        started anew."""
        with self._server_outage("server freeze"):
            frozen = self._server_processes()
            for process in frozen:
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
            time.sleep(seconds)
            if kill:
                self._kill_server()
                self.start_server()
            else:
                for process in frozen:
                    with suppress(psutil.NoSuchProcess):
                        process.resume()
                eventually(self._answers, what="the server goes on")

    def freeze_backend(self, seconds: float, pick: float) -> None:
        """One of the workers' sessions stands still, with whatever it has locked, and then ends."""
        with self.connect() as connection:
            pids = [row[0] for row in connection.execute(BACKENDS)]
        if not pids:
            return
        with self._server_outage("backend freeze"), suppress(ProcessLookupError):
            pid = pids[int(pick * len(pids))]
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            # Ended, not killed: a killed session takes all the others with it.
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)

    @contextmanager
    def _server_outage(self, what: str) -> Generator[None]:
        begin = datetime.now(UTC)
        try:
            yield
        finally:
            now = datetime.now(UTC)
            as_long = min(now - begin, LONGEST_RETRY)
            self._outages.append(Outage(SERVER, begin, now + as_long + RECOVERY + BEHIND_POOLER, what))

    def _behind(self, name: str) -> list[WorkerProcess]:
        """The workers that a door leads to the server."""
        pooled = name == BOUNCER
        return [worker for worker in self.workers.values() if worker.name == name or (pooled and worker.is_pooled)]

    def cut(self, name: str) -> None:
        for worker in self._behind(name):
            worker.is_out("cut")
        self.proxy.cut(name)
        for worker in self._behind(name):
            worker.recovers("cut")

    def swallow(self, name: str) -> None:
        """Until the door is healed."""
        for worker in self._behind(name):
            worker.is_out("black hole")
        self.proxy.swallow(name)

    def slow_down(self, name: str, delay: float) -> None:
        """Until the door is healed."""
        for worker in self._behind(name):
            worker.is_out("slow")
        self.proxy.delay(name, delay)

    def heal(self, name: str) -> None:
        self.proxy.heal(name)
        for worker in self._behind(name):
            worker.recovers("black hole", "slow")

    def leave_frozen(self, worker: WorkerProcess) -> str:
        """A frozen worker is never continued. The name of the one that takes its place, through a door of its own.

        Each keeps its memory and its connections, so when there are many the first of them is killed.
        """
        self.workers.pop(worker.name)
        self.frozen.append(worker)
        if len(self.frozen) > FROZEN_AT_ONCE:
            first = self.frozen.pop(0)
            first.signal(signal.SIGKILL)
            self.retire(first)
        sort = POOLED if worker.is_pooled else WORKER
        name = f"{sort}{1 + sum(other.startswith(sort) for other in self.proxy.doors)}"
        self.start_worker(name)
        return name

    def end_frozen(self) -> None:
        for worker in self.frozen:
            worker.signal(signal.SIGKILL)
            self.retire(worker)
        self.frozen.clear()

    def tell(self, record: Record) -> None:
        """Add to a record what is known of the workers from outside, and what their journals say."""
        record.lease = timedelta(seconds=self.lease)
        record.leaks = self.leaks
        record.outages += self._outages
        record.row_locks += self._row_locks
        for worker in self._every:
            owner = worker.owner
            if owner is None:
                continue
            kept = journal.read(worker.journal, owner)
            if kept.working is not None:
                record.lives.append(WorkerLife(owner, kept.working, worker.ended, worker.leads, worker.lanes))
            record.runs += kept.runs
            record.blocks += kept.blocks
            record.outages += kept.stalls
            record.outages += [Outage(owner, begin, end or END, what) for what, begin, end in worker.outages]

    def kill_backend(self, pick: float) -> None:
        """One of the workers' sessions: the server ends all the others and recovers."""
        with self.connect() as connection:
            pids = [row[0] for row in connection.execute(BACKENDS)]
        with self._server_outage("backend kill"):
            if pids:
                with suppress(ProcessLookupError):
                    os.kill(pids[int(pick * len(pids))], signal.SIGKILL)
            eventually(self._answers, what="the server recovers")

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError), self.connect() as connection:
            return bool(connection.execute("SELECT true").fetchone())
        return False

    @contextmanager
    def row_locked(self, job: int) -> Generator[psycopg.Connection[Any]]:
        """For the length of the block a client has the job's row locked, in a transaction that it is given."""
        url = make_conninfo(self.url, options=f"-c chaos.owner={CLIENT}", application_name="chaos row lock")
        with psycopg.connect(url) as connection:
            connection.execute("SET lock_timeout = '1s'")
            if not connection.execute(LOCK_ROW, [job]).fetchone():
                raise LookupError(f"job {job} is gone, or another client has it locked")
            begin = datetime.now(UTC)
            try:
                yield connection
            finally:
                with suppress(psycopg.OperationalError):  # a server that went away has let go
                    connection.rollback()
                self._row_locks.append(RowLock(job, begin, datetime.now(UTC) + RECOVERY))

    def start_bouncer(self) -> None:
        """PgBouncer in transaction mode, for the workers whose names begin with `pooled`."""
        program = shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
        assert program is not None
        address = conninfo_to_dict(self.through(BOUNCER))
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            self._bouncer_port = probe.getsockname()[1]
        directory = self.home / "bouncer"
        directory.mkdir()
        (directory / "users.txt").write_text(f'"{address["user"]}" "{address["password"]}"\n')
        config = directory / "pgbouncer.ini"
        config.write_text(
            f"[databases]\n* = host={LOOPBACK} port={address['port']}\n[pgbouncer]\nlisten_addr = {LOOPBACK}\n"
            f"listen_port = {self._bouncer_port}\nunix_socket_dir =\nauth_type = scram-sha-256\n"
            f"auth_file = {directory / 'users.txt'}\npool_mode = transaction\ndefault_pool_size = 20\n"
            "server_login_retry = 1\nserver_connect_timeout = 5\nquery_wait_timeout = 10\n"
        )
        user = None
        if os.geteuid() == 0:  # which PgBouncer refuses to be
            user = "nobody"
            self.home.chmod(0o755)
            for path in (directory, *directory.iterdir()):
                shutil.chown(path, user)
        self._bouncer = subprocess.Popen([program, "-q", str(config)], user=user, cwd="/", stderr=subprocess.DEVNULL)

    def start_worker(self, name: str, **extra: str) -> WorkerProcess:
        self._started += 1
        direct = self.through(name)
        url = make_conninfo(self.url, port=self._bouncer_port) if name.startswith(POOLED) else direct
        clock = self.home / f"{name}.clock"
        clock.exists() or clock.write_text("+0")
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **self.env}
        env |= clock_environment(clock) | {artifacts.DIRECTORY: str(self.disk.artifacts)} | extra
        output = self.home / f"{self._started}-{name}.log"
        own_journal = output.with_suffix(".journal")
        env |= {IN_CLUSTER: str(self.home), journal.PATH: str(own_journal)}
        with output.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.worker", url, direct, str(self.lease)],
                env=env, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            )  # fmt: skip
        lanes = tuple(extra[LANES].split(",")) if LANES in extra else None
        worker = self.workers[name] = WorkerProcess(
            name, process, output, str(self.home), own_journal, FOLLOW not in extra, lanes
        )
        self._every.append(worker)
        return worker

    def owner(self, name: str) -> str:
        """What a worker calls itself, once it has said so."""
        return eventually(lambda: self.workers[name].owner, what=f"{name} is ready") or ""

    def start_client(self, seed: int) -> ClientProcess:
        """A client in a process of its own, through a door of its own, until it is frozen and the next one comes."""
        name = f"{CLIENT}{2 + len(self._clients)}"
        url = make_conninfo(self.through(name), options=f"-c chaos.owner={CLIENT}")
        ledger = self.home / f"{name}.ledger"
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        with (self.home / f"{name}.log").open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.client", url, str(ledger), name, str(seed), str(self.lease)],
                env=env | {IN_CLUSTER: str(self.home)}, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        client = ClientProcess(name, process, ledger)
        self._clients.append(client)
        return client

    def end_clients(self) -> list[Entry]:
        """The frozen ones are killed, the other one is told to end. What their ledgers say."""
        entries: list[Entry] = []
        for client in self._clients:
            client.process.send_signal(signal.SIGKILL if client.frozen else signal.SIGTERM)
        for client in self._clients:
            code = client.process.wait(END_WITHIN)
            if code != (-signal.SIGKILL if client.frozen else 0):
                said = (self.home / f"{client.name}.log").read_text().splitlines()[-20:]
                self.leaks.append(f"{client.name} ended with {code}: " + "\n".join(said))
            entries += read_ledger(client.ledger)
        self._clients.clear()
        return entries

    def shift_clock(self, name: str, seconds: int) -> None:
        """From now on that worker's clock is so far off. Clocks that only run forward are not touched."""
        (self.home / f"{name}.clock").write_text(f"{seconds:+d}")

    def leader(self) -> str | None:
        """The name of the worker that leads."""
        with self.connect() as connection:
            row = connection.execute(LEADING).fetchone()
        if row is None:
            return None
        return next((name for name, door in self.proxy.doors.items() if door.has(row[0])), None)

    def holder(self, within: float) -> str | None:
        """The name of a worker that has just claimed a batch, if one does in time."""
        pids = {str(worker.process.pid): name for name, worker in self.workers.items()}
        until = time.monotonic() + within
        with self.connect() as connection:
            while time.monotonic() < until:
                row = connection.execute(HOLDING).fetchone()
                if row is not None and row[0] in pids:
                    return pids[row[0]]
        return None

    def where(self) -> str:
        """Where every worker is at this moment, for runs that don't come to an end."""
        return "\n".join(worker.where() for worker in self.workers.values())

    def retire(self, worker: WorkerProcess, *, within: float = END_WITHIN) -> None:
        """See a worker end, one way or the other, and that nothing of it goes on."""
        worker.ended = worker.ended or datetime.now(UTC)
        try:
            code = worker.process.wait(within)
        except subprocess.TimeoutExpired:
            self.leaks.append(f"{worker.name} did not end within {within:g} s. {worker.where()}")
            self._end(worker)
            return
        said = worker.output.read_text()
        # Told to end before it listens to such words, it ends at once; a server that is away when it begins is an
        # error that its supervisor sees.
        early = (code == -signal.SIGTERM and "ready" not in said) or (code == 1 and "working" not in said)
        if code not in (0, -signal.SIGKILL) and not early:
            last = said.strip().splitlines()[-60:]
            self.leaks.append(f"{worker.name} ended with {code}: " + "\n".join(last))
        self.past.append(worker)
        self.workers = {name: other for name, other in self.workers.items() if other is not worker}

    def _end(self, worker: WorkerProcess) -> None:
        for process in worker.kin():
            with suppress(psutil.Error):
                process.kill()
        worker.process.wait()

    def shut_down(self) -> None:
        """Drain every worker, and see what is left of them."""
        self.end_frozen()
        for worker in self.workers.values():
            worker.signal(signal.SIGCONT)
            worker.signal(signal.SIGTERM)
        for worker in list(self.workers.values()):
            self.retire(worker)
        for worker in self.past:
            try:
                eventually(lambda kin=worker.kin: not kin(), within=10)
            except AssertionError:
                left = ", ".join(" ".join(process.cmdline()) for process in worker.kin())
                self.leaks.append(f"processes of {worker.name} go on: {left}")
        if self._bouncer is not None:
            self._bouncer.terminate()
            self._bouncer.wait()
            self._bouncer = None
        with self.connect() as connection:
            try:
                eventually(lambda: not connection.execute(CONNECTIONS).fetchall(), within=10)
            except AssertionError:
                left = ", ".join(map(str, connection.execute(CONNECTIONS).fetchall()))
                self.leaks.append(f"connections are left: {left}")

    def keep_logs(self, place: Path, record: Record) -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for log in self.home.glob("*.log"):
            shutil.copy(log, place)
        facts = [*record.lives, *record.outages, *record.blocks]
        (place / "outages.txt").write_text("".join(f"{fact}\n" for fact in facts))

    def close(self) -> None:
        try:
            for client in self._clients:
                client.process.kill()
                client.process.wait()
            for worker in self._every:
                self._end(worker)
            if self._bouncer is not None:
                self._bouncer.kill()
                self._bouncer.wait()
            self.proxy.close()
            with suppress(Exception):
                self.server.stop(force=True)
        finally:
            self.disk.unmount()
            shutil.rmtree(self.home, ignore_errors=True)

    def wait_ready(self) -> None:
        for name in list(self.workers):
            self.owner(name)


def clock_environment(clock: Path) -> dict[str, str]:
    if not FAKETIME.exists():
        return {CLOCK: str(clock)}
    return {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


BACKENDS = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'kappa%' ORDER BY pid"
CONNECTIONS = "SELECT application_name, state, query FROM pg_stat_activity WHERE application_name LIKE 'kappa%'"
LOCK_ROW = "SELECT true FROM kappa.jobs WHERE id = %s FOR UPDATE SKIP LOCKED"
HOLDING = "SELECT split_part(owner, ':', 2) FROM kappa.batch_leases ORDER BY token DESC LIMIT 1"
LEADING = """
    SELECT client_port FROM pg_stat_activity JOIN kappa.leadership USING (pid, backend_start)
"""
