"""Statements about the vocabulary."""

from collections.abc import Mapping, Sequence

from psycopg import Connection

from kappa.graph.errors import BadWrite
from kappa.graph.identity import kept
from kappa.graph.model import RelationType
from kappa.pg import queries
from kappa.pg.queries import Row

sql = queries.beside(__file__)
ENSURE = sql["ensure"]
FIND = sql["find"]
HOLD = sql["hold"]
FIND_ALL = sql["find_all"]


def ensure(connection: Connection[Row], categories: Mapping[str, str]) -> dict[str, int]:
    """The number of each type, by name; new ones are made, with the category given. A merged type is its survivor."""
    names = {name: kept(name).strip() for name in categories}
    if not names:
        return {}
    if not all(names.values()):
        raise BadWrite("a relation needs a type")
    params = {"names": list(names.values()), "categories": [kept(category) for category in categories.values()]}
    connection.execute(HOLD.sql)  # before any row: who merges holds it alone, and then waits for rows
    connection.execute(ENSURE.sql, params)
    found = find(connection, list(names.values()))
    return {name: found[clean] for name, clean in names.items()}


def find(connection: Connection[Row], names: Sequence[str]) -> dict[str, int]:
    """The number of each, all of which are there, which stays what it is while they are held."""
    return dict(connection.execute(FIND.sql, {"names": [kept(name) for name in names]}).fetchall())


def find_all(connection: Connection[Row]) -> list[RelationType]:
    return [RelationType(*row) for row in connection.execute(FIND_ALL.sql)]
