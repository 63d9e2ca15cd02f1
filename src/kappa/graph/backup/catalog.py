"""Which tables a backup has, and their columns: asked of the database, so that none that is added later is lost."""

from dataclasses import dataclass
from typing import LiteralString

from psycopg import Connection, sql

from kappa.pg import queries
from kappa.pg.queries import Row

blocks = queries.beside(__file__)
COLUMNS = blocks["columns"]
TABLES = blocks["tables"]
PLAIN_VALUES = blocks["plain_values"]
MOMENT = blocks["moment"]
RELOAD = blocks["reload"]
RAISE_EPOCH = blocks["raise_epoch"]
RAISE_NUMBERS = blocks["raise_numbers"]
FORGET_RUNS = blocks["forget_runs"]

KEPT: tuple[str, ...] = (
    "ontologies",
    "relation_types",
    "documents",
    "sources",
    "concepts",
    "instances",
    "relations",
    "relation_sources",
    "artifacts",
    "proposals",
    "undo_rows",
    "seed_types",
    "type_measures",
    "type_merges",
    "merged_relations",
    "chunk_plan",
)
"""What a backup has; what refers to something stands behind it."""

LEFT_OUT: dict[str, str] = {
    "graph_settings": "they are this server's, not the graph's",
    "epochs": "the clock of a database goes on, whatever is restored",
    "changes": "the log of that clock",
    "measured": "up to which time of that clock something was measured",
    "uploads": "files on their way in, which are kept for a day",
    "incoming_concepts": "empty between two bulk loads",
    "incoming_relations": "empty between two bulk loads",
}


@dataclass(frozen=True, slots=True)
class Table:
    """A table, its columns, and where they lead."""

    name: str
    columns: tuple[str, ...]
    refers: dict[str, str]

    @property
    def here(self) -> sql.Identifier:
        return sql.Identifier("kappa_graph", self.name)

    @property
    def staged(self) -> sql.Identifier:
        """Its rows of the file, before anything is changed."""
        return sql.Identifier("pg_temp", f"staged_{self.name}")

    @property
    def staged_name(self) -> sql.Identifier:
        """The same, to make it: a temporary table is made without its schema."""
        return sql.Identifier(f"staged_{self.name}")

    @property
    def ordered_by(self) -> tuple[str, ...]:
        return ("id",) if "id" in self.columns else self.columns[:2]


def read(connection: Connection[Row]) -> dict[str, Table]:
    """Every table that is kept."""
    found: dict[str, Table] = {}
    for name in KEPT:
        rows = connection.execute(COLUMNS.sql, {"table": name}).fetchall()
        found[name] = Table(
            name, tuple(column for column, _ in rows), {column: other for column, other in rows if other is not None}
        )
    return found


def names(columns: tuple[str, ...], of: LiteralString | None = None) -> sql.Composed:
    """A list of columns."""
    return sql.SQL(", ").join(sql.Identifier(of, name) if of else sql.Identifier(name) for name in columns)
