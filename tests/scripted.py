"""A provider and a model that do what a text says, always the same; and a graph written down to compare it.

A text is made of sentences like "Alpha causes Beta." Every capitalised word is a concept, the verb is a relation, the
sentence is the quote of both ends. What the extractor was asked is counted, in a file where processes share it.
"""

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from kappa.app.kinds import models
from kappa.app.kinds.models import Provider
from kappa.app.settings import Settings
from kappa.engine import Engine
from kappa.graph.identity import normal
from kappa.graph.ingest.embedding import Thresholds, Vectors
from kappa.graph.ingest.extraction import Context, Extraction, FoundConcept, FoundInstance, FoundRelation

ASKED = "SCRIPTED_ASKED"
"""A file that gets a line for each text that the extractor is asked for."""
ALLOWED = "SCRIPTED_ALLOWED"
"""A file with a number: who is asked while the other has more lines than that waits."""
PLACE = "tests.scripted:declare"

_SENTENCE = re.compile(r"([A-Z][\w-]*) ([a-z_]+) ([A-Z][\w-]*)\.")


def name_of(text: str) -> str:
    """What a chunk is called in the list of what was asked."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class ScriptedExtractor:
    """Finds what the sentences say. `before` is called with each text first, and may raise."""

    name = "scripted"

    def __init__(self, before: Callable[[str], None] = lambda text: None) -> None:
        self.before = before
        self._lock = threading.Lock()
        self.asked: list[str] = []

    def extract(self, text: str, context: Context | None = None) -> Extraction:
        with self._lock:
            self.asked.append(text)
        if shared := os.environ.get(ASKED):
            with Path(shared).open("a") as file:
                file.write(name_of(text) + "\n")
            if allowed := os.environ.get(ALLOWED):
                _wait_for_leave(Path(shared), Path(allowed))
        self.before(text)
        concepts: dict[str, FoundConcept] = {}
        instances: list[FoundInstance] = []
        relations: list[FoundRelation] = []
        for found in _SENTENCE.finditer(text):
            ends = (found[1], found[3])
            for label in ends:
                concepts.setdefault(label, FoundConcept(label, f"seen in {found[0]}", (label.lower(),)))
                instances.append(FoundInstance(label, found[0], found.start()))
            relations.append(FoundRelation(*ends, found[2].upper(), 0.8, "said"))
        return Extraction(tuple(concepts.values()), tuple(instances), tuple(relations))


def _wait_for_leave(asked: Path, allowed: Path) -> None:
    while len(asked.read_text().split()) > int(allowed.read_text() or 0):
        time.sleep(0.002)


class ScriptedEmbedder:
    """Texts that share most of their letters, three by three, are alike."""

    dimension = 64
    thresholds = Thresholds(same=0.8, contains=0.8, stem=0.6, types=0.8)

    def __init__(self, model: str = "letters") -> None:
        self.model = model
        self.embedded: list[str] = []
        self.closed = False

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.embedded.extend(texts)
        rows = np.zeros((len(texts), self.dimension), np.float32)
        for row, text in zip(rows, texts, strict=True):
            padded = f"  {normal(text)[:200]} "
            for at in range(len(padded) - 2):
                digest = hashlib.sha256(f"{self.model}{padded[at : at + 3]}".encode()).digest()
                row[digest[0] % self.dimension] += 1.0 if digest[1] % 2 else -1.0
            row[0] += 0.001
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def close(self) -> None:
        self.closed = True


def _extractor(settings: Settings) -> ScriptedExtractor:
    return ScriptedExtractor()


def _embedder(settings: Settings) -> ScriptedEmbedder:
    return ScriptedEmbedder()


def declare(engine: Engine) -> None:
    """For `KAPPA_HANDLERS`: the names `scripted` of a provider and of a model."""
    models.PROVIDERS["scripted"] = Provider(_extractor)
    models.EMBEDDERS["scripted"] = _embedder


def story(number: int, sentences: int, *, shared: int = 0) -> str:
    """So many sentences about things that only this story knows, and some that all stories know."""
    told: list[str] = []
    for at in range(sentences):
        known = at < shared
        who = f"Common{at}" if known else f"Thing{number}x{at % 17}"
        whom = f"Common{at + 1}" if known else f"Matter{number}x{at % 23}"
        told.append(f"{who} {('causes', 'contains', 'replaces', 'requires')[at % 4]} {whom}.")
    return "\n\n".join(told)


def dump(url: str) -> bytes:
    """The graph and its plans in a canonical order, without numbers of rows, times and epochs."""
    with psycopg.connect(url) as connection:
        parts: list[Any] = [sorted(map(repr, connection.execute(query).fetchall())) for query in _ROWS]
    return "\n".join(line for part in parts for line in ["--", *part]).encode()


_ROWS = (
    "SELECT key, name, description FROM kappa_graph.ontologies",
    """SELECT d.key, o.key, d.name, d.content_hash, d.media_type, d.text, d.original
         FROM kappa_graph.documents AS d JOIN kappa_graph.ontologies AS o ON o.id = d.ontology_id""",
    """SELECT s.key, d.key, s.ordinal, s.start_offset, s.end_offset, s.text, s.embedding, s.embedding_model,
              s.dimension, s.embedded_hash
         FROM kappa_graph.sources AS s JOIN kappa_graph.documents AS d ON d.id = s.document_id""",
    """SELECT c.key, o.key, c.label, c.description, c.search_terms, c.embedding, c.embedding_model, c.dimension
         FROM kappa_graph.concepts AS c JOIN kappa_graph.ontologies AS o ON o.id = c.ontology_id""",
    """SELECT c.key, s.key, i.quote, i.start_offset, i.end_offset
         FROM kappa_graph.instances AS i JOIN kappa_graph.concepts AS c ON c.id = i.concept_id
         JOIN kappa_graph.sources AS s ON s.id = i.source_id""",
    """SELECT t.name, t.category, t.description, t.embedding, t.embedding_model, t.active, m.name
         FROM kappa_graph.relation_types AS t LEFT JOIN kappa_graph.relation_types AS m ON m.id = t.merged_into""",
    """SELECT f.key, t.key, y.name, r.confidence, r.category, r.provenance
         FROM kappa_graph.relations AS r JOIN kappa_graph.concepts AS f ON f.id = r.from_id
         JOIN kappa_graph.concepts AS t ON t.id = r.to_id JOIN kappa_graph.relation_types AS y ON y.id = r.type_id""",
    """SELECT f.key, t.key, y.name, s.key
         FROM kappa_graph.relation_sources AS x JOIN kappa_graph.relations AS r ON r.id = x.relation_id
         JOIN kappa_graph.concepts AS f ON f.id = r.from_id JOIN kappa_graph.concepts AS t ON t.id = r.to_id
         JOIN kappa_graph.relation_types AS y ON y.id = r.type_id
         JOIN kappa_graph.sources AS s ON s.id = x.source_id""",
    """SELECT d.key, p.ordinal, p.start_offset, p.end_offset, p.words, p.state, p.extractor, p.concepts, p.instances,
              p.relations, p.matched, p.dropped, p.error
         FROM kappa_graph.chunk_plan AS p JOIN kappa_graph.documents AS d ON d.id = p.document_id""",
)
