"""The kinds that measure a graph, on a large one: `python -m benchmarks.measures [--quick] [--json FILE] [--nodes N]`.

The graph of `benchmarks.graph`, with an embedding for each concept, and types of which some take sides. Each kind is a
job that a worker in this process does, once. Beside its time stand the memory that it took at most, above what the
process had before, and the longest time in which it did not ask whether it was cancelled.
"""

import argparse
import asyncio
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from benchmarks.databases import create_database
from benchmarks.graph_parts import data
from benchmarks.report import Report, console
from kappa.app import wiring
from kappa.app.settings import Settings
from kappa.engine import Engine, JobContext, JobState
from kappa.engine.testing import working
from kappa.pg import Database
from kappa.pg.embedded import EmbeddedServer

MODEL, DIMENSION = "bench", 384
ONTOLOGIES = 1_000
SIDED = (
    "SUPPORTS", "CONTRADICTS", "CONFIRMS", "REFUTES", "CAUSES", "PREVENTS", "USES", "EMPLOYS", "CONTAINS", "REQUIRES",
)  # fmt: skip
VERBS = (
    "USES", "EMPLOYS", "UTILISES", "APPLIES", "HOLDS", "KEEPS", "STORES", "CARRIES", "MAKES", "PRODUCES", "CREATES",
    "BUILDS", "FINDS", "DETECTS", "SEES", "NOTICES", "MOVES", "SHIFTS", "SENDS", "BRINGS",
)  # fmt: skip
NOUNS = (
    "WATER", "LIGHT", "FOOD", "SOUND", "HEAT", "MONEY", "PAPER", "STONE", "WOOD", "METAL", "GLASS", "SAND", "SALT",
    "OIL", "AIR", "ICE", "SMOKE", "DUST", "GRAIN", "WOOL",
)  # fmt: skip
"""Each verb with each noun is a type more, which no relation has: four hundred."""
HUBS = (1, 7920)
"""Two of the best connected concepts: what lies around them is most of the graph."""
KINDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("vocab_refresh", {}),
    ("epistemic_remeasurement", {}),
    ("vocab_consolidate", {"target": 50, "near": 0.6}),
    ("projection", {}),
    ("projection", {"most": 2_000}),
    ("projection", {"way": "pca", "most": 20_000}),
    ("polarity", {"max_hops": 3, "limit": 1_000}),
    ("ontology_annealing", {}),
)


