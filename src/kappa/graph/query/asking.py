"""How a question is asked: its deadline, its place in the budget, its numbers for names, and who answers it."""

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

import numpy as np
from psycopg import Connection

from kappa.graph.config import MAX_LIMIT, MAX_SEEDS, TIMEOUT, GraphConfig
from kappa.graph.errors import BadQuestion, EpochNotReached, GraphBusy, QuestionStopped, UnknownConcept
from kappa.graph.model import Answer, Concept, Direction, Skipped, Where
from kappa.graph.query.backend import GraphBackend
from kappa.graph.query.budget import Budget, Grant
from kappa.graph.query.filters import CANCELLED, OUT_OF_TIME, WHY, Cancel, Filter, Limits, Terms, Vocabulary
from kappa.graph.query.keeper import Keeper
from kappa.graph.query.kernel import Kernel
from kappa.graph.query.server import Session, Stopped, quick, session
from kappa.graph.query.snapshot import Snapshot
from kappa.graph.query.vector_keeper import VectorKeeper
from kappa.graph.query.vectors import Matrix
from kappa.graph.query.walkers import Known, Sizes, SnapshotWalker, SqlWalker, Walker
from kappa.graph.store import settings
from kappa.graph.store.adjacency import Ints
from kappa.graph.store.vectors import Kind
from kappa.pg import Pool, PoolUnreachable
from kappa.pg.queries import Answer as Rows
from kappa.pg.queries import Row

T = TypeVar("T")
A = TypeVar("A", bound=Answer)

Seed = UUID | str | int
"""A concept by its id, or by its node."""

FOR_ROWS = 0.1
"""The share of a deadline that is kept for reading the rows of what was found, at most a second."""
LOOK_AGAIN = 0.02
ENDED = (WHY[OUT_OF_TIME], WHY[CANCELLED])
SMALL = 200
"""Rows that are built without waiting for a turn."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What every question may say of itself."""

    deadline: float | None = None
    """Seconds for the whole of it; None is the setting's time-out."""
    min_epoch: int | None = None
    cancel: Cancel | None = None


