"""A short run with faults; and the same ground with one safeguard taken away, which the checker must notice."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kappa.engine import Client
from kappa.engine.store import jobs
from tests.chaos import artifacts, history, sabotage
from tests.chaos.checker import UNSEEN, Violation, check
from tests.chaos.cluster import Cluster, WorkerProcess
from tests.chaos.faults import WEIGHTS
from tests.chaos.handlers import ALONE, BLOCKER, QUICK, Plan, hold_gate, open_gate
from tests.chaos.history import Connection
from tests.chaos.proxy import Trap, beginning
from tests.chaos.record import Entry, Fate
from tests.chaos.run import drain, run
from tests.chaos.worker import FOLLOW, LANES, MARK_AFTER, NO_TERM, RENEW_ON_LOOP, SLOT_IN_TRANSACTION
from tests.ground import PATIENCE, Script, eventually, lacking, require_program

SEED = 4711
MINUTES = 0.75
GATE = 10
BATCH = 12
MOUNTS = Path("/proc/mounts")
MOUNT_AND_WAIT = """
    import sys
    from pathlib import Path
    from tests.chaos.artifacts import Disk
    disk = Disk(Path(sys.argv[1]))
    disk.mount()
    print(disk.refused or "mounted", flush=True)
    sys.stdin.readline()
    disk.unmount()
"""
FIRST, SECOND = GATE + 1, GATE + 2


@pytest.mark.timeout(400)
def test_a_minute_of_faults() -> None:
    require_program("pgbouncer")
    # A client that was only just started may be told to end before it can: `make chaos` has this sort as well.
    report = run(SEED, minutes=MINUTES, sorts=WEIGHTS.keys() - {"freeze client"})
    assert not report.violations, "\n".join(map(str, [f"seed {SEED}", *report.violations, report]))
    assert report.jobs
    assert report.faults
    assert report.batches.claimed


class Scene:
    """A cluster and a client with one hand on everything."""

    def __init__(self, cluster: Cluster, connection: Connection, gates: Connection, client: Client) -> None:
        self.cluster = cluster
        self.connection = connection
        self.gates = gates
        self.lease = cluster.lease
        self._client = client
        self._ledger: list[Entry] = []

    def enqueue(self, kind: str, plan: Plan, delay: timedelta | None = None) -> int:
        made = self._client.enqueue(kind, plan, delay=delay)
        self._ledger.append(Entry(plan.key, Fate.ACKNOWLEDGED, made.id))
        return made.id

    def enqueue_many(self, plans: list[Plan]) -> None:
        self._client.enqueue_many(QUICK, plans)
        self._ledger += [Entry(plan.key, Fate.ACKNOWLEDGED) for plan in plans]

    def sleeper_with_a_batch(self) -> WorkerProcess:
        """A worker that was stopped while a batch of jobs was behind the gate. The first claim fills the lane."""
        self.connection.execute("UPDATE kappa.lanes SET max_slots = %s WHERE name = %s", [BATCH, QUICK])
        hold_gate(self.gates, FIRST)
        sleeper = self.cluster.start_worker("worker1", **{FOLLOW: "1", MARK_AFTER: "60"})
        # It renews its leases when it begins to listen, and then not for a while: that would write them down.
        self.until("pg_stat_activity WHERE query LIKE 'LISTEN%%' AND state = 'idle' AND %s", True)
        quick = [Plan(key=f"quick{number}") for number in range(BATCH)]
        self.enqueue_many(quick + [Plan(key=f"gated{number}", gate=GATE) for number in range(BATCH)])
        holds = ("kappa.batch_leases WHERE cardinality(ids) = %s", BATCH)
        self.until(*holds)
        sleeper.signal(signal.SIGSTOP)
        self.until(*holds)
        return sleeper

    def until(self, condition: str, *args: object, what: str = "") -> None:
        statement = f"SELECT EXISTS (SELECT FROM {condition})".encode()
        eventually(lambda: self.connection.execute(statement, args).fetchone() == (True,), what=what or condition)

    def until_or_never(self, condition: str, *args: object, comes: bool, leases: float = 3) -> None:
        """Until it comes; or, where it must not come, for long enough to see that it doesn't."""
        if comes:
            self.until(condition, *args)
            return
        with suppress(AssertionError):
            statement = f"SELECT EXISTS (SELECT FROM {condition})".encode()
            look = self.connection.execute
            eventually(lambda: look(statement, args).fetchone() == (True,), within=leases * self.lease)

    def until_working(self, name: str) -> None:
        worker = self.cluster.workers[name]
        eventually(lambda: "working" in worker.output.read_text(), what=f"{name} works")

    def switch(self, lane: str, *, enabled: bool) -> None:
        self.connection.execute("UPDATE kappa.lanes SET enabled = %s WHERE name = %s", [enabled, lane])
        self.connection.execute("SELECT pg_notify('kappa_lane', ''), pg_notify('kappa_wake', '*')")

    def until_begun(self, job: int, attempt: int) -> None:
        """It runs, behind its gate, and its start is counted, which is written a moment after the handler began."""
        self.until("chaos_effects WHERE job = %s AND attempt = %s", job, attempt)
        self.until("kappa.jobs WHERE id = %s AND attempt = %s AND attempt_started_at IS NOT NULL", job, attempt)

    def judge(self) -> list[Violation]:
        """Let everything end, and hear what the checker says."""
        took = drain(self.cluster)
        self._client.close()  # its connections are not the workers'
        self.cluster.shut_down()
        record = history.read(self.connection, self.cluster.disk)
        record.ledger, record.time_to_drain = self._ledger, took
        self.cluster.tell(record)
        return check(record)


