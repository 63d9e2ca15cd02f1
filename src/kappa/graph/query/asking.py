"""How a question is asked: its deadline, its place in the budget, its numbers for names, and who answers it."""

import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

import numpy as np
from psycopg import Connection

from kappa.graph.config import MAX_LIMIT, MAX_SEEDS, TIMEOUT, GraphConfig
from kappa.graph.errors import (
    BadQuestion,
    EpochNotReached,
    QuestionStopped,
    UnknownConcept,
    UnknownOntology,
    UnknownRelationType,
)
from kappa.graph.model import Concept, Direction, Skipped, Where
from kappa.graph.query.backend import GraphBackend, Vocabulary
from kappa.graph.query.budget import Budget, Grant
from kappa.graph.query.degrees import KnownDegrees
from kappa.graph.query.filters import WAYS, WHY, Cancel, Filter, Limits
from kappa.graph.query.keeper import Keeper
from kappa.graph.query.kernel import Kernel
from kappa.graph.query.server import Session, Stopped, quick, session
from kappa.graph.query.vector_keeper import VectorKeeper
from kappa.graph.query.vectors import Matrix
from kappa.graph.query.walkers import Sizes, SnapshotWalker, SqlWalker, Walker
from kappa.graph.store import settings
from kappa.graph.store.adjacency import Ints
from kappa.graph.store.vectors import Kind
from kappa.pg import Pool
from kappa.pg.queries import Row

T = TypeVar("T")

Seed = UUID | str | int
"""A concept by its id, or by its node."""