class Question:
    """One question under way."""

    def __init__(self, desk: "Desk", walk: Limits, whole: Limits, grant: Grant, min_epoch: int) -> None:
        self._desk = desk
        self._walk = walk
        self._whole = whole
        self._grant = grant
        self.min_epoch = min_epoch
        self.skipped: list[Skipped] = []

    def numbers(self, seeds: Sequence[Seed]) -> Ints:
        """The nodes of the seeds, each once."""
        if not seeds:
            raise BadQuestion("a question needs a concept to begin with")
        if len(seeds) > MAX_SEEDS:
            raise BadQuestion(f"{len(seeds)} seeds: there may be {MAX_SEEDS}")
        keys = {seed: _uuid(seed) for seed in seeds if not isinstance(seed, int)}
        found: dict[UUID, int] = {}
        if keys:
            found = self.fetch(lambda connection: self._desk.backend.numbers(connection, list(set(keys.values()))))
        nodes: list[int] = []
        for seed in seeds:
            node = seed if isinstance(seed, int) else found.get(keys[seed])
            if node is None or not -(1 << 63) <= node < 1 << 63:
                raise UnknownConcept(f"there is no concept {seed}")
            nodes.append(node)
        return np.unique(np.array(nodes, np.int64))

    @contextmanager
    def walk(
        self, nodes: Ints, direction: Direction, relation_types: Sequence[str] | None, where: Where | None
    ) -> Generator[tuple[Walker, Filter]]:
        """Whoever can answer for these nodes and names, the snapshot or the database; and what the names mean there."""
        terms = Terms(direction, relation_types, where or Where())
        terms.check()
        graph = self._in_memory(nodes, terms)
        if graph is not None:
            desk = self._desk
            yield SnapshotWalker(graph, desk.kernel, self._walk, desk.sizes.most), terms.numbers(graph.vocabulary)
            return
        with self.state() as opened:
            walker = SqlWalker(self._desk.backend, opened, self._walk, self._desk.sizes, self._desk.known)
            named = walker.vocabulary(terms.where.ontologies or ()) if terms.has_names else Vocabulary()
            yield walker, terms.numbers(named)

    def filters(self, where: Where | None) -> Filter:
        """For those who walk nowhere."""
        terms = Terms(where=where or Where())
        terms.check()
        if not terms.has_names:
            return terms.numbers(Vocabulary())
        graph = self._desk.keeper.current if self._desk.keeper is not None else None
        if graph is not None and graph.epoch >= self.min_epoch and terms.are_in(graph.vocabulary):
            return terms.numbers(graph.vocabulary)
        named = terms.where.ontologies or ()
        return terms.numbers(self.fetch(lambda connection: self._desk.backend.vocabulary(connection, named)))

    @contextmanager
    def state(self, epoch: int = 0) -> Generator[Session]:
        """One state of the database, of this epoch or a later one, and of the one that was asked for."""
        wanted, reached = max(self.min_epoch, epoch), False
        try:
            while not reached:
                with session(self._desk.pool, self._walk, self._grant) as opened:
                    reached = not wanted or opened.run(self._desk.backend.epoch) >= wanted
                    if reached:
                        yield opened
                if not reached:
                    time.sleep(LOOK_AGAIN)
        except Stopped:
            if reached or not wanted:
                raise
            raise EpochNotReached(f"the graph did not come to epoch {wanted} in time") from None

    def vectors(self, kind: Kind, epoch: int = 0) -> Matrix | None:
        """The embeddings in memory, as late as anything that was committed, as far as this process hears of it.

        None where they are not kept, or not there in time.
        """
        keeper, desk = self._desk.keeper, self._desk
        if keeper is None or desk.vectors is None:
            return None
        latest = self.fetch(desk.backend.epoch) if keeper.latest is None else keeper.latest
        return desk.vectors.at_least(kind, max(self.min_epoch, epoch, latest), self._walk)

    @property
    def limits(self) -> Limits:
        """When looking has to end; a part of the deadline is kept for the rows of what was found."""
        return self._walk

    def _in_memory(self, nodes: Ints, terms: Terms) -> Snapshot | None:
        """The snapshot, if there is one that has these nodes and names."""
        keeper = self._desk.keeper
        if keeper is None:
            return None

        def has_all(graph: Snapshot) -> bool:
            return bool((graph.index(nodes) >= 0).all()) and terms.are_in(graph.vocabulary)

        graph = keeper.at_least(self.min_epoch, self._walk)
        if graph is not None and not has_all(graph):
            # Made after the snapshot was; an epoch later it is there.
            graph = keeper.at_least(graph.epoch + 1, self._walk)
        return graph if graph is not None and has_all(graph) else None

    def rows(self, nodes: Sequence[int]) -> dict[int, Concept]:
        """Concepts as they are now; who was deleted meanwhile is missing."""
        if not nodes:
            return {}
        try:
            return self.built(len(nodes), lambda connection: self._desk.backend.rows(connection, nodes))
        except Stopped as stopped:
            self.skipped.append(Skipped(f"the rows of {len(nodes)} concepts", WHY[stopped.stop]))
            return {}

    def built(self, rows: int, act: Callable[[Connection[Row]], Rows[T]]) -> T:
        """A short statement; the objects of many rows are made after it, when it is this question's turn."""
        build = self.fetch(act)
        with self.turn(rows):
            return build()

    @contextmanager
    def turn(self, rows: int) -> Generator[None]:
        """For what computes on so many rows in Python. Nothing in it may wait for the database, or take a turn."""
        if rows <= SMALL:
            yield
            return
        builders = self._desk.builders
        if not builders.enter(self._whole.left):
            raise Stopped(OUT_OF_TIME)
        try:
            if stop := self._whole.stop():
                raise Stopped(stop)
            yield
        finally:
            builders.leave()

    def fetch(self, act: Callable[[Connection[Row]], T]) -> T:
        """One short statement, within the whole deadline."""
        return quick(self._desk.pool, self._whole, act)

    @property
    def stopped(self) -> bool:
        return bool(self._walk.stop())


