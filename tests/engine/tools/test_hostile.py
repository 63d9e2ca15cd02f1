"""Tools that do their worst: they end, with a line that says why, and nothing of them is left."""

import asyncio
import fcntl
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kappa.engine import AsyncClient, Engine, JobState, tools
from kappa.engine.testing import drain, working
from kappa.engine.tools import ArtifactStore, Bench, ContractBroken, Identity, ToolRun, Tools, supervisor
from kappa.engine.tools.run import RunDirectory
from tests.engine.site import seen
from tests.engine.tools import shop
from tests.engine.tools.conftest import script
from tests.engine.tools.shop import FIRST, FOLLOWER, Place, gone, resident_kb, shell, worker
from tests.ground import eventually, lacking

RESULT = '{"contract_version": 1, "status": "succeeded"'


@pytest.fixture(params=["process", "sandbox"])
def at(request: pytest.FixtureRequest, home: Path) -> Place:
    return shop.place(request, home)


@pytest.fixture
def bench(engine: Engine, at: Place) -> Iterator[Bench]:
    made = tools.install(engine, at.home, at.runners())
    yield made
    made.close()


@pytest.fixture(autouse=True)
def many_at_once(connection: psycopg.Connection[Any]) -> None:
    connection.execute("UPDATE kappa.lanes SET max_slots = 6 WHERE name = 'tools'")


async def run(engine: Engine, toolbox: Tools, argv: list[str], timeout: float = 30, **limits: float) -> ToolRun:
    await toolbox.register("it", "1", argv=argv, limits=limits, timeout=timedelta(seconds=timeout))
    asked = await toolbox.run("it")
    await drain(engine, FOLLOWER)
    return await toolbox.show(asked.id)


def nothing_is_left(bench: Bench, at: Place) -> None:
    for path in (at.home / "runs").glob("*.private"):
        _, job, attempt = path.name.removesuffix(".private").split("-")
        gone(lambda: at.processes(Identity(int(job), int(attempt))), f"the processes of {path}")  # noqa: B023
    bench.sweep()
    assert list((at.home / "runs").iterdir()) == []
    assert not list((at.home / "artifacts" / "drafts").glob("*"))


# What it leaves: every one of these runs at the same time, each with its own bad idea

LEAVES: dict[str, tuple[str, str]] = {
    "nothing": ("", "the tool left no result.json"),
    "no json": ("echo hello >result.json", "result.json is not valid: Invalid JSON: expected value at line 1 column 1"),
    "half of it": (
        f"echo '{RESULT}' >result.json",
        "result.json is not valid: Invalid JSON: EOF while parsing an object at line 2 column 0",
    ),
    "another version": (
        """echo '{"contract_version": 2, "status": "succeeded"}' >result.json""",
        "result.json is not valid: contract_version: Input should be 1",
    ),
    "more than was asked": (
        f"""echo '{RESULT}, "exit": 0}}' >result.json""",
        "result.json is not valid: exit: Extra inputs are not permitted",
    ),
    "a huge result": (
        f"""(echo '{RESULT}, "outputs": "'; head -c 2000000 /dev/zero | tr '\\0' x; echo '"}}') >result.json""",
        "result.json is larger than 1048576 bytes",
    ),
    "an endless result": ("ln -s /dev/zero result.json", "'result.json' is not a plain file in plain directories"),
    "a link": ("ln -s /etc/passwd result.json", "'result.json' is not a plain file in plain directories"),
    "a pipe": ("mkfifo result.json", "'result.json' is not a plain file"),
    "a directory": ("mkdir result.json", "'result.json' is not a plain file"),
    "depth": (
        f"""(echo '{RESULT}, "outputs": '; head -c 100000 /dev/zero | tr '\\0' '['; echo '}}') >result.json""",
        "result.json is not valid: Invalid JSON: recursion limit exceeded at line 2 column 201",
    ),
    "no number": (
        f"""echo '{RESULT}, "outputs": [1, {{"a": NaN}}]}}' >result.json""",
        "result.json is not valid: it has a number that is none, or infinite",
    ),
    "a number beyond all": (
        f"""echo '{RESULT}, "outputs": -1e999}}' >result.json""",
        "result.json is not valid: it has a number that is none, or infinite",
    ),
    "a nul": (
        f"""printf '%s' '{RESULT}, "outputs": {{"a\\u0000": 1}}}}' >result.json""",
        "result.json is not valid: it has a NUL character",
    ),
    "half a sign": (
        f"""printf '%s' '{RESULT}, "outputs": "\\ud800"}}' >result.json""",
        "result.json is not valid: Invalid JSON: unexpected end of hex escape at line 1 column 66",
    ),
    "no text": (
        f"""printf '{RESULT}, "outputs": "\\377"}}' >result.json""",
        "result.json is not valid: Invalid JSON: invalid unicode code point at line 1 column 60",
    ),
    "a code": ("exit 3", "the tool exited with code 3, and the tool left no result.json"),
    "a code that looks like a signal": ("exit 250", "the tool exited with code 250, and the tool left no result.json"),
    "a code and a success": (f"echo '{RESULT}}}' >result.json; exit 1", "the tool exited with code 1"),
    "many lines": (
        r"""printf '%s' '{"contract_version": 1, "status": "failed",
                          "error_summary": "a\nb\u001b[2J\tc"}' >result.json""",
        "a b [2J c",
    ),
    "no words": (
        """echo '{"contract_version": 1, "status": "failed"}' >result.json""",
        "the tool says that it failed, and not why",
    ),
    "suicide": ("kill -9 $$", "the tool was ended by signal 9"),
    "nothing at all": ("rm -rf * .[a-z]*; cd /; rm -rf $KAPPA_DIR; exit 0", "the tool left no result.json"),
}  # fmt: skip


