"""From a document's text to the graph, chunk by chunk, so that it can be broken off at any moment and go on later.

The document and the plan of its chunks are stored before the first chunk is looked at. A chunk is extracted and
embedded outside of any transaction, possibly while the one before it is written; then it is matched and written in one
transaction, together with its row of the plan. So a chunk is in the graph wholly or not at all, what was written is
never asked of a provider again, and the chunks of a document are matched in their order: whatever breaks off in
between, the graph comes out the same.

Locks are taken in one order: the document, its ontology, the vocabulary, then rows as `writing` says. What can be asked
or said together travels together: a chunk is four round trips to the server, with the one that commits.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

import numpy as np
from psycopg import Connection

from kappa.graph.errors import BadWrite, GraphError
from kappa.graph.identity import concept_key, document_key, kept
from kappa.graph.ingest.chunk import ChunkRule, chunk
from kappa.graph.ingest.embedding import Embedder
from kappa.graph.ingest.extraction import BadExtraction, Checked, Context, Extractor, check
from kappa.graph.ingest.match import type_text
from kappa.graph.ingest.near import News, Shelf
from kappa.graph.ingest.weave import weave_concepts, weave_instances, weave_relations, weave_types
from kappa.graph.model import Chunk, ChunkCounts, NewDocument
from kappa.graph.store import clock, concepts, documents, embeddings, ontologies, plans
from kappa.graph.store.documents import DocumentRow
from kappa.graph.store.plans import PlannedChunk
from kappa.graph.store.vectors import Floats, Kind
from kappa.graph.writing import Vectors, put_chunk
from kappa.pg.queries import Answer, Row


class Begin(Protocol):
    """Opens a transaction: `Graph.transaction`."""

    def __call__(self, *, pipeline: bool = False) -> AbstractContextManager[Connection[Row]]: ...


MOST_COMPLAINT = 500


@dataclass(frozen=True, slots=True)
class Planned:
    """A document in the graph, its text, and its chunks as they were when it was looked at."""

    row: DocumentRow
    text: str
    chunks: tuple[PlannedChunk, ...]

    @property
    def document(self) -> UUID:
        return self.row.document.id


@dataclass(frozen=True, slots=True)
class ChunkError:
    """A chunk that has nothing in the graph, and why."""

    ordinal: int
    error: str


@dataclass(frozen=True, slots=True)
class Ingested:
    """What became of a document, over all runs."""

    document: UUID
    chunks: int
    failed: tuple[ChunkError, ...]
    counts: ChunkCounts


@dataclass(frozen=True, slots=True)
class _Found:
    """A chunk's extraction with the vectors that writing it may need."""

    checked: Checked
    labels: dict[str, Floats]
    types: dict[str, Floats]
    source: Floats


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the server was asked about a chunk's labels, whose ids are `keys`, and about the vocabulary."""

    keys: dict[str, UUID]
    news: Answer[News]
    there: Answer[dict[UUID, int]]
    types: Answer[tuple[int, bool]]