class Watch:
    """How long the handler is between two looks at whether it was cancelled, and the most memory that is used."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.most = 0
        self.before = _resident()
        self._last = time.perf_counter()

    def look(self) -> None:
        now = time.perf_counter()
        self.longest, self._last = max(self.longest, now - self._last), now

    @contextmanager
    def watching(self) -> Iterator[None]:
        check, over = JobContext.raise_if_cancelled, threading.Event()

        def looked(ctx: JobContext) -> None:
            self.look()
            check(ctx)

        def sample() -> None:
            while not over.wait(0.02):
                self.most = max(self.most, _resident())

        JobContext.raise_if_cancelled = looked
        sampler = threading.Thread(target=sample)
        sampler.start()
        self._last = time.perf_counter()
        try:
            yield
        finally:
            self.look()
            over.set()
            sampler.join()
            JobContext.raise_if_cancelled = check


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def fill(url: str, world: data.World) -> None:
    """The graph of the other benchmark, in more ontologies, with words for types and an embedding for each concept."""
    data.fill(url, world)
    chance = np.random.default_rng(7)
    centres = chance.standard_normal((200, DIMENSION)).astype(np.float32)
    element = np.dtype([("size", ">i4"), ("value", ">f4")])
    record = np.dtype([
        ("columns", ">i2"), ("s1", ">i4"), ("id", ">i8"), ("s2", ">i4"), ("dims", ">i4"), ("nulls", ">i4"),
        ("type", ">i4"), ("length", ">i4"), ("from", ">i4"), ("elements", element, (DIMENSION,)),
    ])  # fmt: skip
    with closing(psycopg.connect(url, autocommit=True)) as connection, connection.transaction():
        connection.execute("SET LOCAL session_replication_role = replica")
        connection.execute(
            "INSERT INTO kappa_graph.ontologies (key, name) SELECT gen_random_uuid(), 'part ' || n "
            "FROM generate_series(%s::int, %s::int) AS n",
            [data.ONTOLOGIES + 1, ONTOLOGIES],
        )
        for number, name in enumerate(SIDED, start=1):
            connection.execute("UPDATE kappa_graph.relation_types SET name = %s WHERE id = %s", [name, number])
        connection.execute(
            "INSERT INTO kappa_graph.relation_types (name) SELECT v || '_' || n FROM unnest(%s::text[]) AS v, "
            "unnest(%s::text[]) AS n",
            [list(VERBS), list(NOUNS)],
        )
        connection.execute("CREATE TEMPORARY TABLE said (id bigint PRIMARY KEY, embedding real[]) ON COMMIT DROP")
        with connection.cursor().copy("COPY said FROM STDIN (FORMAT binary)") as copy:
            copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8))
            for begin in range(0, world.nodes, 10_000):
                rows = np.zeros(min(10_000, world.nodes - begin), record)
                rows["columns"], rows["s1"], rows["s2"], rows["dims"] = 2, 8, 20 + 8 * DIMENSION, 1
                rows["type"], rows["length"], rows["from"] = 700, DIMENSION, 1
                rows["id"] = np.arange(begin + 1, begin + 1 + len(rows))
                noise = chance.standard_normal((len(rows), DIMENSION)).astype(np.float32)
                rows["elements"]["size"] = 4
                rows["elements"]["value"] = centres[chance.integers(0, len(centres), len(rows))] + noise
                copy.write(rows.tobytes())
            copy.write(b"\xff\xff")
        # Half as many labels as concepts, so that ontologies have some in common.
        connection.execute(
            "UPDATE kappa_graph.concepts AS c SET embedding = s.embedding, embedding_model = %s,"
            " ontology_id = 1 + c.id %% %s, label = 'concept ' || CASE WHEN c.id <= %s THEN c.id ELSE c.id / 2 END"
            " FROM said AS s WHERE s.id = c.id",
            [MODEL, ONTOLOGIES, world.nodes // 2],
        )  # fmt: skip
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute("VACUUM ANALYZE kappa_graph.concepts")


async def measure(report: Report, engine: Engine, kind: str, payload: dict[str, Any]) -> None:
    said = " ".join([kind, *(f"{name}={value}" for name, value in payload.items() if name in ("way", "most"))])
    watch = Watch()
    async with working(engine), engine.async_client() as client:
        with watch.watching():
            began = time.perf_counter()
            made = await client.enqueue(kind, payload, auto_approve="bench")
            while not (job := await client.show(made.id)).state.terminal:
                await asyncio.sleep(0.02)
            took = time.perf_counter() - began
    if job.state is not JobState.SUCCEEDED:
        console.print(f"  [red]{said}: {job.error_summary}[/]\n{job.error_detail}")
        return
    report.figure(f"{said}, s", took)
    report.figure(f"{said}, MB", max(0, watch.most - watch.before) / 1e6)
    report.figure(f"{said}, s without a look at cancel", watch.longest)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the graph")
    parser.add_argument("--json", type=Path, help="write bars and figures here")
    parser.add_argument("--nodes", type=int, help="concepts (200,000)")
    parser.add_argument("--only", help="one kind alone")
    arguments = parser.parse_args()
    nodes: int = arguments.nodes or (20_000 if arguments.quick else 200_000)
    report = Report("measures of a large graph")
    with tempfile.TemporaryDirectory(prefix="kappa-bench-") as directory:
        server = EmbeddedServer(Path(directory) / "kappa")
        with server.hold("benchmarks.measures"):
            url = create_database(server, "measures")
            settings = Settings(home=Path(directory) / "home")
            engine = wiring.build_engine(settings, Database(url, bounds=settings.bounds))
            wiring.install(engine)
            world = data.make(nodes, 10 * nodes)
            console.print(f"[bold]{world.nodes:,} concepts, {world.edges:,} relations[/]")
            fill(url, world)
            with closing(psycopg.connect(url)) as connection:
                query = "SELECT key FROM kappa_graph.concepts WHERE id = ANY (%s) ORDER BY id"
                poles = [str(row[0]) for row in connection.execute(query, [list(HUBS)])]
            for kind, payload in KINDS:
                if kind == "polarity":
                    payload |= {"positive": poles[0], "negative": poles[1]}
                if arguments.only in (None, kind):
                    asyncio.run(measure(report, engine, kind, payload))
            engine.close()
    if arguments.json:
        report.write(arguments.json)


if __name__ == "__main__":
    main()
