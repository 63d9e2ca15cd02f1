"""The front of the graph: open it on a database, write to it, ask it.

Everything here may be called from many threads at once. Writes commit before they return, and give the epoch from
which on they are seen; questions say up to which epoch their answer is true.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Self, TypeVar
from uuid import UUID

from psycopg import Connection

from kappa.graph import writing
from kappa.graph.config import TIMEOUT, WORKERS, GraphConfig, from_environment
from kappa.graph.errors import BadQuestion
from kappa.graph.identity import concept_key, normal
from kappa.graph.measuring import Measuring
from kappa.graph.model import (
    Chunk,
    Concept,
    Direction,
    Diversity,
    EnrichedPaths,
    Instance,
    Neighbors,
    NewConcept,
    NewDocument,
    NewRelation,
    Ontology,
    Order,
    Passage,
    Paths,
    Polarity,
    Related,
    RelationType,
    SearchAnswer,
    SnapshotStatus,
    Subgraph,
    VectorStatus,
    Where,
    Written,
)
from kappa.graph.query import kernel, neighbors, paths, polarity, search
from kappa.graph.query.asking import Asked, Desk, Seed
from kappa.graph.query.backend import GraphBackend, SqlBackend
from kappa.graph.query.budget import Budget, BudgetUse
from kappa.graph.query.filters import Cancel
from kappa.graph.query.keeper import Keeper
from kappa.graph.query.vector_keeper import VectorKeeper
from kappa.graph.schema import COMPONENT
from kappa.graph.store import clock, concepts, documents, ontologies, relations, settings
from kappa.pg import Database, Pool, migrate
from kappa.pg.queries import Row

T = TypeVar("T")

_shared: Budget | None = None
_sharing = threading.Lock()


def process_budget(pool: int) -> Budget:
    """The one budget of this process, made with the first graph."""
    global _shared
    with _sharing:
        if _shared is None:
            _shared = Budget(pool=pool)
        return _shared


class Graph(Measuring):
    """A knowledge graph on one PostgreSQL database. Use it as a context manager, or `open` and `close` it."""

    def __init__(
        self,
        database: Database | str,
        config: GraphConfig | None = None,
        *,
        pool: Pool | None = None,
        backend: GraphBackend | None = None,
        budget: Budget | None = None,
        walk_with: kernel.Kernel | None = None,
    ) -> None:
        """`pool` is one that its owner opens and closes; without it the graph has its own.

        `backend` is another graph than Kappa's own tables, such as `AgeBackend("name")`. It can be asked, not written.
        """
        self.database = Database(database) if isinstance(database, str) else database
        self.config = config or from_environment()
        super().__init__(
            pool or Pool(self.database.url, "graph", self.config.pool, behind_pooler=self.database.behind_pooler),
            backend or SqlBackend(),
        )
        self._own_pool = pool is None
        self._is_open = False
        self._budget = budget or process_budget(self.config.pool.max_size)
        self._kernel = walk_with or kernel.best()
        # A foreign graph has no change log of ours, so nothing of it is kept in memory.
        self._keeper = Keeper(self.database, self._pool, self._kernel, self.config) if backend is None else None
        packs = isinstance(self._kernel, kernel.CKernel)
        self._vectors = VectorKeeper(self._pool, self.config, packs) if backend is None else None
        self._desk = Desk(
            self._pool, self._backend, self._keeper, self._vectors, self._kernel, self._budget, self.config
        )  # fmt: skip
        self._remembered: OrderedDict[Any, Neighbors] = OrderedDict()
        self._remembered_rows = 0
        self._remembering = threading.Lock()

    def install(self) -> None:
        """Bring the schema up to date. Safe to call at every start."""
        self._only_own("has no schema of ours")
        with self.database.connect() as connection:
            migrate(connection, [COMPONENT])

    def open(self, *, listen: bool = True) -> Self:
        """Connect, and begin to keep the snapshot. Without `listen` no commits are heard of: the snapshot is built at
        the first question, and refreshed by `refresh` or where a question needs what it doesn't have.

        A graph that is open stays open; one that was opened without listening begins to listen where `listen` says so.
        """
        if self._own_pool:
            self._pool.open()
        self._is_open = True
        if listen and self._keeper is not None:
            self._keeper.start()
        if self._vectors is not None:
            self._vectors.start()
        return self

    def close(self) -> None:
        self._is_open = False
        with ExitStack() as parts:  # whatever one of them raises, the others are closed
            if self._own_pool:
                parts.callback(self._pool.close)
            if self._vectors is not None:
                parts.callback(self._vectors.stop)
            if self._keeper is not None:
                parts.callback(self._keeper.stop)

    def __enter__(self) -> Self:
        return self if self._is_open else self.open()

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Writing

    def ontology(self, name: str, description: str = "", *, connection: Connection[Row] | None = None) -> Ontology:
        """The ontology of this name, made if there is none."""
        with self._writing(connection) as writer:
            return ontologies.ensure(writer, name, description)

    def ontologies(self) -> list[Ontology]:
        self._only_own("keeps no list of ontologies")
        with self._pool.connection() as connection:
            return ontologies.find_all(connection)

    def rename_ontology(self, name: str, new_name: str) -> bool:
        """Whether there was one. Its concepts keep their ids."""
        with self._writing(None) as writer:
            return ontologies.rename(writer, name, new_name)

    def delete_ontology(self, name: str) -> bool:
        """Whether there was one. Its documents and concepts go with it."""
        with self._writing(None) as writer:
            return ontologies.delete(writer, name)

    def add_document(
        self, ontology: str, document: NewDocument, *, connection: Connection[Row] | None = None
    ) -> tuple[UUID, bool]:
        """The document's id, and whether it is new: the same content in the same ontology is the same document."""
        with self._writing(connection) as writer:
            return documents.add(writer, ontologies.ensure(writer, ontology), document)

    def write_chunk(self, chunk: Chunk, *, connection: Connection[Row] | None = None) -> Written:
        """A source with its concepts, evidence and relations, whole or not at all. Again is the same as once."""
        with self._writing(connection) as writer:
            return writing.write_chunk(writer, chunk)

    def add_concepts(
        self, ontology: str, new: Sequence[NewConcept], *, connection: Connection[Row] | None = None
    ) -> Written:
        with self._writing(connection) as writer:
            return writing.write_concepts(writer, ontologies.ensure(writer, ontology), new)

    def add_relations(self, new: Sequence[NewRelation], *, connection: Connection[Row] | None = None) -> Written:
        """Relations between concepts that are there. Of two words on one relation the more certain stays."""
        with self._writing(connection) as writer:
            return writing.write_relations(writer, new)

    def load_concepts(self, ontology: str, new: Iterable[NewConcept]) -> int:
        """Very many concepts, by COPY, a hundred thousand in a transaction; how many were made or changed."""
        found = self.ontology(ontology)
        written = 0
        for batch in writing.in_batches(new):
            with self._writing(None) as writer:
                written += writing.load_concepts(writer, found, batch)
        return written

    def load_relations(self, new: Iterable[NewRelation]) -> int:
        """Very many relations, in the same way."""
        written = 0
        for batch in writing.in_batches(new):
            with self._writing(None) as writer:
                written += writing.load_relations(writer, batch)
        return written

    def set_embeddings(self, model: str, vectors: Mapping[UUID, Sequence[float]]) -> int:
        """How many of the concepts were there to be given one."""
        with self._writing(None) as writer:
            return concepts.set_embeddings(writer, model, vectors)

    def delete_concepts(self, ids: Sequence[UUID]) -> Written:
        """With their relations and evidence; `concepts` says how many were there."""
        with self._writing(None) as writer:
            deleted = concepts.delete(writer, ids)
            return Written(clock.take_epoch(writer), concepts=deleted)

    def delete_relations(self, keys: Sequence[tuple[UUID, UUID, str]]) -> Written:
        """From, to and type of each; `relations` says how many were there."""
        with self._writing(None) as writer:
            deleted = relations.delete(writer, keys)
            return Written(clock.take_epoch(writer), relations=deleted)

    def delete_document(self, document: UUID) -> bool:
        """Whether there was one. Its sources and evidence go with it; concepts and relations stay."""
        with self._writing(None) as writer:
            return documents.delete(writer, document)

    # Looking up

    def concept(
        self, concept_id: UUID, *, deadline: float | None = None, cancel: Cancel | None = None
    ) -> Concept | None:
        def find(connection: Connection[Row]) -> Concept | None:
            node = self._backend.numbers(connection, [concept_id]).get(concept_id)
            return self._backend.rows(connection, [node])().get(node) if node is not None else None

        return self._looked_up(find, deadline, cancel)

    def concept_by_label(
        self, label: str, ontology: str | None = None, *, deadline: float | None = None, cancel: Cancel | None = None
    ) -> list[Concept]:
        """Concepts of this label, whatever its case, spaces and spelling in Unicode; the lowest node first.

        Where there is none, those that have it as a search term: a label that was read and meant one of them.
        """
        self._only_own("is not searched")

        def find(connection: Connection[Row]) -> list[Concept]:
            known = [ontologies.get(connection, ontology)] if ontology is not None else ontologies.find_all(connection)
            number = known[0].number if ontology else None
            found = concepts.labelled(connection, label, [concept_key(one.id, label) for one in known], number)
            same = [one for one in found if normal(one.label) == normal(label)]
            return same or concepts.also_called(connection, label, number)

        return self._looked_up(find, deadline, cancel)

    def _looked_up(self, find: Callable[[Connection[Row]], T], deadline: float | None, cancel: Cancel | None) -> T:
        if deadline is not None:
            return self._desk.look_up(find, deadline, cancel)
        with self._pool.connection() as connection:
            return find(connection)

    def hubs(self, ontology: str, limit: int = 12, *, most: int = 1_000) -> list[Concept]:
        """Where to begin: an ontology's concepts with the most relations.

        They are counted anew where there are at most so many; of more, the snapshot says it, and where there is none,
        the first so many are counted.
        """
        self._only_own("keeps no list of ontologies")
        snapshot = self._keeper.current if self._keeper is not None else None
        with self._pool.connection() as connection:
            known = ontologies.find(connection, ontology)
            if known is None:
                return []
            if snapshot is None or snapshot.size_of(known.number) <= most:
                return concepts.hubs(connection, ontology, limit, most)
            best = snapshot.best_connected(known.number, limit)
            rows = concepts.rows(connection, best)()
        return [rows[node] for node in best if node in rows]

    def evidence(
        self, concept_id: UUID, limit: int = 100, *, deadline: float | None = None, cancel: Cancel | None = None
    ) -> list[Instance]:
        """Quotes that speak of a concept, by document and place."""
        self._only_own("has no evidence")
        return self._looked_up(
            lambda connection: documents.instances_of(connection, concept_id, limit), deadline, cancel
        )

    def passage(self, document: UUID, start: int, end: int) -> Passage | None:
        """A stretch of a document's text; None if there is no such document."""
        self._only_own("has no documents")
        with self._pool.connection() as connection:
            return documents.passage(connection, document, start, end)

    def relation_types(self) -> list[RelationType]:
        with self._pool.connection() as connection:
            return list(self._backend.vocabulary(connection).types.values())

    # Asking

    def neighbors(
        self,
        seeds: Sequence[Seed],
        max_hops: int = 1,
        direction: Direction = "both",
        relation_types: Sequence[str] | None = None,
        where: Where | None = None,
        limit: int = 100,
        deadline: float | None = None,
        *,
        order: Order = Order.DEGREE,
        min_epoch: int | None = None,
        cancel: Cancel | None = None,
    ) -> Neighbors:
        """Concepts within so many hops of any seed, each once with its least distance, seeds left out.

        Ordered, and cut at `limit`, by `order`: by default the highest degree first (all relations of a concept, in and
        out, whatever the filters), then the lowest node.
        """
        one_hop = max_hops == 1 and self._keeper is not None
        key = (tuple(seeds), direction, _frozen(relation_types), _frozen_where(where), limit, order)
        if one_hop and (known := self._recall(key, min_epoch)) is not None:
            return known
        answer = neighbors.neighbors(
            self._desk, seeds, max_hops=max_hops, direction=direction, relation_types=relation_types, where=where,
            order=order, limit=limit, asked=Asked(deadline, min_epoch, cancel),
        )  # fmt: skip
        if one_hop and answer.complete:
            self._remember(key, answer)
        return answer

    def subgraph(
        self,
        seeds: Sequence[Seed],
        max_hops: int = 1,
        direction: Direction = "both",
        relation_types: Sequence[str] | None = None,
        where: Where | None = None,
        limit: int = 100,
        deadline: float | None = None,
        *,
        min_epoch: int | None = None,
        cancel: Cancel | None = None,
    ) -> Subgraph:
        """Seeds, what is nearest around them, and all allowed relations among these: enough to draw it."""
        return neighbors.subgraph(
            self._desk, seeds, max_hops=max_hops, direction=direction, relation_types=relation_types, where=where,
            limit=limit, asked=Asked(deadline, min_epoch, cancel),
        )  # fmt: skip

    def related(
        self,
        seed: Seed,
        max_hops: int = 2,
        direction: Direction = "both",
        relation_types: Sequence[str] | None = None,
        where: Where | None = None,
        limit: int = 50,
        deadline: float | None = None,
        *,
        min_epoch: int | None = None,
        cancel: Cancel | None = None,
    ) -> Related:
        """Concepts related to one, nearest first, each with the relation types on one shortest way to it."""
        return neighbors.related(
            self._desk, seed, max_hops=max_hops, direction=direction, relation_types=relation_types, where=where,
            limit=limit, asked=Asked(deadline, min_epoch, cancel),
        )  # fmt: skip

    def diversity(
        self,
        seed: Seed,
        max_hops: int = 2,
        direction: Direction = "both",
        relation_types: Sequence[str] | None = None,
        where: Where | None = None,
        limit: int = 200,
        deadline: float | None = None,
        *,
        min_epoch: int | None = None,
        cancel: Cancel | None = None,
    ) -> Diversity:
        """How unlike each other the nearest concepts around one are, by their embeddings and by what links them."""
        return neighbors.diversity(
            self._desk, seed, max_hops=max_hops, direction=direction, relation_types=relation_types, where=where,
            limit=limit, asked=Asked(deadline, min_epoch, cancel),
        )  # fmt: skip

    def paths(
        self,
        start: Seed,
        goal: Seed,
        max_hops: int = 6,
        count: int = 1,
        direction: Direction = "both",
        relation_types: Sequence[str] | None = None,
        where: Where | None = None,
        deadline: float | None = None,
        *,
        min_epoch: int | None = None,
        cancel: Cancel | None = None,
    ) -> Paths:
        """The `count` shortest paths without a concept twice: fewest hops first, then the lowest nodes in turn."""
        return paths.paths(
            self._desk, start, goal, max_hops=max_hops, count=count, direction=direction,
            relation_types=relation_types, where=where, asked=Asked(deadline, min_epoch, cancel),
        )  # fmt: skip

    def enriched_path(
        self,
        start: Seed,
        goal: Seed,
        max_hops: int = 6,
        count: int = 1,
        direction: Direction = "both",
        relation_types: Sequence[str] | None = None,
        where: Where | None = None,
        deadline: float | None = None,
        *,
        around_hops: int = 1,
        around_limit: int = 10,
        min_epoch: int | None = None,
        cancel: Cancel | None = None,
    ) -> EnrichedPaths:
        """The same paths, and around each concept on them what `neighbors` gives, in one call."""
        return paths.enriched_path(
            self._desk, start, goal, max_hops=max_hops, count=count, around_hops=around_hops,
            around_limit=around_limit, direction=direction, relation_types=relation_types, where=where,
            asked=Asked(deadline, min_epoch, cancel),
        )  # fmt: skip

    def search(
        self,
        text: str | None = None,
        *,
        vector: Sequence[float] | None = None,
        model: str | None = None,
        like: Seed | None = None,
        where: Where | None = None,
        limit: int = 20,
        min_similarity: float = 0.0,
        deadline: float | None = None,
        min_epoch: int | None = None,
        cancel: Cancel | None = None,
    ) -> SearchAnswer:
        """Concepts by what is said of them (`text`), by where their embeddings point (`vector`, with the `model` that
        made it, or `like` a concept, which is left out itself), or by both: then their ranks are fused.

        The highest score first, then the lowest node. Nothing less similar than `min_similarity` counts as near; by
        `text` alone nothing is compared, and it is refused.
        """
        self._only_own("is not searched")
        return search.search(
            self._desk, text=text, vector=vector, model=model, like=like, where=where, limit=limit,
            min_similarity=min_similarity, asked=Asked(deadline, min_epoch, cancel),
        )  # fmt: skip

    def polarity(
        self,
        positive: Seed,
        negative: Seed,
        *,
        candidates: Sequence[Seed] | None = None,
        max_hops: int = 2,
        direction: Direction = "both",
        relation_types: Sequence[str] | None = None,
        where: Where | None = None,
        limit: int = 50,
        deadline: float | None = None,
        min_epoch: int | None = None,
        cancel: Cancel | None = None,
    ) -> Polarity:
        """Where concepts stand between two poles, by their embeddings: those given, or the nearest around the poles.

        Of more than `limit` the first are taken: fewest hops, highest degree, lowest node (of those given, the lowest
        node). They are ordered from the positive pole to the negative one, then by node.
        """
        self._only_own("has no polarity")
        return polarity.polarity(
            self._desk, positive, negative, candidates=candidates, max_hops=max_hops, direction=direction,
            relation_types=relation_types, where=where, limit=limit, asked=Asked(deadline, min_epoch, cancel),
        )  # fmt: skip

    # Running

    def epoch(self) -> int:
        """The latest epoch of the database; 0 where nobody counts."""
        with self._pool.connection() as connection:
            return self._backend.epoch(connection)

    def refresh(self) -> int | None:
        """Bring the snapshot up to the latest commit; its epoch, None where there is none."""
        graph = self._keeper.refresh() if self._keeper is not None else None
        return graph.epoch if graph is not None else None

    def wait_for(self, epoch: int, timeout: float = 10.0) -> bool:
        """Whether the snapshot comes to an epoch by itself, in time."""
        return self._keeper is not None and self._keeper.wait_for(epoch, timeout)

    def settings(self) -> GraphConfig:
        """The configuration with what stands in the database."""
        if not self._backend.own:
            return self.config
        workers, timeout = self.stored_settings()
        return replace(self.config, workers=workers or self.config.workers, timeout=timeout or self.config.timeout)

    def stored_settings(self, *, connection: Connection[Row] | None = None) -> tuple[int | None, float | None]:
        """Workers and time-out as they stand in the database; None where nothing does. From now on they count here."""
        with self._writing(connection) as reader:
            workers, timeout = settings.read(reader)
        if connection is None:  # it is committed
            self._desk.apply(workers, timeout)
        return workers, timeout

    @property
    def timeout(self) -> float:
        """Seconds of a question that says none, as far as this process knows; looked at by each question."""
        return self._desk.timeout

    def edit_settings(
        self, *, workers: int | None = None, timeout: float | None = None, connection: Connection[Row] | None = None
    ) -> None:
        """For every process, within a second. None leaves it to each process's own configuration."""
        self._only_own("has no settings: they are each process's own")
        if workers is not None and workers not in WORKERS:
            raise BadQuestion(f"{workers} graph workers: there are 1 to 32")
        if timeout is not None and not TIMEOUT[0] <= timeout <= TIMEOUT[1]:
            raise BadQuestion(f"a graph time-out of {timeout:g} s: it is {TIMEOUT[0]:g} to {TIMEOUT[1]:g}")
        with self._writing(connection) as writer:
            settings.edit(writer, workers, timeout)

    def status(self) -> SnapshotStatus | None:
        return self._keeper.status() if self._keeper is not None else None

    def vectors(self) -> tuple[VectorStatus, ...]:
        """The embeddings that this process keeps in memory, model by model."""
        return self._vectors.status() if self._vectors is not None else ()

    def budget(self) -> BudgetUse:
        return self._budget.use

    def _recall(self, key: Any, min_epoch: int | None) -> Neighbors | None:
        """A remembered answer, if nothing was committed since as far as this process hears of it."""
        assert self._keeper is not None
        with self._remembering:
            known, latest = self._remembered.get(key), self._keeper.latest
            if known is None:
                return None
            if latest is None or known.as_of_epoch < max(latest, min_epoch or 0):
                self._forget(key)
                return None
            self._remembered.move_to_end(key)
            return known

    def _remember(self, key: Any, answer: Neighbors) -> None:
        with self._remembering:
            self._forget(key)
            self._remembered[key] = answer
            self._remembered_rows += len(answer.items)
            while len(self._remembered) > self.config.cached_answers or self._remembered_rows > self.config.cached_rows:
                self._forget(next(iter(self._remembered)))

    def _forget(self, key: Any) -> None:
        if (known := self._remembered.pop(key, None)) is not None:
            self._remembered_rows -= len(known.items)


def _frozen(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


def _frozen_where(where: Where | None) -> tuple[Any, ...]:
    where = where or Where()
    return (_frozen(where.ontologies), where.min_confidence, _frozen(where.categories))
