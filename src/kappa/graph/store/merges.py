"""Statements that merge one relation type into another, and undo it. All of one merge are one transaction."""

from collections.abc import Sequence
from typing import NamedTuple

from psycopg import Connection

from kappa.graph.findings import Merge
from kappa.graph.identity import kept
from kappa.pg import queries
from kappa.pg.queries import Row

sql = queries.beside(__file__)
HOLD_ALONE = sql["hold_alone"]
LOCK_TYPES = sql["lock_types"]
READ_TYPES = sql["read_types"]
RETIRE = sql["retire"]
REDIRECT = sql["redirect"]
RECORD = sql["record"]
LOCK_RELATIONS = sql["lock_relations"]
RECORD_UNITED = sql["record_united"]
GIVE_SOURCES = sql["give_sources"]
RAISE_KEPT = sql["raise_kept"]
DELETE_UNITED = sql["delete_united"]
MOVE = sql["move"]
FIND = sql["find"]
LOCK_MERGE = sql["lock_merge"]
LATER = sql["later"]
MOVE_BACK = sql["move_back"]
PART = sql["part"]
PART_SOURCES = sql["part_sources"]
TAKE_SOURCES = sql["take_sources"]
LOWER_KEPT = sql["lower_kept"]
RESTORE = sql["restore"]
LEAD_BACK = sql["lead_back"]
MARK_UNDONE = sql["mark_undone"]


class Locked(NamedTuple):
    """A type that nobody can write relations of until the transaction ends."""

    number: int
    active: bool
    merged_into: str | None


class Standing(NamedTuple):
    """A merge as it is recorded."""

    merged: int
    survivor: int
    undone: bool
    followers: list[int]


def lock_types(connection: Connection[Row], names: Sequence[str]) -> dict[str, Locked]:
    asked = [kept(name) for name in names]
    connection.execute(HOLD_ALONE.sql)
    connection.execute(LOCK_TYPES.sql, {"names": asked, "numbers": []})
    # A second statement: the first one saw them as they were before it waited.
    return {row[0]: Locked(*row[1:]) for row in connection.execute(READ_TYPES.sql, {"names": asked})}


def merge(connection: Connection[Row], merged: int, survivor: int, similarity: float | None, by: str) -> int:
    """Rewrite every relation of the one to the other; the merge's number. Both types are locked."""
    ends = {"merged": merged, "survivor": survivor}
    followers = [row[0] for row in connection.execute(REDIRECT.sql, ends)]
    row = connection.execute(
        RECORD.sql, {**ends, "similarity": similarity, "by": kept(by), "followers": followers}
    ).fetchone()
    assert row is not None
    number: int = row[0]
    this = {"merge": number}
    connection.execute(LOCK_RELATIONS.sql, ends)
    if connection.execute(RECORD_UNITED.sql, {**ends, **this}).fetchone() is not None:
        connection.execute(GIVE_SOURCES.sql, this)
        connection.execute(RAISE_KEPT.sql, this)
        connection.execute(DELETE_UNITED.sql, this)
    connection.execute(MOVE.sql, {**ends, **this})
    connection.execute(RETIRE.sql, ends)
    return number


def lock_merge(connection: Connection[Row], number: int) -> Standing | None:
    connection.execute(HOLD_ALONE.sql)
    row = connection.execute(LOCK_MERGE.sql, {"merge": number}).fetchone()
    return Standing(*row) if row else None


def lock_numbers(connection: Connection[Row], numbers: Sequence[int]) -> None:
    connection.execute(LOCK_TYPES.sql, {"names": [], "numbers": list(numbers)})


def later(connection: Connection[Row], number: int, standing: Standing) -> int | None:
    """The first merge after this one that has to do with either type, and stands."""
    params = {"merge": number, "numbers": [standing.merged, standing.survivor]}
    row = connection.execute(LATER.sql, params).fetchone()
    return row[0] if row else None


def undo(connection: Connection[Row], number: int, standing: Standing, by: str) -> None:
    """Everything as it was, but for what was deleted or said since."""
    ends = {"merged": standing.merged, "survivor": standing.survivor}
    this = {"merge": number}
    connection.execute(MOVE_BACK.sql, {**ends, **this})
    if connection.execute(PART.sql, {"merged": standing.merged, **this}).fetchone() is not None:
        connection.execute(PART_SOURCES.sql, this)
        connection.execute(TAKE_SOURCES.sql, this)
        connection.execute(LOWER_KEPT.sql, this)
    connection.execute(RESTORE.sql, {"merged": standing.merged})
    connection.execute(LEAD_BACK.sql, {**ends, "followers": standing.followers})
    connection.execute(MARK_UNDONE.sql, {"by": kept(by), **this})


def find(connection: Connection[Row], number: int | None = None, limit: int = 100) -> list[Merge]:
    """The latest first, or one."""
    return [Merge(*row) for row in connection.execute(FIND.sql, {"merge": number, "limit": limit})]
