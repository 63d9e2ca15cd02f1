"""As root, the embedded server runs under an account that no other service has; what `nobody` had is taken over."""

import os
import pwd
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from kappa.pg.embedded import EmbeddedServer, account
from kappa.pg.embedded.account import ACCOUNT, UNASSIGNED_UIDS
from kappa.pg.errors import ServerFailed, ServerNotRunning
from tests.conftest import quick_directory
from tests.ground import Script, lacking
from tests.pg.earlier import NOBODY, make_earlier_cluster

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as somebody else")

STARTER = """
    import os, pathlib, signal, sys
    from kappa.pg.embedded import EmbeddedServer
    left = int(sys.argv[2])

    def kill_at(event, args):
        global left
        if event == "os.chown":
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill_at)
    EmbeddedServer(pathlib.Path(sys.argv[1])).start()
    print("started", flush=True)
"""


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with quick_directory(tmp_path_factory) as place:
        yield place


@pytest.fixture
def embedded(home: Path) -> Iterator[EmbeddedServer]:
    made = EmbeddedServer(home, say=print)
    yield made
    with suppress(ServerNotRunning):
        made.stop(force=True)


@pytest.fixture
def earlier(home: Path) -> Path:
    """The home of an earlier version, with a table in its database; all of it belongs to `nobody`."""
    make_earlier_cluster(home, NOBODY, ["CREATE TABLE kept AS SELECT n FROM generate_series(1, 1000) AS n"])
    return home


def owners(data: Path) -> set[int]:
    return {path.lstat().st_uid for path in (data, *data.rglob("*"))}


def open_to_others(data: Path) -> list[Path]:
    return [path for path in (data, *data.rglob("*")) if stat.S_IMODE(path.lstat().st_mode) & 0o077]


def rows(url: str) -> object:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT count(*), sum(n) FROM kept").fetchone()


def test_a_new_database_belongs_to_an_account_that_no_other_service_has(embedded: EmbeddedServer, home: Path) -> None:
    embedded.start()
    uid = pwd.getpwnam(ACCOUNT).pw_uid
    assert uid not in (0, NOBODY)
    assert pwd.getpwnam(ACCOUNT).pw_shell.endswith(("nologin", "false"))
    process = psutil.Process(embedded.status().pid)
    assert process.uids().real == process.uids().saved == uid
    place = home / "postgres"
    assert owners(place / "data") == owners(place / "run") == {uid}
    assert open_to_others(place / "data") == []
    assert stat.S_IMODE((place / "run").stat().st_mode) == 0o700
    for secret in ("password", "superuser-password"):
        assert ((place / secret).stat().st_uid, stat.S_IMODE((place / secret).stat().st_mode)) == (0, 0o600)


