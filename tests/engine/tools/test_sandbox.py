"""What the sandbox keeps from a tool, as root and as an ordinary user; and that nothing runs where there is none."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kappa.engine.tools import seccomp
from kappa.engine.tools.run import Identity, RunDirectory
from tests.engine.tools.conftest import PYTHON, script
from tests.engine.tools.shop import shell
from tests.ground import PATIENCE, lacking, path_without, require_program

CANARY = "sesame-7f2c"
ORDINARY = 64_222
"""A user whom nobody else is."""

DRIVER = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from kappa.engine.tools import Identity, Limits, ProcessRunner, Spec
from kappa.engine.tools.run import RunDirectory
root, asked = Path(sys.argv[1]), json.loads(sys.argv[2])
run = RunDirectory(root, Identity(1, 1))
for path in (run.private, run.path, run.input, run.output):
    path.mkdir(parents=True, mode=0o700)
run.request.write_text(json.dumps(asked["inputs"]))
options = {name: [Path(one) for one in value] if isinstance(value, list) else value
           for name, value in asked["options"].items()}
runner = ProcessRunner(root, **options)
try:
    runner.start(Spec(run.identity, tuple(asked["argv"]), asked["timeout"], Limits(**asked["limits"])))
except Exception as error:
    sys.exit(print(json.dumps({"refused": str(error)})))
ended = runner.wait(run.identity, asked["timeout"] + 30).exit
runner.stop(run.identity)
said = {name: run.log(name).read_text(errors="replace") for name in ("stdout", "stderr")}
print(json.dumps({**asdict(ended), **said}))
"""


