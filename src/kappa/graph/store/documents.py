"""Statements about documents, their sources and the evidence in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from psycopg import Connection

from kappa.graph.errors import BadWrite
from kappa.graph.identity import content_hash, document_key, kept, source_key
from kappa.graph.model import Document, Instance, NewDocument, Ontology, Passage
from kappa.pg import queries
from kappa.pg.queries import Row

sql = queries.beside(__file__)
ADD = sql["add"]
FIND = sql["find"]
TEXT = sql["text"]
HOLD = sql["hold"]
STRETCH = sql["stretch"]
ADD_SOURCE = sql["add_source"]
FIND_SOURCE = sql["find_source"]
ADD_INSTANCES = sql["add_instances"]
INSTANCES_OF = sql["instances_of"]
DELETE = sql["delete"]


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """A document, with what its chunks need to know of it."""

    number: int
    document: Document
    ontology_number: int
    ontology_key: UUID


def add(connection: Connection[Row], ontology: Ontology, document: NewDocument) -> tuple[UUID, bool]:
    """The document's id, and whether it is new. The same content in the same ontology is the same document."""
    if kept(document.text) != document.text:
        # Written otherwise, every offset behind it would be wrong.
        raise BadWrite(f"the text of {document.name!r} has a NUL or half a character, which PostgreSQL can't keep")
    digest = content_hash(
        document.text.encode(errors="backslashreplace") if document.original is None else document.original
    )
    key = document_key(ontology.id, digest)
    row = connection.execute(
        ADD.sql,
        {
            "key": key,
            "ontology": ontology.number,
            "name": kept(document.name),
            "content_hash": digest,
            "media_type": kept(document.media_type),
            "text": document.text,
            "original": document.original,
        },
    ).fetchone()
    return key, row is not None


def find(connection: Connection[Row], key: UUID) -> DocumentRow | None:
    row = connection.execute(FIND.sql, {"key": key}).fetchone()
    if row is None:
        return None
    number, key, ontology, name, media_type, characters, ontology_number, ontology_key = row
    return DocumentRow(number, Document(key, ontology, name, media_type, characters), ontology_number, ontology_key)


def text(connection: Connection[Row], document: DocumentRow) -> str:
    row = connection.execute(TEXT.sql, {"document": document.number}).fetchone()
    if row is None:
        raise _gone(document)
    return row[0]


def hold(connection: Connection[Row], document: DocumentRow) -> None:
    """Let nobody delete it before the transaction ends."""
    if connection.execute(HOLD.sql, {"document": document.number}).fetchone() is None:
        raise _gone(document)


def _gone(document: DocumentRow) -> BadWrite:
    return BadWrite(f"document {document.document.id} ({document.document.name}) was deleted meanwhile")


def add_source(
    connection: Connection[Row], document: DocumentRow, ordinal: int, start: int, end: int, text: str | None = None
) -> tuple[int, str]:
    """The source's number and its text, which is the document's own; who has it at hand spares the server a look."""
    place = {"document": document.number, "start": start, "end": end}
    if text is None:
        row = connection.execute(STRETCH.sql, place).fetchone()
        text = "" if row is None else str(row[0])
    key = source_key(document.document.id, start, end)
    connection.execute(ADD_SOURCE.sql, {**place, "key": key, "ordinal": ordinal, "text": text})
    found = connection.execute(FIND_SOURCE.sql, {"key": key}).fetchone()
    assert found is not None
    return found[0], text


def add_instances(connection: Connection[Row], source: int, instances: Sequence[tuple[int, str, int]]) -> int:
    """Concept, quote and offset of each; how many are new."""
    if not instances:
        return 0
    concepts, quotes, starts = zip(*instances, strict=True)
    params = {"source": source, "concepts": list(concepts), "quotes": list(quotes), "starts": list(starts)}
    return len(connection.execute(ADD_INSTANCES.sql, params).fetchall())


def instances_of(connection: Connection[Row], concept: UUID, limit: int) -> list[Instance]:
    return [Instance(*row) for row in connection.execute(INSTANCES_OF.sql, {"concept": concept, "limit": limit})]


def passage(connection: Connection[Row], key: UUID, start: int, end: int) -> Passage | None:
    """The document's text from one character up to another, as far as it has them."""
    found = find(connection, key)
    if found is None:
        return None
    start = min(max(0, start), found.document.characters)
    place = {"document": found.number, "start": start, "end": max(start, end)}
    row = connection.execute(STRETCH.sql, place).fetchone()
    return Passage(found.document, start, row[0] if row else "")


def delete(connection: Connection[Row], key: UUID) -> bool:
    """With its sources and the evidence in them; concepts and relations stay."""
    return connection.execute(DELETE.sql, {"key": key}).fetchone() is not None
