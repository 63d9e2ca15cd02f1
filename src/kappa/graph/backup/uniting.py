"""A backup's rows put into a graph that is there: which of them it has, and under which ids the others come.

By `keep_ids` a row is what has its id; by `merge` it is what says the same: an ontology its name, a document its
content in its ontology, a source its place in its document, a concept its label in its ontology. Of relation types
names decide in either case.
"""

from collections.abc import Callable, Iterator
from uuid import UUID

from psycopg import Connection, sql

from kappa.graph.backup.catalog import Table, names
from kappa.graph.identity import concept_key, document_key, source_key
from kappa.graph.store import ontologies
from kappa.pg import queries
from kappa.pg.queries import Query, Row

blocks = queries.beside(__file__)
TYPES = blocks["types"]
STAGED_ONTOLOGIES = blocks["staged_ontologies"]
PLACE_ONTOLOGY = blocks["place_ontology"]
STAGED_DOCUMENTS = blocks["staged_documents"]
WANT_DOCUMENTS = blocks["want_documents"]
FIND_DOCUMENTS = blocks["find_documents"]
STAGED_SOURCES = blocks["staged_sources"]
WANT_SOURCES = blocks["want_sources"]
FIND_SOURCES = blocks["find_sources"]
LABELS = blocks["labels"]
STAGED_CONCEPTS = blocks["staged_concepts"]
CONCEPTS_HERE = blocks["concepts_here"]
ADD_LABELS = blocks["add_labels"]
INDEX_LABELS = blocks["index_labels"]
WANT_CONCEPTS = blocks["want_concepts"]
FIND_CONCEPTS = blocks["find_concepts"]
TWINS = blocks["twins"]
INDEX_PLACES = blocks["index_places"]
UNITE_CONCEPTS = blocks["unite_concepts"]
ENTER_INSTANCES = blocks["enter_instances"]
PLACE_RELATIONS = blocks["place_relations"]
ENTER_RELATIONS = blocks["enter_relations"]
FIND_RELATIONS = blocks["find_relations"]
ENTER_RELATION_SOURCES = blocks["enter_relation_sources"]
NEW_PLANS = blocks["new_plans"]

WITH_KEYS = ("ontologies", "documents", "sources", "concepts")
BATCH = 10_000


def keep_ids(connection: Connection[Row], tables: dict[str, Table]) -> None:
    """What has an id that is here becomes what the file says of it; what has none is put in under its own."""
    connection.execute(TYPES.sql)
    for name in (*WITH_KEYS, "artifacts"):
        _own_keys(connection, tables[name])
        _find_by_key(connection, tables[name])
    for name in ("relation_types", *WITH_KEYS, "artifacts"):
        _number(connection, tables[name])
    for name in WITH_KEYS:
        _overwrite(connection, tables[name])
    for name in ("relation_types", *WITH_KEYS, "artifacts"):
        _enter(connection, tables[name])
    _plans(connection, tables["chunk_plan"])
    _evidence(connection, file_wins=True)


def merge(connection: Connection[Row], tables: dict[str, Table]) -> None:
    """What says the same is one, and what is here has the last word; the rest is put in."""
    connection.execute(TYPES.sql)
    _ontologies(connection)
    for name in ("documents", "sources", "concepts", "artifacts"):
        _own_keys(connection, tables[name])
    _want(connection, STAGED_DOCUMENTS, WANT_DOCUMENTS, document_key)
    connection.execute(FIND_DOCUMENTS.sql)
    _want(connection, STAGED_SOURCES, WANT_SOURCES, source_key)
    connection.execute(FIND_SOURCES.sql)
    _labels(connection)
    connection.execute(WANT_CONCEPTS.sql)
    connection.execute(FIND_CONCEPTS.sql)
    _find_by_key(connection, tables["artifacts"])
    for name in ("ontologies", "relation_types", "documents", "sources", "concepts", "artifacts"):
        _number(connection, tables[name])
    connection.execute(TWINS.sql)
    connection.execute(INDEX_PLACES.sql)
    for name in ("ontologies", "relation_types", "documents", "sources", "concepts", "artifacts"):
        _enter(connection, tables[name])
    connection.execute(UNITE_CONCEPTS.sql)
    _plans(connection, tables["chunk_plan"])
    _evidence(connection, file_wins=False)


def _plans(connection: Connection[Row], table: Table) -> None:
    """Those of new documents; one that is here goes on as it was planned here."""
    connection.execute(NEW_PLANS.sql)
    _enter(connection, table)


def _evidence(connection: Connection[Row], *, file_wins: bool) -> None:
    connection.execute(ENTER_INSTANCES.sql)
    connection.execute(PLACE_RELATIONS.sql)
    connection.execute(ENTER_RELATIONS.sql, {"file_wins": file_wins})
    connection.execute(FIND_RELATIONS.sql)
    connection.execute(ENTER_RELATION_SOURCES.sql)


