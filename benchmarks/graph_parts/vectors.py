"""The nearest embeddings beside pgvector: its exact scan, with the same answers, and its HNSW, with nearly the same.

Clustered random vectors, since in nothing but noise all are equally far and no index can do anything. Everyone answers
in turns, with the labels of the twenty nearest out of PostgreSQL, on the same server and the same rows.
"""

import statistics
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import psycopg

from benchmarks.databases import create_database
from benchmarks.report import Report, console
from kappa.graph import Budget, Graph, GraphConfig, NewConcept, VectorStatus
from kappa.graph.query.kernel import NumpyKernel
from kappa.pg.embedded import EmbeddedServer

MODEL, DIMENSION, LIMIT = "bench", 384, 20
EF_SEARCH = (40, 200)


def run(report: Report, server: EmbeddedServer, quick: bool) -> None:
    """All figures of one size: 200,000 vectors, a tenth of them in a quick run."""
    count, rounds = (20_000, 15) if quick else (200_000, 30)
    console.print(f"[bold]{count:,} vectors of {DIMENSION} dimensions[/]")
    url = create_database(server, "graph_vectors")
    Graph(url, GraphConfig(), budget=Budget()).install()
    console.print("  filling …")
    questions = _fill(url, count, rounds)
    # As the superuser, who alone may install pgvector.
    with closing(psycopg.connect(server.superuser_url(database="graph_vectors"), autocommit=True)) as peer:
        pgvector = _has_pgvector(peer)
        if pgvector:
            _fill_peer(report, peer, count)
        _measure(report, url, peer if pgvector else None, questions, count)
    _texts(report, url, count)


def _fill(url: str, count: int, rounds: int) -> list[list[float]]:
    """Vectors around two thousand centres; and some more around them to ask for."""
    chance = np.random.default_rng(7)
    centres = chance.standard_normal((2_000, DIMENSION)).astype(np.float32)

    def around(many: int) -> np.ndarray[Any, Any]:
        at = centres[chance.integers(0, len(centres), many)]
        return (at + chance.standard_normal(at.shape).astype(np.float32)).astype(np.float32)

    element = np.dtype([("size", ">i4"), ("value", ">f4")])
    record = np.dtype(
        [
            ("columns", ">i2"), ("s1", ">i4"), ("key", "V16"), ("s2", ">i4"), ("ontology", ">i4"), ("s3", ">i4"),
            ("label", "S14"), ("s4", ">i4"), ("model", "S5"), ("s5", ">i4"), ("dims", ">i4"), ("nulls", ">i4"),
            ("type", ">i4"), ("length", ">i4"), ("from", ">i4"), ("elements", element, (DIMENSION,)),
        ]
    )  # fmt: skip
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        with Graph(url, GraphConfig(), budget=Budget()) as graph:
            graph.add_concepts("bench", [NewConcept("concept")])
        names = "key, ontology_id, label, embedding_model, embedding"
        for begin in range(0, count, 20_000):
            rows = np.zeros(min(20_000, count - begin), record)
            rows["columns"], rows["s1"], rows["s2"], rows["s3"], rows["s4"] = 5, 16, 4, 14, 5
            rows["key"] = np.frombuffer(chance.bytes(16 * len(rows)), "V16")
            rows["ontology"], rows["model"] = 1, MODEL.encode()
            rows["label"] = [f"concept {begin + n:06}".encode() for n in range(len(rows))]
            rows["s5"], rows["dims"], rows["type"], rows["length"], rows["from"] = (
                20 + 8 * DIMENSION,
                1,
                700,
                DIMENSION,
                1,
            )
            rows["elements"]["size"], rows["elements"]["value"] = 4, around(len(rows))
            with connection.cursor().copy(
                f"COPY kappa_graph.concepts ({names}) FROM STDIN (FORMAT binary)".encode()
            ) as copy:
                copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8) + rows.tobytes() + b"\xff\xff")
        connection.execute("VACUUM ANALYZE kappa_graph.concepts")
    return around(rounds).tolist()


def _has_pgvector(connection: psycopg.Connection[Any]) -> bool:
    try:
        connection.execute("CREATE EXTENSION vector")
    except psycopg.Error as error:
        console.print(f"  [yellow]pgvector is not measured: {error}[/]")
        return False
    return True


def _fill_peer(report: Report, connection: psycopg.Connection[Any], count: int) -> None:
    connection.execute("SET maintenance_work_mem = '1500MB'")
    connection.execute(f"CREATE TABLE peer (id bigint PRIMARY KEY, v vector({DIMENSION}))".encode())
    connection.execute(
        "INSERT INTO peer SELECT id, embedding::vector FROM kappa_graph.concepts WHERE embedding IS NOT NULL"
    )
    connection.execute("VACUUM ANALYZE peer")
    began = time.perf_counter()
    connection.execute("CREATE INDEX hnsw ON peer USING hnsw (v vector_cosine_ops)")
    report.figure(f"{count:,} vectors: pgvector HNSW built, s", time.perf_counter() - began)


