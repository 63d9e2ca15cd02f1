"""Statements of the fleet. Each serves many callers; `place` in an answer is the caller's place in the question."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any, NamedTuple

from kappa.engine.fleet.wire import Tool
from kappa.engine.store.insight import GONE_AFTER
from kappa.pg import queries
from kappa.pg.ops import Op
from kappa.pg.queries import Row

sql = queries.beside(__file__)
CLAIM = sql["claim"]
BEAT = sql["beat"]
UPDATE = sql["update"]
SETTLE = sql["settle"]
LANES = sql["lanes"]
REGISTER = sql["register"]
SEEN = sql["seen"]
WORKERS = sql["workers"]
COUNT_WORKERS = sql["count_workers"]
HELD_RUN = sql["held_run"]
HOLD_RUN = sql["hold_run"]
RUNS_OF = sql["runs_of"]
READ_INPUT = sql["read_input"]


class FleetLane(NamedTuple):
    name: str
    kinds: frozenset[str]
    poll_seconds: float
    lease_seconds: float


class Ask(NamedTuple):
    """Somebody who asks for tasks."""

    owner: str
    request_id: str
    most: int
    cores: float
    memory_mb: int
    labels: tuple[str, ...]


class Given(NamedTuple):
    """A task for the caller at that place. Payload and checkpoint are JSON text."""

    place: int
    id: int
    token: int
    kind: str
    lane: str
    payload: str
    attempt: int
    max_attempts: int
    seconds_left: float | None
    lease_seconds: float
    checkpoint: str | None
    waited: float


class HeldTask(NamedTuple):
    """A task as its owner names it."""

    id: int
    token: int
    owner: str


class Update(NamedTuple):
    held: HeldTask
    started: bool
    done: float | None
    total: float | None
    message: str | None
    checkpoint: str | None
    stale_timeout: float | None = None


class Ending(NamedTuple):
    held: HeldTask
    outcome: str
    result: str | None = None
    summary: str | None = None
    detail: str | None = None
    after: float | None = None


class Ended(NamedTuple):
    """The job's state after a settlement. Without a kind it is the answer to one that was said before."""

    state: str
    kind: str | None
    lane: str | None
    attempt: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class FleetWorker:
    """A remote worker as it last gave a sign of life."""

    worker: str
    token_id: int
    kinds: list[str]
    cores: float
    memory_mb: int
    labels: list[str]
    slots: int
    version: str
    started_at: datetime
    seen_at: datetime
    running: int


class HeldRun(NamedTuple):
    """The tool run of a task."""

    run_id: int
    attempt: int
    output_mb: int | None


def claim(asks: Sequence[Ask], kinds: Sequence[str]) -> Op[list[Given]]:
    params = {
        "owners": [ask.owner for ask in asks],
        "requests": [ask.request_id for ask in asks],
        "counts": [ask.most for ask in asks],
        "cores": [float(ask.cores) for ask in asks],
        "memory": [ask.memory_mb for ask in asks],
        "labels": ["{" + ",".join(f'"{label}"' for label in ask.labels) + "}" for ask in asks],
        "kinds": list(kinds),
    }
    return Op(CLAIM, params, lambda rows: [Given(row[0] - 1, *row[1:]) for row in rows])


LOCKED = "locked"
"""A beat's verdict, for the server alone: the lease is not renewed yet, since another session has the row locked."""


def beat(held: Sequence[HeldTask]) -> Op[list[tuple[int, str, str | None]]]:
    """What must be told: (place, verdict, reason)."""
    return Op(BEAT, _columns(held), lambda rows: [(row[0] - 1, row[1], row[2]) for row in rows])


def update(updates: Sequence[Update]) -> Op[dict[int, str | None]]:
    """The places whose task is still theirs, each with the reason of a cancellation."""
    params = _columns([one.held for one in updates]) | {
        "started": [one.started for one in updates],
        "done": [one.done for one in updates],
        "total": [one.total for one in updates],
        "messages": [one.message for one in updates],
        "checkpoints": [one.checkpoint for one in updates],
        "stale_timeouts": [one.stale_timeout for one in updates],
    }
    return Op(UPDATE, params, lambda rows: {row[0] - 1: row[1] for row in rows})


def settle(endings: Sequence[Ending]) -> Op[dict[int, Ended]]:
    """The places whose task was theirs, or was settled by them before."""
    params = _columns([one.held for one in endings]) | {
        "outcomes": [one.outcome for one in endings],
        "results": [one.result for one in endings],
        "summaries": [one.summary for one in endings],
        "details": [one.detail for one in endings],
        "afters": [one.after for one in endings],
    }
    return Op(SETTLE, params, lambda rows: {row[0] - 1: Ended(*row[1:]) for row in rows})


def lanes() -> Op[list[FleetLane]]:
    return Op(LANES, {}, lambda rows: [FleetLane(row[0], frozenset(row[1]), row[2] / 1000, row[3]) for row in rows])


def register(machines: str) -> Op[set[str]]:
    """The owners that their passes allow, of a JSON array of machines."""
    return Op(REGISTER, {"machines": machines, "gone_after": GONE_AFTER}, _owners)


def seen(owners: Sequence[str]) -> Op[set[str]]:
    return Op(SEEN, {"owners": list(owners), "gone_after": GONE_AFTER}, _owners)


def workers(*, after: str = "", limit: int = 100) -> Op[list[FleetWorker]]:
    params = {"gone_after": GONE_AFTER, "after": after, "limit": limit}
    return Op(WORKERS, params, lambda rows: [FleetWorker(*row) for row in rows])


def count_workers() -> Op[int]:
    return Op(COUNT_WORKERS, {"gone_after": GONE_AFTER}, lambda rows: rows[0][0])


def held_run(held: HeldTask) -> Op[HeldRun | None]:
    return Op(HELD_RUN, held._asdict(), lambda rows: HeldRun(*rows[0]) if rows else None)


def hold_run(held: HeldTask) -> Op[int | None]:
    """The same, and nobody else can settle the task before the transaction ends."""
    return Op(HOLD_RUN, held._asdict(), lambda rows: rows[0][0] if rows else None)


def runs_of(ids: Sequence[int]) -> Op[dict[int, Tool]]:
    return Op(RUNS_OF, {"ids": list(ids)}, lambda rows: {row[0]: _tool(row) for row in rows})


def read_input(run_id: int, name: str, at: int, most: int) -> Op[tuple[int, bytes] | None]:
    """How long an input is, and a piece of it."""
    params = {"run_id": run_id, "name": name, "at": at, "most": most}
    return Op(READ_INPUT, params, lambda rows: (rows[0][0], bytes(rows[0][1])) if rows else None)


def _columns(held: Sequence[HeldTask]) -> dict[str, Any]:
    return {
        "ids": [one.id for one in held],
        "tokens": [one.token for one in held],
        "owners": [one.owner for one in held],
    }


_first = itemgetter(0)


def _owners(rows: list[Row]) -> set[str]:
    return set(map(_first, rows))


def _tool(row: Row) -> Tool:
    _, run_id, inputs, tool, version, image, argv, limits, timeout, files = row
    return Tool(
        run_id=run_id, tool=tool, version=version, image=image, argv=argv, limits=limits, timeout_seconds=timeout,
        inputs=inputs, input_files=files,
    )  # fmt: skip
