"""The life of the embedded server: made, started, shared, stopped.

Below the Kappa home:

    postgres/life.lock    taken by whoever starts, stops, holds or lets go, for as long as that takes
    postgres/server.lock  inherited by the server: it runs exactly as long as this lock is held
    postgres/holders/     one locked file for each process that uses the server
    postgres/pinned       exists while the server was asked to outlive its holders (`kg db start`)
    postgres/data, run, port, server.log
    postgres/password     of the role that Kappa works as
    postgres/superuser-password   of the one that only this package works as (roles.py)

The locks are the authority on what lives, PostgreSQL's own pid file only on where. A process is signalled only
after its command line proved it to be this home's server. The server belongs to no process that started it: it
survives their deaths, and ends when the last holder lets go, or by `stop`.
"""

import hashlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg
from psycopg import errors as pg_errors

from kappa.pg import queries
from kappa.pg.embedded import roles
from kappa.pg.embedded.binaries import Account, Binaries, find_binaries
from kappa.pg.embedded.cluster import Cluster, Passage, Password, clean_environment, last_complaint
from kappa.pg.embedded.roles import DATABASE, ROLE, SUPERUSER
from kappa.pg.errors import ServerFailed, ServerInUse, ServerNotRunning
from kappa.pg.locks import POLL, FileLock, is_held

log = logging.getLogger(__name__)

sql = queries.beside(__file__)
CLIENTS = sql["clients"]

LOOPBACK = "127.0.0.1"
MESSAGE_EVERY = 5.0
OURS = "kappa embedded"
"""What sessions of ours are called, which use nothing."""
LEAVING = 1.0
"""Seconds that a session which was closed has to be gone."""
STOP_PATIENCE = 60.0
WRONG_PASSWORD = "password authentication failed"  # noqa: S105
"""In the message alone: an error of connecting has no code."""
# A unix socket's address has room for 108 bytes, "/.s.PGSQL.65535" and the end included.
LONGEST_SOCKET_DIR = 92

# Children that end while this process lives are reaped by the interpreter as long as it knows them.
_launched: list[subprocess.Popen[bytes]] = []


class State(Enum):
    """What the locks and the pid file say."""

    DOWN = "down"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    LINGERING = "lingering"
    """Something of a server lives, but no server that could be spoken to: it is about to appear, or to go."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that uses the server."""

    pid: int
    who: str

    def __str__(self) -> str:
        return f"{self.who} (pid {self.pid})"


@dataclass(frozen=True, slots=True)
class Status:
    """The server as seen from outside."""

    state: State
    home: Path
    pid: int | None
    port: int | None
    data: Path
    log: Path
    holders: tuple[Holder, ...]
    pinned: bool

    @property
    def running(self) -> bool:
        return self.state is not State.DOWN


@dataclass(frozen=True, slots=True)
class _PidFile:
    """What PostgreSQL wrote about itself. It may be stale, so nothing is believed of it alone."""

    pid: int
    port: int | None
    listening: bool
    ready: str