def naming(*paths: str) -> str:
    named = json.dumps([{"path": path} for path in paths])
    return f"""printf '%s' '{RESULT}, "artifacts": {named}}}' >result.json"""


def refused(path: str) -> tuple[str, str]:
    return naming(path), f"artifact path {path!r} is not a relative path under output/"


ARTIFACTS: dict[str, tuple[str, str]] = {
    "up": refused("../request.json"),
    "up from inside": refused("output/../../secret"),
    "up later": refused("a/../../../secret"),
    "from the root": refused("/etc/passwd"),
    "no name": refused("output"),
    "another kind of path": refused("a\\b"),
    "not there": (naming("a"), "artifact 'a' is not there"),
    "a link out": ("ln -s /etc/passwd output/a;" + naming("a"), "'a' is not a plain file in plain directories"),
    "a link to itself": ("ln -s a output/a;" + naming("a"), "'a' is not a plain file in plain directories"),
    "a link on the way": (
        "ln -s /etc output/a;" + naming("a/passwd"), "'a/passwd' is not a plain file in plain directories",
    ),
    "a file on the way": ("echo >output/a;" + naming("a/b"), "'a/b' is not a plain file in plain directories"),
    "a pipe": ("mkfifo output/a;" + naming("a"), "'a' is not a plain file"),
    "a directory": ("mkdir output/a;" + naming("a"), "'a' is not a plain file"),
    "another output": (
        "rm -r output; ln -s /etc output;" + naming("passwd"), "'passwd' is not a plain file in plain directories",
    ),
    "no output": ("rm -r output;" + naming("a"), "artifact 'a' is not there"),
    "a name too long": (naming("a" * 300), f"'{'a' * 300}' is not a plain file in plain directories"),
    "one good and one bad": ("echo >output/a;" + naming("a", "b"), "artifact 'b' is not there"),
    "too much": (
        "truncate -s 700000 output/a; truncate -s 700000 output/b;" + naming("a", "b"),
        "the artifacts are larger than 1 MB together",
    ),
    "too many": (
        naming(*["a"] * 1001),
        "result.json is not valid: artifacts: List should have at most 1000 items after validation, not 1001",
    ),
}  # fmt: skip


@pytest.mark.parametrize("ideas", [LEAVES, ARTIFACTS], ids=["results", "artifacts"])
async def test_whatever_a_tool_leaves_behind_a_line_says_what_is_wrong_with_it(
    engine: Engine, toolbox: Tools, bench: Bench, at: Place, ideas: dict[str, tuple[str, str]]
) -> None:
    runs: dict[str, int] = {}
    for number, (name, (source, _)) in enumerate(ideas.items()):
        await toolbox.register(f"t{number}", "1", argv=shell(source), limits={"output_mb": 2 if ideas is LEAVES else 1})
        runs[name] = (await toolbox.run(f"t{number}")).id
    await drain(engine, FOLLOWER)
    found = {name: await toolbox.show(run_id) for name, run_id in runs.items()}
    assert {name: run.error_summary for name, run in found.items()} == {name: line for name, (_, line) in ideas.items()}
    for run in found.values():
        assert (run.status, run.outputs) == (JobState.FAILED, None)
        assert await toolbox.artifacts(run.id) == []
        assert run.error_summary
        assert run.error_summary.isprintable()
    nothing_is_left(bench, at)


