"""The backend `age`: an Apache AGE graph that somebody else keeps, read where it is.

Its label tables are read, not `cypher()`, whose patterns find no index for a list of ids. A node is the graphid of a
vertex, a relation type the number of an edge label, which is the upper part of its edges' ids. What a concept is
called stands in its vertex's properties, under names that `AgeProperties` gives.

A question's text only ever comes in as a parameter. The graph's name and the names of the properties, which are the
program's, pass an allow-list and are quoted.
"""

import hashlib
import json
import math
import re
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from typing import Any, LiteralString, NamedTuple, cast
from uuid import UUID

import numpy as np
from psycopg import Connection, errors
from psycopg import sql as composing

from kappa.graph.errors import BadQuestion, GraphFailed
from kappa.graph.model import Concept, Relation, RelationType
from kappa.graph.query.backend import Vocabulary, Way
from kappa.graph.store.adjacency import INT8, Allowed, Ints, int_array, result_of, unpack
from kappa.graph.store.relations import Link
from kappa.pg import queries
from kappa.pg.queries import Answer, Query, Row

sql = queries.beside(__file__)
LABELS = sql["labels"]
ONTOLOGIES = sql["ontologies"]
NUMBERS = sql["numbers"]
IDS = sql["ids"]
ROWS = sql["rows"]
EMBEDDINGS = sql["embeddings"]
EXPAND_OUT = sql["expand_out"]
EXPAND_IN = sql["expand_in"]
EDGES_OUT = sql["edges_out"]
EDGES_IN = sql["edges_in"]
EDGES_AMONG = sql["edges_among"]
DEGREES = sql["degrees"]
BETWEEN = sql["between"]

_GRAPH = re.compile(r"[^\W\d][\w.-]+\w")
_LONGEST = 63
_ENTRY_BITS = 48
"""A graphid is a label's number and, below it, that of the entry."""
_MOST_ONTOLOGIES = (1 << 16) - 1
_NUMERIC = re.compile(r'("(?:[^"\\]|\\.)*")|::numeric')
_OF_EDGES = ("confidence", "category")
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class AgeProperties:
    """The properties of vertices and edges that hold what a concept and a relation are. Any of them may be missing."""

    id: str = "id"
    """A UUID, as text in its usual spelling. A vertex without one has an id that is made of its graphid."""
    label: str = "label"
    description: str = "description"
    search_terms: str = "search_terms"
    """A list of texts."""
    ontology: str = "ontology"
    """The name of its ontology."""
    embedding: str = "embedding"
    """A list of numbers."""
    embedding_model: str = "embedding_model"
    confidence: str = "confidence"
    """Of an edge: a number from 0 to 1. An edge without one is certain."""
    category: str = "category"
    """Of an edge."""

    def __post_init__(self) -> None:
        for name in astuple(self):
            if not name.isidentifier():
                raise BadQuestion(f"{name!r} is no name of a property: it is made of letters, digits and _")


class _Label(NamedTuple):
    name: str
    of_edges: bool
    table: str