@pytest.fixture
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    how: dict[str, Any] = getattr(request, "param", {})
    with Cluster(**how) as cluster, cluster.connect() as connection, cluster.connect() as gates:
        client = cluster.client().open()
        yield Scene(cluster, connection, gates, client)
        client.close()


@pytest.fixture(params=[None, "sabotaged"])
def sabotaged(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def broken(violations: list[Violation]) -> set[str]:
    return {violation.rule for violation in violations}


def take_away(scene: Scene, safeguard: Callable[[Connection], None], sabotaged: bool) -> None:
    if sabotaged:
        safeguard(scene.connection)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("scene", [{"lease": 5.0}], indirect=True)
def test_without_fencing_a_worker_that_slept_writes_to_its_successors_job(scene: Scene, sabotaged: bool) -> None:
    take_away(scene, sabotage.without_fencing, sabotaged)
    hold_gate(scene.gates, FIRST)
    hold_gate(scene.gates, SECOND)
    job = scene.enqueue("thread_again", Plan(key="j", effects="outside", gate=GATE))
    sleeper = scene.cluster.start_worker("worker1", **{FOLLOW: "1"})
    scene.until_begun(job, 1)
    sleeper.signal(signal.SIGSTOP)
    scene.cluster.start_worker("worker2")
    scene.until_begun(job, 2)
    open_gate(scene.gates, FIRST)
    sleeper.signal(signal.SIGCONT)
    if sabotaged:
        scene.until("kappa.finished_jobs WHERE id = %s", job)
    else:
        eventually(lambda: "the lease is lost" in sleeper.output.read_text(), what="the sleeper is told")
    open_gate(scene.gates, SECOND)
    assert broken(scene.judge()) == ({"fencing"} if sabotaged else set())


@pytest.mark.timeout(200)
@pytest.mark.parametrize("scene", [{"lease": 20.0}], indirect=True)
def test_a_claim_that_does_not_look_at_batches_takes_jobs_that_run(scene: Scene, sabotaged: bool) -> None:
    take_away(scene, sabotage.claim_what_batches_hold, sabotaged)
    sleeper = scene.sleeper_with_a_batch()
    scene.connection.execute("UPDATE kappa.lanes SET max_slots = %s WHERE name = %s", [3 * BATCH, QUICK])
    free = scene.enqueue(QUICK, Plan(key="free"))
    scene.cluster.start_worker("worker2")
    scene.until("kappa.finished_jobs WHERE id = %s", free)
    open_gate(scene.gates, FIRST)
    sleeper.signal(signal.SIGCONT)
    assert broken(scene.judge()) == ({"leases", "fencing"} if sabotaged else set())


@pytest.mark.timeout(200)
@pytest.mark.parametrize("scene", [{"lease": 12.0}], indirect=True)
def test_a_settlement_that_does_not_ask_the_batch_ends_what_is_queued_again(scene: Scene, sabotaged: bool) -> None:
    take_away(scene, sabotage.settle_what_left_its_batch, sabotaged)
    sleeper = scene.sleeper_with_a_batch()
    scene.connection.execute("UPDATE kappa.lanes SET enabled = false WHERE name = %s", [QUICK])
    scene.cluster.start_worker("worker2")
    # Reaped, adopted and put back; the lane is off, so nobody claims them again.
    scene.until("kappa.jobs WHERE state = 'queued' AND claims = 2 HAVING count(*) = %s", BATCH)
    open_gate(scene.gates, FIRST)
    sleeper.signal(signal.SIGCONT)
    if sabotaged:
        scene.until("kappa.finished_jobs HAVING count(*) = %s", 2 * BATCH)
    else:
        eventually(lambda: "the lease is lost" in sleeper.output.read_text(), what="the sleeper is told")
    scene.connection.execute("UPDATE kappa.lanes SET enabled = true WHERE name = %s", [QUICK])
    scene.connection.execute("SELECT pg_notify('kappa_lane', ''), pg_notify('kappa_wake', '*')")
    assert broken(scene.judge()) == ({"fencing"} if sabotaged else set())


@pytest.mark.timeout(200)
def test_without_the_order_of_adoption_queued_jobs_pass_an_orphan(scene: Scene, sabotaged: bool) -> None:
    take_away(scene, sabotage.adopt_last, sabotaged)
    hold_gate(scene.gates, FIRST)
    job = scene.enqueue("thread_again", Plan(key="j", effects="outside", gate=GATE))
    victim = scene.cluster.start_worker("worker1", **{FOLLOW: "1"})
    scene.until_begun(job, 1)
    scene.until("kappa.jobs WHERE id = %s AND attempt = 1", job)
    scene.connection.execute("UPDATE kappa.lanes SET enabled = false WHERE name = 'threads'")
    for number in range(5):
        scene.enqueue("thread_again", Plan(key=f"q{number}"))
    victim.signal(signal.SIGKILL)
    scene.cluster.retire(victim)
    scene.cluster.start_worker("worker2")
    orphaned = (
        "chaos_history WHERE job = %s AND op = 'UPDATE' AND new ->> 'state' = 'running' AND new -> 'token' = 'null'"
    )
    scene.until(orphaned, job)
    # The orphan has one of the two slots, so the others are claimed one after the other.
    scene.connection.execute("UPDATE kappa.lanes SET enabled = true, max_slots = 2 WHERE name = 'threads'")
    scene.connection.execute("SELECT pg_notify('kappa_lane', ''), pg_notify('kappa_wake', 'threads')")
    open_gate(scene.gates, FIRST)
    assert broken(scene.judge()) == ({"adoption"} if sabotaged else set())


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("scene", "rules"),
    [({"env": {NO_TERM: "1"}}, {"leader"}), ({}, set[str]())],
    indirect=["scene"],
    ids=["sabotaged", "None"],
)
def test_without_a_term_every_worker_leads(scene: Scene, rules: set[str]) -> None:
    scene.cluster.start_worker("worker1")
    scene.cluster.start_worker("worker2")
    scene.cluster.wait_ready()
    leaders = "SELECT count(DISTINCT writer) FROM chaos_history WHERE app = 'kappa leader'"
    number = 0
    while scene.connection.execute(leaders).fetchone() != (1 + len(rules),):
        # Both are there, so sooner or later each is the first to see one of these; its term lets only one act.
        number += 1
        scene.enqueue("loop_again", Plan(key=f"j{number}"), delay=timedelta(milliseconds=20))
        scene.until("kappa.finished_jobs HAVING count(*) >= %s", number)
    assert broken(scene.judge()) == rules


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("scene", "rules"),
    [({"env": {artifacts.CARELESS: "1"}}, {"artifacts"}), ({}, set[str]())],
    indirect=["scene"],
    ids=["sabotaged", "None"],
)
def test_with_a_full_disk_an_artifact_is_late_and_never_half(scene: Scene, rules: set[str]) -> None:
    disk = scene.cluster.disk
    if disk.refused is not None:
        lacking(f"the right to mount a tmpfs ({disk.refused})")
    disk.fill(pages=1)
    job = scene.enqueue(artifacts.KIND, Plan(key="j"))
    scene.cluster.start_worker("worker1")
    if rules:
        scene.until("kappa.finished_jobs WHERE id = %s", job)
    else:
        scene.until("kappa.jobs WHERE id = %s AND state = 'scheduled' AND error_detail LIKE '%%No space left%%'", job)
        assert artifacts.read(disk.artifacts) == []
    disk.free()
    assert broken(scene.judge()) == rules
    assert scene.connection.execute("SELECT state::text FROM kappa.finished_jobs").fetchone() == ("succeeded",)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("scene", "statement", "rules"),
    [
        ({"env": {SLOT_IN_TRANSACTION: "1"}}, b"SELECT pg_advisory_xact_lock(", {"starvation"}),
        ({}, beginning(jobs.REACQUIRE_SLOT), set[str]()),
    ],
    indirect=["scene"],
    ids=["sabotaged", "None"],
)
def test_a_worker_that_freezes_while_it_takes_its_slot_again_does_not_stop_its_lane(
    scene: Scene, statement: bytes, rules: set[str]
) -> None:
    hold_gate(scene.gates, FIRST)
    parent = scene.enqueue("loop_parent", Plan(key="j", children=1, child_gate=GATE))
    frozen = scene.cluster.start_worker("worker1", **{FOLLOW: "1"})
    scene.until("kappa.jobs WHERE id = %s AND waiting", parent)
    scene.cluster.start_worker("worker2")
    scene.until_working("worker2")
    trap = Trap(statement, frozen.freeze)
    scene.cluster.proxy.set_trap("worker1", trap)
    open_gate(scene.gates, FIRST)
    assert trap.sprung.wait(PATIENCE)
    other = scene.enqueue("loop_again", Plan(key="other"))
    scene.until_or_never("kappa.finished_jobs WHERE id = %s", other, comes=not rules)
    frozen.signal(signal.SIGKILL)
    scene.cluster.retire(frozen)
    assert broken(scene.judge()) == rules


