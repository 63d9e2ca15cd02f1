"""What a walk in the database needs of it. `sql` reads Kappa's own tables, `age` a graph that somebody else keeps.

Every method takes the connection first: the caller has set the deadline on it and sees one consistent state through
it. Nodes are integers; user text only ever comes in as parameters.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol
from uuid import UUID

from psycopg import Connection

from kappa.graph.model import Concept
from kappa.graph.query.filters import Vocabulary
from kappa.graph.store import adjacency, clock, concepts, ontologies, relation_types, relations
from kappa.graph.store.adjacency import Allowed, Ints
from kappa.graph.store.relations import Link
from kappa.pg.queries import Answer, Row

Way = Literal["out", "in"]


class GraphBackend(Protocol):
    """A graph in a database."""

    @property
    def name(self) -> str: ...

    @property
    def own(self) -> bool:
        """Whether it is Kappa's, with its clock, evidence and settings. Another's is only read."""
        ...

    def epoch(self, connection: Connection[Row]) -> int:
        """Up to which change the connection sees."""
        ...

    def vocabulary(self, connection: Connection[Row], named: Sequence[str] = ()) -> Vocabulary:
        """All types, and at least those ontologies that are named and there."""
        ...

    def numbers(self, connection: Connection[Row], ids: Sequence[UUID]) -> dict[UUID, int]:
        """The nodes of those ids that are there."""
        ...

    def rows(self, connection: Connection[Row], nodes: Sequence[int]) -> Answer[dict[int, Concept]]:
        """Sends the statement; what it returns builds the concepts, when the connection may be gone already."""
        ...

    def embeddings(self, connection: Connection[Row], nodes: Sequence[int]) -> list[tuple[int, str, list[float]]]:
        """Node, model and vector of those that have one."""
        ...

    def expand(self, connection: Connection[Row], way: Way, frontier: Ints, allowed: Allowed, most: int) -> Ints:
        """Nodes one hop away, each once, in any order."""
        ...

    def edges(
        self, connection: Connection[Row], way: Way, frontier: Ints, allowed: Allowed, exempt: Ints, most: int
    ) -> tuple[Ints, Ints, Ints]:
        """Edges from the frontier: this end, the other, the type. Exempt nodes pass whatever their ontology."""
        ...

    def degrees(self, connection: Connection[Row], nodes: Ints) -> tuple[Ints, Ints]:
        """Nodes that have relations, and how many, in and out."""
        ...

    def among(self, connection: Connection[Row], nodes: Ints, allowed: Allowed, most: int) -> tuple[Ints, Ints, Ints]:
        """Relations with both ends among the nodes: from, to, type; the lowest first."""
        ...

    def between(
        self, connection: Connection[Row], pairs: Sequence[tuple[int, int]], allowed: Allowed
    ) -> Answer[Iterable[Link]]:
        """All relations from the first node of each pair to its second, by both ends; sent and built like `rows`."""
        ...


class SqlBackend:
    """Plain tables with integer nodes."""

    name = "sql"
    own = True

    def epoch(self, connection: Connection[Row]) -> int:
        return clock.now(connection)

    def vocabulary(self, connection: Connection[Row], named: Sequence[str] = ()) -> Vocabulary:
        return Vocabulary(
            types={one.name: one for one in relation_types.find_all(connection)},
            ontologies={one.name: one.number for one in ontologies.find_all(connection)},
        )

    def numbers(self, connection: Connection[Row], ids: Sequence[UUID]) -> dict[UUID, int]:
        return concepts.numbers(connection, ids)

    def rows(self, connection: Connection[Row], nodes: Sequence[int]) -> Answer[dict[int, Concept]]:
        return concepts.rows(connection, nodes)

    def embeddings(self, connection: Connection[Row], nodes: Sequence[int]) -> list[tuple[int, str, list[float]]]:
        return concepts.embeddings(connection, nodes)

    def expand(self, connection: Connection[Row], way: Way, frontier: Ints, allowed: Allowed, most: int) -> Ints:
        query = adjacency.EXPAND_OUT if way == "out" else adjacency.EXPAND_IN
        return adjacency.expand(connection, query, frontier, allowed, most)

    def edges(
        self, connection: Connection[Row], way: Way, frontier: Ints, allowed: Allowed, exempt: Ints, most: int
    ) -> tuple[Ints, Ints, Ints]:
        query = adjacency.EDGES_OUT if way == "out" else adjacency.EDGES_IN
        return adjacency.edges(connection, query, frontier, allowed, exempt, most)

    def degrees(self, connection: Connection[Row], nodes: Ints) -> tuple[Ints, Ints]:
        return adjacency.degrees(connection, nodes)

    def among(self, connection: Connection[Row], nodes: Ints, allowed: Allowed, most: int) -> tuple[Ints, Ints, Ints]:
        return adjacency.edges_among(connection, nodes, allowed, most)

    def between(
        self, connection: Connection[Row], pairs: Sequence[tuple[int, int]], allowed: Allowed
    ) -> Answer[Iterable[Link]]:
        return relations.between(connection, pairs, allowed.types, allowed.min_confidence)
