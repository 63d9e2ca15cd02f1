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
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kappa.engine import AsyncClient, Engine, tools
from kappa.engine.testing import drain, working
from kappa.engine.tools import (
    ArtifactStore,
    Bench,
    ContractBroken,
    Identity,
    ToolRun,
    ToolRunStatus,
    Tools,
    contract,
    supervisor,
)
from kappa.engine.tools.run import RunDirectory, discard
from tests.engine.site import seen
from tests.engine.tools import shop
from tests.engine.tools.conftest import script
from tests.engine.tools.shop import FIRST, FOLLOWER, Place, gone, resident_kb, shell, try_again, worker
from tests.ground import eventually, lacking

RESULT = '{"contract_version": 1, "status": "succeeded"'


@pytest.fixture(params=shop.RUNNERS)
def at(request: pytest.FixtureRequest, home: Path) -> Iterator[Place]:
    yield from shop.place(request, home)


@pytest.fixture
def bench(engine: Engine, at: Place) -> Iterator[Bench]:
    made = tools.install(engine, at.home, at.runners())
    yield made
    made.close()


@pytest.fixture
def many_at_once(connection: psycopg.Connection[Any]) -> None:
    connection.execute("UPDATE kappa.lanes SET max_slots = 6 WHERE name = 'tools'")


async def run(
    engine: Engine, toolbox: Tools, at: Place, argv: list[str], timeout: float = 30, **limits: float
) -> ToolRun:
    await at.register(toolbox, argv, timeout=timeout, **limits)
    asked = await toolbox.run("it")
    await drain(engine, FOLLOWER)
    return await toolbox.show(asked.id)


def nothing_is_left(bench: Bench, at: Place) -> None:
    for path in [at.directory(FIRST).private, *(at.home / "runs").glob("*.private")]:
        _, job, attempt = path.name.removesuffix(".private").split("-")
        gone(lambda: at.is_anybody(Identity(int(job), int(attempt))), f"the processes of {path}")  # noqa: B023
    bench.sweep()
    assert list((at.home / "runs").iterdir()) == []
    assert not list((at.home / "artifacts" / "drafts").glob("*"))


# What stands in its result, whoever ran it


def as_it_stands(more: str) -> bytes:
    return f"{RESULT}, {more}}}".encode()


def not_under_output(path: str) -> tuple[bytes, str]:
    named = as_it_stands(f'"artifacts": {json.dumps([{"path": path}])}')
    return named, f"artifact path {path!r} is not a relative path under output/"


TEXTS: dict[str, tuple[bytes, str]] = {
    "half of it": (RESULT.encode(), "Invalid JSON: EOF while parsing an object at line 1 column 45"),
    "another version": (
        b'{"contract_version": 2, "status": "succeeded"}', "contract_version: Input should be 1",
    ),
    "more than was asked": (as_it_stands('"exit": 0'), "exit: Extra inputs are not permitted"),
    "depth": (
        as_it_stands(f'"outputs": {"[" * 100_000}'), "Invalid JSON: recursion limit exceeded at line 1 column 259",
    ),
    "no number": (as_it_stands('"outputs": [1, {"a": NaN}]'), "it has a number that is none, or infinite"),
    "a number beyond all": (as_it_stands('"outputs": -1e999'), "it has a number that is none, or infinite"),
    "a nul": (as_it_stands(r'"outputs": {"a\u0000": 1}'), "it has a NUL character"),
    "half a sign": (
        as_it_stands(r'"outputs": "\ud800"'), "Invalid JSON: unexpected end of hex escape at line 1 column 66",
    ),
    "no text": (
        as_it_stands('"outputs": "?"').replace(b"?", b"\xff"),
        "Invalid JSON: invalid unicode code point at line 1 column 60",
    ),
    "too many artifacts": (
        as_it_stands(f'"artifacts": {json.dumps([{"path": "a"}] * 1001)}'),
        "artifacts: List should have at most 1000 items after validation, not 1001",
    ),
    "up from inside": not_under_output("output/../../secret"),
    "up later": not_under_output("a/../../../secret"),
    "no name": not_under_output("output"),
    "another kind of path": not_under_output("a\\b"),
}  # fmt: skip


@pytest.mark.parametrize("idea", TEXTS)
def test_a_result_that_is_none_is_refused_in_words(idea: str) -> None:
    text, line = TEXTS[idea]
    with pytest.raises(ContractBroken) as refusal:
        contract.read_result(text)
    assert str(refusal.value).removeprefix("result.json is not valid: ") == line


# What it leaves: every one of these runs at the same time, each with its own bad idea