@pytest.mark.timeout(200)
def test_a_row_that_a_client_has_locked_does_not_cost_other_leases(scene: Scene, sabotaged: bool) -> None:
    take_away(scene, sabotage.renew_waits_for_rows, sabotaged)
    hold_gate(scene.gates, FIRST)
    locked, other = (scene.enqueue("thread_again", Plan(key=key, effects="outside", gate=GATE)) for key in ("a", "b"))
    scene.cluster.start_worker("worker1", **{FOLLOW: "1"})
    scene.until_begun(locked, 1)
    scene.until_begun(other, 1)
    scene.cluster.start_worker("worker2")
    scene.until_working("worker2")
    with scene.cluster.row_locked(locked):
        scene.until_or_never("chaos_effects WHERE job = %s AND attempt = 2", other, comes=sabotaged)
    open_gate(scene.gates, FIRST)
    assert broken(scene.judge()) == ({"duplicate runs"} if sabotaged else set())


@pytest.mark.timeout(200)
def test_a_start_whose_reply_is_lost_is_a_start(scene: Scene, sabotaged: bool) -> None:
    take_away(scene, sabotage.start_only_once, sabotaged)
    trap = Trap(beginning(jobs.MARK_STARTED))
    scene.cluster.proxy.set_trap("worker1", trap)
    scene.enqueue("loop_once", Plan(key="j"))
    scene.cluster.start_worker("worker1")
    assert trap.sprung.wait(PATIENCE)
    assert broken(scene.judge()) == ({"never started"} if sabotaged else set())