class Desk:
    """Takes questions, for one graph in one process."""

    def __init__(
        self, pool: Pool, backend: GraphBackend, keeper: Keeper | None, vectors: VectorKeeper | None, kernel: Kernel,
        budget: Budget, config: GraphConfig,
    ) -> None:  # fmt: skip
        self.pool = pool
        self.backend = backend
        self.keeper = keeper
        self.vectors = vectors
        self.kernel = kernel
        self.sizes = Sizes(config.chunk, config.chunk_rows, config.max_found)
        self.known = Known()
        self._budget = budget
        self.builders = budget.builders
        self._config = config
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self.timeout = config.timeout
        """Of questions that say none: the database's, as last read."""

    @contextmanager
    def question(self, asked: Asked) -> Generator[Question]:
        """Wait for a place, and give the question its time."""
        began = time.monotonic()
        cancel = asked.cancel or Cancel()
        self._read_settings(Limits(began + min(1.0, FOR_ROWS * (asked.deadline or self.timeout)), cancel))
        seconds = self.timeout if asked.deadline is None else asked.deadline
        if not 0 < seconds <= TIMEOUT[1]:
            raise BadQuestion(f"a deadline of {seconds:g} s: it is more than 0 and at most {TIMEOUT[1]:g}")
        if asked.min_epoch and not self.backend.own:
            raise BadQuestion(f"the backend {self.backend.name!r} has no change clock: no epoch can be waited for")
        until = began + seconds
        whole = Limits(until, cancel)
        walk = Limits(until - min(1.0, FOR_ROWS * seconds), cancel)
        try:
            with self._budget.question(walk, self._config.patience) as grant:
                yield Question(self, walk, whole, grant, asked.min_epoch or 0)
        except Stopped as stopped:
            raise QuestionStopped(f"nothing was found yet when {WHY[stopped.stop]}") from None

    def look_up(self, act: Callable[[Connection[Row]], T], seconds: float, cancel: Cancel | None) -> T:
        """Something short that a question needs before it is asked, within its deadline."""
        try:
            return quick(self.pool, Limits(time.monotonic() + seconds, cancel or Cancel()), act)
        except Stopped as stopped:
            raise QuestionStopped(f"concepts were still looked up when {WHY[stopped.stop]}") from None

    def _read_settings(self, limits: Limits) -> None:
        """What stands in the database counts, and the configuration where nothing does. Looked at now and then.

        Somebody else's database has no settings of ours, so there the configuration is all. Where they can't be read
        in a moment, those that were read last count.
        """
        with self._lock:
            if time.monotonic() - self._read_at < self._config.settings_for.total_seconds():
                return
            self._read_at = time.monotonic() if self.backend.own else float("inf")
        if not self.backend.own:
            self._budget.resize(self._config.workers)
            return
        with suppress(Stopped, GraphBusy, PoolUnreachable):
            self.apply(*quick(self.pool, limits, settings.read))

    def apply(self, workers: int | None, timeout: float | None) -> None:
        """Settings of the database; None where it has none."""
        self.timeout = timeout or self._config.timeout
        self._budget.resize(workers or self._config.workers)


def or_stopped(answer: A, something: object) -> A:
    """The answer; where time ran out before there was something in it, the error that says so."""
    why = next((one.why for one in answer.skipped if one.why in ENDED), None)
    if why is not None and not something:
        raise QuestionStopped(f"nothing was found yet when {why}")
    return answer


def check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_LIMIT:
        raise BadQuestion(f"a limit of {limit}: it is 1 to {MAX_LIMIT}")


def _uuid(seed: UUID | str) -> UUID:
    if isinstance(seed, UUID):
        return seed
    try:
        return UUID(seed)
    except ValueError:
        raise UnknownConcept(f"there is no concept {seed!r}: an id is a UUID") from None