LEAVES: dict[str, tuple[str, str]] = {
    "nothing": ("", "the tool left no result.json"),
    "no json": ("echo hello >result.json", "result.json is not valid: Invalid JSON: expected value at line 1 column 1"),
    "a huge result": (
        f"""(echo '{RESULT}, "outputs": "'; head -c 2000000 /dev/zero | tr '\\0' x; echo '"}}') >result.json""",
        "result.json is larger than 1048576 bytes",
    ),
    "an endless result": ("ln -s /dev/zero result.json", "'result.json' is not a plain file in plain directories"),
    "a link": ("ln -s /etc/passwd result.json", "'result.json' is not a plain file in plain directories"),
    "a pipe": ("mkfifo result.json", "'result.json' is not a plain file"),
    "a directory": ("mkdir result.json", "'result.json' is not a plain file"),
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


IN_A_CONTAINER = {"suicide": "the tool left no result.json"}
"""There it is the first process of its world, which nobody in it can kill."""


def naming(*paths: str) -> str:
    named = json.dumps([{"path": path} for path in paths])
    return f"""printf '%s' '{RESULT}, "artifacts": {named}}}' >result.json"""


def refused(path: str) -> tuple[str, str]:
    return naming(path), f"artifact path {path!r} is not a relative path under output/"


ARTIFACTS: dict[str, tuple[str, str]] = {
    "up": refused("../request.json"),
    "from the root": refused("/etc/passwd"),
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
}  # fmt: skip


@pytest.mark.usefixtures("many_at_once")
@pytest.mark.parametrize("ideas", [LEAVES, ARTIFACTS], ids=["results", "artifacts"])
async def test_whatever_a_tool_leaves_behind_a_line_says_what_is_wrong_with_it(
    engine: Engine, toolbox: Tools, bench: Bench, at: Place, ideas: dict[str, tuple[str, str]]
) -> None:
    runs: dict[str, int] = {}
    for number, (name, (source, _)) in enumerate(ideas.items()):
        await at.register(toolbox, shell(source), f"t{number}", output_mb=2 if ideas is LEAVES else 1)
        runs[name] = (await toolbox.run(f"t{number}")).id
    found: dict[str, ToolRun] = {}
    while any(not run.status.terminal for run in found.values()) or not found:
        # An engine of containers under such a load may refuse one for now: then its run backs off.
        await try_again(engine)
        found = {name: await toolbox.show(run_id) for name, run_id in runs.items()}
    lines = {name: line for name, (_, line) in ideas.items()}
    if at.name == "container":
        lines |= {name: line for name, line in IN_A_CONTAINER.items() if name in ideas}
    assert {name: run.error_summary for name, run in found.items()} == lines
    for run in found.values():
        assert (run.status, run.outputs) == (ToolRunStatus.FAILED, None)
        assert await toolbox.artifacts(run.id) == []
        assert run.error_summary
        assert run.error_summary.isprintable()
    nothing_is_left(bench, at)


@pytest.mark.parametrize("where", ["output/a", "result.json"])
async def test_a_device_is_not_read(engine: Engine, toolbox: Tools, bench: Bench, at: Place, where: str) -> None:
    source = "while [ ! -e go ]; do sleep 0.02; done;"
    await at.register(toolbox, shell(source + (naming("a") if where != "result.json" else "")))
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
    assert (run.status, run.error_summary) == (ToolRunStatus.FAILED, f"{name!r} is not a plain file")
    nothing_is_left(bench, at)


async def test_a_directory_closed_to_everybody_keeps_nobody_out(
    engine: Engine, toolbox: Tools, bench: Bench, at: Place
) -> None:
    source = f"echo kept >output/a; {naming('a')}; mkdir -p output/b/c; chmod 0 output/b output/a output result.json ."
    ended = await run(engine, toolbox, at, shell(source))
    assert ended.status in (ToolRunStatus.SUCCEEDED, ToolRunStatus.FAILED)
    if os.geteuid() == 0:
        assert ended.status is ToolRunStatus.SUCCEEDED
        assert [artifact.size for artifact in await toolbox.artifacts(1)] == [5]
    nothing_is_left(bench, at)


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
    await at.register(toolbox, bomb, pids=24)
    await toolbox.run("it")
    async with working(engine, FOLLOWER):
        most = await seen(lambda: (count := len(at.processes())) >= 20 and count, "the bomb")
        assert most <= 24 + 3  # and those that make the sandbox, which are root's
        await toolbox.cancel(1, "enough of them")
        await drain(engine, FOLLOWER)
    ended = await toolbox.show(1)
    assert (ended.status, ended.reason) == (ToolRunStatus.CANCELLED, "enough of them")
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
            time.sleep(0.001)
    """)
    starts = script("""
        import os, subprocess, sys, time
        for _ in range(3):
            subprocess.Popen([sys.executable, "-c", sys.argv[1]])
        print("begun", flush=True)
        time.sleep(60)
    """)
    await at.register(toolbox, [*starts, bomb[2]], pids=100)
    await toolbox.run("it")
    async with working(engine, FOLLOWER):
        await seen(lambda: at.directory().stdout.exists() and at.directory().stdout.stat().st_size > 0, "it runs")
        pid = at.supervisor()
        assert pid
        os.kill(pid, 9)
        await drain(engine, FOLLOWER)
    ended = await toolbox.show(1)
    assert (ended.status, ended.error_summary) == (ToolRunStatus.FAILED, "the supervisor of the run was lost")
    nothing_is_left(bench, at)


async def test_a_memory_hog_gets_no_more_than_its_limit(
    engine: Engine, toolbox: Tools, bench: Bench, at: Place
) -> None:
    hog = script("""
        taken = []
        while True:
            taken.append(b"x" * (8 << 20))
            print(len(taken) * 8, flush=True)
    """)
    ended = await run(engine, toolbox, at, hog, memory_mb=128)
    refused = "the tool exited with code 1, and the tool left no result.json"
    killed = "the tool ran out of memory"
    summary = killed if at.name == "container" else refused
    assert (ended.status, ended.error_summary) == (ToolRunStatus.FAILED, summary)
    said = {
        stream: b"".join(p.content for p in await toolbox.logs(1, stream=stream)) for stream in ("stdout", "stderr")
    }
    assert 0 < int(said["stdout"].split()[-1]) < 128
    assert (b"MemoryError" in said["stderr"]) == (summary == refused)
    nothing_is_left(bench, at)


async def test_a_flood_of_output_leaves_the_worker_as_small_as_it_was(
    engine: Engine, toolbox: Tools, bench: Bench, at: Place, url: str, async_client: AsyncClient,
) -> None:  # fmt: skip
    """A gigabyte; where an engine has to pass it on, at fifty megabytes a second, a tenth of it shows as much."""
    small = f"echo '{RESULT}}}' >result.json"
    half = 50_000_000 if at.name == "container" else 500_000_000
    flood = f"head -c {half} /dev/zero & head -c {half} /dev/zero >&2; wait;" + small
    await at.register(toolbox, shell(small), "small")
    await at.register(toolbox, shell(flood), "flood")

    async def sizes(name: str) -> list[int]:
        asked, found = await toolbox.run(name), [resident_kb(running.pid)]
        async with asyncio.timeout(60):
            while (await toolbox.show(asked.id)).finished_at is None:
                found.append(resident_kb(running.pid))
                await asyncio.sleep(0.01)
        ended = await toolbox.show(asked.id)
        assert (ended.status, ended.error_summary) == (ToolRunStatus.SUCCEEDED, None)
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
    ended = await run(engine, toolbox, at, shell(source), timeout=20)
    assert (ended.status, ended.error_summary) == (ToolRunStatus.SUCCEEDED, None)
    nothing_is_left(bench, at)


async def test_a_tool_that_closes_its_outputs_is_followed_to_its_end(
    engine: Engine, toolbox: Tools, bench: Bench, at: Place
) -> None:
    source = f"echo last; exec >&- 2>&-; sleep 0.3; echo '{RESULT}}}' >result.json"
    assert (await run(engine, toolbox, at, shell(source))).status is ToolRunStatus.SUCCEEDED
    assert [piece.content for piece in await toolbox.logs(1)] == [b"last\n"]
    nothing_is_left(bench, at)


async def test_a_tool_that_sleeps_for_ever_ends_when_its_time_is_up(
    engine: Engine, toolbox: Tools, bench: Bench, at: Place
) -> None:
    ended = await run(engine, toolbox, at, shell("trap '' TERM; while :; do sleep 1000; done"), timeout=0.5)
    assert (ended.status, ended.error_summary) == (ToolRunStatus.TIMED_OUT, "the time-out was reached")
    nothing_is_left(bench, at)


async def test_a_tool_that_fills_the_disk_is_ended(engine: Engine, toolbox: Tools, bench: Bench, at: Place) -> None:
    fill = script("""
        import itertools, time
        for n in itertools.count():
            with open(f"output/{n}", "wb") as file:
                file.write(bytes(1 << 20))
            time.sleep(0.01)
    """)
    ended = await run(engine, toolbox, at, fill, output_mb=8)
    assert (ended.status, ended.error_summary) == (ToolRunStatus.FAILED, "the tool was ended: it wrote more than 8 MB")
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
    ended = await run(engine, toolbox, at, grow, output_mb=4)
    assert (ended.status, ended.outputs) == (ToolRunStatus.SUCCEEDED, [27] * 4)
    nothing_is_left(bench, at)


async def test_an_artifact_of_five_gigabytes_is_refused_before_it_is_read(
    engine: Engine, toolbox: Tools, bench: Bench, at: Place
) -> None:
    await at.register(toolbox, shell("while [ ! -e go ]; do sleep 0.02; done;" + naming("a")))
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


async def test_directories_as_deep_as_they_go_are_removed(
    engine: Engine, toolbox: Tools, bench: Bench, at: Place
) -> None:
    dig = script(f"""
        import os
        for _ in range(1300):
            os.mkdir("d")
            os.chdir("d")
        for _ in range(1300):
            os.chdir("..")
        open("result.json", "w").write('{RESULT}}}')
    """)
    ended = await run(engine, toolbox, at, dig)
    assert (ended.status, ended.error_summary) == (ToolRunStatus.SUCCEEDED, None)
    nothing_is_left(bench, at)


@pytest.fixture
def pit(tmp_path: Path) -> Iterator[Path]:
    """A directory that is gone at the end, however deep it is: nobody else could remove it."""
    made = tmp_path / "pit"
    made.mkdir()
    yield made
    discard(made)
    assert not made.exists()


@pytest.mark.parametrize(
    ("name", "depth"), [("d", 2100), ("d" * 255, 20), ("\N{SNOWMAN}" * 85, 20)], ids=["steps", "names", "signs"]
)
def test_what_lies_deeper_than_paths_can_say_is_measured(pit: Path, name: str, depth: int) -> None:
    number = os.open(pit, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=number)
        below = os.open(name, os.O_RDONLY, dir_fd=number)
        os.close(number)
        number = below
    directories = depth * supervisor.BLOCK
    assert not supervisor.takes_more(pit, directories)
    file = os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=number)
    os.posix_fallocate(file, 0, 1 << 20)
    os.close(file)
    os.close(number)
    assert supervisor.takes_more(pit, directories + (1 << 20) - 1)
    assert not supervisor.takes_more(pit, directories + (1 << 20))


def test_nothing_is_so_empty_that_it_takes_no_place(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"file {number}").touch()
        (tmp_path / f"link {number}").symlink_to("/nowhere")
        (tmp_path / f"directory {number}").mkdir()
    assert supervisor.takes_more(tmp_path, 300 * supervisor.BLOCK - 1)
    assert not supervisor.takes_more(tmp_path, 300 * supervisor.BLOCK)


@pytest.mark.parametrize("what", ["nothing", "moved away", "removed", "all removed"])
def test_directories_that_go_while_they_are_measured_lead_nowhere_else(tmp_path: Path, what: str) -> None:
    top = tmp_path / "top"
    for path in ("a/b/c", "a/d", "e"):
        (top / path).mkdir(parents=True)
    descent = supervisor.Descent(top)
    seen: list[tuple[int, int]] = []

    def go_on(*below: str) -> None:
        descent.go_on(list(below))
        if descent.here is not None:
            found = os.fstat(descent.here)
            seen.append((found.st_dev, found.st_ino))

    places = {path: ((top / path).stat().st_dev, (top / path).stat().st_ino) for path in ("a", "a/b", "a/d", "e")}
    go_on("e", "a")
    go_on("d", "b")
    if what == "moved away":
        (top / "a" / "b").rename(tmp_path / "b")
    elif what == "removed":
        discard(top / "a")
    elif what == "all removed":
        discard(top)
    while descent.here is not None:
        go_on()
    visited = {"removed": ["a", "a/b", "e"], "all removed": ["a", "a/b"]}.get(what, ["a", "a/b", "a/d", "e"])
    assert seen == [places[path] for path in visited]


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
    attempt("device", lambda: os.mknod("zero", 0o020666, os.makedev(1, 5)))
    found["environment"] = sorted(os.environ)
    found["who"] = [os.getuid() == 0, sorted(set(os.getgroups()) - {os.getgid()})]
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
        await here.register(toolbox, script(EXPLORE))
        await toolbox.run("it", inputs=asked)
        await drain(engine, FOLLOWER)
        ended = await toolbox.show(1)
        assert (ended.status, ended.error_summary) == (ToolRunStatus.SUCCEEDED, None)
        found = ended.outputs
        for path in secrets:
            assert found[f"read {path}"] in ("No such file or directory", "Permission denied"), path
        assert "KAPPA_DATABASE_URL" not in found["environment"]
        engines_own = {"HOSTNAME", "TERM", "container"} if here.name == "container" else set[str]()
        assert set(found["environment"]) <= engines_own | {
            "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "HOME", "TMPDIR", "KAPPA_DIR", "KAPPA_RUN", "PWD",
        }  # fmt: skip
        assert (found["open"], found["who"], found["capabilities"]) == (3, [False, []], ["0" * 16])
        assert found["device"] == "Operation not permitted"
        if here.name != "process":
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
        "limits": {"memory_mb": 512, "output_mb": 16, "pids": 64}, "timeout": 30, "sandboxed": False,
        "uid": None, "gid": None, "nproc": 4096,
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
