"""Writes that keep the graph whole: a chunk with all it says, many concepts, many relations.

Each function works inside of its caller's transaction, writes nothing that is there already, and locks in one order
(types by name, concepts by key, relations by their ends), so that writers who meet wait for each other but never in a
circle. The caller takes the epoch as the last thing before the commit. In a pipeline, only what the server must answer
is waited for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar
from uuid import UUID

from psycopg import Connection

from kappa.graph.errors import BadWrite
from kappa.graph.identity import concept_key, normal, source_key
from kappa.graph.model import Chunk, NewConcept, NewRelation, Ontology, Written
from kappa.graph.store import clock, concepts, documents, relation_types, relations
from kappa.graph.store.documents import DocumentRow
from kappa.graph.store.relations import RelationRow
from kappa.graph.store.vectors import Floats, Kind
from kappa.pg.queries import Answer, Row

T = TypeVar("T")

BULK_ROWS = 100_000
"""Rows of one bulk transaction: the log lists them all, so a snapshot follows without being built anew."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors of one kind for what a chunk brings: those of its concepts by their ids, and its own."""

    kind: Kind | None = None
    concepts: Mapping[UUID, Floats] = field(default_factory=dict[UUID, Floats])
    source: Floats | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """A chunk that was written, before its transaction took its epoch."""

    source: int
    ids: dict[str, UUID]
    concepts: int
    instances: Answer[int]
    relations: Answer[int]


def write_chunk(connection: Connection[Row], chunk: Chunk) -> Written:
    """A source, its concepts, their evidence and relations."""
    document = documents.find(connection, chunk.document)
    if document is None:
        raise BadWrite(f"there is no document {chunk.document}")
    put = put_chunk(connection, document, chunk)
    return Written(clock.take_epoch(connection), put.ids, put.concepts, put.instances(), put.relations())


def put_chunk(
    connection: Connection[Row],
    document: DocumentRow,
    chunk: Chunk,
    text: str | None = None,
    vectors: Vectors | None = None,
) -> Put:
    """The same, for a caller who has more to write before it takes the epoch. `text`: the chunk's, if it is at hand."""
    if not 0 <= chunk.start < chunk.end <= document.document.characters:
        raise BadWrite(
            f"characters {chunk.start} to {chunk.end} are not in document {chunk.document}, "
            f"which has {document.document.characters}"
        )
    matched = {normal(label): key for label, key in chunk.matched.items()}
    own = [new for new in chunk.concepts if normal(new.label) not in matched]
    keys = {normal(new.label): concept_key(document.ontology_key, new.label) for new in own} | matched
    linked = {end for link in chunk.relations for end in (link.from_label, link.to_label) if isinstance(end, UUID)}
    categories = {link.type: link.category for link in chunk.relations}

    if text is None:
        text = documents.stretch(connection, document, chunk.start, chunk.end)
    vectors = vectors or Vectors()
    sent_types = relation_types.ensure(connection, categories)
    kind, place = vectors.kind, (chunk.ordinal, chunk.start)
    sent_source = documents.add_source(connection, document, *place, text, kind, vectors.source)
    made = concepts.upsert(connection, document.ontology_number, document.ontology_key, own, kind, vectors.concepts)
    sent_nodes = concepts.look_up(connection, sorted(linked | set(keys.values())), lock=True)
    types, source, nodes = sent_types(), sent_source(), sent_nodes()

    def node(end: str | UUID) -> int:
        key = end if isinstance(end, UUID) else keys.get(normal(end))
        if key is None:
            raise BadWrite(f"the chunk speaks of {end!r}, which is none of its concepts")
        if key not in nodes:
            raise BadWrite(f"concept {key} is not in the graph")
        return nodes[key]

    evidence: list[tuple[int, str, int]] = []
    for instance in chunk.instances:
        at = instance.start - chunk.start
        if at < 0 or not instance.quote or text[at : at + len(instance.quote)] != instance.quote:
            raise BadWrite(f"the quote {instance.quote!r} does not stand at character {instance.start}")
        evidence.append((node(instance.label), instance.quote, instance.start))
    said_by = f"source {source_key(chunk.document, chunk.start, chunk.end)}"
    rows = [
        RelationRow(
            node(link.from_label), node(link.to_label), types[link.type], relations.hundredths(link.confidence),
            link.category, said_by,
        )
        for link in chunk.relations
    ]  # fmt: skip
    instances = documents.add_instances(connection, source, evidence)
    related = relations.upsert(connection, rows)
    relations.support(connection, source, rows)
    ids = {new.label: keys[normal(new.label)] for new in chunk.concepts}
    return Put(source, ids, made(), instances, related)


def write_concepts(connection: Connection[Row], ontology: Ontology, new: Sequence[NewConcept]) -> Written:
    made = concepts.upsert(connection, ontology.number, ontology.id, new)
    ids = {one.label: concept_key(ontology.id, one.label) for one in new}
    return Written(clock.take_epoch(connection), ids, concepts=made())


def write_relations(connection: Connection[Row], new: Sequence[NewRelation]) -> Written:
    types = relation_types.ensure(connection, {one.type: one.category for one in new})()
    ends = sorted({end for one in new for end in (one.from_id, one.to_id)})
    nodes = concepts.look_up(connection, ends, lock=True)()
    for end in ends:
        if end not in nodes:
            raise BadWrite(f"concept {end} is not in the graph")
    rows = [
        RelationRow(
            nodes[one.from_id], nodes[one.to_id], types[one.type], relations.hundredths(one.confidence), one.category,
            one.provenance,
        )
        for one in new
    ]  # fmt: skip
    made = relations.upsert(connection, rows)
    return Written(clock.take_epoch(connection), relations=made())


def load_concepts(connection: Connection[Row], ontology: Ontology, new: Iterable[NewConcept]) -> int:
    """One bulk transaction of concepts; how many rows were made or changed."""
    clock.lock_bulk_loads(connection)
    written = concepts.merge(connection, ontology, new)
    clock.empty_incoming(connection)
    return written


def load_relations(connection: Connection[Row], new: Iterable[NewRelation]) -> int:
    """One bulk transaction of relations; how many rows were made or changed."""
    clock.lock_bulk_loads(connection)
    relations.copy_in(connection, new)
    relation_types.ensure(connection, relations.incoming_types(connection))
    written = relations.merge_incoming(connection)
    clock.empty_incoming(connection)
    return written


def in_batches(items: Iterable[T], size: int = BULK_ROWS) -> Iterable[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