def _ontologies(connection: Connection[Row]) -> None:
    """Those of the same name are one. A new one keeps its id, unless another one has it by now."""
    for number, key, name, description, taken in connection.execute(STAGED_ONTOLOGIES.sql).fetchall():
        found = ontologies.find(connection, name)
        if found is None and taken:
            found = ontologies.ensure(connection, name, description)
        place = {"id": number, "number": found.number if found else None, "key": found.id if found else key}
        connection.execute(PLACE_ONTOLOGY.sql, place)


def _want(connection: Connection[Row], rows: Query, write: Query, key: Callable[..., UUID]) -> None:
    """Ids that follow from where the rows are now, where that is not where they came from."""
    for batch in _batches(connection, rows):
        params = {"ids": [row[0] for row in batch], "keys": [key(*row[1:]) for row in batch]}
        connection.execute(write.sql, params)


def _labels(connection: Connection[Row]) -> None:
    connection.execute(LABELS.sql)
    for rows, ours in ((STAGED_CONCEPTS, False), (CONCEPTS_HERE, True)):
        for batch in _batches(connection, rows):
            keys = [concept_key(ontology, label) for _, ontology, label, *_ in batch]
            connection.execute(ADD_LABELS.sql, {"ids": [row[0] for row in batch], "keys": keys, "ours": ours})
    connection.execute(INDEX_LABELS.sql)


def _batches(connection: Connection[Row], rows: Query) -> Iterator[list[Row]]:
    after = -1
    while batch := connection.execute(rows.sql, {"after": after, "limit": BATCH}, binary=True).fetchall():
        yield batch
        after = batch[-1][0]


def _own_keys(connection: Connection[Row], table: Table) -> None:
    connection.execute(sql.SQL("UPDATE {} SET here_key = key").format(table.staged))


def _find_by_key(connection: Connection[Row], table: Table) -> None:
    statement = sql.SQL("UPDATE {} AS s SET here_id = t.id FROM {} AS t WHERE t.key = s.here_key")
    connection.execute(statement.format(table.staged, table.here))


def _number(connection: Connection[Row], table: Table) -> None:
    """New rows get numbers in the order in which they had them."""
    statement = sql.SQL(
        "UPDATE {staged} AS s SET here_id = n.number, is_new = true "
        "  FROM (SELECT o.id, nextval({sequence}) AS number "
        "          FROM (SELECT id FROM {staged} WHERE here_id IS NULL ORDER BY id) AS o) AS n "
        " WHERE s.id = n.id"
    )
    sequence = sql.Literal(f"kappa_graph.{table.name}_id_seq")
    connection.execute(statement.format(staged=table.staged, sequence=sequence))


def _mapped(table: Table) -> tuple[dict[str, sql.Composable], sql.Composed]:
    """What stands in each column here, and the tables that it comes from."""
    values: dict[str, sql.Composable] = {name: sql.Identifier("s", name) for name in table.columns}
    values["id"] = sql.Identifier("s", "here_id")
    if "key" in table.columns:
        values["key"] = sql.Identifier("s", "here_key")
    joins: list[sql.Composed] = []
    for column, other in table.refers.items():
        values[column] = sql.Identifier(f"of_{column}", "here_id")
        joins.append(
            sql.SQL("LEFT JOIN {} AS {} ON {} = {}").format(
                sql.Identifier("pg_temp", f"staged_{other}"), sql.Identifier(f"of_{column}"),
                sql.Identifier(f"of_{column}", "id"), sql.Identifier("s", column),
            )
        )  # fmt: skip
    return values, sql.SQL(" ").join(joins)


def _enter(connection: Connection[Row], table: Table) -> None:
    values, joins = _mapped(table)
    statement = sql.SQL(
        "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {} AS s {} WHERE s.is_new ORDER BY {}"
    )
    chosen = sql.SQL(", ").join(values[column] for column in table.columns)
    order = names(table.ordered_by, "s")
    connection.execute(statement.format(table.here, names(table.columns), chosen, table.staged, joins, order))


def _overwrite(connection: Connection[Row], table: Table) -> None:
    """What is here becomes what the file says, where that is something else."""
    values, joins = _mapped(table)
    columns = tuple(column for column in table.columns if column not in ("id", "key"))
    statement = sql.SQL(
        "UPDATE {here} AS t SET ({columns}) = ROW ({values}) "
        "  FROM {staged} AS s {joins} WHERE t.id = s.here_id AND NOT s.is_new "
        "   AND ({ours}) IS DISTINCT FROM ({values})"
    )
    chosen = sql.SQL(", ").join(values[column] for column in columns)
    connection.execute(
        statement.format(
            here=table.here, columns=names(columns), values=chosen, staged=table.staged, joins=joins,
            ours=names(columns, "t"),
        )
    )  # fmt: skip