def _measure(
    report: Report, url: str, peer: psycopg.Connection[Any] | None, questions: list[list[float]], count: int
) -> None:
    with (
        Graph(url, GraphConfig(), budget=Budget()) as ours,
        Graph(url, GraphConfig(), budget=Budget(), walk_with=NumpyKernel()) as plain,
        Graph(url, GraphConfig(vectors_bytes=0), budget=Budget()) as cold,
    ):
        began = time.perf_counter()
        status = _ready(ours, questions[0])
        report.figure(f"{count:,} vectors: read into memory, with the first answer, s", time.perf_counter() - began)
        report.figure(f"{count:,} vectors: bytes each in memory", status.bytes / status.concepts)
        _ready(plain, questions[0])

        def asked(graph: Graph) -> Callable[[list[float]], list[int]]:
            return lambda vector: [
                hit.concept.node
                for hit in graph.search(vector=vector, model=MODEL, limit=LIMIT, deadline=120, min_similarity=-1).items
            ]

        everyone: dict[str, Callable[[list[float]], list[int]]] = {
            "kappa, c": asked(ours), "kappa, numpy": asked(plain)
        }  # fmt: skip
        if peer is not None:
            everyone["pgvector exact"] = _peer(peer, 0)
            everyone |= {f"pgvector HNSW, ef_search {ef}": _peer(peer, ef) for ef in EF_SEARCH}
        took: dict[str, list[float]] = {name: [] for name in everyone}
        agreed: dict[str, list[float]] = {name: [] for name in everyone}
        for vector in questions:
            exact = set(everyone["kappa, c"](vector))
            for name, ask in everyone.items():
                began = time.perf_counter()
                nodes = ask(vector)
                took[name].append(time.perf_counter() - began)
                agreed[name].append(len(exact & set(nodes)) / len(exact))
        for name, times in took.items():
            report.figure(f"{count:,} vectors: {name}, ms", 1000 * statistics.median(times))
            if name != "kappa, c":
                report.figure(f"{count:,} vectors: {name}, share of the true nearest", statistics.mean(agreed[name]))
        times = [_timed(lambda v=v: asked(cold)(v)) for v in questions[:3]]
        report.figure(f"{count:,} vectors: kappa, read through in SQL, ms", 1000 * statistics.median(times))
        _freshness(report, ours, questions, count)


def _peer(connection: psycopg.Connection[Any], ef_search: int) -> Callable[[list[float]], list[int]]:
    def ask(vector: list[float]) -> list[int]:
        with connection.transaction():
            if ef_search:
                connection.execute(f"SET LOCAL hnsw.ef_search = {ef_search}".encode())
            else:
                connection.execute("SET LOCAL enable_indexscan = off")
            rows = connection.execute(
                "SELECT p.id, c.label FROM (SELECT id FROM peer ORDER BY v <=> %s::vector LIMIT %s) AS p "
                "JOIN kappa_graph.concepts AS c USING (id)",
                [str(vector), LIMIT],
            ).fetchall()
        return [row[0] for row in rows]

    return ask


def _freshness(report: Report, graph: Graph, questions: list[list[float]], count: int) -> None:
    """A hundred embeddings that change, and the first question that must see them."""
    ids = [hit.concept.id for hit in graph.search(vector=questions[0], model=MODEL, limit=100, min_similarity=-1).items]
    times: list[float] = []
    for vector in questions[:10]:
        graph.set_embeddings(MODEL, dict.fromkeys(ids, vector))
        epoch = graph.epoch()
        times.append(_timed(lambda v=vector, e=epoch: graph.search(vector=v, model=MODEL, limit=LIMIT, min_epoch=e)))
    report.figure(f"{count:,} vectors: first answer after 100 changed, ms", 1000 * statistics.median(times))


def _texts(report: Report, url: str, count: int) -> None:
    with Graph(url, GraphConfig(), budget=Budget()) as graph:
        for what, text in (
            ("a label", "concept 012345"),
            ("its beginning", "concept 0123"),
            ("a slip", "comcept 012345"),
        ):
            graph.search(text)
            times = [_timed(lambda t=text: graph.search(t)) for _ in range(7)]
            report.figure(f"{count:,} concepts: text search, {what}, ms", 1000 * statistics.median(times))


def _ready(graph: Graph, question: list[float]) -> VectorStatus:
    """The embeddings in memory, once they are there."""
    while True:
        if graph.search(vector=question, model=MODEL, limit=LIMIT, deadline=120).served_by == "snapshot":
            return graph.vectors()[0]
        while graph.vectors()[0].state == "reading":
            time.sleep(0.01)


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began
