"""Statements about ontologies."""

from psycopg import Connection

from kappa.graph.errors import UnknownOntology
from kappa.graph.identity import kept, ontology_key
from kappa.graph.model import Ontology
from kappa.pg import queries
from kappa.pg.queries import Row

sql = queries.beside(__file__)
FIND = sql["find"]
FIND_ALL = sql["find_all"]
ADD = sql["add"]
RENAME = sql["rename"]
DELETE = sql["delete"]


def find(connection: Connection[Row], name: str) -> Ontology | None:
    row = connection.execute(FIND.sql, {"name": kept(name)}).fetchone()
    return _ontology(row) if row else None


def get(connection: Connection[Row], name: str) -> Ontology:
    if (found := find(connection, name)) is None:
        raise UnknownOntology(f"there is no ontology {name!r}")
    return found


def find_all(connection: Connection[Row]) -> list[Ontology]:
    return [_ontology(row) for row in connection.execute(FIND_ALL.sql)]


def ensure(connection: Connection[Row], name: str, description: str = "") -> Ontology:
    """The ontology of this name, made if there is none."""
    again = 0
    while (found := find(connection, name)) is None:
        # A key can be taken by an ontology that was renamed since; then the next one is tried.
        key = ontology_key(name, again)
        connection.execute(ADD.sql, {"key": key, "name": kept(name), "description": kept(description)})
        again += 1
    return found


def rename(connection: Connection[Row], name: str, new_name: str) -> bool:
    return connection.execute(RENAME.sql, {"name": kept(name), "new_name": kept(new_name)}).fetchone() is not None


def delete(connection: Connection[Row], name: str) -> bool:
    """With its documents and concepts, and all that hangs on them."""
    return connection.execute(DELETE.sql, {"name": kept(name)}).fetchone() is not None


def _ontology(row: Row) -> Ontology:
    number, key, name, description = row
    return Ontology(id=key, name=name, description=description, number=number)
