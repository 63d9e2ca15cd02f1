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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from kappa.engine import Client, Engine
from kappa.pg import Bounds
from kappa.pg.embedded import EmbeddedServer
from tests.chaos import artifacts, handlers, history
from tests.chaos.artifacts import Disk
from tests.chaos.proxy import LOOPBACK, Proxy
from tests.chaos.record import CLIENT
from tests.chaos.worker import CLOCK
from tests.ground import eventually, memory

ROOT = Path(__file__).parents[2]
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")

# Killed servers are under test, power cuts are not: without fsync nothing that a kill can't lose is lost.
SETTINGS = {
    "fsync": "off",
    "max_connections": "150",
    "track_commit_timestamp": "on",
    "autovacuum_naptime": "5s",
}

END_WITHIN = 45.0
IN_CLUSTER = "KAPPA_CHAOS_CLUSTER"


@dataclass
class WorkerProcess:
    """A worker, and what is known of it from outside."""

    name: str
    process: subprocess.Popen[str]
    output: Path
    cluster: str
    stopped: bool = False

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self.alive:
            self.process.send_signal(number)
            self.stopped = number == signal.SIGSTOP or (self.stopped and number != signal.SIGCONT)

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
        self.past: list[WorkerProcess] = []
        self._every: list[WorkerProcess] = []
        self.leaks: list[str] = []
        self.proxy = Proxy()
        self.disk = Disk(self.home / "disk")
        self.server = EmbeddedServer(self.home / "server", settings=SETTINGS, say=lambda line: None)
        self._bouncer: subprocess.Popen[bytes] | None = None
        self._started = 0

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

    def client(self) -> Client:
        url = make_conninfo(self.through("client"), options=f"-c chaos.owner={CLIENT}")
        engine = handlers.declare(url, self.lease, self.slots)
        return engine.client(bounds=Bounds(0, 2, wait=5.0))

    def start_server(self) -> None:
        self.server.start()
        port = self.server.status().port
        assert port is not None
        self.proxy.target = port

    def restart_server(self) -> None:
        """As an operator does: sessions are ended, what is committed is kept."""
        self.server.stop(force=True)
        self.start_server()

    def kill_server(self) -> None:
        """Every process of the server at once, as a kernel short of memory does it."""
        pid = self.server.status().pid
        assert pid is not None
        postmaster = psutil.Process(pid)
        doomed = [postmaster, *postmaster.children(recursive=True)]
        for process in doomed:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(doomed, timeout=END_WITHIN)
        self.start_server()

    def kill_backend(self, pick: float) -> None:
        """One of the workers' sessions: the server ends all the others and recovers."""
        with self.connect() as connection:
            pids = [row[0] for row in connection.execute(BACKENDS)]
        if pids:
            with suppress(ProcessLookupError):
                os.kill(pids[int(pick * len(pids))], signal.SIGKILL)
        eventually(self._answers, what="the server recovers")

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError), self.connect() as connection:
            return bool(connection.execute("SELECT true").fetchone())
        return False

    def start_bouncer(self) -> None:
        """PgBouncer in transaction mode, for the workers whose names begin with `pooled`."""
        program = shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
        assert program is not None
        address = conninfo_to_dict(self.through("bouncer"))
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
            f"auth_file = {directory / 'users.txt'}\npool_mode = transaction\ndefault_pool_size = 8\n"
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
        url = make_conninfo(self.url, port=self._bouncer_port) if name.startswith("pooled") else direct
        clock = self.home / f"{name}.clock"
        clock.exists() or clock.write_text("+0")
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **self.env}
        env |= clock_environment(clock) | {artifacts.DIRECTORY: str(self.disk.artifacts)} | extra
        env[IN_CLUSTER] = str(self.home)
        output = self.home / f"{self._started}-{name}.log"
        with output.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.worker", url, direct, str(self.lease)],
                env=env, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            )  # fmt: skip
        worker = self.workers[name] = WorkerProcess(name, process, output, str(self.home))
        self._every.append(worker)
        return worker

    def owner(self, name: str) -> str:
        """What a worker calls itself, once it has said so."""
        said = eventually(lambda: self.workers[name].output.read_text().partition("ready ")[2].partition("\n")[0])
        return said.strip()

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

    def close(self) -> None:
        try:
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
HOLDING = "SELECT split_part(owner, ':', 2) FROM kappa.batch_leases ORDER BY token DESC LIMIT 1"
LEADING = """
    SELECT client_port FROM pg_stat_activity JOIN pg_locks USING (pid)
     WHERE locktype = 'advisory' AND classid = 1262568289 AND objid = 0 AND objsubid = 2 AND granted
"""
