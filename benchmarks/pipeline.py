"""From documents to graph: `python -m benchmarks.pipeline [--quick] [--json FILE]`.

Chunks a second of read → chunk → match → write, extraction left out: what the provider would say is known beforehand.
Once with the vectors known beforehand too, which leaves the work on the graph, and once with the local model. The
limit is a COPY of the very rows that came out, all tables in one transaction, into the same schema with its indexes
and triggers. Then the embedding thread beside the bare model. Durable defaults, one embedded server.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psycopg
from psycopg import sql

from benchmarks.databases import create_database
from benchmarks.report import Report, console
from kappa.graph import Budget, Graph, GraphConfig, NewDocument
from kappa.graph.ingest.chunk import chunk
from kappa.graph.ingest.embedding import Embedder, Vectors
from kappa.graph.ingest.extraction import Context, Extraction, FoundConcept, FoundInstance, FoundRelation
from kappa.graph.ingest.local.embed import LocalEmbedder, Model
from kappa.graph.ingest.match import type_text
from kappa.graph.ingest.pipeline import Pipeline
from kappa.graph.ingest.read import read
from kappa.pg.embedded import EmbeddedServer

TYPES = ("CAUSES", "REQUIRES", "CONTAINS", "PREVENTS", "USES", "REPLACES", "PART_OF", "PRODUCES")
FILL = "which was seen again and again in the long run of the work that everybody did there for many a year and a day"
TABLES = ("ontologies", "documents", "sources", "concepts", "relation_types", "instances", "relations",
          "relation_sources", "chunk_plan")  # fmt: skip


def words(count: int, chance: random.Random) -> list[str]:
    """Made-up words, of which no two are alike."""
    syllables = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "il", "os", "um")]
    return ["".join(chance.choices(syllables, k=4)) for _ in range(count)]


def document(number: int, sentences: int, known: Sequence[str], chance: random.Random) -> str:
    """Sentences of forty words or so about two things each; half of the things are those of everybody."""
    own = [f"{a} {b}" for a, b in zip(words(sentences, chance), words(sentences, chance), strict=True)]

    def thing() -> str:
        return chance.choice(known[: max(1, int(len(known) * chance.random() ** 2))] if chance.random() < 0.5 else own)

    lines = [
        f"In case {number} of {at} the {thing()} {chance.choice(TYPES)} the {thing()} {FILL}."
        for at in range(sentences)
    ]
    return "\n\n".join(lines)


class Remembered:
    """Says what it was told beforehand."""

    name = "remembered"

    def __init__(self) -> None:
        self._known: dict[str, Extraction] = {}

    def learn(self, text: str) -> Extraction:
        concepts: dict[str, FoundConcept] = {}
        instances: list[FoundInstance] = []
        relations: list[FoundRelation] = []
        at = 0
        for line in text.split("\n\n"):
            for kind in TYPES:
                head, found, tail = line.partition(f" {kind} the ")
                if found and " the " in head:
                    ends = (head.rsplit(" the ", 1)[1], " ".join(tail.split()[:2]))
                    for label in ends:
                        concepts.setdefault(label, FoundConcept(label, "", (label.title(),)))
                        instances.append(FoundInstance(label, line, at))
                    relations.append(FoundRelation(*ends, kind, 0.8, "said"))
            at += len(line) + 2
        return self._known.setdefault(text, Extraction(tuple(concepts.values()), tuple(instances), tuple(relations)))

    def extract(self, text: str, context: Context | None = None) -> Extraction:
        return self._known[text]


class FromMemory:
    """A model's vectors, computed before."""

    def __init__(self, model: LocalEmbedder, texts: Sequence[str]) -> None:
        self.model, self.dimension, self.thresholds = model.model, model.dimension, model.thresholds
        self._vectors = dict(zip(texts, model.embed(texts), strict=True))

    def embed(self, texts: Sequence[str]) -> Vectors:
        return np.stack([self._vectors[text] for text in texts])

    def close(self) -> None:
        pass