class Pipeline:
    """Brings documents into one graph. Safe to use from many threads."""

    def __init__(self, begin: Begin, embedder: Embedder, shelf: Shelf | None = None) -> None:
        self._begin = begin
        self._embedder = embedder
        self._kind = Kind(kept(embedder.model), embedder.dimension)
        self._shelf = shelf or Shelf()

    def resume(self, ontology: str, digest: bytes, run: str, *, force: bool = False) -> Planned | None:
        """The plan of a content that an ontology has, taken over by a run; None if it has no plan of it.

        A run that has it already finds it as it left it; another tries again what failed, and all with `force`.
        """
        with self._begin() as connection:
            found = ontologies.find(connection, ontology)
            if found is None:
                return None
            return self._taken(connection, document_key(found.id, digest), run, force=force)

    def plan(
        self, ontology: str, new: NewDocument, run: str, *, rule: ChunkRule | None = None, force: bool = False
    ) -> Planned:
        """Store a document with the plan of its chunks; one that is there keeps the text that it has."""
        with self._begin() as connection:
            document, _ = documents.add(connection, ontologies.ensure(connection, ontology), new)
            plans.lock_document(connection, document)
            planned = self._taken(connection, document, run, force=force)
            if planned is None:
                row = documents.find(connection, document)
                assert row is not None
                text = documents.text(connection, row)
                spans = [PlannedChunk(one.ordinal, one.start, one.end, one.words) for one in chunk(text, rule)]
                plans.add(connection, row.number, spans, run)
                planned = Planned(row, text, tuple(spans))
            clock.take_epoch(connection)
            return planned

    def _taken(self, connection: Connection[Row], document: UUID, run: str, *, force: bool) -> Planned | None:
        plans.lock_document(connection, document)
        row = documents.find(connection, document)
        if row is None or not plans.read(connection, row.number):
            return None
        plans.again(connection, row.number, run, everything=force)
        return Planned(row, documents.text(connection, row), tuple(plans.read(connection, row.number)))

    def ingest(
        self,
        planned: Planned,
        extractor: Extractor,
        *,
        each: Callable[[int, int], None] = lambda done, total: None,
        threads: Executor | None = None,
        ahead: int = 1,
    ) -> Ingested:
        """Bring the open chunks of a document into the graph, in their order.

        `each(done, total)` is called before the first and after every chunk; what it raises ends the run there.
        With `threads`, so many chunks `ahead` are extracted while one is written.
        """
        total = len(planned.chunks)
        to_do = [one for one in planned.chunks if one.state == "pending"]
        done = total - len(to_do)
        each(done, total)
        for one, found in self._found(planned, to_do, extractor, threads, ahead):
            self._write(planned, one, found, extractor.name)
            done += 1
            each(done, total)
        return self._ingested(planned)

    def _found(
        self,
        planned: Planned,
        to_do: Sequence[PlannedChunk],
        extractor: Extractor,
        threads: Executor | None,
        ahead: int,
    ) -> Iterator[tuple[PlannedChunk, _Found | BadExtraction]]:
        """What each chunk says, in order; a chunk that a provider could make nothing of, as its error."""

        def look(one: PlannedChunk) -> _Found | BadExtraction:
            try:
                return self._extract(planned, one, extractor)
            except BadExtraction as error:
                return error

        if threads is None:
            for one in to_do:
                yield one, look(one)
            return
        begun: deque[tuple[PlannedChunk, Future[_Found | BadExtraction]]] = deque()
        rest = iter(to_do)
        try:
            while True:
                while len(begun) <= ahead and (one := next(rest, None)) is not None:
                    begun.append((one, threads.submit(look, one)))
                if not begun:
                    return
                one, future = begun.popleft()
                yield one, future.result()
        finally:
            for _, future in begun:
                future.cancel()

    def _extract(self, planned: Planned, one: PlannedChunk, extractor: Extractor) -> _Found:
        text = planned.text[one.start : one.end]
        told = Context(ontology=planned.row.document.ontology, document=planned.row.document.name)
        checked = check(extractor.extract(text, told), text)
        near = self._shelf.concepts(planned.row.ontology_number, self._kind)
        # What was in the graph a moment ago, with a vector, most likely is when the chunk is written.
        labels = [
            found.label
            for found in checked.concepts
            if not near.has(concept_key(planned.row.ontology_key, found.label))
        ]
        types = list(dict.fromkeys(found.type for found in checked.relations))
        vectors = self._embed([*labels, *map(_type_words, types), text])
        return _Found(
            checked,
            dict(zip(labels, vectors, strict=False)),
            dict(zip(types, vectors[len(labels) :], strict=False)),
            vectors[-1],
        )

    def _embed(self, texts: Sequence[str]) -> Floats:
        vectors = np.asarray(self._embedder.embed(texts), np.float32)
        lengths = np.linalg.norm(vectors, axis=1) if vectors.shape == (len(texts), self._kind.dimension) else None
        if lengths is None or not np.isfinite(lengths).all() or not lengths.all():
            raise GraphError(f"the embedding model {self._kind.model} gave no sound vectors for {len(texts)} texts")
        return vectors

    def _write(self, planned: Planned, one: PlannedChunk, found: _Found | BadExtraction, extractor: str) -> None:
        """One transaction; nothing if another run was quicker."""
        document = planned.row
        with self._begin(pipeline=True) as connection:
            plans.lock_document(connection, planned.document)
            held = documents.hold(connection, document)
            first_open = plans.first_open(connection, document.number)
            if isinstance(found, BadExtraction):
                held()
                if self._is_next(document, one, first_open()):
                    complaint = " ".join(str(found).split())[:MOST_COMPLAINT]
                    plans.fail(connection, document.number, one.ordinal, extractor, complaint)
                return
            # All questions at once; the answers are worth something only if the chunk is still to be written.
            plans.lock_ontology(connection, document.ontology_number)
            asked = self._ask(connection, document, found.checked)
            held()
            if self._is_next(document, one, first_open()):
                self._put(connection, planned, one, found, asked, extractor)
                clock.end(connection)

    def _is_next(self, document: DocumentRow, one: PlannedChunk, first_open: int | None) -> bool:
        if first_open is not None and first_open < one.ordinal:
            raise BadWrite(f"another ingestion of {document.document.name} has begun it anew: this one ends here")
        return first_open == one.ordinal

    def _ask(self, connection: Connection[Row], document: DocumentRow, checked: Checked) -> _Asked:
        keys = {label.label: concept_key(document.ontology_key, label.label) for label in checked.concepts}
        return _Asked(
            keys,
            self._shelf.concepts(document.ontology_number, self._kind).look(connection),
            concepts.look_up(connection, sorted(keys.values())),
            self._shelf.types(self._kind).look(connection),
        )

    def _put(
        self,
        connection: Connection[Row],
        planned: Planned,
        one: PlannedChunk,
        found: _Found,
        asked: _Asked,
        extractor: str,
    ) -> None:
        document, checked, thresholds = planned.row, found.checked, self._embedder.thresholds
        keys, news, there = asked.keys, asked.news(), asked.there()
        near = self._shelf.concepts(document.ontology_number, self._kind)
        with near.lock:
            near.take(connection, news)
            # Few, if any: known when the chunk was extracted, and gone or of another model by now.
            late = [
                label
                for label, key in keys.items()
                if label not in found.labels and not (key in there and near.has(key))
            ]
            labels = found.labels | dict(zip(late, self._embed(late) if late else (), strict=True))
            woven, called = weave_concepts(checked.concepts, labels, document.ontology_key, there, near, thresholds)
        types, new_types = self._types(connection, checked, found, *asked.types())
        weave_relations(woven, checked, called, types)
        weave_instances(woven, checked, called, one.start)
        written = put_chunk(
            connection,
            document,
            Chunk(
                planned.document, one.ordinal, one.start, one.end,
                woven.concepts, woven.instances, woven.relations, woven.matched,
            ),
            planned.text[one.start : one.end],
            Vectors(self._kind, woven.vectors, found.source),
        )  # fmt: skip
        if new_types:
            embeddings.put_types(connection, self._kind, list(new_types), np.stack([*new_types.values()]))
        dropped = checked.dropped
        lost = dropped.quotes + dropped.instances + dropped.relations + dropped.concepts + woven.dropped
        plans.finish(
            connection, document.number, one.ordinal, extractor, written.source,
            concepts=written.concepts, matched=woven.others, dropped=lost,
        )  # fmt: skip

    def _types(
        self, connection: Connection[Row], checked: Checked, found: _Found, epoch: int, holds: bool
    ) -> tuple[dict[str, str], dict[str, Floats]]:
        near = self._shelf.types(self._kind)
        with near.lock:
            near.take(connection, epoch, holds)
            types, new = weave_types(checked.relations, found.types, near, self._embedder.thresholds)
        if new:
            # Somebody else may be about to bring the same ones.
            plans.lock_vocabulary(connection)
            epoch, holds = near.look(connection)()
            with near.lock:
                near.take(connection, epoch, holds)
                types, new = weave_types(checked.relations, found.types, near, self._embedder.thresholds)
        return types, new

    def of_other_models(self, planned: Planned) -> int:
        """Concepts of the ontology whose vectors are another model's, so that only their labels could be matched."""
        with self._begin() as connection:
            return embeddings.of_other_models(connection, planned.row.ontology_number, self._kind)

    def _ingested(self, planned: Planned) -> Ingested:
        with self._begin() as connection:
            chunks = plans.read(connection, planned.row.number)
        failed = tuple(ChunkError(one.ordinal, one.error) for one in chunks if one.error is not None)
        return Ingested(planned.document, len(chunks), failed, sum((one.counts for one in chunks), ChunkCounts()))


def _type_words(name: str) -> str:
    return type_text(name) or name