@pytest.mark.timeout(200)
def test_a_lane_that_is_switched_off_while_a_job_holds_it_stays_off(scene: Scene, sabotaged: bool) -> None:
    take_away(scene, sabotage.enable_after_hold, sabotaged)
    hold_gate(scene.gates, FIRST)
    holder = scene.enqueue(ALONE, Plan(key="holder", gate=GATE))
    scene.cluster.start_worker("worker1")
    scene.until("kappa.lanes WHERE name = 'threads' AND held_by IS NOT NULL")
    scene.switch("threads", enabled=False)
    other = scene.enqueue("thread_again", Plan(key="other"))
    # The rule gives a claim so long to have overlooked a switch.
    seen_by_all = time.monotonic() + 2 * UNSEEN.total_seconds()
    eventually(lambda: time.monotonic() > seen_by_all)
    open_gate(scene.gates, FIRST)
    scene.until("kappa.finished_jobs WHERE id = %s", holder)
    scene.until_or_never("kappa.finished_jobs WHERE id = %s", other, comes=sabotaged, leases=1)
    scene.switch("threads", enabled=True)
    assert broken(scene.judge()) == ({"closed lanes"} if sabotaged else set())


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("scene", "rules"),
    [({"env": {RENEW_ON_LOOP: "1"}}, {"duplicate runs"}), ({}, set[str]())],
    indirect=["scene"],
    ids=["sabotaged", "None"],
)
def test_a_handler_that_blocks_its_loop_does_not_cost_other_leases(scene: Scene, rules: set[str]) -> None:
    hold_gate(scene.gates, FIRST)
    other = scene.enqueue("thread_again", Plan(key="other", effects="outside", gate=GATE))
    scene.cluster.start_worker("worker1", **{FOLLOW: "1"})
    scene.until_begun(other, 1)
    scene.cluster.start_worker("worker2", **{LANES: "threads"})
    scene.until_working("worker2")
    eventually(lambda: scene.cluster.leader() == "worker2", what="it leads")
    scene.enqueue(BLOCKER, Plan(key="blocker", seconds=4 * scene.lease))
    scene.until_or_never("chaos_effects WHERE job = %s AND attempt = 2", other, comes=bool(rules))
    open_gate(scene.gates, FIRST)
    assert broken(scene.judge()) == rules