class Server(NamedTuple):
    """A process that runs a tool, as a user, with secrets in its environment."""

    home: Path
    user: int | None
    python: str

    def run(
        self, argv: list[str], inputs: Any = None, *, timeout: float = 60, path: str | None = None,
        options: dict[str, Any] | None = None, **limits: float,
    ) -> dict[str, Any]:  # fmt: skip
        asked = {"argv": argv, "inputs": inputs, "timeout": timeout, "limits": limits, "options": options or {}}
        environment = {
            **os.environ, "HOME": str(self.home), "KAPPA_DATABASE_URL": CANARY, "ANTHROPIC_API_KEY": CANARY,
            "PYTHONPATH": os.pathsep.join(sys.path),
            **({} if path is None else {"PATH": path}),
        }  # fmt: skip
        who: dict[str, Any] = {} if self.user is None else {"user": self.user, "group": self.user, "extra_groups": []}
        done = subprocess.run(
            [self.python, "-c", DRIVER, str(self.home / "runs"), json.dumps(asked)],
            env=environment, capture_output=True, text=True, timeout=timeout + PATIENCE, check=False, cwd="/", **who,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def directory(self) -> RunDirectory:
        return RunDirectory(self.home / "runs", Identity(1, 1))


@cache
def python_of(user: int | None) -> str:
    """A Python that this user can run: that of the tests may be in a home that is closed to others."""
    for python in (sys.executable, PYTHON):
        with suppress(PermissionError):
            done = subprocess.run(
                [python, "-c", "import kappa.engine.tools.handler"], env={"PYTHONPATH": os.pathsep.join(sys.path)},
                user=user, group=user, extra_groups=None if user is None else [], check=False, cwd="/",
            )  # fmt: skip
            if done.returncode == 0:
                return python
    return lacking("a Python that other users can run")


@pytest.fixture(params=["root", "ordinary user"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    require_program("bwrap")
    root = os.geteuid() == 0
    if request.param == "root" and not root:
        lacking("root")
    user = ORDINARY if root and request.param != "root" else None
    python = python_of(user)
    # Not below /tmp, which is a tool's own in any case.
    home = Path(tempfile.mkdtemp(prefix="kappa-test-", dir="/var/tmp"))
    if user is not None:
        os.chown(home, user, user)
    yield Server(home, user, python)
    shutil.rmtree(home)


def ours(path: Path, user: int | None) -> Path:
    if user is not None:
        os.chown(path, user, user)
    return path


ATTACK = """
import ctypes, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
asked, found = json.load(open("request.json")), {}
def attempt(name, what):
    try:
        found[name] = what() or "done"
    except OSError as error:
        found[name] = error.strerror
def call(number):
    if number < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
for path in asked["files"]:
    attempt("read " + path, lambda: open(path).read())
for path in asked["sockets"]:
    attempt("connect " + path.lstrip("\\0"), lambda: socket.socket(socket.AF_UNIX).connect(path))
attempt("port", lambda: socket.create_connection(("127.0.0.1", asked["port"]), 5).close())
attempt("signal", lambda: os.kill(asked["pid"], 0))
attempt("ptrace", lambda: call(libc.ptrace(16, asked["pid"], 0, 0)))
attempt("environ", lambda: open(f"/proc/{asked['pid']}/environ").read())
attempt("userns", lambda: call(libc.unshare(0x10000000)))
def all_that_is_seen():
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            for name in ("environ", "cmdline"):
                try:
                    yield open(f"/proc/{entry}/{name}", "rb").read()
                except OSError:
                    pass
found["canary"] = any(asked["canary"].encode() in text for text in all_that_is_seen())
found["processes"] = sum(entry.isdigit() for entry in os.listdir("/proc"))
found["open"] = sorted(os.listdir("/proc/self/fd"))
found["capabilities"] = [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapBnd"))]
found["listed"] = {path: sorted(os.listdir(path)) if os.path.isdir(path) else None for path in asked["directories"]}
print(json.dumps(found))
"""
HIDDEN = ("/home", "/root", "/run", "/srv", "/mnt", "/media", "/opt", "/var", "/boot", "/sys")
NOT_THERE = "No such file or directory"


def test_a_tool_sees_nothing_of_its_server_and_the_host(server: Server, tmp_path: Path) -> None:
    secrets = [server.home / ".ssh" / "id_ed25519", server.home / "operator.token", tmp_path / "a-file"]
    tmp_path.chmod(0o755)
    listens = [server.home / "docker.sock"]
    with ExitStack() as stack:
        if os.geteuid() == 0:
            for place in ("/run", "/srv", "/opt", "/etc"):
                made = Path(tempfile.mkdtemp(prefix="kappa-test-", dir=place))
                stack.callback(shutil.rmtree, made)
                secrets.append(ours(made, server.user) / "kappa.env")
            listens.append(secrets[3].with_name("engine.sock"))
        for path in secrets:
            path.parent.mkdir(exist_ok=True)
            path.write_text(CANARY)
            ours(path, server.user)
        for path in listens:
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(str(path))
            listening.listen()
            path.chmod(0o777)
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0kappa-test-{os.getpid()}")
        abstract.listen()
        port = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        neighbour = subprocess.Popen(
            ["sleep", "600"], env={"CANARY": CANARY}, user=server.user, group=server.user,
            extra_groups=None if server.user is None else [],
        )  # fmt: skip
        stack.callback(neighbour.wait)
        stack.callback(neighbour.kill)
        ended = server.run(script(ATTACK), {
            "files": list(map(str, secrets)), "sockets": [*map(str, listens), f"\0kappa-test-{os.getpid()}"],
            "port": port, "pid": neighbour.pid, "canary": CANARY, "directories": HIDDEN,
        })  # fmt: skip
    assert ended["code"] == 0, ended
    found = json.loads(ended["stdout"])
    assert {path: found[f"read {path}"] for path in secrets} == dict.fromkeys(secrets, NOT_THERE)
    assert {path: found[f"connect {path}"] for path in listens} == dict.fromkeys(listens, NOT_THERE)
    assert found[f"connect kappa-test-{os.getpid()}"] == "Connection refused"
    assert found["port"] == "Connection refused"
    assert found["signal"] == "No such process"
    assert found["ptrace"] in ("No such process", "Operation not permitted")
    assert found["environ"] == NOT_THERE
    assert found["userns"] != "done"
    assert not found["canary"]
    assert found["processes"] < 6
    assert found["open"] == ["0", "1", "2", "3"]
    assert found["capabilities"] == ["0" * 16] * 2
    assert found["listed"] == dict.fromkeys(HIDDEN)


@pytest.mark.parametrize("linked", [False, True], ids=["plain path", "linked path"])
def test_a_tool_reads_the_paths_that_the_operator_names_but_nothing_hidden_in_them(
    server: Server, linked: bool
) -> None:
    path = server.home.with_name(f"{server.home.name}-shared")
    secret = path / "kappa" / "operator.token"
    secret.parent.mkdir(parents=True)
    path.chmod(0o755)
    try:
        for file in (path / "model", secret):
            file.write_text(CANARY)
            file.chmod(0o644)
        named = path
        if linked:
            named = server.home.with_name(f"{server.home.name}-linked")
            named.symlink_to(path)
        source = f"cat {named}/model; ls -A {named}/kappa; cat {secret}; echo more >{named}/model"
        shown, hidden = [str(named), str(secret)], [str(secret.parent)]
        ended = server.run(shell(source), options={"shown": shown, "hidden": hidden})
        assert ended["stdout"] == CANARY
        assert "Read-only file system" in ended["stderr"]
        assert (path / "model").read_text() == CANARY
    finally:
        shutil.rmtree(path)
        server.home.with_name(f"{server.home.name}-linked").unlink(missing_ok=True)


def test_a_tool_cannot_hold_memory_that_belongs_to_no_process(server: Server) -> None:
    if seccomp.program() is None:
        lacking("libseccomp")
    source = script("""
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        for call in (lambda: libc.memfd_create(b"", 0), lambda: libc.shmget(0, 1 << 20, 0o1600)):
            print(call(), os.strerror(ctypes.get_errno()))
    """)
    assert server.run(source)["stdout"].splitlines() == ["-1 Function not implemented"] * 2


FILL = """
import os, sys
def fill(path):
    written = 0
    try:
        with open(path, "wb", buffering=0) as file:
            while written < 1 << 30:
                written += file.write(bytes(1 << 20))
    except OSError as error:
        return written >> 20, error.strerror
    return written >> 20, "done"
for path in ("/dev/shm/a", "/dev/a", "/a", "/etc/a", "/run/a", "/tmp/a"):
    print(path, *fill(path), sep=":")
"""


def test_what_a_tool_writes_into_memory_is_bounded(server: Server) -> None:
    ended = server.run(script(FILL), tmp_mb=48, memory_mb=1024)
    assert ended["code"] == 0, ended
    lines = [line.split(":") for line in ended["stdout"].splitlines()]
    found = {path: (int(size), error) for path, size, error in lines}
    full = "No space left on device"
    assert found["/dev/shm/a"] == (64, full)
    assert found["/tmp/a"] == (48, full)
    for path in ("/dev/a", "/a", "/etc/a"):
        assert found[path] == (0, "Read-only file system"), path
    assert found["/run/a"] == (0, NOT_THERE)


FIVE = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        break
held = bytearray(os.urandom(1 << 20) * 60)
print("held", flush=True)
time.sleep(60)
"""


def test_processes_of_a_run_share_its_memory(server: Server) -> None:
    """Each of the five holds less than the limit, together they hold more."""
    ended = server.run(script(FIVE), timeout=50, memory_mb=160)
    assert not ended["timed_out"], ended
    assert ended["out_of_memory"] or "160 MB" in (ended["over_limit"] or ""), ended


def test_a_run_has_no_more_processes_than_its_limit(server: Server) -> None:
    fork = """
        import os, time
        made = 0
        while made < 200:
            try:
                if os.fork() == 0:
                    time.sleep(60)
            except OSError:
                break
            made += 1
        print(made, flush=True)
        if made >= 20:
            time.sleep(60)
    """
    ended = server.run(script(fork), pids=20)
    assert ended["over_limit"] == "it had more than 20 processes and threads" or int(ended["stdout"]) < 20, ended


NO_SANDBOX = "process tools are refused on this host because there is no sandbox"


@pytest.fixture
def without_bubblewrap() -> Iterator[str]:
    with path_without("bwrap") as path:
        yield path


def test_without_bubblewrap_nothing_is_run(server: Server, without_bubblewrap: str) -> None:
    ended = server.run(shell("touch output/ran"), path=without_bubblewrap)
    assert NO_SANDBOX in ended.get("refused", ""), ended
    assert "bubblewrap is not installed" in ended["refused"]
    assert "KAPPA_UNSANDBOXED_TOOLS=yes" in ended["refused"]
    assert not (server.directory().output / "ran").exists()


def test_a_bubblewrap_that_does_not_work_is_none(server: Server, without_bubblewrap: str) -> None:
    broken = Path(without_bubblewrap, "bwrap")
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    ended = server.run(shell("touch output/ran"), path=without_bubblewrap)
    assert NO_SANDBOX in ended.get("refused", ""), ended
    assert "No permissions to create a new namespace" in ended["refused"]
    assert not (server.directory().output / "ran").exists()


def test_without_bubblewrap_tools_run_where_the_operator_says_so(server: Server, without_bubblewrap: str) -> None:
    source = 'echo "${KAPPA_DATABASE_URL-}${ANTHROPIC_API_KEY-}"; ls /proc/self/fd | wc -l; touch output/ran'
    ended = server.run(shell(source), path=without_bubblewrap, options={"sandbox": None})
    assert ended["code"] == 0, ended
    assert ended["stdout"].split() == ["4"]
    assert (server.directory().output / "ran").exists()