class AgeBackend:
    """One graph of Apache AGE. It is only read, and has no clock: its epoch is always 0."""

    name = "age"
    own = False

    def __init__(self, graph: str, properties: AgeProperties | None = None) -> None:
        if not _GRAPH.fullmatch(graph) or len(graph.encode()) > _LONGEST:
            raise BadQuestion(
                f"{graph!r} is no name of an AGE graph: 3 to {_LONGEST} letters, digits, dots, hyphens and _"
            )
        self.graph = graph
        self._properties = properties or AgeProperties()
        self._parts: dict[str, composing.Composable] = {
            **{field.name: _access(field.name, self._properties) for field in fields(AgeProperties)},
            "vertices": composing.Identifier(graph, "_ag_label_vertex"),
            "edges": composing.Identifier(graph, "_ag_label_edge"),
        }
        self._mark = int.from_bytes(hashlib.sha256(graph.encode()).digest()[:8]) >> 6
        self._lock = threading.Lock()
        self._labels: dict[int, _Label] = {}
        self._ontologies: dict[str, int] = {}

    def epoch(self, connection: Connection[Row]) -> int:
        """Nobody counts this graph's changes; an answer is true of the moment in which it was asked."""
        return 0

    def vocabulary(self, connection: Connection[Row], named: Sequence[str] = ()) -> Vocabulary:
        """All edge labels, and of the ontologies those that are named: finding all would read every vertex."""
        labels = self._read_labels(connection)
        return Vocabulary(
            types={
                label.name: RelationType(number, label.name, "", active=True, merged_into=None)
                for number, label in labels.items()
                if label.of_edges
            },
            ontologies=self._numbered(connection, [name for name in dict.fromkeys(named) if _storable(name)]),
            categories=False,
        )

    def numbers(self, connection: Connection[Row], ids: Sequence[UUID]) -> dict[UUID, int]:
        made = {node: key for key in ids if (node := self._made_of(key)) is not None}
        if made:
            made = {node: key for node, key in self._ids(connection, list(made)).items() if made[node] == key}
        # Of several vertices with one id the first is meant, and the last to be put in.
        given = self._fetch(connection, NUMBERS, {"ids": _array(map(str, ids))})
        return {key: node for node, key in made.items()} | {UUID(_value(key)): int(node) for node, key in given}

    def rows(self, connection: Connection[Row], nodes: Sequence[int]) -> Answer[dict[int, Concept]]:
        rows = self._rows(connection, nodes)
        return lambda: rows

    def _rows(self, connection: Connection[Row], nodes: Sequence[int]) -> dict[int, Concept]:
        # Not put off: names of labels are looked up on the way.
        found = self._fetch(connection, ROWS, {"nodes": _graphids(nodes)})
        rows: dict[int, Concept] = {}
        for graphid, *values in found:
            node = int(graphid)
            key, label, description, ontology, terms = map(_value, values)
            rows[node] = Concept(
                self._id(node, key),
                node,
                _text(label) or f"{self._label(connection, node).name} {node & ((1 << _ENTRY_BITS) - 1)}",
                _text(description),
                _text(ontology),
                tuple(map(_text, _list(terms))),
            )
        return rows

    def embeddings(self, connection: Connection[Row], nodes: Sequence[int]) -> list[tuple[int, str, list[float]]]:
        found = self._fetch(connection, EMBEDDINGS, {"nodes": _graphids(nodes)})
        read = [(int(node), _text(_value(model)), _vector(_value(vector))) for node, model, vector in found]
        return [one for one in read if one[2]]

    def expand(self, connection: Connection[Row], way: Way, frontier: Ints, allowed: Allowed, most: int) -> Ints:
        query = EXPAND_OUT if way == "out" else EXPAND_IN
        params = {"nodes": int_array(frontier), "most": most, **self._filters(allowed)}
        return self._arrays(connection, query, params, allowed.types)[0]

    def edges(
        self, connection: Connection[Row], way: Way, frontier: Ints, allowed: Allowed, exempt: Ints, most: int
    ) -> tuple[Ints, Ints, Ints]:
        query = EDGES_OUT if way == "out" else EDGES_IN
        exempted = {"nodes": int_array(frontier), "exempt": int_array(exempt), "most": most}
        here, there, ids = self._arrays(connection, query, exempted | self._filters(allowed), allowed.types)
        return here, there, ids >> _ENTRY_BITS

    def degrees(self, connection: Connection[Row], nodes: Ints) -> tuple[Ints, Ints]:
        found, counts, _ = self._arrays(connection, DEGREES, {"nodes": int_array(nodes)}, None)
        return found, counts

    def among(self, connection: Connection[Row], nodes: Ints, allowed: Allowed, most: int) -> tuple[Ints, Ints, Ints]:
        params = {"nodes": int_array(nodes), "most": most, "least": _least(allowed)}
        head, tail, ids = self._arrays(connection, EDGES_AMONG, params, allowed.types)
        return head, tail, ids >> _ENTRY_BITS

    def between(
        self, connection: Connection[Row], pairs: Sequence[tuple[int, int]], allowed: Allowed
    ) -> Answer[Iterable[Link]]:
        links = self._between(connection, pairs, allowed)
        return lambda: links

    def _between(self, connection: Connection[Row], pairs: Sequence[tuple[int, int]], allowed: Allowed) -> list[Link]:
        if allowed.types is not None and not allowed.types:
            return []
        params = {
            "from_nodes": _graphids(pair[0] for pair in pairs),
            "to_nodes": _graphids(pair[1] for pair in pairs),
            "least": _least(allowed),
        }
        found = self._fetch(connection, BETWEEN, params, allowed.types)
        ids = self._ids(connection, sorted({node for pair in pairs for node in pair}))
        links: list[Link] = []
        for row in found:
            head, tail, edge = map(int, row[:3])
            if head in ids and tail in ids:
                name = self._label(connection, edge).name
                confidence, category = _confidence(_value(row[3])), _text(_value(row[4]))
                relation = Relation(ids[head], ids[tail], name, confidence, category)
                links.append(Link(head, tail, edge >> _ENTRY_BITS, relation))
        return links

    def _fetch(
        self, connection: Connection[Row], query: Query, params: dict[str, Any], types: Sequence[int] | None = None
    ) -> list[Row]:
        with self._there():
            return connection.execute(self._statement(connection, query, types), params).fetchall()

    def _arrays(
        self, connection: Connection[Row], query: Query, params: dict[str, Any], types: Sequence[int] | None
    ) -> tuple[Ints, Ints, Ints]:
        """Up to three columns of one row, each an array."""
        if types is not None and not types:
            return _NONE, _NONE, _NONE
        with self._there():
            result = result_of(connection.execute(self._statement(connection, query, types), params, binary=True))
        columns = [unpack(result.get_value(0, column), INT8) for column in range(result.nfields)]
        first, second, third = columns + [_NONE] * (3 - len(columns))
        return first, second, third

    def _statement(self, connection: Connection[Row], query: Query, types: Sequence[int] | None) -> composing.Composed:
        """A statement on this graph; of its edges, where types are given, only their tables are read."""
        parts = self._parts
        if types is not None:
            parts = {**parts, "edges": self._tables([self._label(connection, one << _ENTRY_BITS) for one in types])}
        # The text is that of a file of this package.
        return composing.SQL(cast("LiteralString", query.text)).format(**parts)

    @contextmanager
    def _there(self) -> Generator[None]:
        try:
            yield
        except (errors.UndefinedTable, errors.UndefinedObject, errors.InvalidSchemaName) as error:
            raise GraphFailed(
                f"there is no AGE graph {self.graph!r} in this database: {error.diag.message_primary}"
            ) from error

    def _tables(self, labels: Iterable[_Label]) -> composing.Composable:
        columns = composing.SQL("SELECT id, start_id, end_id, properties FROM {}")
        # psycopg looks for parameters in quoted names as well.
        names = [label.table.replace("%", "%%") for label in labels]
        tables = [columns.format(composing.Identifier(self.graph, name)) for name in names]
        return composing.SQL("({})").format(composing.SQL(" UNION ALL ").join(tables))

    def _filters(self, allowed: Allowed) -> dict[str, Any]:
        names: str | None = None
        if allowed.ontologies is not None:
            with self._lock:
                known = {number: name for name, number in self._ontologies.items()}
            names = _array(known[number] for number in allowed.ontologies)
        return {"least": _least(allowed), "ontologies": names}

    def _label(self, connection: Connection[Row], graphid: int) -> _Label:
        """What an edge or a vertex is called. Labels come, and may go, but a number is never given again."""
        number = graphid >> _ENTRY_BITS
        labels = self._labels if number in self._labels else self._read_labels(connection)
        if number not in labels:
            raise GraphFailed(f"the AGE graph {self.graph!r} has no label {number} any more")
        return labels[number]

    def _read_labels(self, connection: Connection[Row]) -> dict[int, _Label]:
        found = self._fetch(connection, LABELS, {"graph": self.graph})
        if not found:
            raise GraphFailed(f"there is no AGE graph {self.graph!r} in this database")
        self._labels = {number: _Label(name, kind == "e", table) for number, name, kind, table in found}
        return self._labels

    def _numbered(self, connection: Connection[Row], names: list[str]) -> dict[str, int]:
        """Numbers of those ontologies that are there. They are this object's own, in the order of asking."""
        if not names:
            return {}
        found = [names[int(row[0]) - 1] for row in self._fetch(connection, ONTOLOGIES, {"names": _array(names)})]
        with self._lock:
            for name in found:
                self._ontologies.setdefault(name, len(self._ontologies) + 1)
            if len(self._ontologies) > _MOST_ONTOLOGIES:
                raise BadQuestion(f"more than {_MOST_ONTOLOGIES} ontologies were asked for")
            return {name: self._ontologies[name] for name in found}

    def _ids(self, connection: Connection[Row], nodes: Sequence[int]) -> dict[int, UUID]:
        found = self._fetch(connection, IDS, {"nodes": _graphids(nodes)})
        return {int(node): self._id(int(node), _value(key)) for node, key in found}

    def _id(self, node: int, key: object) -> UUID:
        """The id that a vertex has, or one that is made of the graph's name and the graphid."""
        if isinstance(key, str) and (given := _uuid(key)) is not None:
            return given
        entry, label = node & ((1 << _ENTRY_BITS) - 1), node >> _ENTRY_BITS
        low = self._mark & ((1 << 46) - 1)
        return UUID(int=entry << 80 | 8 << 76 | (self._mark >> 46) << 64 | 2 << 62 | label << 46 | low)

    def _made_of(self, key: UUID) -> int | None:
        """The node that an id was made of, if it was."""
        node = (key.int >> 46 & 0xFFFF) << _ENTRY_BITS | key.int >> 80
        return node if self._id(node, None) == key else None


