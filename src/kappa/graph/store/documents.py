"""Statements about documents, their sources and the evidence in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from psycopg import Connection

from kappa.graph.errors import BadWrite
from kappa.graph.identity import content_hash, document_key, kept, source_key
from kappa.graph.model import Document, Instance, NewDocument, Ontology, Passage
from kappa.graph.store import arrays
from kappa.graph.store.vectors import Floats, Kind, reals
from kappa.pg import queries
from kappa.pg.queries import Answer, Row

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


def hold(connection: Connection[Row], document: DocumentRow) -> Answer[None]:
    """Let nobody delete it before the transaction ends."""
    cursor = connection.execute(HOLD.sql, {"document": document.number})

    def answer() -> None:
        if cursor.fetchone() is None:
            raise _gone(document)

    return answer


def _gone(document: DocumentRow) -> BadWrite:
    return BadWrite(f"document {document.document.id} ({document.document.name}) was deleted meanwhile")


def stretch(connection: Connection[Row], document: DocumentRow, start: int, end: int) -> str:
    """The document's text from one character up to another."""
    row = connection.execute(STRETCH.sql, {"document": document.number, "start": start, "end": end}).fetchone()
    return "" if row is None else str(row[0])


def add_source(
    connection: Connection[Row],
    document: DocumentRow,
    ordinal: int,
    start: int,
    text: str,
    kind: Kind | None = None,
    vector: Floats | None = None,
) -> Answer[int]:
    """The number of a source, whose text is the document's own. A vector is kept with what was embedded."""
    key = source_key(document.document.id, start, start + len(text))
    params = {
        "key": key, "document": document.number, "ordinal": ordinal, "start": start, "end": start + len(text),
        "text": text, "embedding": None if vector is None else reals(connection, vector),
        "model": None if kind is None else kind.model,
        "hash": None if vector is None else content_hash(text.encode()),
    }  # fmt: skip
    connection.execute(ADD_SOURCE.sql, params)
    cursor = connection.execute(FIND_SOURCE.sql, {"key": key})

    def answer() -> int:
        row = cursor.fetchone()
        assert row is not None
        return row[0]

    return answer


def add_instances(connection: Connection[Row], source: int, instances: Sequence[tuple[int, str, int]]) -> Answer[int]:
    """Concept, quote and offset of each; how many are new."""
    if not instances:
        return lambda: 0
    concepts, quotes, starts = zip(*instances, strict=True)
    params = {
        "source": source, "concepts": arrays.numbers(concepts), "quotes": arrays.texts(quotes),
        "starts": arrays.numbers(starts),
    }  # fmt: skip
    cursor = connection.execute(ADD_INSTANCES.sql, params)
    return lambda: len(cursor.fetchall())


def instances_of(connection: Connection[Row], concept: UUID, limit: int) -> list[Instance]:
    return [Instance(*row) for row in connection.execute(INSTANCES_OF.sql, {"concept": concept, "limit": limit})]


def passage(connection: Connection[Row], key: UUID, start: int, end: int) -> Passage | None:
    """The document's text from one character up to another, as far as it has them."""
    found = find(connection, key)
    if found is None:
        return None
    start = min(max(0, start), found.document.characters)
    return Passage(found.document, start, stretch(connection, found, start, max(start, end)))


def delete(connection: Connection[Row], key: UUID) -> bool:
    """With its sources and the evidence in them; concepts and relations stay."""
    return connection.execute(DELETE.sql, {"key": key}).fetchone() is not None
