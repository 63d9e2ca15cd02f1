"""Containers: each limit really holds, and whatever becomes of the engine or its monitor, a run is told right."""

import gc
import json
import os
import signal
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kappa.engine import AsyncClient, Engine, tools
from kappa.engine.testing import drain
from kappa.engine.tools import (
    Exit,
    Found,
    Identity,
    Limits,
    RunnerUnavailable,
    Spec,
    ToolRunStatus,
    Tools,
    container_host,
)
from kappa.engine.tools.container_engine import ContainerEngine, Traits
from kappa.engine.tools.container_host import CONTROL_GROUPS, engine_url
from kappa.engine.tools.container_runner import ContainerRunner
from kappa.engine.tools.contract import LOG_LIMIT
from kappa.engine.tools.run import LOST, RunDirectory
from tests.engine.tools import containers
from tests.engine.tools.conftest import GOOD, script
from tests.engine.tools.containers import IMAGE, Podman
from tests.ground import PATIENCE, Script, eventually

FIRST = Identity(1, 1)
SMALL = Limits(cpus=0.5, memory_mb=64, pids=16, tmp_mb=4, output_mb=8)


class Yard:
    """A directory of runs, and its runner."""

    def __init__(self, root: Path, make: Callable[[Path], ContainerRunner]) -> None:
        self.root = root
        self.make = make
        self.runner = make(root)

    def directory(self, identity: Identity = FIRST) -> RunDirectory:
        return RunDirectory(self.root, identity)

    def prepare(self, identity: Identity = FIRST) -> RunDirectory:
        run = self.directory(identity)
        for path in (run.private, run.path, run.input, run.output):
            path.mkdir(parents=True, mode=0o700)
        run.request.write_text("{}")
        return run

    def spec(self, *argv: str, limits: Limits = SMALL, timeout: float = 60, identity: Identity = FIRST) -> Spec:
        return Spec(identity, argv, timeout, limits, IMAGE)

    def begin(self, source: str, **facts: object) -> RunDirectory:
        """A shell script as a run."""
        spec = replace(self.spec("sh", "-c", source), **facts)
        run = self.prepare(spec.identity)
        self.runner.start(spec)
        return run

    def ended(self, identity: Identity = FIRST) -> Exit:
        found = self.runner.wait(identity, PATIENCE)
        assert found.exit is not None, found
        return found.exit

    def tell(self, source: str, **facts: object) -> tuple[Exit, str]:
        """How a script ended, and what it said."""
        run = self.begin(source, **facts)
        ended = self.ended()
        return ended, run.stdout.read_text() if run.stdout.exists() else ""

    def processes(self, identity: Identity = FIRST) -> list[int]:
        return containers.processes(self.root, identity)

    def kill_monitor(self) -> None:
        monitor = containers.monitor(self.root, FIRST)
        assert monitor is not None
        os.kill(monitor, signal.SIGKILL)


@pytest.fixture
def yard(tmp_path: Path, container_runner_factory: Callable[[Path], ContainerRunner]) -> Iterator[Yard]:
    made = Yard(tmp_path / "runs", container_runner_factory)
    yield made
    for identity in made.runner.leftovers():
        made.runner.remove(identity)
    made.runner.close()


@pytest.fixture
def image_with(podman: Podman, tmp_path: Path) -> Callable[[str], str]:
    """Makes an image in which there is only a busybox, and for which something more is said."""

    def make(said: str) -> str:
        with tarfile.open(tmp_path / "image.tar", "w") as tar:
            containers.pack_busybox(tar)
        podman.do("import", "--change", said, str(tmp_path / "image.tar"), "kappa-own:1")
        return "kappa-own:1"

    return make


# What it is given, and what it leaves


def test_a_run_ends_with_its_code_and_what_it_said(yard: Yard) -> None:
    run = yard.begin("echo $KAPPA_DIR $PWD; echo no >&2; cat request.json; touch output/made; exit 3")
    assert yard.ended() == Exit(code=3)
    assert (run.stdout.read_text(), run.stderr.read_text()) == ("/kappa /kappa\n{}", "no\n")
    assert (run.output / "made").exists()
    assert yard.make(yard.root).find(FIRST) == Found(running=False, exit=Exit(code=3))