class EmbeddedServer:
    """The server of one Kappa home. Any number of these objects, in any number of processes, are the same server.

    `say` receives one line at a time of what a person waiting would like to know.
    """

    def __init__(
        self,
        home: Path,
        *,
        bin_dir: Path | None = None,
        port: int | None = None,
        account: str | None = None,
        settings: Mapping[str, str] | None = None,
        say: Callable[[str], None] = log.info,
    ) -> None:
        self.home = home.expanduser().resolve()
        self._root = self.home / "postgres"
        self._cluster = Cluster(self._root, account, say)
        self._log = self._root / "server.log"
        self._bin_dir = bin_dir
        self._port = port
        self._settings = dict(settings or {})
        self._say = say

    def start(self) -> str:
        """Start the server if it doesn't run, let it outlive its holders, and give its URL."""
        with self._life() as life:
            (self._root / "pinned").touch(mode=0o600)
            self._bring_up(life)
        self._await_ready()
        return self.url()

    @contextmanager
    def hold(self, who: str) -> Generator[str]:
        """The server's URL, and the server, for as long as the block lasts."""
        with self._life() as life:
            holding = self._register(who)
            try:
                self._bring_up(life)
            except BaseException:
                self._unregister(holding)
                raise
        try:
            self._await_ready()
            yield self.url()
        finally:
            with self._life():
                self._unregister(holding)
                if not self._pinned and not self._holders() and self._state() is not State.DOWN:
                    self._shut_down()

    def was_killed(self) -> bool:
        """Nothing of it lives, and it had no time to take its pid file away: it was not stopped."""
        return self._state() is State.DOWN and self._pid_file() is not None

    def come_back(self, port: int | None) -> None:
        """Start it at this port and no other, if it doesn't run: whoever uses it knows it by that."""
        there = copy(self)
        there._port = port
        with there._life() as life:
            there._bring_up(life)

    def stop(self, *, force: bool = False) -> None:
        """Stop the server. Refused while others use it, unless forced."""
        with self._life():
            if self._state() is State.DOWN:
                (self._root / "pinned").unlink(missing_ok=True)
                raise ServerNotRunning(f"no embedded server runs in {self.home}")
            if not force and (users := [str(holder) for holder in self._holders()] or self._clients()):
                raise ServerInUse(
                    f"the server is in use by {', '.join(users)}: end them first, or stop it by force (--force)"
                )
            (self._root / "pinned").unlink(missing_ok=True)
            self._shut_down()

    def status(self) -> Status:
        """What runs now. Touches nothing."""
        with self._refusals():
            state = self._state()
            file = self._pid_file() if state is not State.DOWN else None
            return Status(
                state=state,
                home=self.home,
                pid=file.pid if file else None,
                port=file.port if file else None,
                data=self._cluster.data,
                log=self._log,
                holders=tuple(self._holders()),
                pinned=self._pinned,
            )

    def url(self, *, database: str = DATABASE, by_socket: bool = False) -> str:
        """The address of a database on the running server for Kappa's own role, its password included."""
        return self._address(ROLE, self._cluster.password, database, by_socket)

    def superuser_url(self, *, database: str = DATABASE, by_socket: bool = False) -> str:
        """The same for the superuser: for upkeep (extensions, other databases, settings), never for what Kappa does."""
        return self._address(SUPERUSER, self._cluster.superuser_password, database, by_socket)

    def _address(self, role: str, password: Password, database: str, by_socket: bool) -> str:
        with self._refusals():
            file = self._pid_file()
            if file is None or file.port is None or self._state() is State.DOWN:
                raise ServerNotRunning(f"no embedded server runs in {self.home}")
            secret, database = quote(password.read(), safe=""), quote(database, safe="")
        if not by_socket:
            return f"postgresql://{role}:{secret}@{LOOPBACK}:{file.port}/{database}"
        if len(os.fsencode(self._cluster.run)) > LONGEST_SOCKET_DIR or "," in str(self._cluster.run):
            raise ServerFailed(
                f"the path {self._cluster.run} is too long for a unix socket, or has a comma: use the TCP address"
            )
        host = quote(str(self._cluster.run), safe="")
        return f"postgresql://{role}:{secret}@/{database}?host={host}&port={file.port}"

    def binaries(self) -> Binaries:
        """The programs that this server is run with."""
        return find_binaries(self._bin_dir)

    @contextmanager
    def _life(self) -> Generator[FileLock]:
        with self._refusals():
            self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._root.mkdir(exist_ok=True, mode=0o711)
            lock = FileLock.wait(
                self._root / "life.lock",
                lambda: self._say("waiting for another process that starts or stops the server"),
            )
        with lock, self._refusals():
            yield lock

    @contextmanager
    def _refusals(self) -> Generator[None]:
        """The system's refusals about this home, as one clear line."""
        try:
            yield
        except OSError as error:
            where = error.filename or self.home
            raise ServerFailed(f"the Kappa home {self.home} can't be used: {error.strerror}: {where}") from error

    @property
    def _pinned(self) -> bool:
        return (self._root / "pinned").exists()

    def _register(self, who: str) -> FileLock:
        directory = self._root / "holders"
        directory.mkdir(exist_ok=True, mode=0o700)
        for path in directory.iterdir():
            if not is_held(path):
                path.unlink()  # its process ended without letting go
        lock = FileLock.take(directory / f"{os.getpid()}-{secrets.token_hex(4)}")
        assert lock is not None
        os.write(lock.fd, f"{os.getpid()} {who}".encode())
        return lock

    def _unregister(self, holding: FileLock) -> None:
        holding.path.unlink(missing_ok=True)
        holding.release()

    def _holders(self) -> list[Holder]:
        return [_holder(path) for path in sorted((self._root / "holders").glob("*")) if is_held(path)]

    def _clients(self) -> list[str]:
        """Other programs that are connected, of which no holder's file tells, and are not just leaving."""
        try:
            with self._connect() as connection:
                until = time.monotonic() + LEAVING
                while (rows := connection.execute(CLIENTS.sql, {"ours": OURS}).fetchall()) and time.monotonic() < until:
                    time.sleep(0.02)
        except psycopg.Error:
            return []  # a server that lets nobody in has nobody inside
        return [f"{name} (connected to {database})" for name, database in rows]

    def _state(self) -> State:
        if not is_held(self._root / "server.lock"):
            return State.DOWN
        file = self._pid_file()
        if file is None or not self._is_ours(file.pid):
            return State.LINGERING
        match file.ready:
            case "ready" | "standby":
                return State.READY
            case "stopping":
                return State.STOPPING
            case _:
                return State.STARTING

    def _pid_file(self) -> _PidFile | None:
        try:
            lines = (self._cluster.data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
            pid = int(lines[0])
        except (FileNotFoundError, IndexError, ValueError):
            return None
        port = int(lines[3]) if len(lines) > 3 and lines[3].isdigit() else None
        listening = len(lines) > 5 and bool(lines[5].strip())
        return _PidFile(pid, port, listening, lines[7].strip() if len(lines) > 7 else "starting")

    @property
    def _mark(self) -> str:
        """On the server's command line, where every account can read it: which home it serves."""
        return "cluster_name=kappa-" + hashlib.sha256(os.fsencode(self._cluster.data)).hexdigest()[:16]

    def _is_ours(self, pid: int) -> bool:
        try:
            process = psutil.Process(pid)
            return process.status() != psutil.STATUS_ZOMBIE and self._mark in process.cmdline()
        except psutil.Error:
            return False

    def _bring_up(self, life: FileLock) -> None:
        """Under the life lock: when this returns, a server runs or is on its way up."""
        waiting = _Waiting(self._say)
        while True:
            match self._state():
                case State.DOWN:
                    self._launch(life)
                    return
                case State.STARTING | State.READY:
                    return
                case State.STOPPING:
                    waiting.tick("waiting for the server to finish stopping")
                case State.LINGERING:
                    waiting.tick("waiting for what is left of an earlier server to end")

    def _launch(self, life: FileLock) -> None:
        account = self._cluster.account()
        binaries = self.binaries()
        if account is not None:
            binaries = binaries.reachable_for(account)
        if not self._cluster.data.exists():
            self._cluster.initialise(binaries, account, life)
        self._cluster.check_version(binaries)
        self._cluster.own_directory(self._cluster.run, account)
        for leftover in self._cluster.run.glob(".s.PGSQL.*"):
            leftover.unlink()
        tried: list[int] = []
        for port in self._ports():
            if self._try_launch(binaries, account, port):
                (self._root / "port").write_text(str(port))
                return
            tried.append(port)
        raise ServerFailed(
            f"port {', '.join(map(str, tried))} on {LOOPBACK} is in use by another program: "
            f"set KAPPA_POSTGRES_PORT to a free one, or unset it to have one chosen"
        )

    def _ports(self) -> Iterator[int]:
        if self._port is not None:
            yield self._port
            return
        with suppress(FileNotFoundError, ValueError):
            # The same port as last time, where it is free: addresses that people noted down stay true.
            last = int((self._root / "port").read_text())
            if _is_free(last):
                yield last
        for _ in range(5):
            yield _free_port()

    def _try_launch(self, binaries: Binaries, account: Account | None, port: int) -> bool:
        """Start the server and see it alive. False if the port was taken, an error for anything else."""
        stale = self._pid_file()
        settings = {
            "port": str(port),
            "listen_addresses": LOOPBACK,
            # Relative to the data directory, which the server makes its own: no length, no blank, no private
            # directory above can get in the way.
            "unix_socket_directories": "../run",
            "log_checkpoints": "off",
            **self._settings,
        }
        with suppress(FileNotFoundError):
            self._log.replace(self._log.with_suffix(".log.1"))
        lock = FileLock.wait(self._root / "server.lock", lambda: None)
        with lock, open(self._log, "wb", opener=_private) as output, Passage(account) as passage:
            command = [
                str(binaries.program("postgres")),
                "-D",
                passage.path(self._cluster.data),
                "-c",
                self._mark,
            ]
            for name, value in settings.items():
                command += ["-c", f"{name}={value}"]
            process = passage.popen(
                command,
                # Nothing of an earlier server lives, so the pid in its file is nobody's or a stranger's. The
                # server takes a pid file for stale if it names its grandparent: this is how it is told. It
                # still looks for shared memory in use by itself.
                env={**clean_environment(), **({"PG_GRANDPARENT_PID": str(stale.pid)} if stale else {})},
                stdout=output,
                keep=(lock.fd,),
            )
            _launched.append(process)
        waiting = _Waiting(self._say)
        while process.poll() is None:
            file = self._pid_file()
            if file is not None and file.pid == process.pid and file.listening:
                return True
            waiting.tick("waiting for the server to appear")
        reason = self._log.read_text(encoding="utf-8", errors="replace")
        if "could not create any TCP/IP sockets" in reason or "Address already in use" in reason:
            return False
        raise ServerFailed(f"the server did not start: {last_complaint(reason)} (more in {self._log})")

    def _await_ready(self) -> None:
        """Until connections are accepted, however long recovery takes."""
        waiting = _Waiting(self._say)
        while True:
            state = self._state()
            if state is State.DOWN:
                reason = self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""
                raise ServerFailed(
                    f"the server ended while it was starting: {last_complaint(reason)} (more in {self._log})"
                )
            if state is State.READY:
                try:
                    return self._ensure_roles()
                except psycopg.OperationalError as error:
                    if WRONG_PASSWORD in str(error):
                        raise ServerFailed(
                            f"the server refused a password in {self._root}: `password` and `superuser-password` are "
                            f"not those of its data"
                        ) from None
                    log.debug("not ready yet: %s", error)
            waiting.tick("waiting for the server to finish recovery" if state is State.STARTING else "waiting")

    def _ensure_roles(self) -> None:
        if not self._cluster.superuser_password.path.exists():
            self._demote()
        with self._connect() as connection:
            roles.ensure(connection, self._cluster.password.read())

    def _demote(self) -> None:
        """Split the role of a server that an earlier version made: done once, and done again where it was cut short."""
        with self._life():
            final = self._cluster.superuser_password
            if final.path.exists():
                return
            self._say("giving the database to a role that is not a superuser")
            made = Password(final.path.with_suffix(".made"))
            superuser_password = made.make()
            passwords = {ROLE: self._cluster.password, SUPERUSER: made}

            def connect(role: str, database: str) -> psycopg.Connection[tuple[object, ...]]:
                return _connect(self._address(role, passwords[role], database, by_socket=False))

            try:
                roles.demote(connect, self._cluster.password.read(), superuser_password)
            except (pg_errors.LockNotAvailable, roles.InUse) as error:
                others = [str(holder) for holder in self._holders() if holder.pid != os.getpid()]
                found = str(error) if isinstance(error, roles.InUse) else "another program"
                users = ", ".join(others) or found
                raise ServerFailed(
                    f"the database can't be given to a role that is not a superuser while it is in use by {users}: "
                    f"end that, and start again"
                ) from error
            made.path.rename(final.path)

    def _connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return _connect(self.superuser_url(database="postgres"))

    def _shut_down(self) -> None:
        """Under the life lock: ask the server to end, and wait until nothing of it lives."""
        began = time.monotonic()
        asked: signal.Signals | None = None
        waiting = _Waiting(self._say)
        while (state := self._state()) is not State.DOWN:
            patient = time.monotonic() - began < STOP_PATIENCE
            wanted = signal.SIGINT if patient else signal.SIGQUIT
            file = self._pid_file()
            if state is not State.LINGERING and file is not None and asked is not wanted:
                self._signal(file.pid, wanted)
                asked = wanted
            waiting.tick("waiting for the server to stop")
        for process in list(_launched):
            if process.poll() is not None:
                _launched.remove(process)

    def _signal(self, pid: int, number: signal.Signals) -> None:
        """Signal the server, and never another process that has its pid by now."""
        if not hasattr(os, "pidfd_open"):
            process = psutil.Process(pid)
            if self._is_ours(pid):
                process.send_signal(number)  # psutil refuses if the pid was re-used since
            return
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            # What the handle names can't change any more; so what is true now is true of the receiver.
            if self._is_ours(pid):
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def _connect(url: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(url, autocommit=True, connect_timeout=5, application_name=OURS)


class _Waiting:
    """Waits in small steps, and says what for every few seconds."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._began = time.monotonic()
        self._told = self._began

    def tick(self, what: str) -> None:
        time.sleep(POLL)
        now = time.monotonic()
        if now - self._told >= MESSAGE_EVERY:
            self._told = now
            self._say(f"{what} ({now - self._began:.0f} s)")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def _holder(path: Path) -> Holder:
    pid, _, who = path.read_text(encoding="utf-8").partition(" ")
    return Holder(int(pid or 0), who)


def _private(path: str, flags: int) -> int:
    """For its owner alone to read: statements that failed stand in it, with what was in them."""
    return os.open(path, flags, 0o600)
