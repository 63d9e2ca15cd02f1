"""One run: a cluster at work, faults in it, then peace, the end, and the checker's word."""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

import psycopg

from kappa.engine import Schedule
from tests.chaos import artifacts, batches, history
from tests.chaos.checker import (
    DRAIN_WITHIN,
    RULES,
    Violation,
    adoptions,
    check,
    latest_errand,
    longest_wait,
    lost_leases,
    met_full_disk,
)
from tests.chaos.client import Enqueuer
from tests.chaos.cluster import ROOT, Cluster
from tests.chaos.faults import WEIGHTS, Faults, not_tested
from tests.chaos.handlers import Plan
from tests.chaos.record import Record

WORKERS = 3
BACKLOG = 500
"""How many live jobs the client sees before it waits: enough that no fault comes to an idle cluster."""
LEFT = "SELECT (SELECT count(*) FROM kappa.jobs) + (SELECT count(*) FROM kappa.batch_leases)"
NOT_FIRED = "SELECT count(*) FROM kappa.schedules WHERE enabled AND (next_at IS NULL OR next_at <= now())"
STUCK_FOR = 5.0
"""Seconds: one whose process has no turn for a while is not stuck."""
STUCK = """
    SELECT application_name, query FROM pg_stat_activity
     WHERE application_name LIKE 'kappa%' AND state LIKE 'idle in transaction%'
       AND state_change < now() - interval '1 s'
"""


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a run."""

    seed: int
    seconds: float
    jobs: int
    fates: Counter[str]
    states: Counter[str]
    faults: Counter[str]
    adoptions: int
    lost_leases: int
    batches: batches.Figures
    fires: int
    history: int
    artifacts: Counter[str]
    met_full_disk: int
    time_to_drain: float
    longest_wait: float
    latest_errand: float
    not_tested: str
    violations: list[Violation]

    def __str__(self) -> str:
        broken = {violation.rule for violation in self.violations}
        rules = f"{len(RULES) - len(broken)} of {len(RULES)} rules hold"
        if broken:
            rules += f" (BROKEN: {', '.join(sorted(broken))})"
        sorts = ", ".join(f"{sort} {count}" for sort, count in sorted(self.faults.items()))
        states = ", ".join(f"{state} {count}" for state, count in sorted(self.states.items()))
        fates = ", ".join(f"{fate} {count}" for fate, count in sorted(self.fates.items()))
        kept = ", ".join(f"{state} {count}" for state, count in sorted(self.artifacts.items())) or "none"
        return (
            f"seed {self.seed}: {rules}; {self.jobs} jobs ({states}; ledger: {fates}; cron {self.fires}), "
            f"{self.faults.total()} faults ({sorts}), {self.adoptions} adoptions, {self.lost_leases} lost leases, "
            f"{self.batches}, "
            f"artifacts: {kept} (disk full met by {self.met_full_disk}), "
            f"claims came after {self.longest_wait:.1f} s and the leader after {self.latest_errand:.1f} s at most, "
            f"{self.history} writes judged, drained in {self.time_to_drain:.1f} s, {self.seconds:.0f} s in all"
            + (f"; {self.not_tested}" if self.not_tested else "")
        )


def run(
    seed: int,
    *,
    minutes: float | None = None,
    jobs: int = 10_000,
    faults: int = 200,
    say: Callable[[str], None] = print,
    sorts: Collection[str] = WEIGHTS.keys(),
) -> Report:
    """Make faults, of these sorts, until the minutes are over, or until there were so many jobs and faults at least."""
    began = time.monotonic()
    with Cluster() as cluster:
        start_workers(cluster)
        schedule(cluster)
        making = Faults(cluster, seed, say, sorts)

        def go_on() -> bool:
            if minutes is not None:
                return time.monotonic() - began < minutes * 60
            return making.count < faults or enqueuer.acknowledged < jobs

        with cluster.client() as client:
            enqueuer = Enqueuer(client, cluster.through("client"), seed, BACKLOG)
            enqueuer.start()
            while go_on() and enqueuer.is_alive():
                making.step()
            making.heal()
            enqueuer.stop()
        took = drain(cluster)
        if took > DRAIN_WITHIN:
            say(cluster.where())
        with cluster.connect() as connection:
            until = time.monotonic() + STUCK_FOR
            while (stuck := connection.execute(STUCK).fetchall()) and time.monotonic() < until:
                time.sleep(0.1)
            cluster.leaks += [f"{app} is idle in a transaction: {query}" for app, query in stuck]
        cluster.shut_down()
        with cluster.connect() as connection:
            record = history.read(connection, cluster.disk)
        record.ledger = enqueuer.ledger.entries + making.ledger.entries
        record.time_to_drain = took
        cluster.tell(record)
        lacks = not_tested(cluster)
        if violations := check(record):
            place = ROOT / "build" / f"chaos-{seed}"
            cluster.keep_logs(place, record)
            say(f"what every process said, and when it was out of order, is in {place.relative_to(ROOT)}")
        return summarise(seed, record, making.done, lacks, violations, time.monotonic() - began)


def start_workers(cluster: Cluster) -> None:
    for number in range(WORKERS):
        cluster.start_worker(f"worker{number + 1}")
    if shutil.which("pgbouncer", path="/usr/sbin:/usr/bin"):
        cluster.start_bouncer()
        cluster.start_worker("pooled1")
    cluster.wait_ready()


def schedule(cluster: Cluster) -> None:
    with cluster.engine.client() as client:
        for name, step, missed in (("often", 2, "fire_once"), ("seldom", 5, "skip")):
            plan = Plan(key=name, effects="both")
            client.put_schedule(Schedule(name, f"*/{step} * * * * *", "tick", plan, missed=missed))


def drain(cluster: Cluster) -> float:
    """Wait until nothing is left; gives up where the rule is broken anyway."""
    began = time.monotonic()
    with cluster.connect() as connection:
        # In one statement, when everything that was due has fired: what is due after that is nobody's.
        while not _stop_schedules(connection) and time.monotonic() - began < DRAIN_WITHIN:
            time.sleep(0.02)
        while connection.execute(LEFT).fetchone() != (0,) and time.monotonic() - began < DRAIN_WITHIN + 1:
            time.sleep(0.05)
    return time.monotonic() - began


def _stop_schedules(connection: psycopg.Connection[tuple[object, ...]]) -> bool:
    with connection.transaction():
        connection.execute("SELECT FROM kappa.schedules FOR UPDATE")
        if connection.execute(NOT_FIRED).fetchone() != (0,):
            return False
        connection.execute("UPDATE kappa.schedules SET enabled = false")
    return True


def summarise(
    seed: int, record: Record, faults: Counter[str], not_tested: str, violations: list[Violation], seconds: float
) -> Report:
    return Report(
        seed=seed,
        seconds=seconds,
        jobs=len(record.ended),
        fates=Counter(str(entry.fate) for entry in record.ledger),
        states=Counter(ended.state for ended in record.ended),
        faults=faults,
        adoptions=adoptions(record),
        lost_leases=lost_leases(record),
        batches=batches.figures(record),
        fires=sum(fire.due is not None for fire in record.fires),
        history=len(record.history) + len(record.batches),
        artifacts=Counter(ended.state for ended in record.ended if ended.kind == artifacts.KIND),
        met_full_disk=met_full_disk(record),
        time_to_drain=record.time_to_drain,
        longest_wait=longest_wait(record),
        latest_errand=latest_errand(record),
        not_tested=not_tested,
        violations=violations,
    )