@pytest.mark.parametrize("where", ["output/a", "result.json"])
async def test_a_device_is_not_read(engine: Engine, toolbox: Tools, bench: Bench, at: Place, where: str) -> None:
    source = "while [ ! -e go ]; do sleep 0.02; done;"
    await toolbox.register("it", "1", argv=shell(source + (naming("a") if where != "result.json" else "")))
    await toolbox.run("it")
    async with working(engine, FOLLOWER):
        directory = at.directory()
        await seen(lambda: at.runner.find(FIRST).running, "it runs")
        try:
            os.mknod(directory.path / where, 0o666 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero
        except PermissionError:
            lacking("the right to make a device")
        at.go()
        await drain(engine, FOLLOWER)
    run = await toolbox.show(1)
    name = where.removeprefix("output/")
    assert (run.status, run.error_summary) == (JobState.FAILED, f"{name!r} is not a plain file")
    nothing_is_left(bench, at)


async def test_a_directory_closed_to_everybody_keeps_nobody_out(
    engine: Engine, toolbox: Tools, bench: Bench, at: Place
) -> None:
    source = f"echo kept >output/a; {naming('a')}; mkdir -p output/b/c; chmod 0 output/b output/a output result.json ."
    run = await run_as_root_or_not(engine, toolbox, source)
    assert run.status in (JobState.SUCCEEDED, JobState.FAILED)
    if os.geteuid() == 0:
        assert run.status is JobState.SUCCEEDED
        assert [artifact.size for artifact in await toolbox.artifacts(1)] == [5]
    nothing_is_left(bench, at)


async def run_as_root_or_not(engine: Engine, toolbox: Tools, source: str) -> ToolRun:
    return await run(engine, toolbox, shell(source))


# What it takes


async def test_a_fork_bomb_stays_within_its_limit_and_ends(
    engine: Engine, toolbox: Tools, bench: Bench, at: Place
) -> None:
    bomb = script("""
        import os, time
        while True:
            try:
                os.fork()
            except OSError:
                time.sleep(0.05)
    """)
    await toolbox.register("it", "1", argv=bomb, limits={"pids": 24}, timeout=timedelta(seconds=2))
    await toolbox.run("it")
    async with working(engine, FOLLOWER):
        most = await seen(lambda: (count := len(at.processes())) >= 20 and count, "the bomb")
        assert most <= 24 + 3  # and those that make the sandbox, which are root's
        await drain(engine, FOLLOWER)
    ended = await toolbox.show(1)
    assert (ended.status, ended.error_summary) == (JobState.TIMED_OUT, "the time-out was reached")
    nothing_is_left(bench, at)


async def test_nothing_is_left_of_a_bomb_whose_supervisor_is_killed(
    engine: Engine, toolbox: Tools, bench: Bench, at: Place
) -> None:
    bomb = script("""
        import os, time
        while True:
            try:
                if os.fork():
                    os._exit(0)  # ever another one
                os.setsid()
            except OSError:
                pass
            time.sleep(0.02)
    """)
    starts = script("""
        import os, subprocess, sys, time
        for _ in range(3):
            subprocess.Popen([sys.executable, "-c", sys.argv[1]])
        print("begun", flush=True)
        time.sleep(60)
    """)
    await toolbox.register("it", "1", argv=[*starts, bomb[2]], limits={"pids": 100})
    await toolbox.run("it")
    async with working(engine, FOLLOWER):
        await seen(lambda: at.directory().stdout.exists() and at.directory().stdout.stat().st_size > 0, "it runs")
        pid = at.supervisor()
        assert pid
        os.kill(pid, 9)
        await drain(engine, FOLLOWER)
    ended = await toolbox.show(1)
    assert (ended.status, ended.error_summary) == (JobState.FAILED, "the supervisor of the run was lost")
    nothing_is_left(bench, at)


async def test_a_memory_hog_gets_no_more_than_its_limit(
    engine: Engine, toolbox: Tools, bench: Bench, at: Place
) -> None:
    hog = script("""
        taken = []
        while True:
            taken.append(bytearray(8 << 20))
            print(len(taken) * 8, flush=True)
    """)
    ended = await run(engine, toolbox, hog, memory_mb=128)
    assert ended.status is JobState.FAILED
    assert ended.error_summary == "the tool exited with code 1, and the tool left no result.json"
    logs = await toolbox.logs(1)
    said = [piece.content for piece in logs if piece.stream == "stdout"]
    assert int(b"".join(said).split()[-1]) < 128
    assert b"MemoryError" in b"".join(piece.content for piece in logs if piece.stream == "stderr")
    nothing_is_left(bench, at)


async def test_a_gigabyte_of_output_leaves_the_worker_as_small_as_it_was(
    engine: Engine, toolbox: Tools, bench: Bench, at: Place, url: str, async_client: AsyncClient,
) -> None:  # fmt: skip
    small = f"echo '{RESULT}}}' >result.json"
    flood = "head -c 500000000 /dev/zero & head -c 500000000 /dev/zero >&2; wait;" + small
    await toolbox.register("small", "1", argv=shell(small))
    await toolbox.register("flood", "1", argv=shell(flood))

    async def sizes(name: str) -> list[int]:
        asked, found = await toolbox.run(name), [resident_kb(running.pid)]
        async with asyncio.timeout(60):
            while (await toolbox.show(asked.id)).finished_at is None:
                found.append(resident_kb(running.pid))
                await asyncio.sleep(0.01)
        ended = await toolbox.show(asked.id)
        assert (ended.status, ended.error_summary) == (JobState.SUCCEEDED, None)
        return found

    with worker(url, at) as running:
        before = max(await sizes("small"))
        most = max(await sizes("flood"))
    sys.stdout.write(f"the worker: {before} kB before, {most} kB at most\n")
    assert most - before < 16_000, f"{before} kB before, {most} kB at most"
    for stream in ("stdout", "stderr"):
        assert sum(len(piece.content) for piece in await toolbox.logs(2, stream=stream)) == 200_000
    for log in (at.directory(Identity(2, 1)).stdout, at.directory(Identity(2, 1)).stderr):
        assert log.stat().st_size == 200_000
    nothing_is_left(bench, at)


async def test_a_child_that_goes_on_writing_does_not_keep_its_parents_run_alive(
    engine: Engine, toolbox: Tools, bench: Bench, at: Place
) -> None:
    goes_on = "(trap '' PIPE TERM HUP; while :; do cat /dev/zero; done) &"
    source = f"{goes_on} head -c 9 /dev/zero; echo '{RESULT}}}' >result.json"
    ended = await run(engine, toolbox, shell(source), timeout=20)
    assert (ended.status, ended.error_summary) == (JobState.SUCCEEDED, None)
    nothing_is_left(bench, at)


async def test_a_tool_that_closes_its_outputs_is_followed_to_its_end(
    engine: Engine, toolbox: Tools, bench: Bench, at: Place
) -> None:
    source = f"echo last; exec >&- 2>&-; sleep 0.3; echo '{RESULT}}}' >result.json"
    assert (await run(engine, toolbox, shell(source))).status is JobState.SUCCEEDED
    assert [piece.content for piece in await toolbox.logs(1)] == [b"last\n"]
    nothing_is_left(bench, at)


async def test_a_tool_that_sleeps_for_ever_ends_when_its_time_is_up(
    engine: Engine, toolbox: Tools, bench: Bench, at: Place
) -> None:
    ended = await run(engine, toolbox, shell("trap '' TERM; while :; do sleep 1000; done"), timeout=0.5)
    assert (ended.status, ended.error_summary) == (JobState.TIMED_OUT, "the time-out was reached")
    nothing_is_left(bench, at)


async def test_a_tool_that_fills_the_disk_is_ended(engine: Engine, toolbox: Tools, bench: Bench, at: Place) -> None:
    fill = script("""
        import itertools, time
        for n in itertools.count():
            with open(f"output/{n}", "wb") as file:
                file.write(bytes(1 << 20))
            time.sleep(0.01)
    """)
    ended = await run(engine, toolbox, fill, output_mb=8)
    assert (ended.status, ended.error_summary) == (JobState.FAILED, "the tool was ended: it wrote more than 8 MB")
    nothing_is_left(bench, at)


async def test_one_file_grows_to_the_limit_and_no_further(
    engine: Engine, toolbox: Tools, bench: Bench, at: Place
) -> None:
    """Neither with five real gigabytes nor with five that are a hole."""
    grow = script(f"""
        import os
        said = []
        for size in (5 << 30, (4 << 20) + 1):
            with open("output/a", "wb") as file:
                try:
                    os.posix_fallocate(file.fileno(), 0, size)
                except OSError as error:
                    said.append(error.errno)
                try:
                    os.truncate(file.fileno(), size)
                except OSError as error:
                    said.append(error.errno)
        open("result.json", "w").write('{RESULT}, "outputs": %s}}' % said)
    """)
    ended = await run(engine, toolbox, grow, output_mb=4)
    assert (ended.status, ended.outputs) == (JobState.SUCCEEDED, [27] * 4)
    nothing_is_left(bench, at)


async def test_an_artifact_of_five_gigabytes_is_refused_before_it_is_read(
    engine: Engine, toolbox: Tools, bench: Bench, at: Place
) -> None:
    await toolbox.register("it", "1", argv=shell("while [ ! -e go ]; do sleep 0.02; done;" + naming("a")))
    await toolbox.run("it")
    async with working(engine, FOLLOWER):
        await seen(lambda: at.runner.find(FIRST).running, "it runs")
        with (at.directory().output / "a").open("wb") as file:
            file.truncate(5 << 30)
        at.go()
        await drain(engine, FOLLOWER)
    ended = await toolbox.show(1)
    assert ended.error_summary == "the artifacts are larger than 1024 MB together"
    nothing_is_left(bench, at)


@pytest.mark.parametrize(("size", "what"), [(99, "grew"), (101, "shrank")])
def test_an_artifact_that_changes_while_it_is_collected_is_refused(tmp_path: Path, size: int, what: str) -> None:
    out, into = os.pipe()
    os.write(into, bytes(100))
    os.close(into)
    with pytest.raises(ContractBroken, match=what):
        ArtifactStore(tmp_path).take(out, size)
    os.close(out)
    assert [path.name for path in tmp_path.rglob("*")] == ["drafts"]


async def test_directories_as_deep_as_they_go_are_measured_and_removed(
    engine: Engine, toolbox: Tools, bench: Bench, at: Place
) -> None:
    dig = script(f"""
        import os, time
        for _ in range(1300):
            os.mkdir("d")
            os.chdir("d")
        time.sleep({supervisor.MEASURE_EVERY} + 0.2)  # until it is measured
        for _ in range(1300):
            os.chdir("..")
        open("result.json", "w").write('{RESULT}}}')
    """)
    ended = await run(engine, toolbox, dig)
    assert (ended.status, ended.error_summary) == (JobState.SUCCEEDED, None)
    nothing_is_left(bench, at)


# Where it goes


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A directory outside of /tmp that anybody may enter."""
    made = Path(tempfile.mkdtemp(prefix="kappa-test-", dir="/var/tmp"))
    made.chmod(0o777)
    yield made
    shutil.rmtree(made)


EXPLORE = """
    import json, os, pathlib, socket
    found = {}
    def attempt(name, what):
        try:
            found[name] = what() or "done"
        except OSError as error:
            found[name] = error.strerror
    asked = json.load(open("request.json"))["inputs"]
    for path in asked["write"]:
        attempt("write " + path, lambda: open(path, "w").close())
    for path in asked["read"]:
        attempt("read " + path, lambda: open(path).read())
    attempt("connect", lambda: socket.create_connection(("127.0.0.1", asked["port"]), 2).close())
    attempt("resolve", lambda: socket.create_connection(("192.0.2.1", 80), 1).close())
    found["environment"] = sorted(os.environ)
    found["who"] = [os.getuid() == 0, os.getgroups()]
    found["open"] = len(os.listdir("/proc/self/fd")) - 1
    found["capabilities"] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")]
    json.dump({"contract_version": 1, "status": "succeeded", "outputs": found}, open("result.json", "w"))
"""


@pytest.mark.parametrize("linked", [False, True], ids=["plain home", "linked home"])
async def test_a_tool_reaches_nothing_but_its_own_directory(
    engine: Engine, async_client: AsyncClient, elsewhere: Path, tmp_path: Path, at: Place,
    monkeypatch: pytest.MonkeyPatch, linked: bool,
) -> None:  # fmt: skip
    monkeypatch.setenv("KAPPA_DATABASE_URL", "postgresql://me:secret@here/")
    home = elsewhere / "home"
    home.mkdir()
    (home / "operator.token").write_text("sesame")
    (home / "operator.token").chmod(0o644)  # the home itself has to hide it
    if linked:
        (tmp_path / "link").symlink_to(home)
    here = Place(at.name, tmp_path / "link" if linked else home)
    home.chmod(0o755 if here.name == "sandbox" else 0o700)
    bench = tools.install(engine, here.home, here.runners())
    toolbox = Tools(async_client)
    outside = [str(elsewhere / "file"), "/etc/kappa-test", "/usr/kappa-test", str(home / "file")]
    shared = "/tmp/kappa-test-of-a-tool"
    secrets = [str(home / "operator.token"), str(home / "runs" / "kappa-1-1.private" / "spec.json"), "/etc/shadow"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        asked = {"write": [*outside, shared], "read": secrets, "port": server.getsockname()[1]}
        await toolbox.register("it", "1", argv=script(EXPLORE))
        await toolbox.run("it", inputs=asked)
        await drain(engine, FOLLOWER)
        ended = await toolbox.show(1)
        assert (ended.status, ended.error_summary) == (JobState.SUCCEEDED, None)
        found = ended.outputs
        for path in secrets:
            assert found[f"read {path}"] in ("No such file or directory", "Permission denied"), path
        assert "KAPPA_DATABASE_URL" not in found["environment"]
        assert set(found["environment"]) <= {
            "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "HOME", "TMPDIR", "KAPPA_DIR", "KAPPA_RUN", "PWD",
        }  # fmt: skip
        assert (found["open"], found["who"], found["capabilities"]) == (3, [False, []], ["0" * 16])
        if here.name == "sandbox":
            for path in outside:
                assert found[f"write {path}"] != "done", path
            assert not any(map(os.path.exists, [*outside, shared]))
            assert found["connect"] == "Connection refused"
            assert found["resolve"] == "Network is unreachable"
            with pytest.raises(BlockingIOError):
                server.accept()
    await asyncio.to_thread(Path(shared).unlink, missing_ok=True)
    nothing_is_left(bench, here)
    bench.close()


# Its supervisor, in races that nobody should win twice


@pytest.fixture
def supervised(tmp_path: Path) -> RunDirectory:
    """A directory in which a supervisor finds what to run."""
    run = RunDirectory(tmp_path, Identity(7, 1))
    for path in (run.private, run.path, run.output):
        path.mkdir(parents=True)
    facts = {
        "command": shell("echo x >>output/starts"), "directory": str(run.path), "environment": {}, "mark": "kappa-7-1",
        "limits": {"memory_mb": 512, "output_mb": 16}, "timeout": 30, "sandboxed": False, "uid": None, "gid": None,
        "nproc": 4096,
    }  # fmt: skip
    run.spec.write_text(json.dumps(facts))
    return run


def supervise(run: RunDirectory) -> None:
    subprocess.run([sys.executable, "-IS", supervisor.__file__, str(run.private)], check=True)


def supervisors(run: RunDirectory) -> list[int]:
    private = str(run.private).encode() + b"\0"
    return [pid for pid in shop.all_processes() if shop.read(pid, "cmdline").endswith(private) and shop.alive(pid)]


def has_open(pid: int, path: Path) -> bool:
    try:
        return any(os.path.realpath(entry) == str(path) for entry in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def test_who_looks_for_a_run_does_not_keep_its_supervisor_from_beginning(supervised: RunDirectory) -> None:
    with supervised.lock.open("a") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        supervise(supervised)
        eventually(lambda: any(has_open(pid, supervised.lock) for pid in supervisors(supervised)), what="a supervisor")
    eventually(supervised.read_exit, what="the end")
    assert (supervised.output / "starts").read_text() == "x\n"


def test_of_many_supervisors_of_a_run_one_runs_it(supervised: RunDirectory) -> None:
    for _ in range(4):
        supervise(supervised)
    eventually(supervised.read_exit, what="the end")
    gone(lambda: supervisors(supervised), "the others")
    assert (supervised.output / "starts").read_text() == "x\n"


def test_a_supervisor_that_comes_late_leaves_a_stopped_run_alone(supervised: RunDirectory) -> None:
    supervised.stop.touch()
    supervise(supervised)
    ended = eventually(supervised.read_exit, what="the end")
    assert ended.stopped
    assert not (supervised.output / "starts").exists()


def test_a_supervisor_whose_directory_was_made_anew_meanwhile_runs_nothing(supervised: RunDirectory) -> None:
    with supervised.lock.open("a") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        supervise(supervised)
        eventually(lambda: any(has_open(pid, supervised.lock) for pid in supervisors(supervised)), what="a supervisor")
        supervised.lock.unlink()
        supervised.lock.touch()
    gone(lambda: supervisors(supervised), "the supervisor")
    assert supervised.read_exit() is None
    assert not (supervised.output / "starts").exists()