def test_without_a_command_the_image_says_what_is_run(yard: Yard, image_with: Callable[[str], str]) -> None:
    run = yard.prepare()
    yard.runner.start(replace(yard.spec(), image=image_with('ENTRYPOINT ["/bin/echo", "its own"]')))
    assert (yard.ended(), run.stdout.read_text()) == (Exit(code=0), "its own\n")


def test_a_tool_that_dies_of_a_signal_is_told(yard: Yard) -> None:
    ended, _ = yard.tell("sh -c 'kill -TERM $$'; exit $?")
    assert ended == Exit(signal=15)


@pytest.mark.parametrize(
    ("argv", "image", "why"),
    [
        (("true",), "kappa-nowhere:1", "the image 'kappa-nowhere:1' is not there"),
        (("nonesuch",), IMAGE, f"the command 'nonesuch' can't be run in the image '{IMAGE}'"),
        (("/kappa/request.json",), IMAGE, f"the command '/kappa/request.json' can't be run in the image '{IMAGE}'"),
        (("/kappa/no/such",), IMAGE, f"the command '/kappa/no/such' can't be run in the image '{IMAGE}'"),
    ],
)
def test_what_can_not_be_started_is_said(yard: Yard, argv: tuple[str, ...], image: str, why: str) -> None:
    yard.prepare()
    yard.runner.start(replace(yard.spec(*argv), image=image))
    assert yard.runner.find(FIRST) == Found(
        running=False, exit=Exit(not_started=f"the tool could not be started: {why}")
    )
    assert yard.runner.leftovers() == []


# The limits


def test_there_is_no_network(yard: Yard) -> None:
    ended, said = yard.tell("""ls /sys/class/net
        exec python3 -c 'import errno, socket; print(errno.errorcode[socket.socket().connect_ex(("1.1.1.1", 53))])'""")
    assert (ended, said.split()) == (Exit(code=0), ["lo", "ENETUNREACH"])


def test_nothing_but_its_directory_and_tmp_can_be_written(yard: Yard) -> None:
    places = "/ /bin /etc /kappa /run /tmp /usr /var /var/tmp /sys/fs/cgroup"
    _, said = yard.tell(f"for p in {places}; do touch $p/x && echo $p; done 2>/dev/null")
    assert said.split() == ["/kappa", "/tmp"]


@pytest.mark.parametrize(
    "image",
    [{"tmp": None}, {"tmp": 0o755}, {"tmp": 0o700}, {"tmp": 0o555}, {"tmp": 0}, {"tmp": "scratch", "scratch": 0o755}],
    ids=["absent", "0755", "0700", "0555", "0000", "a link"],
)
def test_tmp_is_writable_whatever_the_image_says(
    yard: Yard, podman: Podman, tmp_path: Path, image: dict[str, int | str | None]
) -> None:
    with tarfile.open(tmp_path / "image.tar", "w") as tar:
        containers.pack_busybox(tar, {"data": 0o755, **image})
    name = f"kappa-tmp:{tmp_path.name}"
    podman.do("import", "--change", "VOLUME /data", str(tmp_path / "image.tar"), name)
    _, said = yard.tell("""id -u
        for place in /tmp /data; do
            cd $place && echo there >x && cat x && rm x && stat -L -c %a $place && df -k $place | tail -n 1
            grep " $(pwd -P) " /proc/mounts
        done""", image=name, limits=replace(SMALL, tmp_mb=256))  # fmt: skip
    uid, *said_of = said.splitlines()
    assert (uid == "0", len(said_of)) == (False, 8), said
    for written, rights, size, mounted in (said_of[:4], said_of[4:]):
        assert (written, rights, size.split()[1]) == ("there", "1777", str(256 * 1024)), said
        assert {"noexec", "nosuid", "nodev", "rw"} <= set(mounted.split()[3].split(",")), said


