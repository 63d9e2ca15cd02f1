"""The embedded server's life, with real processes that really die."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from kappa.pg.embedded import EmbeddedServer, binaries, find_binaries, kept_up, server, watch
from kappa.pg.embedded.account import ACCOUNT, dedicated_account
from kappa.pg.embedded.binaries import Account
from kappa.pg.embedded.server import LOOPBACK, State
from kappa.pg.errors import BinariesNotFound, ServerFailed, ServerInUse, ServerNotRunning
from kappa.pg.locks import FileLock, is_held
from tests.conftest import quick_directory
from tests.ground import Script, eventually, lacking

AS_ROOT = os.geteuid() == 0

HOLDER = """
    import pathlib, sys
    from kappa.pg.embedded import EmbeddedServer
    with EmbeddedServer(pathlib.Path(sys.argv[1])).hold("a holder") as url:
        print(url, flush=True)
        sys.stdin.readline()
"""

STARTER = """
    import pathlib, sys
    from kappa.pg.embedded import EmbeddedServer
    server = EmbeddedServer(pathlib.Path(sys.argv[1]))
    sys.stdin.readline()
    server.start()
    print(server.status().pid, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with quick_directory(tmp_path_factory) as place:
        yield place


@pytest.fixture
def embedded(home: Path) -> Iterator[EmbeddedServer]:
    made = EmbeddedServer(home)
    yield made
    with suppress(ServerNotRunning):
        made.stop(force=True)


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is nobody's business, of the very account that the server runs under."""
    account = dedicated_account(None, print).uid if AS_ROOT else None
    process = subprocess.Popen(["sleep", "600"], user=account)
    yield process
    process.kill()
    process.wait()


def server_pid(embedded: EmbeddedServer) -> int:
    pid = embedded.status().pid
    assert pid is not None
    return pid


def kill_server(embedded: EmbeddedServer) -> None:
    os.kill(server_pid(embedded), signal.SIGKILL)
    eventually(lambda: not embedded.status().running, what="nothing of the server is left")


def answer(url: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT 42").fetchone()
        assert row is not None
        return row[0]


def test_it_is_made_started_used_by_tcp_and_by_socket_and_stopped(embedded: EmbeddedServer) -> None:
    url = embedded.start()
    assert url == embedded.url()
    assert answer(url) == 42
    assert answer(embedded.url(by_socket=True)) == 42
    embedded.stop()
    assert not embedded.status().running
    with pytest.raises(ServerNotRunning, match="no embedded server runs in"):
        embedded.url()


def test_nobody_gets_in_without_the_password_that_only_the_owner_can_read(embedded: EmbeddedServer, home: Path) -> None:
    url = embedded.start()
    password = (home / "postgres" / "password").read_text()
    for address in (url, embedded.url(by_socket=True)):
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            answer(address.replace(password, "guess"))
    for name in ("password", "server.log"):
        assert stat.S_IMODE((home / "postgres" / name).stat().st_mode) == 0o600
    listening = psutil.Process(server_pid(embedded)).net_connections("tcp")
    assert {connection.laddr.ip for connection in listening} == {"127.0.0.1"}


def test_the_port_stays_the_same_from_start_to_start(embedded: EmbeddedServer) -> None:
    first = embedded.start()
    embedded.stop()
    assert embedded.start() == first


def test_a_start_after_the_starter_was_killed_finds_the_same_server(embedded: EmbeddedServer, home: Path) -> None:
    with Script(HOLDER, home) as holder:
        url = holder.line()
        pid = server_pid(embedded)
        holder.kill()
    assert embedded.start() == url
    assert server_pid(embedded) == pid
    assert answer(url) == 42


def test_a_killed_server_recovers_at_the_next_start_and_no_committed_row_is_lost(
    embedded: EmbeddedServer,
) -> None:
    with psycopg.connect(embedded.start(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t AS SELECT n FROM generate_series(1, 10000) n")
        for n in range(10001, 10101):
            connection.execute("INSERT INTO t VALUES (%s)", [n])
        kill_server(embedded)
    with psycopg.connect(embedded.start()) as connection:
        assert connection.execute("SELECT count(*), sum(n) FROM t").fetchone() == (10100, 51010050)


def test_a_long_recovery_is_waited_for_with_a_message(
    embedded: EmbeddedServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(embedded.start(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t AS SELECT n, md5(n::text) FROM generate_series(1, 1000000) n")
        kill_server(embedded)
    monkeypatch.setattr(server, "MESSAGE_EVERY", 0.0)
    said: list[str] = []
    patient = EmbeddedServer(home, say=said.append)
    with psycopg.connect(patient.start()) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (1000000,)
    assert any("waiting for the server to finish recovery" in line for line in said)


def test_what_is_left_of_a_killed_server_is_waited_for(
    embedded: EmbeddedServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = psycopg.connect(embedded.start(), autocommit=True)
    orphan = connection.info.backend_pid
    os.kill(orphan, signal.SIGSTOP)  # it can't notice that its server dies
    os.kill(server_pid(embedded), signal.SIGKILL)
    eventually(lambda: embedded.status().state is State.LINGERING)
    monkeypatch.setattr(server, "MESSAGE_EVERY", 0.0)
    said: list[str] = []
    with ThreadPoolExecutor() as threads:
        started = threads.submit(EmbeddedServer(home, say=said.append).start)
        try:
            eventually(lambda: any("what is left of an earlier server" in line for line in said))
        finally:
            os.kill(orphan, signal.SIGCONT)
        assert answer(started.result()) == 42
    connection.close()


def test_a_server_that_is_killed_comes_back_at_its_address_while_somebody_keeps_it_up(
    embedded: EmbeddedServer,
) -> None:
    with embedded.hold("a test") as url, kept_up(embedded):
        for _ in range(2):
            before = server_pid(embedded)
            os.kill(before, signal.SIGKILL)
            eventually(lambda: embedded.status().pid not in (None, before), what="another server")  # noqa: B023
            eventually(lambda: embedded.status().state is State.READY, what="a server that has recovered")
            assert answer(url) == 42


def test_a_server_that_is_stopped_stays_so_though_somebody_keeps_it_up(
    embedded: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Path] = []

    def noted(path: Path) -> bool:
        looks.append(path)
        return is_held(path)

    with embedded.hold("a test"), kept_up(embedded):
        embedded.stop(force=True)
        monkeypatch.setattr(server, "is_held", noted)
        eventually(lambda: len(looks) >= 3, what="several looks at what has been stopped")
        assert not embedded.status().running


def test_a_killed_server_whose_address_is_taken_is_tried_again_until_it_is_free(
    embedded: EmbeddedServer, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch, "TRY_AGAIN", 0.1)
    with embedded.hold("a test") as url:
        port = embedded.status().port
        assert port is not None
        with closing(socket.socket()) as taker, kept_up(embedded):
            lock = FileLock.take(home / "postgres" / "life.lock")
            assert lock is not None
            with lock:  # nobody starts it meanwhile
                kill_server(embedded)
                taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                taker.bind((LOOPBACK, port))
                taker.listen()
            eventually(lambda: f"port {port} on 127.0.0.1 is in use" in caplog.text, what="a word about the port")
            taker.close()
            eventually(lambda: embedded.status().state is State.READY, what="the server at its port")
            assert answer(url) == 42


@pytest.mark.parametrize("with_socket_lock", [False, True])
def test_a_stale_pid_file_with_a_strangers_pid_is_survived_and_the_stranger_untouched(
    embedded: EmbeddedServer, home: Path, stranger: subprocess.Popen[bytes], with_socket_lock: bool
) -> None:
    embedded.start()
    pid_file = home / "postgres" / "data" / "postmaster.pid"
    content = pid_file.read_text()
    port, owner = embedded.status().port, pid_file.stat()
    kill_server(embedded)
    _, rest = content.split("\n", 1)
    stale = [pid_file]
    if with_socket_lock:
        stale.append(home / "postgres" / "run" / f".s.PGSQL.{port}.lock")
    for path in stale:
        path.write_text(f"{stranger.pid}\n{rest}")
        os.chown(path, owner.st_uid, owner.st_gid)
    assert not embedded.status().running
    assert answer(embedded.start()) == 42
    assert server_pid(embedded) != stranger.pid
    embedded.stop()
    assert stranger.poll() is None


def test_a_server_that_died_as_its_starters_unburied_child_is_not_taken_for_running(
    embedded: EmbeddedServer, home: Path
) -> None:
    with Script(HOLDER, home) as holder:
        holder.line()
        dead = server_pid(embedded)
        os.kill(dead, signal.SIGKILL)
        eventually(lambda: psutil.Process(dead).status() == psutil.STATUS_ZOMBIE)
        eventually(lambda: not embedded.status().running)
        assert answer(embedded.start()) == 42


def test_two_that_start_at_the_same_moment_share_one_server(embedded: EmbeddedServer, home: Path) -> None:
    with Script(STARTER, home) as one, Script(STARTER, home) as two:
        for starter in (one, two):
            starter.tell("go")
        assert one.line() == two.line() == str(server_pid(embedded))


def test_a_starter_waits_for_one_that_is_at_it_and_says_so(embedded: EmbeddedServer, home: Path) -> None:
    embedded.start()
    said: list[str] = []
    lock = FileLock.take(home / "postgres" / "life.lock")
    assert lock is not None
    with ThreadPoolExecutor() as threads:
        started = threads.submit(EmbeddedServer(home, say=said.append).start)
        eventually(lambda: any("another process that starts or stops" in line for line in said))
        assert not started.done()
        lock.release()
        assert answer(started.result()) == 42


def test_a_starter_killed_while_the_database_is_made_leaves_no_half_of_it(embedded: EmbeddedServer, home: Path) -> None:
    with Script(STARTER, home) as starter:
        starter.tell("go")
        # Or has done it, on a machine that looks too late.
        made = ("data.new-*/global", "data")
        eventually(lambda: [path for one in made for path in home.glob(f"postgres/{one}")], what="initdb is at work")
        starter.kill()
    assert answer(embedded.start()) == 42
    assert not list(home.glob("postgres/data.new-*"))


def test_stop_is_refused_while_another_process_holds_the_server_and_names_it(
    embedded: EmbeddedServer, home: Path
) -> None:
    with Script(HOLDER, home) as holder:
        url = holder.line()
        with pytest.raises(ServerInUse, match=rf"in use by a holder \(pid {holder.pid}\)"):
            embedded.stop()
        assert answer(url) == 42
        embedded.stop(force=True)
        assert not embedded.status().running


def test_stop_is_refused_while_a_program_is_connected(embedded: EmbeddedServer) -> None:
    with (
        psycopg.connect(embedded.start(), application_name="an analyst"),
        pytest.raises(ServerInUse, match=r"in use by .*an analyst \(connected to kappa\)"),
    ):
        embedded.stop()


def test_the_last_holder_to_let_go_stops_the_server(embedded: EmbeddedServer, home: Path) -> None:
    with Script(HOLDER, home) as one, Script(HOLDER, home) as two:
        assert one.line() == two.line()
        one.tell()
        one.end()
        assert embedded.status().running
        assert [holder.pid for holder in embedded.status().holders] == [two.pid]
        two.tell()
        two.end()
        assert not embedded.status().running


def test_a_server_that_was_started_on_purpose_outlives_its_holders(embedded: EmbeddedServer, home: Path) -> None:
    embedded.start()
    with Script(HOLDER, home) as holder:
        holder.line()
        holder.tell()
        holder.end()
    assert embedded.status().running


def test_a_holder_that_was_killed_holds_nothing_any_more(embedded: EmbeddedServer, home: Path) -> None:
    with Script(HOLDER, home) as one, Script(HOLDER, home) as two:
        one.line()
        two.line()
        one.kill()
        two.tell()
        two.end()
    assert not embedded.status().running


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose sockets have names that are short enough, wherever pytest puts its own."""
    with tempfile.TemporaryDirectory(prefix="k") as made:
        yield Path(made)


def test_a_home_with_blanks_below_a_private_directory_works_and_no_mode_changes(short_path: Path) -> None:
    private = short_path / "its own"
    private.mkdir(mode=0o700)
    home = private / "a 'b'"
    home.mkdir(mode=0o700)
    above = [home, *home.parents]
    before = [path.stat().st_mode for path in above]
    embedded = EmbeddedServer(home)
    with embedded.hold("a test") as url:
        assert answer(url) == 42
        assert answer(embedded.url(by_socket=True)) == 42
    with embedded.hold("a test") as url:
        assert answer(url) == 42
    assert [path.stat().st_mode for path in above] == before


def test_a_path_too_long_for_a_socket_works_by_tcp_and_says_so_of_the_socket(tmp_path: Path) -> None:
    embedded = EmbeddedServer(tmp_path / ("long" * 30))
    with embedded.hold("a test") as url:
        assert answer(url) == 42
        with pytest.raises(ServerFailed, match="too long for a unix socket"):
            embedded.url(by_socket=True)


def test_one_home_under_two_names_is_one_server(embedded: EmbeddedServer, home: Path, tmp_path: Path) -> None:
    url = embedded.start()
    (tmp_path / "alias").symlink_to(home)
    assert EmbeddedServer(tmp_path / "alias").start() == url


def test_a_port_that_was_asked_for_and_is_busy_gives_one_clear_line(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with pytest.raises(ServerFailed, match=rf"^port {port} on 127.0.0.1 is in use by another program: .*$"):
            EmbeddedServer(home, port=port).start()


def test_a_port_of_last_time_that_is_busy_now_is_replaced(embedded: EmbeddedServer) -> None:
    embedded.start()
    port = embedded.status().port
    assert port is not None
    embedded.stop()
    with socket.create_server(("127.0.0.1", port)):
        assert answer(embedded.start()) == 42
        assert embedded.status().port != port


def test_a_home_that_cant_be_made_gives_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ServerFailed, match=r"^the Kappa home .* can't be used: Not a directory"):
        EmbeddedServer(tmp_path / "file" / "home").start()


def test_data_of_another_major_version_is_refused_and_left_alone(embedded: EmbeddedServer, home: Path) -> None:
    embedded.start()
    embedded.stop()
    version = home / "postgres" / "data" / "PG_VERSION"
    version.write_text("14\n")
    with pytest.raises(ServerFailed, match=r"was made by PostgreSQL 14, but .* is 18\..*: set KAPPA_POSTGRES_BIN"):
        embedded.start()
    version.write_text("18\n")
    assert answer(embedded.start()) == 42


def test_a_foreign_directory_in_the_datas_place_is_refused(embedded: EmbeddedServer, home: Path) -> None:
    (home / "postgres" / "data").mkdir(parents=True)
    if AS_ROOT:
        shutil.chown(home / "postgres" / "data", dedicated_account(None, print).uid)
    with pytest.raises(ServerFailed, match="is not a PostgreSQL data directory"):
        embedded.start()


def test_a_server_that_refuses_to_start_says_why(home: Path) -> None:
    with pytest.raises(ServerFailed, match=r"did not start: .*no_such_setting.*\(more in "):
        EmbeddedServer(home, settings={"no_such_setting": "1"}).start()


def test_a_directory_without_programs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BinariesNotFound, match="has no postgres and no initdb"):
        EmbeddedServer(tmp_path / "home", bin_dir=tmp_path).start()


def test_a_systems_own_postgresql_serves_as_well(home: Path) -> None:
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not system:
        lacking("PostgreSQL of the system")
    with EmbeddedServer(home, bin_dir=system[-1].parent).hold("a test") as url:
        assert answer(url) == 42


@pytest.mark.skipif(not AS_ROOT, reason="only root runs the server as somebody else")
class TestAsRoot:
    def test_the_server_runs_under_an_account_without_privileges(self, embedded: EmbeddedServer) -> None:
        embedded.start()
        process = psutil.Process(server_pid(embedded))
        assert process.username() == ACCOUNT
        assert process.uids().real == process.uids().effective == process.uids().saved != 0
        status = Path(f"/proc/{process.pid}/status").read_text()
        groups = next(line for line in status.splitlines() if line.startswith("Groups:"))
        assert groups.split()[1:] == []

    def test_programs_in_a_private_directory_are_copied_to_where_the_account_can_run_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = find_binaries()
        root = found.directory.parent.parent
        private = tmp_path / "private"
        private.mkdir(mode=0o700)
        shutil.copytree(root, private / root.name, ignore=shutil.ignore_patterns("include", "*.a"))
        shutil.copytree(root.with_name(f"{root.name}.libs"), private / f"{root.name}.libs")
        hidden = binaries.Binaries(private / root.name / "pginstall" / "bin", found.version, "wheel")
        account = Account("nobody", 65534, 65534)
        assert not binaries.can_reach(hidden.program("postgres"), account)
        with tempfile.TemporaryDirectory(dir="/var/tmp") as cache:
            Path(cache).chmod(0o755)
            monkeypatch.setattr(binaries, "SHARED_CACHE", Path(cache))
            copied = hidden.reachable_for(account)
            assert binaries.can_reach(copied.program("postgres"), account)
            subprocess.run([copied.program("initdb"), "--version"], user="nobody", check=True)
            assert hidden.reachable_for(account) == copied

    def test_an_account_that_doesnt_exist_is_refused(self, home: Path) -> None:
        with pytest.raises(ServerFailed, match=r"'no-such-one' is not in passwd: .* KAPPA_POSTGRES_USER"):
            EmbeddedServer(home, account="no-such-one").start()

    def test_an_ordinary_user_makes_starts_and_stops_a_server_of_their_own(self) -> None:
        python = _python_for_everyone()
        code = (
            "import sys, pathlib; from kappa.pg.embedded import EmbeddedServer\n"
            "with EmbeddedServer(pathlib.Path(sys.argv[1])).hold('me') as url:\n"
            "    import psycopg; print(psycopg.connect(url).execute('select 42').fetchone()[0])\n"
        )
        path = os.pathsep.join(entry for entry in sys.path if entry)
        with tempfile.TemporaryDirectory(dir="/var/tmp") as own:
            shutil.chown(own, "nobody")
            command = [python, "-W", "ignore", "-c", code, f"{own}/home"]
            environment = {"PATH": os.environ["PATH"], "HOME": own, "PYTHONPATH": path}
            done = subprocess.run(
                command, env=environment, user="nobody", group="nogroup", extra_groups=[], cwd="/",
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        assert (done.stdout, done.stderr) == ("42\n", "")


def _python_for_everyone() -> str:
    """An interpreter of this version that an ordinary account may run, with packages that it may read."""
    nobody = Account("nobody", 65534, 65534)
    packages = Path(psycopg.__file__)
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/{name}", f"/usr/local/bin/{name}"):
        program = Path(candidate).resolve()
        if program.exists() and binaries.can_reach(program, nobody) and binaries.can_reach(packages.parent, nobody):
            return str(program)
    return lacking(f"a {name} that ordinary users may run")
