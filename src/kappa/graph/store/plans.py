"""Statements about the chunks of documents: which there are, and what became of each."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from psycopg import Connection

from kappa.graph.identity import kept
from kappa.graph.model import ChunkCounts
from kappa.pg import queries
from kappa.pg.queries import Answer, Row

sql = queries.beside(__file__)
LOCK_DOCUMENT = sql["lock_document"]
LOCK_ONTOLOGY = sql["lock_ontology"]
LOCK_VOCABULARY = sql["lock_vocabulary"]
ADD = sql["add"]
AGAIN = sql["again"]
READ = sql["read"]
FIRST_OPEN = sql["first_open"]
FINISH = sql["finish"]
FAIL = sql["fail"]
IN_ONTOLOGY = sql["in_ontology"]
COUNTS = sql["counts"]

ChunkState = Literal["pending", "done", "failed"]


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """A chunk of a document: characters `start` up to `end` of its text."""

    ordinal: int
    start: int
    end: int
    words: int
    state: ChunkState = "pending"
    counts: ChunkCounts = field(default_factory=ChunkCounts)
    error: str | None = None


def lock_document(connection: Connection[Row], document: UUID) -> None:
    connection.execute(LOCK_DOCUMENT.sql, {"document": document})


def lock_ontology(connection: Connection[Row], ontology: int) -> None:
    connection.execute(LOCK_ONTOLOGY.sql, {"ontology": ontology})


def lock_vocabulary(connection: Connection[Row]) -> None:
    connection.execute(LOCK_VOCABULARY.sql)


def add(connection: Connection[Row], document: int, chunks: Sequence[PlannedChunk], run: str) -> None:
    params = {
        "document": document,
        "run": run,
        "ordinals": [one.ordinal for one in chunks],
        "starts": [one.start for one in chunks],
        "ends": [one.end for one in chunks],
        "words": [one.words for one in chunks],
    }
    connection.execute(ADD.sql, params)


def again(connection: Connection[Row], document: int, run: str, *, everything: bool) -> None:
    """Let a run take the plan over, if it isn't that run's already."""
    connection.execute(AGAIN.sql, {"document": document, "run": run, "all": everything})


def read(connection: Connection[Row], document: int) -> list[PlannedChunk]:
    return [
        PlannedChunk(row[0], row[1], row[2], row[3], row[4], ChunkCounts(*row[5:10]), row[10])
        for row in connection.execute(READ.sql, {"document": document})
    ]


def first_open(connection: Connection[Row], document: int) -> Answer[int | None]:
    cursor = connection.execute(FIRST_OPEN.sql, {"document": document})

    def answer() -> int | None:
        row = cursor.fetchone()
        return None if row is None else row[0]

    return answer


def finish(
    connection: Connection[Row],
    document: int,
    ordinal: int,
    extractor: str,
    source: int,
    *,
    concepts: int,
    matched: int,
    dropped: int,
) -> None:
    """A chunk that was written is open no more. What this transaction brought with its source is counted there."""
    params = {
        "document": document, "ordinal": ordinal, "extractor": kept(extractor), "source": source,
        "concepts": concepts, "matched": matched, "dropped": dropped,
    }  # fmt: skip
    connection.execute(FINISH.sql, params)


def fail(connection: Connection[Row], document: int, ordinal: int, extractor: str, error: str) -> None:
    params = {"document": document, "ordinal": ordinal, "extractor": kept(extractor), "error": kept(error)}
    connection.execute(FAIL.sql, params)


def in_ontology(connection: Connection[Row], ontology: str, hashes: Sequence[bytes]) -> dict[bytes, tuple[UUID, int]]:
    """Of some contents those that an ontology has: the document, and how many of its chunks are not done."""
    rows = connection.execute(IN_ONTOLOGY.sql, {"ontology": kept(ontology), "hashes": list(hashes)})
    return {row[0]: (row[1], row[2]) for row in rows}


def counts(connection: Connection[Row], ontology: str, hashes: Sequence[bytes]) -> dict[bytes, tuple[int, int]]:
    """Of some contents those that are planned: how many chunks, and how many of them are no longer open."""
    rows = connection.execute(COUNTS.sql, {"ontology": kept(ontology), "hashes": list(hashes)})
    return {row[0]: (row[1], row[2]) for row in rows}