def _access(field: str, properties: AgeProperties) -> composing.Composable:
    """A property, in the words that AGE itself uses for it, so that an index serves both."""
    name: str = getattr(properties, field)
    return composing.SQL("ag_catalog.agtype_access_operator(VARIADIC ARRAY[{}, {}::ag_catalog.agtype])").format(
        composing.Identifier("e" if field in _OF_EDGES else "v", "properties"),
        composing.Literal(json.dumps(name, ensure_ascii=False)),
    )


def _graphids(nodes: Iterable[int]) -> str:
    return "{" + ",".join(map(str, nodes)) + "}"


def _array(texts: Iterable[str]) -> str:
    """Texts as an array of AGE's values: each quoted as JSON, and then as an element."""
    quoted = (json.dumps(text, ensure_ascii=False).replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return "{" + ",".join(f'"{text}"' for text in quoted) + "}"


def _storable(text: str) -> bool:
    """Whether PostgreSQL could hold the text at all: no NUL, no half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= one <= "\udfff" for one in text)


def _least(allowed: Allowed) -> str | None:
    return repr(allowed.min_confidence / 100) if allowed.min_confidence > 0 else None


def _value(text: str | None) -> Any:
    """One of AGE's values: JSON, and beyond it numbers that say that they are exact."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return json.loads(_NUMERIC.sub(lambda found: found[1] or "", text))
    except ValueError:
        return None


def _uuid(text: str) -> UUID | None:
    """An id in its usual spelling; only so can it be found again by an index."""
    try:
        key = UUID(text)
    except ValueError:
        return None
    return key if str(key) == text else None


def _text(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _confidence(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return 1.0
    return float(min(1.0, max(0.0, value)))


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _vector(value: object) -> list[float]:
    """Nothing where it is no list of numbers."""
    numbers = _list(value)
    if not all(isinstance(one, int | float) and math.isfinite(one) for one in numbers):
        return []
    return [float(cast("float", one)) for one in numbers]