def frozen_leader(scene: Scene) -> WorkerProcess:
    """Whoever leads, frozen while it does: on a busy machine it may just have stepped down."""
    while True:
        name = eventually(scene.cluster.leader, what="somebody leads")
        worker = scene.cluster.workers[name]
        worker.freeze()
        if scene.cluster.leader() == name:
            return worker
        worker.signal(signal.SIGCONT)


@pytest.mark.timeout(200)
def test_a_leader_that_freezes_is_replaced(scene: Scene, sabotaged: bool) -> None:
    take_away(scene, sabotage.believe_a_silent_leader, sabotaged)
    for name in ("worker1", "worker2"):
        scene.cluster.start_worker(name)
        scene.until_working(name)
    frozen = frozen_leader(scene)
    due = scene.enqueue("loop_again", Plan(key="j"), delay=timedelta(milliseconds=20))
    scene.until_or_never("kappa.finished_jobs WHERE id = %s", due, comes=not sabotaged, leases=5)
    frozen.signal(signal.SIGKILL)
    scene.cluster.retire(frozen)
    assert broken(scene.judge()) == ({"leaderless"} if sabotaged else set())


def test_nothing_stays_mounted_when_a_run_breaks() -> None:
    cluster = Cluster()
    with pytest.raises(RuntimeError, match="broken"), cluster:
        if cluster.disk.refused is not None:
            lacking(f"the right to mount a tmpfs ({cluster.disk.refused})")
        assert str(cluster.home) in MOUNTS.read_text()
        raise RuntimeError("broken")
    assert str(cluster.home) not in MOUNTS.read_text()
    assert not cluster.home.exists()


def test_nothing_stays_mounted_when_a_run_is_killed(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    with Script(MOUNT_AND_WAIT, place) as run:
        if (said := run.line()) != "mounted":
            lacking(f"the right to mount a tmpfs ({said})")
        assert str(place) in MOUNTS.read_text()
        run.kill()
        eventually(lambda: str(place) not in MOUNTS.read_text(), what="the disk is unmounted")