FOR_ROWS = 0.1
"""The share of a deadline that is kept for reading the rows of what was found, at most a second."""
LOOK_AGAIN = 0.02


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

    def filters(self, direction: Direction, relation_types: Sequence[str] | None, where: Where | None) -> Filter:
        """Names as numbers. A type that was merged is its survivor."""
        if direction not in WAYS:
            raise BadQuestion(f"direction {direction!r}: it is out, in or both")
        where = where or Where()
        if not 0.0 <= where.min_confidence <= 1.0:
            raise BadQuestion(f"a confidence of {where.min_confidence:g}: it is 0 to 1")
        types, ontologies = None, None
        if relation_types is not None or where.categories is not None or where.ontologies is not None:
            known = self._desk.vocabulary(self, where.ontologies or ())
            if where.categories is not None and not known.categories:
                raise BadQuestion(f"relation types of the backend {self._desk.backend.name!r} have no categories")
            types = _types(known, relation_types, where.categories)
            ontologies = None if where.ontologies is None else _ontologies(known, where.ontologies)
        return Filter(WAYS[direction], types, ontologies, round(where.min_confidence * 100))

    @contextmanager
    def walker(self, nodes: Ints) -> Generator[Walker]:
        """Whoever can answer for these nodes: the snapshot, or the database."""
        walker = self._in_memory(nodes)
        if walker is not None:
            yield walker
            return
        with self.state() as opened:
            yield SqlWalker(self._desk.backend, opened, self._walk, self._desk.sizes, self._desk.degrees)

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
        """The embeddings in memory, as late as anything this process has heard of; None where they are not kept."""
        keeper, desk = self._desk.keeper, self._desk
        if keeper is None or desk.vectors is None:
            return None
        return desk.vectors.at_least(kind, max(self.min_epoch, epoch, keeper.latest), self._walk)

    @property
    def limits(self) -> Limits:
        """When looking has to end; a part of the deadline is kept for the rows of what was found."""
        return self._walk

    def _in_memory(self, nodes: Ints) -> SnapshotWalker | None:
        keeper, desk = self._desk.keeper, self._desk
        if keeper is None:
            return None
        graph = keeper.at_least(self.min_epoch, self._walk.until)
        if graph is not None and not (graph.index(nodes) >= 0).all():
            # Made after the snapshot was; an epoch later it is there.
            graph = keeper.at_least(graph.epoch + 1, self._walk.until)
            if graph is not None and not (graph.index(nodes) >= 0).all():
                graph = None
        return None if graph is None else SnapshotWalker(graph, desk.kernel, self._walk, desk.sizes.most)

    def rows(self, nodes: Sequence[int]) -> dict[int, Concept]:
        """Concepts as they are now; who was deleted meanwhile is missing."""
        if not nodes:
            return {}
        try:
            return self.fetch(lambda connection: self._desk.backend.rows(connection, nodes))
        except Stopped as stopped:
            self.skipped.append(Skipped(f"the rows of {len(nodes)} concepts", WHY[stopped.stop]))
            return {}

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
        self.degrees = KnownDegrees()
        self._budget = budget
        self._config = config
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self.timeout = config.timeout
        """Of questions that say none: the database's, as last read."""
        self._words: tuple[int, Vocabulary] | None = None

    @contextmanager
    def question(self, asked: Asked) -> Generator[Question]:
        """Wait for a place, and give the question its time."""
        self._read_settings()
        seconds = self.timeout if asked.deadline is None else asked.deadline
        if not 0 < seconds <= TIMEOUT[1]:
            raise BadQuestion(f"a deadline of {seconds:g} s: it is more than 0 and at most {TIMEOUT[1]:g}")
        if asked.min_epoch and not self.backend.own:
            raise BadQuestion(f"the backend {self.backend.name!r} has no change clock: no epoch can be waited for")
        cancel = asked.cancel or Cancel()
        until = time.monotonic() + seconds
        whole = Limits(until, cancel)
        walk = Limits(until - min(1.0, FOR_ROWS * seconds), cancel)
        try:
            with self._budget.question(walk, self._config.patience) as grant:
                yield Question(self, walk, whole, grant, asked.min_epoch or 0)
        except Stopped as stopped:
            raise QuestionStopped(f"nothing was found yet when {WHY[stopped.stop]}") from None

    def _read_settings(self) -> None:
        """What stands in the database counts, and the configuration where nothing does. Looked at now and then.

        Somebody else's database has no settings of ours, so there the configuration is all.
        """
        with self._lock:
            if time.monotonic() - self._read_at < self._config.settings_for.total_seconds():
                return
            self._read_at = time.monotonic() if self.backend.own else float("inf")
        if not self.backend.own:
            self._budget.resize(self._config.workers)
            return
        with self.pool.connection() as connection:
            workers, timeout = settings.read(connection)
        self.timeout = timeout or self._config.timeout
        self._budget.resize(workers or self._config.workers)

    def vocabulary(self, question: Question, named: Sequence[str] = ()) -> Vocabulary:
        """The names of now; of the ontologies at least those named. They are kept while the clock stands still."""
        heard = self.keeper.latest if self.keeper is not None else -1
        kept = self._words
        # Who asks for an epoch that was not heard of yet may mean a name that came with it.
        if kept is not None and kept[0] == heard and heard >= question.min_epoch:
            return kept[1]
        words = question.fetch(lambda connection: self.backend.vocabulary(connection, named))
        self._words = (heard, words)
        return words


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


def _types(known: Vocabulary, names: Sequence[str] | None, categories: Sequence[str] | None) -> tuple[int, ...] | None:
    if names is None and categories is None:
        return None
    chosen = set(range(1 << 16)) if names is None else {_survivor(known, name) for name in names}
    if categories is not None:
        chosen &= {one.number for one in known.types.values() if one.category in categories}
    return tuple(sorted(chosen))


def _survivor(known: Vocabulary, name: str) -> int:
    if name not in known.types:
        raise UnknownRelationType(f"there is no relation type {name!r}")
    found = known.types[name]
    return _survivor(known, found.merged_into) if found.merged_into else found.number


def _ontologies(known: Vocabulary, names: Sequence[str]) -> tuple[int, ...]:
    for name in names:
        if name not in known.ontologies:
            raise UnknownOntology(f"there is no ontology {name!r}")
    return tuple(sorted(known.ontologies[name] for name in names))
