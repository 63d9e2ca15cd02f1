"""A test's side of `work`: the lines that handlers said, the gates that hold them, the rows behind their jobs."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, LiteralString, TypeVar

import psycopg

from kappa.engine import Engine, Executor, Lane, Worker
from tests.engine import work
from tests.engine.work import GATES, LANE, Task
from tests.ground import eventually

T = TypeVar("T")

HOUR_MS = 3_600_000

TABLES = """
CREATE TABLE said (id serial PRIMARY KEY, line text NOT NULL);
CREATE TABLE written (
    id         serial PRIMARY KEY,
    line       text NOT NULL,
    belongs_to int REFERENCES written DEFERRABLE INITIALLY DEFERRED
);
"""


class Site:
    """One database on which handlers of `work` run."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(TABLES)
        self._gates = psycopg.connect(url, autocommit=True)

    def close(self) -> None:
        self._connection.close()
        self._gates.close()

    def task(self, gate: int = 0, text: str = "", count: int = 1) -> Task:
        return Task(url=self.url, gate=gate, text=text, count=count)

    def shut(self, gate: int) -> None:
        """Handlers that come to this gate stay there."""
        self._gates.execute("SELECT pg_advisory_lock(%s, %s)", [GATES, gate])

    def open(self, gate: int) -> None:
        self._gates.execute("SELECT pg_advisory_unlock(%s, %s)", [GATES, gate])

    def rows(self, statement: LiteralString, *args: object) -> list[Any]:
        """The rows of a query; those of one column as plain values."""
        found = self._connection.execute(statement, args).fetchall()
        return [row[0] if len(row) == 1 else row for row in found]

    def do(self, statement: LiteralString, *args: object) -> None:
        self._connection.execute(statement, args)

    @property
    def said(self) -> list[str]:
        return self.rows("SELECT line FROM said ORDER BY id")

    @property
    def written(self) -> list[str]:
        return self.rows("SELECT line FROM written ORDER BY id")

    def state(self, job_id: int) -> str:
        return self.rows("SELECT state::text FROM kappa.all_jobs WHERE id = %s", job_id)[0]

    def owner(self, job_id: int) -> str | None:
        """Who holds the lease; None where nobody does."""
        found = self.rows("SELECT lease_owner FROM kappa.jobs WHERE id = %s", job_id)
        return found[0] if found else None

    def until_said(self, line: str, times: int = 1) -> None:
        eventually(lambda: self.said.count(line) >= times, what=f"{times} × {line!r}")

    def until_state(self, job_id: int, state: str) -> None:
        eventually(lambda: self.state(job_id) == state, what=f"job {job_id} {state}")

    @contextmanager
    def listening(self, channel: LiteralString) -> Iterator[Callable[[], list[str]]]:
        """Gives what was notified on a channel so far."""
        with psycopg.connect(self.url, autocommit=True) as ear:
            ear.execute(f"LISTEN {channel}")

            def heard() -> list[str]:
                ear.execute("SELECT 1")  # with whose answer comes all that was said before
                return [notify.payload for notify in ear.notifies(timeout=0)]

            yield heard

    async def listened_to(self) -> None:
        """Until the worker listens. It wakes every lane then and renews, whenever that is."""
        listens = """SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'
                        AND application_name = 'kappa listen' AND query ~ 'kappa_lane'"""
        await seen(lambda: self.rows(listens), what="a worker that listens")


async def seen(look: Callable[[], T], what: str = "") -> T:
    """As `eventually`, while this loop goes on."""
    return await asyncio.to_thread(eventually, look, what=what)


def time_is_up(worker: Worker, job_id: int) -> None:
    """Let the time-out of a job be over."""
    running = worker._desk.find(job_id)  # pyright: ignore[reportPrivateUsage]
    assert running is not None
    running.deadline = 0.0
    worker._deadline_nears.set()  # pyright: ignore[reportPrivateUsage]


def place(
    engine: Engine,
    executor: Executor,
    *kinds: str,
    slots: int = 4,
    poll_ms: int = HOUR_MS,
    ttl: float = 60.0,
    idempotent: bool = False,
    timeout: timedelta | None = None,
    lane: str = LANE,
) -> None:
    """A lane of that executor with handlers of `work`; found by notification alone, as the poll comes once an hour."""
    suffix = "_async" if executor is Executor.ASYNC else ""
    for kind in kinds:
        engine.job(kind, idempotent=idempotent, timeout=timeout)(getattr(work, kind + suffix))
    engine.lane(
        Lane(
            lane, kinds=kinds, max_slots=slots, poll_interval_ms=poll_ms, lease_ttl=timedelta(seconds=ttl),
            executor=executor,
        )
    )  # fmt: skip
    engine.install()