def test_two_homes_on_one_machine_share_the_account_and_not_the_data(
    embedded: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    url = embedded.start()
    with quick_directory(tmp_path_factory) as other, EmbeddedServer(other).hold("another home") as second:
        uids = {psutil.Process(one.status().pid).uids().real for one in (embedded, EmbeddedServer(other))}
        assert uids == {pwd.getpwnam(ACCOUNT).pw_uid}
        with psycopg.connect(second) as connection:
            assert connection.execute("SELECT 42").fetchone() == (42,)
        password = url.split("@")[0]
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(f"{password}@{second.split('@')[1]}")


def test_the_server_gets_no_secrets_of_its_starters_environment(
    embedded: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAPPA_OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sk-secret")
    embedded.start()
    assert "sk-secret" not in psutil.Process(embedded.status().pid).environ().values()


def test_nobody_is_refused_as_the_account(home: Path) -> None:
    with pytest.raises(ServerFailed, match="KAPPA_POSTGRES_USER is 'nobody', which any service may run as"):
        EmbeddedServer(home, account="nobody").start()
    assert not (home / "postgres" / "data").exists()


def test_where_no_account_can_be_made_the_server_runs_under_a_uid_that_nobody_has(
    embedded: EmbeddedServer, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not list(Path(account.__file__).parent.glob("_passwd*.so")):
        lacking("a C compiler when Kappa was installed")
    monkeypatch.setattr(account, "ACCOUNT", "kappa-no-such-account")
    useradd = tmp_path / "useradd"
    useradd.write_text("#!/bin/sh\necho 'no accounts are made here' >&2\nexit 4\n")
    useradd.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for _ in range(2):
        with psycopg.connect(embedded.start()) as connection:
            assert connection.execute("SELECT 42").fetchone() == (42,)
        (uid,) = owners(home / "postgres" / "data")
        assert uid in UNASSIGNED_UIDS
        with pytest.raises(KeyError):
            pwd.getpwuid(uid)
        assert psutil.Process(embedded.status().pid).uids().real == uid
        embedded.stop()


def test_the_account_is_made_by_one_process_at_a_time(tmp_path: Path) -> None:
    """A useradd that looks for the name before it locks passwd makes it twice, with two uids."""
    useradd = tmp_path / "useradd"
    useradd.write_text(
        f"#!/bin/sh\nmkdir {tmp_path}/busy || touch {tmp_path}/together\nsleep 0.2\nrmdir {tmp_path}/busy\nexit 4\n"
    )
    useradd.chmod(0o755)
    maker = """
        from kappa.pg.embedded import account
        account.ACCOUNT = "kappa-no-such-account"
        print("ready", flush=True)
        input()
        print(account.dedicated_account(None, lambda said: None).uid, flush=True)
    """
    with ExitStack() as stack:
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        makers = [stack.enter_context(Script(maker, env={"PATH": path})) for _ in range(3)]
        assert [one.line() for one in makers] == ["ready"] * 3
        for one in makers:
            one.tell("go")
        assert {int(one.line()) for one in makers} <= set(UNASSIGNED_UIDS)
    assert not (tmp_path / "together").exists()


def test_what_nobody_had_is_taken_over_at_the_next_start_and_nothing_is_lost(
    embedded: EmbeddedServer, earlier: Path
) -> None:
    data = earlier / "postgres" / "data"
    assert owners(data) == {NOBODY}
    assert rows(embedded.start()) == (1000, 500500)
    uid = pwd.getpwnam(ACCOUNT).pw_uid
    assert owners(data) == owners(earlier / "postgres" / "run") == {uid}
    assert psutil.Process(embedded.status().pid).uids().real == uid
    embedded.stop()
    assert rows(embedded.start()) == (1000, 500500)


@pytest.mark.parametrize("at", [1, 2, 3, 40, 400])
def test_a_takeover_that_is_killed_is_finished_by_the_next_start(
    embedded: EmbeddedServer, earlier: Path, at: int
) -> None:
    data = earlier / "postgres" / "data"
    with Script(STARTER, earlier, at) as starter:
        starter.process.communicate()
        assert starter.process.returncode == -signal.SIGKILL
    # From the first step on nobody else can reach it.
    assert at == 1 or data.stat().st_uid == 0
    assert rows(embedded.start()) == (1000, 500500)
    assert owners(data) == {pwd.getpwnam(ACCOUNT).pw_uid}


def test_a_file_that_nobody_shares_with_somebody_else_is_not_taken_over(
    embedded: EmbeddedServer, earlier: Path
) -> None:
    data = earlier / "postgres" / "data"
    secret = earlier / "a secret of root"
    secret.write_text("secret")
    os.link(secret, data / "base" / "planted")
    with pytest.raises(ServerFailed, match="base/planted belongs to uid 0, not to the database's account"):
        embedded.start()
    assert secret.stat().st_uid == 0
    (data / "base" / "planted").unlink()

    second = earlier / "of nobody"
    second.write_text("")
    os.chown(second, NOBODY, NOBODY)
    os.link(second, data / "base" / "planted")
    with pytest.raises(ServerFailed, match="base/planted has another name elsewhere"):
        embedded.start()
    (data / "base" / "planted").unlink()

    (data / "base" / "planted").symlink_to("/etc/shadow")
    os.chown(data / "base" / "planted", NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(ServerFailed, match="base/planted is a symbolic link"):
        embedded.start()
    assert Path("/etc/shadow").stat().st_uid == 0
    (data / "base" / "planted").unlink()

    assert data.stat().st_uid == 0, "until it is done nobody can enter"
    assert rows(embedded.start()) == (1000, 500500)


def test_what_nobody_left_open_to_everybody_is_closed(embedded: EmbeddedServer, earlier: Path) -> None:
    data = earlier / "postgres" / "data"
    for path in (data / "base", data / "PG_VERSION", data / "postgresql.conf"):
        path.chmod(0o777)
    assert rows(embedded.start()) == (1000, 500500)
    assert open_to_others(data) == []


def test_nobody_can_neither_read_the_data_nor_end_the_server(embedded: EmbeddedServer, home: Path) -> None:
    home.parent.chmod(0o711)
    embedded.start()
    home.chmod(0o711)
    pid = embedded.status().pid
    attack = f"cat {home}/postgres/data/PG_VERSION {home}/postgres/password; kill -9 {pid}"
    done = subprocess.run(
        [shutil.which("sh") or "sh", "-c", attack],
        user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert embedded.status().pid == pid
    with psycopg.connect(embedded.url()) as connection:
        assert connection.execute("SELECT 42").fetchone() == (42,)
