"""The fleet by hand: its statements on plain connections, and servers of it in this process."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg

from kappa.engine.fleet import store, wire
from kappa.engine.fleet.dispatch import Fleet, Pass
from kappa.engine.fleet.store import Ask, Ended, Ending, Given, HeldTask
from kappa.engine.fleet.waiting_room import Caller
from kappa.engine.signals import Signals
from kappa.engine.store import jobs
from kappa.engine.store.jobs import NewJob
from kappa.pg import Database, Listening, Notification
from kappa.pg.ops import run
from tests.ground import PATIENCE

T = TypeVar("T")

Connection = psycopg.Connection[tuple[Any, ...]]

NEVER = 3_600_000
"""A poll interval, in milliseconds, that no test lives to see."""
PASS = Pass(1)
CLAIMS = "SELECT pg_advisory_xact_lock(1262568293, 0)"
"""What every claim of the fleet waits for."""


def open_lane(
    connection: Connection, name: str = "far", kinds: Sequence[str] = ("crunch",), *, slots: int = 1000, **columns: Any
) -> None:
    """A fleet lane that is never polled, unless the columns say otherwise."""
    values = {"name": name, "kinds": list(kinds), "max_slots": slots, "executor": "fleet", "poll_interval_ms": NEVER}
    values |= columns
    statement = psycopg.sql.SQL("INSERT INTO kappa.lanes ({}) VALUES ({})").format(
        psycopg.sql.SQL(", ").join(map(psycopg.sql.Identifier, values)),
        psycopg.sql.SQL(", ").join(psycopg.sql.Placeholder() * len(values)),
    )
    connection.execute(statement, list(values.values()))
    connection.execute("SELECT pg_notify('kappa_lane', %s)", [name])


def put(
    connection: Connection, submitter: str | None = None, *, kind: str = "crunch", needs: dict[str, Any] | None = None,
    **fields: Any,
) -> int:  # fmt: skip
    made = run(connection, jobs.enqueue(NewJob(kind, "null", submitted_by=submitter, **fields)))
    assert made is not None
    if needs:
        wanted = {"cores": 0, "memory_mb": 0, "labels": []} | needs
        connection.execute(
            "INSERT INTO kappa.job_needs (job_id, cores, memory_mb, labels) VALUES (%s, %s, %s, %s)",
            [made, wanted["cores"], wanted["memory_mb"], wanted["labels"]],
        )
    return made


def asks(
    worker: str = "w", request: str = "r1", most: int = 1, *, cores: float = 1, memory_mb: int = 0,
    labels: Sequence[str] = (),
) -> Ask:  # fmt: skip
    return Ask(PASS.owner(worker), request, most, cores, memory_mb, tuple(labels))


def claim(connection: Connection, *callers: Ask, kinds: Sequence[str] = ("crunch",)) -> list[Given]:
    return run(connection, store.claim(callers or [asks()], kinds))


def take(connection: Connection, worker: str = "w", request: str = "r1", most: int = 1, **more: Any) -> list[Given]:
    return claim(connection, asks(worker, request, most), **more)


def held(given: Given, worker: str = "w", who: Pass = PASS) -> HeldTask:
    return HeldTask(given.id, given.token, who.owner(worker))


def settle(connection: Connection, *endings: Ending) -> list[Ended | None]:
    settled = run(connection, store.settle(endings))
    return [settled.get(place) for place in range(len(endings))]


def beat(connection: Connection, *tasks: HeldTask) -> list[tuple[int, str, str | None]]:
    return run(connection, store.beat(tasks))


def started(connection: Connection, **fields: Any) -> Given:
    """A new job that a worker began."""
    made = put(connection, **fields)
    (given,) = take(connection, request=f"for-{made}")
    assert given.id == made
    assert beat(connection, held(given)) == []
    return given


def running(connection: Connection, lane: str = "far") -> int:
    found = connection.execute("SELECT count(*) FROM kappa.jobs WHERE lane = %s AND state = 'running'", [lane])
    return found.fetchall()[0][0]


# Servers


class Server(Fleet):
    """One server's part of the fleet, and what it has heard and acted on."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(Database(url), Signals(), **options)
        self.heard: list[Notification | Listening] = []

    async def _hear(self, event: Notification | Listening) -> None:
        await super()._hear(event)
        self.heard.append(event)


@asynccontextmanager
async def server(url: str, **options: Any) -> AsyncIterator[Server]:
    """A server that listens, and has looked at what was there before."""
    async with Server(url, **options).opened() as fleet:
        await until(lambda: fleet.heard, "the server listens")
        yield fleet


async def until(look: Callable[[], T], what: str = "") -> T:
    """Look again and again until there is something to see, and give it back."""
    begun = time.monotonic()
    while True:
        if seen := look():
            return seen
        if time.monotonic() - begun > PATIENCE:
            raise AssertionError(f"not within {PATIENCE:g} s: {what or look}")
        await asyncio.sleep(0.002)


async def enters(
    fleet: Fleet, worker: str = "w", request: str = "r1", *, count: int = 1, wait: float = 60, who: Pass = PASS,
    kinds: Sequence[str] = ("crunch",), **able: Any,
) -> Caller:  # fmt: skip
    """Somebody who asks for tasks and waits."""
    said = wire.RequestTask(worker=worker, request_id=request, kinds=list(kinds), count=count, wait=wait, **able)
    caller = await fleet.enter(who, said)
    assert caller is not None
    return caller


async def parks(fleet: Fleet, *args: Any, **more: Any) -> Caller:
    before = fleet.room.waiting
    caller = await enters(fleet, *args, **more)
    await until(lambda: fleet.room.waiting > before, "somebody who is parked")
    return caller


async def answer(caller: Caller) -> list[Given]:
    """What the caller gets."""
    return await asyncio.wait_for(asyncio.shield(caller.answer), PATIENCE) or []


def blocked(connection: Connection) -> int:
    """Sessions of this database that wait for a lock."""
    found = connection.execute(
        """SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"""
    )
    return found.fetchall()[0][0]


async def heard_everything(fleet: Server, connection: Connection) -> None:
    """Until this server has heard all that was notified before, and acted on it."""
    marker = Notification("kappa_wake", f"marker {time.monotonic_ns()}")  # a lane that is none
    connection.execute("SELECT pg_notify(%s, %s)", [marker.channel, marker.payload])
    await until(lambda: marker in fleet.heard, "the server hears what is said")
