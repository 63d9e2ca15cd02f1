"""Statements about the vocabulary."""

from collections.abc import Mapping

from psycopg import Connection

from kappa.graph.errors import BadWrite
from kappa.graph.identity import kept
from kappa.graph.model import RelationType
from kappa.graph.store import arrays
from kappa.pg import queries
from kappa.pg.queries import Answer, Row

sql = queries.beside(__file__)
ENSURE = sql["ensure"]
FIND = sql["find"]
HOLD = sql["hold"]
FIND_ALL = sql["find_all"]


def ensure(connection: Connection[Row], categories: Mapping[str, str]) -> Answer[dict[str, int]]:
    """The number of each type, by name; new ones are made, with the category given. A merged type is its survivor."""
    names = {name: kept(name).strip() for name in categories}
    if not names:
        return dict
    if not all(names.values()):
        raise BadWrite("a relation needs a type")
    wanted = arrays.texts(names.values())
    params = {"names": wanted, "categories": arrays.texts(kept(category) for category in categories.values())}
    connection.execute(HOLD.sql)  # before any row: who merges holds it alone, and then waits for rows
    connection.execute(ENSURE.sql, params)
    cursor = connection.execute(FIND.sql, {"names": wanted})

    def answer() -> dict[str, int]:
        found = dict(cursor.fetchall())
        return {name: found[clean] for name, clean in names.items()}

    return answer


def find_all(connection: Connection[Row]) -> list[RelationType]:
    return [RelationType(*row) for row in connection.execute(FIND_ALL.sql)]