def test_what_an_image_calls_its_volumes_is_as_small_as_tmp_and_not_on_the_disk(
    yard: Yard, podman: Podman, image_with: Callable[[str], str]
) -> None:
    image = image_with("VOLUME /data/ /tmp /kappa /run")
    _, said = yard.tell("for p in /data /tmp /kappa /run; do touch $p/x && echo $p; done 2>/dev/null;"
                        "head -c 9000000 /dev/zero >/data/y; stat -c %s /data/y; "
                        "cp /bin/busybox /data/ls; /data/ls || echo refused", image=image)  # fmt: skip
    assert said.split() == ["/data", "/tmp", "/kappa", str(4 * 1024 * 1024), "refused"]
    assert (yard.directory().path / "x").exists()
    assert podman.do("volume", "ls", "--quiet") == ""


def test_nothing_of_the_workers_own_settings_gets_in(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxies = {"default": {"httpProxy": "http://me:secret@proxy"}}
    (tmp_path / "config.json").write_text(json.dumps({"proxies": proxies}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    _, said = yard.tell("env")
    assert {line.partition("=")[0] for line in said.splitlines()} == {
        "HOME", "HOSTNAME", "KAPPA_DIR", "PATH", "PWD", "SHLVL", "TERM", "TMPDIR", "container",
    }  # fmt: skip


def test_it_is_nobody_and_can_do_nothing_special(yard: Yard) -> None:
    _, said = yard.tell("cat /proc/self/status; id -u")
    facts = dict(line.split(":\t", 1) for line in said.splitlines() if ":\t" in line)
    assert {facts[f"Cap{which}"] for which in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0000000000000000"}
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
    assert 200_000 <= int(said.split()[-1]) < 300_000


def test_tmp_has_its_size_and_executes_nothing(yard: Yard) -> None:
    _, said = yard.tell("head -c 9000000 /dev/zero >/tmp/x; ls -l /tmp/x; cp /bin/busybox /tmp/ls; rm /tmp/x;"
                        "cp /bin/busybox /tmp/ls; /tmp/ls || echo refused")  # fmt: skip
    assert str(4 * 1024 * 1024) in said
    assert said.endswith("refused\n")


def test_processes_are_counted(yard: Yard) -> None:
    ended, said = yard.tell("for i in 1 2 3 4 5 6 7 8 9 a b c d e f g h i j; do sleep 60 & echo; done")
    assert ended.code == 2, "the shell could not fork"
    assert 10 <= len(said) < 16


def test_memory_that_runs_out_is_told_from_a_kill(yard: Yard) -> None:
    ended, _ = yard.tell("a=x; while true; do a=$a$a; done")
    assert ended == Exit(signal=9, out_of_memory=True)


def test_memory_that_ran_out_while_nobody_waited_is_told(yard: Yard) -> None:
    yard.begin("a=x; while true; do a=$a$a; done")
    eventually(lambda: not yard.processes(), what="the end")
    assert yard.make(yard.root).wait(FIRST, PATIENCE).exit == Exit(signal=9, out_of_memory=True)


def test_a_kill_from_outside_is_not_taken_for_want_of_memory(yard: Yard) -> None:
    yard.begin("sleep 60")
    os.kill(eventually(yard.processes)[0], signal.SIGKILL)
    assert yard.ended() == Exit(signal=9)


def test_processors_are_limited(yard: Yard) -> None:
    _, said = yard.tell("cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu.max 2>/dev/null")
    assert said.split()[0] == "50000"


def test_what_it_leaves_is_limited(yard: Yard) -> None:
    run = yard.begin("i=0; while true; do i=$((i+1)); head -c 1000000 /dev/zero >output/$i; sleep 0.01; done")
    ended = yard.ended()
    assert (ended.over_limit, ended.signal) == ("it wrote more than 8 MB", 9)
    assert sum(path.stat().st_size for path in run.output.iterdir()) < 500_000_000


def test_one_file_is_limited_at_once(yard: Yard) -> None:
    run = yard.begin("head -c 100000000 /dev/zero >output/big")
    assert yard.ended().code != 0
    assert (run.output / "big").stat().st_size == 8 * 1024 * 1024


def test_its_time_is_limited(yard: Yard) -> None:
    yard.begin("trap '' TERM; sleep 600 & sleep 600", timeout=0.5)
    assert yard.ended() == Exit(signal=9, timed_out=True)
    assert yard.processes() == []


def test_its_time_counts_from_its_start_whoever_waits(yard: Yard) -> None:
    yard.begin("sleep 600", timeout=0.001)
    eventually(yard.processes)
    yard.make(yard.root).wait(FIRST, 0)  # one look, by somebody who did not start it
    eventually(lambda: not yard.processes())
    assert yard.ended() == Exit(signal=9, timed_out=True)


def test_a_run_that_ended_by_itself_has_not_timed_out(yard: Yard) -> None:
    yard.begin("true", timeout=0.001)
    eventually(lambda: not yard.processes())  # nobody looked in time
    assert yard.make(yard.root).wait(FIRST, PATIENCE).exit == Exit(code=0)


# What it says


def test_a_flood_of_output_is_cut_and_its_beginning_kept(yard: Yard) -> None:
    line = "0123456789" * 10
    run = yard.begin(f"echo first; yes {line} | head -c 20200000; echo last >&2", limits=replace(SMALL, cpus=1.0))
    assert yard.ended() == Exit(code=0)
    assert run.stdout.stat().st_size <= LOG_LIMIT
    assert run.stdout.read_bytes().startswith(f"first\n{line}\n{line}\n".encode())
    assert run.stderr.read_text() == "last\n"


def test_what_it_says_is_there_while_it_runs_and_goes_on_after_adoption(yard: Yard) -> None:
    run = yard.begin("echo one; echo uno >&2; while [ ! -e go ]; do sleep 0.02; done; echo two; echo due >&2")
    logs = (run.stdout, run.stderr)
    eventually(lambda: yard.runner.wait(FIRST, 0.1).running and all(log.exists() and log.read_text() for log in logs))
    assert (run.stdout.read_text(), run.stderr.read_text()) == ("one\n", "uno\n")
    (run.path / "go").touch()
    assert yard.make(yard.root).wait(FIRST, PATIENCE).exit == Exit(code=0)
    assert (run.stdout.read_text(), run.stderr.read_text()) == ("one\ntwo\n", "uno\ndue\n")


def test_two_who_wait_write_nothing_twice(yard: Yard) -> None:
    run = yard.begin("i=0; while [ $i -lt 200 ]; do i=$((i+1)); echo line $i; sleep 0.005; done")
    rivals = [threading.Thread(target=yard.make(yard.root).wait, args=(FIRST, PATIENCE)) for _ in range(3)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join()
    assert run.stdout.read_text().splitlines() == [f"line {i}" for i in range(1, 201)]


# Who it is


def test_to_start_again_does_nothing(yard: Yard) -> None:
    run = yard.begin("echo $$ >>output/starts; while [ ! -e go ]; do sleep 0.02; done")
    again = yard.spec("sh", "-c", "echo again >>output/starts")
    yard.make(yard.root).start(again)
    (run.path / "go").touch()
    assert yard.ended() == Exit(code=0)
    yard.make(yard.root).start(again)
    run.exit.unlink()  # as if nobody had written it down
    yard.make(yard.root).start(again)
    assert yard.ended() == Exit(code=0)
    assert (run.output / "starts").read_text() == "1\n"


def test_rivals_start_it_once(yard: Yard) -> None:
    run = yard.prepare()
    spec = yard.spec("sh", "-c", "echo x >>output/starts")
    rivals = [threading.Thread(target=yard.make(yard.root).start, args=(spec,)) for _ in range(4)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join()
    assert yard.ended() == Exit(code=0)
    assert (run.output / "starts").read_text() == "x\n"


def test_one_that_was_made_and_never_started_is_lost_and_can_be_begun(yard: Yard, podman: Podman) -> None:
    run = yard.prepare()
    label = "kappa.installation=" + yard.runner.name(FIRST).rsplit("-", 1)[1]
    podman.do("create", "--name", yard.runner.name(FIRST), "--label", label, "--label", "kappa.job=1", "--label",
              "kappa.attempt=1", IMAGE, "false")  # fmt: skip
    assert yard.runner.find(FIRST) == LOST
    assert yard.runner.leftovers() == [FIRST]
    yard.runner.start(yard.spec("sh", "-c", "touch output/began"))
    assert yard.ended() == Exit(code=0)
    assert (run.output / "began").exists()


def test_leftovers_are_those_of_this_installation(yard: Yard, tmp_path: Path) -> None:
    other = Yard(tmp_path / "other", yard.make)
    for each, identity in ((yard, FIRST), (yard, Identity(2, 3)), (other, FIRST)):
        each.begin("sleep 60", identity=identity)
    assert (yard.runner.leftovers(), other.runner.leftovers()) == ([FIRST, Identity(2, 3)], [FIRST])
    for identity in yard.runner.leftovers():
        yard.runner.remove(identity)
        yard.runner.remove(identity)
    assert (yard.runner.leftovers(), yard.processes()) == ([], [])
    assert other.runner.find(FIRST).running
    other.runner.remove(FIRST)
    assert [path for path in CONTROL_GROUPS.glob("*/kappa/*") if yard.runner.name(FIRST) in path.name] == []
    assert yard.runner.find(FIRST) == LOST


# How it is ended


def test_stopping_ends_everything_that_it_started(yard: Yard) -> None:
    run = yard.begin("trap '' TERM INT HUP; echo hi; (trap '' TERM; setsid sleep 9) & while true; do sleep 9; done")
    eventually(lambda: len(yard.processes()) >= 3)
    yard.runner.stop(FIRST)
    assert yard.processes() == []
    assert run.stdout.read_text() == "hi\n"
    assert yard.runner.find(FIRST).exit == Exit(signal=9, stopped=True)
    yard.runner.stop(FIRST)


def test_one_that_was_stopped_before_it_began_never_begins(yard: Yard) -> None:
    run = yard.prepare()
    yard.runner.stop(FIRST)
    yard.runner.start(yard.spec("sh", "-c", "touch output/began"))
    assert yard.ended() == Exit(stopped=True)
    assert not (run.output / "began").exists()
    assert yard.runner.leftovers() == []


# What is killed


@pytest.mark.parametrize("looked", [True, False])
def test_a_run_whose_monitor_was_killed_is_lost_and_its_remains_are_ended(yard: Yard, looked: bool) -> None:
    yard.begin("sleep 600")
    eventually(yard.processes)
    if looked:
        assert yard.runner.find(FIRST).running
    yard.kill_monitor()
    assert yard.runner.wait(FIRST, PATIENCE) == LOST
    yard.runner.stop(FIRST)
    assert yard.processes() == []
    assert yard.runner.find(FIRST) == LOST
    yard.runner.remove(FIRST)
    assert yard.runner.leftovers() == []


@pytest.mark.parametrize("looked", [True, False])
def test_a_run_that_ended_after_its_monitor_was_killed_is_lost(yard: Yard, looked: bool) -> None:
    run = yard.begin("while [ ! -e go ]; do sleep 0.02; done")
    eventually(yard.processes)
    if looked:
        assert yard.runner.find(FIRST).running
    yard.kill_monitor()
    (run.path / "go").touch()
    eventually(lambda: not yard.processes())
    assert yard.runner.wait(FIRST, PATIENCE) == LOST
    yard.runner.remove(FIRST)
    assert yard.runner.leftovers() == []


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # left by the library when it can't connect
def test_an_engine_that_is_down_is_unavailable_and_its_runs_go_on(yard: Yard, podman: Podman) -> None:
    run = yard.begin("while [ ! -e go ]; do sleep 0.02; done; echo went on")
    eventually(yard.processes)
    podman.down()
    try:
        fresh = yard.make(yard.root)
        for ask in (
            lambda: fresh.find(FIRST),
            lambda: fresh.wait(FIRST, 1),
            lambda: fresh.stop(Identity(9, 9)),
            lambda: fresh.remove(FIRST),
            lambda: fresh.start(yard.spec("true")),
            lambda: yard.runner.find(FIRST),
            fresh.leftovers,
        ):
            with pytest.raises(RunnerUnavailable, match="the container engine doesn't answer"):
                ask()
        (run.path / "go").touch()
        eventually(lambda: not yard.processes())
    finally:
        podman.serve()
    assert yard.ended() == Exit(code=0)
    assert run.stdout.read_text() == "went on\n"
    gc.collect()


# Which engine


def test_the_engine_that_the_environment_names_is_taken(podman: Podman) -> None:
    assert engine_url({"DOCKER_HOST": "unix:///nowhere"}) == "unix:///nowhere"
    assert ContainerEngine(podman.url).traits() == Traits(podman=True, rootless=False, plain_cgroups=True)


def test_an_engine_that_listens_is_found_and_one_that_does_not_is_not(
    podman: Podman, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_host, "SYSTEM_SOCKETS", (podman.place / "containers.conf", podman.place / "nowhere"))
    own = {"XDG_RUNTIME_DIR": str(podman.place)}
    assert engine_url(own) is None
    (podman.place / "docker.sock").symlink_to(podman.socket)
    assert engine_url(own) == f"unix://{podman.place}/docker.sock"


async def test_containers_are_offered_where_there_is_an_engine(
    engine: Engine, async_client: AsyncClient, home: Path, podman: Podman, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", podman.url)
    bench = tools.install(engine, home)
    toolbox = Tools(async_client)
    await toolbox.register("echo", "1", image=IMAGE, argv=script(GOOD))
    asked = await toolbox.run("echo", inputs={"a": 1})
    await drain(engine)
    done = await toolbox.show(asked.id)
    assert (done.status, done.outputs, done.exit_code) == (ToolRunStatus.SUCCEEDED, {"echo": {"a": 1}}, 0)
    (said,) = await toolbox.logs(asked.id)
    assert (said.stream, said.content) == ("stdout", b"thinking about {'a': 1}\n")
    assert [artifact.path for artifact in await toolbox.artifacts(asked.id)] == ["answer.txt"]
    assert len(bench.sweep()) == 1
    assert ContainerRunner(home / "runs", podman.url).leftovers() == []
    bench.close()


def test_who_has_no_engine_does_not_load_the_library() -> None:
    source = """
        import sys
        from pathlib import Path
        from kappa.engine.tools import container_host, runners_here
        container_host.SYSTEM_SOCKETS = ()
        print(sorted(runners_here(Path("/nowhere"))), "docker" in sys.modules)
    """
    with Script(source, env={"DOCKER_HOST": "", "XDG_RUNTIME_DIR": "/nowhere"}) as program:
        assert program.line() == "['process'] False"
        program.end()


def test_docker_is_told_whose_the_scratch_directories_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine at hand is Podman, which knows no such option: this looks only at what Docker would be sent."""
    sent: list[dict[str, Any]] = []
    docker = Traits(podman=False, rootless=False, plain_cgroups=False)
    monkeypatch.setattr(ContainerEngine, "traits", lambda _: docker)
    monkeypatch.setattr(ContainerEngine, "volumes", lambda *_: {"/data"})
    monkeypatch.setattr(ContainerEngine, "create", lambda *_, **options: sent.append(options))
    yard = Yard(tmp_path / "runs", lambda root: ContainerRunner(root, "unix:///nowhere"))
    yard.prepare()
    yard.runner._create(yard.spec("true"), yard.directory())
    uid, gid = sent[0]["user"].split(":")
    assert set(sent[0]["host"]["tmpfs"]) == {"/tmp", "/data"}
    for options in sent[0]["host"]["tmpfs"].values():
        assert {f"uid={uid}", f"gid={gid}", "mode=1777", "noexec"} <= set(options.split(","))
