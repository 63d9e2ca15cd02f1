"""Backups that were uploaded, in the database, until the job that restores them has ended."""

from collections.abc import Iterator
from datetime import datetime

from psycopg import Connection

from kappa.pg import queries
from kappa.pg.ops import Op, count, nothing, run
from kappa.pg.queries import Row

sql = queries.beside(__file__)
BEGIN = sql["begin"]
ADD = sql["add"]
TIE = sql["tie"]
DROP = sql["drop"]
SIZE = sql["size"]
PIECE = sql["piece"]
FORGET = sql["forget"]


def begin(who: str) -> Op[int]:
    """The number of a new file."""
    return Op(BEGIN, {"who": who}, lambda rows: rows[0][0])


def add(file: int, position: int, content: bytes) -> Op[None]:
    return Op(ADD, {"file": file, "position": position, "content": content}, nothing)


def tie(file: int, job: int) -> Op[None]:
    """The file is whole, and this job's."""
    return Op(TIE, {"file": file, "job": job}, nothing)


def drop(file: int) -> Op[None]:
    return Op(DROP, {"file": file}, nothing)


def size(file: int, job: int) -> Op[int | None]:
    """How many bytes the file of this job has; None if it is not this job's, or gone."""
    return Op(SIZE, {"file": file, "job": job}, lambda rows: rows[0][0] if rows else None)


def forget(now: datetime | None = None) -> Op[int]:
    """Files that no job will ask for are deleted after a day; how many."""
    return Op(FORGET, {"now": now}, count)


def pieces(connection: Connection[Row], file: int) -> Iterator[bytes]:
    position = 0
    while found := connection.execute(PIECE.sql, {"file": file, "position": position}, binary=True).fetchone():
        yield found[0]
        position += 1


def read_size(connection: Connection[Row], file: int, job: int) -> int | None:
    return run(connection, size(file, job))
