"""The graph that is asked: random, its ends by a power law, the same in every engine. Concepts are numbered from 1."""

from contextlib import closing
from dataclasses import dataclass

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import sql

from kappa.graph.query.snapshot import Rows

Ints = NDArray[np.int64]
TYPES = 20
ONTOLOGIES = 10


@dataclass(frozen=True, slots=True)
class World:
    """Concepts in ten ontologies, of which nine pass the filter, and relations between them."""

    nodes: int
    heads: Ints
    tails: Ints
    types: NDArray[np.uint16]
    confidence: NDArray[np.uint8]
    ontologies: NDArray[np.uint16]
    """Of each concept, the first being concept 1."""

    @property
    def edges(self) -> int:
        return len(self.heads)

    @property
    def passes(self) -> NDArray[np.bool_]:
        return self.ontologies < ONTOLOGIES

    @property
    def degree(self) -> Ints:
        return np.bincount(self.heads - 1, minlength=self.nodes) + np.bincount(self.tails - 1, minlength=self.nodes)

    @property
    def hub(self) -> int:
        return 1 + int(np.where(self.passes, self.degree, -1).argmax())

    def seeds(self, count: int, degree: int = 100) -> list[int]:
        """Concepts that pass and have about so many relations, from all over the graph."""
        off = np.where(self.passes, np.abs(self.degree - degree), self.edges)
        near = np.sort(np.argsort(off, kind="stable")[: max(count, int((off <= degree // 10).sum()))])
        return (1 + near[:: max(1, len(near) // count)][:count]).tolist()

    def only(self, types: int) -> "World":
        """The same with relations of the first so many types alone."""
        keep = self.types <= types
        return World(
            self.nodes, self.heads[keep], self.tails[keep], self.types[keep], self.confidence[keep], self.ontologies
        )

    def pairs(self) -> tuple[Ints, Ints]:
        """What passes, undirected, without loops or parallels, numbered from 0: the filter done beforehand."""
        low, high = np.minimum(self.heads, self.tails) - 1, np.maximum(self.heads, self.tails) - 1
        keep = (low != high) & self.passes[low] & self.passes[high]
        keys = np.unique(low[keep] << 32 | high[keep])
        return keys >> 32, keys & 0xFFFFFFFF

    def rows(self) -> Rows:
        return Rows(
            np.arange(1, self.nodes + 1), self.ontologies, self.heads, self.tails, self.types, self.confidence
        )  # fmt: skip


def make(nodes: int, edges: int, seed: int = 7) -> World:
    chance = np.random.default_rng(seed)

    def ends() -> Ints:
        # 7919 is prime: concepts of one degree don't stand side by side.
        return 1 + 7919 * (nodes * chance.random(edges) ** 2.5).astype(np.int64) % nodes

    heads, tails, types = ends(), ends(), chance.integers(1, TYPES + 1, edges)
    _, first = np.unique((heads * (nodes + 1) + tails) * (TYPES + 1) + types, return_index=True)
    first.sort()
    return World(
        nodes, heads[first], tails[first], types[first].astype(np.uint16),
        chance.integers(0, 101, len(first)).astype(np.uint8),
        (1 + np.arange(1, nodes + 1) % ONTOLOGIES).astype(np.uint16),
    )  # fmt: skip


def fill(url: str, world: World) -> None:
    """Put it into an empty schema: without triggers, and indexes when all is there."""
    with closing(psycopg.connect(url, autocommit=True)) as connection, connection.transaction():
        connection.execute("SET LOCAL session_replication_role = replica")
        connection.execute(
            "INSERT INTO kappa_graph.ontologies (key, name) SELECT gen_random_uuid(), 'part ' || n "
            "FROM generate_series(1, %s) AS n",
            [ONTOLOGIES],
        )
        connection.execute(
            "INSERT INTO kappa_graph.relation_types (name) SELECT 'TYPE_' || n FROM generate_series(1, %s) AS n",
            [TYPES],
        )
        connection.execute(
            "INSERT INTO kappa_graph.concepts (key, ontology_id, label) "
            "SELECT gen_random_uuid(), 1 + n %% 10, 'concept ' || n FROM generate_series(1, %s) AS n",
            [world.nodes],
        )
        indexes = connection.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'kappa_graph' AND tablename = 'relations' "
            "AND indexname <> 'relations_pkey'"
        ).fetchall()
        for name, _ in indexes:
            connection.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier("kappa_graph", name)))
        with connection.cursor().copy(
            "COPY kappa_graph.relations (from_id, to_id, type_id, confidence) FROM STDIN (FORMAT binary)"
        ) as copy:
            copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8))
            for at in range(0, world.edges, 100_000):
                copy.write(_copied(world, slice(at, at + 100_000)))
            copy.write(b"\xff\xff")
        for _, definition in indexes:
            connection.execute(definition.encode())
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute("VACUUM ANALYZE kappa_graph.relations, kappa_graph.concepts")


def _copied(world: World, part: slice) -> bytes:
    """Rows in COPY's binary format: the number of columns, then each with its length before it."""
    columns = ((world.heads, 8), (world.tails, 8), (world.types, 4), (world.confidence, 2))
    fields = [field for n, (_, size) in enumerate(columns) for field in ((f"n{n}", ">i4"), (f"v{n}", f">i{size}"))]
    rows = np.zeros(len(world.heads[part]), np.dtype([("columns", ">i2"), *fields]))
    rows["columns"] = len(columns)
    for n, (values, size) in enumerate(columns):
        rows[f"n{n}"] = size
        rows[f"v{n}"] = values[part]
    return rows.tobytes()