class Bench:
    """One run."""

    def __init__(self, server: EmbeddedServer, *, quick: bool) -> None:
        self.server = server
        self.report = Report("from documents to graph")
        self.rounds = 1 if quick else 3
        chance = random.Random(7)
        known = [f"{a} {b}" for a, b in zip(words(400, chance), words(400, chance), strict=True)]
        sizes = (100, 4) if quick else (400, 6)
        self.texts = [document(number, sizes[0], known, chance) for number in range(sizes[1])]
        self.extractor = Remembered()
        self.spans = [text[one.start : one.end] for text in self.texts for one in chunk(text)]
        found = [self.extractor.learn(text) for text in self.spans]
        self.labels = list(dict.fromkeys(one.label for each in found for one in each.concepts))
        self._databases = 0

    def run(self) -> None:
        self.report.figure("chunks of about 1,000 words", len(self.spans))
        self.report.figure("labels", len(self.labels))
        with LocalEmbedder() as model:
            memory = FromMemory(model, [*self.labels, *map(type_text, TYPES), *self.spans])
            ours: list[float] = []
            copied: list[float] = []
            for _ in range(self.rounds):
                url, seconds = self.ingest(memory)
                ours.append(len(self.spans) / seconds)
                copied.append(len(self.spans) / self.copy(url))
            self.show("read, chunk, match, write", ours)
            self.show("COPY of the same rows, all at once", copied)
            self.report.figure("share of the COPY", statistics.median(ours) / statistics.median(copied))
            _, seconds = self.ingest(model)
            self.report.figure("the same with the local model, chunks/s", len(self.spans) / seconds)
            url, seconds = self.ingest(memory, at_once=4)
            self.report.figure("four documents at once in one ontology, chunks/s", len(self.spans) / seconds)
            self.embedding(model)
        self.report.show()

    def show(self, name: str, values: list[float]) -> None:
        self.report.figure(f"{name}, chunks/s", statistics.median(values))

    def ingest(self, embedder: Embedder, at_once: int = 1) -> tuple[str, float]:
        """The database that came out, and the seconds it took."""
        url = self.database()
        graph = Graph(url, GraphConfig(snapshot=False), budget=Budget())
        graph.install()
        with graph, ThreadPoolExecutor(at_once) as pool:
            pipeline = Pipeline(graph.transaction, embedder)

            def bring(number: int) -> None:
                data = self.texts[number].encode()
                found = read(data, f"{number}.txt")
                new = NewDocument(f"{number}.txt", found.text, found.media_type, data)
                done = pipeline.ingest(pipeline.plan("benchmark", new, "once"), self.extractor)
                assert not done.failed

            began = time.perf_counter()
            list(pool.map(bring, range(len(self.texts))))
            return url, time.perf_counter() - began

    def copy(self, url: str) -> float:
        """Seconds for the same rows, by COPY."""
        other = self.database()
        Graph(other, GraphConfig(snapshot=False), budget=Budget()).install()
        with psycopg.connect(url) as source, psycopg.connect(other) as goal:
            parts: list[tuple[sql.Composed, list[bytes | memoryview]]] = []
            for table in TABLES:
                columns = source.execute(
                    "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
                    "AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
                    [f"kappa_graph.{table}"],
                ).fetchall()
                named = sql.SQL(", ").join(sql.Identifier(row[0]) for row in columns)
                place = sql.Identifier("kappa_graph", table)
                out = sql.SQL("COPY {} ({}) TO STDOUT (FORMAT binary)").format(place, named)
                with source.cursor().copy(out) as copy:
                    rows = list(copy)
                parts.append((sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(place, named), rows))
            began = time.perf_counter()
            for into, rows in parts:
                with goal.cursor().copy(into) as copy:
                    for row in rows:
                        copy.write(row)
            goal.commit()
            return time.perf_counter() - began

    def database(self) -> str:
        self._databases += 1
        name = f"pipeline_{self._databases}"
        return create_database(self.server, name)

    def embedding(self, model: LocalEmbedder) -> None:
        """Labels a second: the bare model, and through the thread that all jobs share."""
        texts = self.labels[:2000]
        bare = Model()

        def rate(run: Callable[[], object]) -> float:
            began = time.perf_counter()
            run()
            return len(texts) / (time.perf_counter() - began)

        # Of one length, so that nothing is padded: no order is quicker.
        even = sorted(texts, key=lambda text: len(bare.tokens([text])[0]))
        limit = rate(lambda: [bare.run(bare.tokens(even[at : at + 32])) for at in range(0, len(even), 32)])
        self.report.figure("bare model, batches of 32 by length, labels/s", limit)
        one = rate(lambda: model.embed(texts))
        self.report.figure("one job, labels/s", one)
        with ThreadPoolExecutor(4) as jobs:
            parts = [texts[at : at + 30] for at in range(0, len(texts), 30)]
            many = rate(lambda: list(jobs.map(model.embed, parts)))
        self.report.figure("four jobs, thirty labels at a time, labels/s", many)
        self.report.bar("embedding, four jobs / the bare model", many / limit, 0.8)


def main() -> None:
    options = argparse.ArgumentParser(prog="benchmarks.pipeline", description=__doc__)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="kappa-pipeline-") as directory:
        server = EmbeddedServer(Path(directory) / "kappa")
        console.print("[bold]From documents to graph[/]")
        with server.hold("benchmarks.pipeline"):
            bench = Bench(server, quick=given.quick)
            bench.run()
    if given.json:
        bench.report.write(given.json)


if __name__ == "__main__":
    main()
