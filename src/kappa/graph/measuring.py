"""The part of the graph's front that measures it: concepts, the vocabulary, maps, and artifacts that keep results."""

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any, TypeVar, cast
from uuid import UUID

import numpy as np
from psycopg import Connection

from kappa.graph import merging
from kappa.graph.access import Access
from kappa.graph.config import MOST_MAPPED, TIMEOUT
from kappa.graph.errors import BadQuestion, GraphBusy, QuestionStopped, UnknownConcept
from kappa.graph.findings import Artifact, Measured, MeasuredType, Merge, NewArtifact
from kappa.graph.ingest.embedding import Embedder
from kappa.graph.ingest.match import type_text
from kappa.graph.measures import clusters, pictures, projection
from kappa.graph.measures import vocabulary as wording
from kappa.graph.model import Concept, EnrichedPaths, Path, Paths, Polarity, Related, SearchAnswer, Skipped
from kappa.graph.query import grounding
from kappa.graph.query.budget import Grant
from kappa.graph.query.filters import WHY, Cancel, Limits
from kappa.graph.query.grounding import Groundings
from kappa.graph.query.reading import one_state
from kappa.graph.query.server import Session, Stopped, session
from kappa.graph.store import artifacts, clock, concepts, ontologies, vectors, vocabulary
from kappa.graph.store.vectors import Kind
from kappa.graph.store.vocabulary import Last
from kappa.pg.queries import Row

A = TypeVar("A", Related, SearchAnswer)
P = TypeVar("P", Paths, EnrichedPaths)

SVG = "image/svg+xml"
PARTIAL_KEPT = timedelta(days=1)
"""How long an answer is kept that is not whole."""
Step = Callable[[float, float, str], None]
"""Told how far it is, of how much, and with what; it may raise to stop."""


def _no_step(done: float, total: float, what: str) -> None:
    pass


class Measuring(Access):
    """What `Graph` can measure."""

    # Concepts

    def measured(
        self, concept_id: UUID, *, deadline: float | None = None, cancel: Cancel | None = None
    ) -> Measured:  # fmt: skip
        """How well a concept is founded, with the relations that count most."""
        with self._measuring(deadline, cancel) as session:
            node = session.run(lambda connection: concepts.numbers(connection, [concept_id])).get(concept_id)
            if node is None:
                raise UnknownConcept(f"there is no concept {concept_id}")
            return grounding.explain(session, node)

    def measures(
        self, ids: Sequence[UUID], *, deadline: float | None = None, cancel: Cancel | None = None
    ) -> dict[UUID, Measured]:
        """How well the first hundred of these concepts are founded, without reasons; none of what is no more."""
        wanted = list(dict.fromkeys(ids))[: grounding.AT_ONCE]
        with self._measuring(deadline, cancel) as session:
            known = session.run(lambda connection: concepts.numbers(connection, wanted))
            nodes = {node: one for one, node in known.items()}
            return {nodes[node]: one for node, one in grounding.measure(session, list(nodes)).items()}

    def with_measures(self, answer: A, *, deadline: float | None = None, cancel: Cancel | None = None) -> A:
        """The same answer, the first hundred of its concepts measured; without measures where time runs out."""
        known = self._measures_of([item.concept for item in answer.items], deadline, cancel)
        if isinstance(known, Skipped):
            return replace(answer, complete=False, skipped=(*answer.skipped, known))
        items = (replace(item, concept=_measured(item.concept, known)) for item in answer.items)
        return replace(answer, items=tuple(items))

    def with_measured_paths(self, answer: P, *, deadline: float | None = None, cancel: Cancel | None = None) -> P:
        """The same answer, the first hundred of the concepts on its paths measured, as in `with_measures`."""
        known = self._measures_of([concept for path in answer.items for concept in path.concepts], deadline, cancel)
        if isinstance(known, Skipped):
            return replace(answer, complete=False, skipped=(*answer.skipped, known))
        paths = (Path(tuple(_measured(one, known) for one in path.concepts), path.relations) for path in answer.items)
        return replace(answer, items=tuple(paths))

    def _measures_of(
        self, found: Sequence[Concept], deadline: float | None, cancel: Cancel | None
    ) -> dict[int, Measured] | Skipped:
        nodes = list(dict.fromkeys(concept.node for concept in found))[: grounding.AT_ONCE]
        try:
            with self._measuring(deadline, cancel) as session:
                return grounding.measure(session, nodes)
        except (QuestionStopped, GraphBusy) as error:
            return Skipped("the measures", str(error))

    @contextmanager
    def _measuring(self, deadline: float | None, cancel: Cancel | None) -> Generator[Session]:
        """One state of the graph, looked at until the deadline, whatever locks are held."""
        self._only_own("is not measured")
        limits = Limits(time.monotonic() + (deadline or TIMEOUT[1]), cancel or Cancel())
        try:
            with session(self._pool, limits, Grant(None)) as opened:
                yield opened
        except Stopped as stopped:
            raise QuestionStopped(f"concepts were still measured when {WHY[stopped.stop]}") from None

    # The vocabulary

    def vocabulary(self) -> list[MeasuredType]:
        """Every type, by name, with what is known of it."""
        self._only_own("has a vocabulary of its own")
        with self._pool.connection() as connection, one_state(connection):
            known = grounding.stances(connection)
            return [
                MeasuredType(
                    row.name, row.category, row.active, row.merged_into, row.relations, known[row.number].value,
                    "embedding" if known[row.number].measured else "words", row.model, row.scores, row.best,
                    row.ambiguous, row.epistemic, row.grounding, row.sampled,
                )
                for row in vocabulary.types(connection)
            ]  # fmt: skip

    def merge_types(
        self, merged: str, survivor: str, *, by: str = "", similarity: float | None = None,
        connection: Connection[Row] | None = None,
    ) -> Merge:  # fmt: skip
        """Every relation of the one becomes one of the other, in one transaction that `undo_merge` undoes."""
        with self._writing(connection) as writer:
            return merging.merge_types(writer, merged, survivor, by=by, similarity=similarity)

    def undo_merge(self, number: int, *, by: str = "", connection: Connection[Row] | None = None) -> Merge:
        with self._writing(connection) as writer:
            return merging.undo_merge(writer, number, by=by)

    def merges(self, limit: int = 100) -> list[Merge]:
        """The latest first."""
        self._only_own("has merged nothing here")
        with self._pool.connection() as connection:
            return merging.merges.find(connection, limit=limit)

    def embed_types(self, embedder: Embedder) -> int:
        """Give every active type an embedding by this model, and the seeds; how many types lacked one."""
        self._only_own("is not ours to write")
        with self._pool.connection() as connection:
            lacking = vocabulary.lacking(connection, embedder.model)
            known = vocabulary.seeds(connection, embedder.model)
        seeds = [name for name in wording.seed_names() if name not in known]
        made = self._embedded(embedder, list(dict.fromkeys([*lacking, *seeds])))
        with self._writing(None) as writer:
            if seeds:
                vocabulary.add_seeds(writer, embedder.model, {name: made[name] for name in seeds})
            if not lacking:
                return 0
            # A type that is a seed as well has the seed's vector, to the last digit.
            own = {name: known.get(name, made[name]) for name in lacking}
            return vocabulary.set_embeddings(writer, embedder.model, own)

    def _embedded(self, embedder: Embedder, names: Sequence[str]) -> dict[str, list[float]]:
        if not names:
            return {}
        return dict(zip(names, embedder.embed([type_text(name) for name in names]).tolist(), strict=True))

    def score_types(self, model: str) -> dict[str, int]:
        """Each active type against the categories' seeds and the axis; what was found, in numbers."""
        with self._writing(None) as writer:
            types = vocabulary.embeddings(writer, model)
            scored = wording.score(types, vocabulary.seeds(writer, model))
            changed = vocabulary.set_measures(writer, model, scored)
            fitting = {
                one.number: one.best
                for row, one in zip(types, scored, strict=True)
                if not row.category and not one.ambiguous
            }
            named = vocabulary.set_categories(writer, fitting)
            return {
                "types": len(types), "changed": changed, "categorised": named,
                "ambiguous": sum(one.ambiguous for one in scored),
            }  # fmt: skip

    def alike_types(self, least: float) -> Iterator[tuple[str, str, float]]:
        """Every two types that say the same, with how alike they are; the most alike first."""
        self._only_own("has a vocabulary of its own")
        with self._pool.connection() as connection, one_state(connection):
            models = vocabulary.models(connection)
            types = vocabulary.embeddings(connection, models[0]) if models else []
        return wording.alike(types, least)

    def unite_types(self, one: str, other: str, *, by: str = "", similarity: float | None = None) -> Merge:
        """Merge the less used of two types into the other."""
        with self._writing(None) as writer:
            survivor, merged = wording.more_used_first((one, other), vocabulary.used(writer, [one, other]))
            return merging.merge_types(writer, merged, survivor, by=by, similarity=similarity)

    def active_types(self) -> list[tuple[int, str]]:
        """Number and name, by name."""
        self._only_own("has a vocabulary of its own")
        with self._pool.connection() as connection:
            return vocabulary.active(connection)

    def groundings(self) -> Groundings:
        """For `remeasure_type`: what was measured for one type is known for the next."""
        self._only_own("is not measured")
        with self._pool.connection() as connection:
            return Groundings(connection)

    def remeasure_type(self, number: int, known: Groundings, *, sample: int, seed: int) -> tuple[str, bool]:
        """What the targets of a sample of its relations rest on, and whether that is new."""
        with self._writing(None) as writer:
            targets = vocabulary.sample(writer, number, seed, sample)
            found = known.of(writer, targets)
            grounded = [found[node].value for node in targets if found[node].supports + found[node].contradictions]
            status, mean = wording.epistemic(len(targets), grounded)
            return status, vocabulary.set_epistemic(writer, number, status, mean, len(targets), len(grounded))

    def last_measured(self, kind: str) -> Last | None:
        with self._pool.connection() as connection:
            return vocabulary.last_measured(connection, kind)

    def set_measured(self, kind: str, parameters: Mapping[str, Any], epoch: int, result: Mapping[str, Any]) -> None:
        with self._writing(None) as writer:
            vocabulary.set_measured(writer, kind, parameters, epoch, result)

    # Maps and artifacts

    def project(
        self, *, ontology: str | None = None, model: str | None = None, way: str = "tsne", most: int = 1_000,
        seed: int = 1, keep: timedelta | None = None, step: Step = _no_step,
    ) -> UUID:  # fmt: skip
        """A map of the best connected concepts by their embeddings, kept as an artifact: its id.

        The same parameters at the same epoch are the same map, which is not made twice.
        """
        self._only_own("has no map")
        if not 1 <= most <= MOST_MAPPED.get(way, 0):
            raise BadQuestion(
                f"{most} concepts by {way!r}: there may be {MOST_MAPPED['tsne']} by tsne, {MOST_MAPPED['pca']} by pca"
            )
        with self._pool.connection() as connection, one_state(connection):
            epoch = clock.now(connection)
            kind = _kind(connection, model)
            within = None if ontology is None else ontologies.get(connection, ontology)
            about = {"model": kind.model, "way": way, "most": most, "seed": seed}
            new = NewArtifact("projection", epoch, about, f"a map of {ontology or 'all concepts'}", ontology)
            if (known := artifacts.find(connection, artifacts.key_of(connection, new))) is not None:
                return known.id
            chosen = vectors.best_connected(connection, kind, None if within is None else within.number, most)
            block = vectors.some(connection, kind, np.array(sorted(chosen), np.int64))
            rows = concepts.rows(connection, block.nodes.tolist())()
        nodes: list[int] = block.nodes.tolist()
        unit = projection.unit(block.vectors)
        rounds = projection.ROUNDS if way == "tsne" else 1
        step(0, rounds + 1, f"{len(nodes)} concepts")
        places = projection.pca(unit) if way == "pca" else projection.tsne(
            unit, lambda at: step(at, rounds + 1, f"round {at} of {rounds}"))  # fmt: skip
        labels = clusters.cluster(
            unit, clusters.how_many(len(nodes)), seed, lambda: step(rounds, rounds + 1, "clusters")
        )
        found = _named(unit, labels, [rows[node] for node in nodes])
        content = {
            "concepts": [
                {"id": str(rows[node].id), "label": rows[node].label, "x": x, "y": y, "cluster": int(label)}
                for node, (x, y), label in zip(nodes, places.tolist(), labels, strict=True)
            ],
            "clusters": [{"name": name, "size": size} for name, size in found],
        }
        points = [
            pictures.Point(x, y, rows[node].label, int(label), chosen[node])
            for node, (x, y), label in zip(nodes, places.tolist(), labels, strict=True)
        ]
        title = f"{len(nodes)} concepts{f' of {ontology}' if ontology else ''} by {kind.model}"
        drawn = pictures.projection(title, points, found)
        return self.keep_artifact(replace(new, content=content, data=drawn, media_type=SVG, keep=keep))

    def keep_polarity(self, found: Polarity, parameters: Mapping[str, Any]) -> UUID:
        """An answer about polarity, with its picture. One that is not complete is another artifact, kept for a day."""
        drawn = pictures.polarity(
            found.negative.label, found.positive.label,
            [pictures.Mark(i.concept.label, i.position, i.direction, i.grounding) for i in found.items],
            _facts(found),
        )  # fmt: skip
        name = f"from {found.negative.label} to {found.positive.label}"
        content = _plain(asdict(found))
        if not found.complete:
            parameters = {**parameters, "complete": False}
        keep = None if found.complete else PARTIAL_KEPT
        return self.keep_artifact(
            NewArtifact("polarity", found.as_of_epoch, parameters, name, None, content, drawn, SVG, keep)
        )  # fmt: skip

    def keep_artifact(self, new: NewArtifact) -> UUID:
        with self._writing(None) as writer:
            return artifacts.add(writer, new)[0]

    def artifacts(self, kind: str | None = None, ontology: str | None = None, limit: int = 100) -> list[Artifact]:
        """The latest first."""
        self._only_own("keeps no artifacts")
        with self._pool.connection() as connection:
            return artifacts.find_all(connection, kind, ontology, limit)

    def artifact(self, artifact_id: UUID) -> Artifact | None:
        self._only_own("keeps no artifacts")
        with self._pool.connection() as connection:
            return artifacts.find(connection, artifact_id)

    def artifact_content(self, artifact_id: UUID) -> Any:
        self._only_own("keeps no artifacts")
        with self._pool.connection() as connection:
            return artifacts.content(connection, artifact_id)

    def artifact_data(self, artifact_id: UUID) -> bytes | None:
        self._only_own("keeps no artifacts")
        with self._pool.connection() as connection:
            return artifacts.data(connection, artifact_id)


def _measured(concept: Concept, known: Mapping[int, Measured]) -> Concept:
    return replace(concept, measured=known.get(concept.node))


def _kind(connection: Connection[Row], model: str | None) -> Kind:
    """The embeddings that most concepts have, of this model if one is given."""
    counted = {kind: count for kind, count in vectors.models(connection).items() if model in (None, kind.model)}
    if not counted:
        raise BadQuestion(f"no concept has an embedding{f' by {model!r}' if model else ''}: there is nothing to map")
    return max(counted, key=lambda kind: (counted[kind], kind.model))


def _named(unit: projection.Doubles, labels: clusters.Labels, rows: Sequence[Concept]) -> list[tuple[str, int]]:
    count = int(labels.max()) + 1 if len(labels) else 0
    central: list[str] = []
    for number in range(count):
        members = np.flatnonzero(labels == number)
        alike = unit[members] @ unit[members].sum(axis=0)
        central.append(rows[int(members[int(alike.argmax())])].label)
    texts = [" ".join([row.label, *row.search_terms]) for row in rows]
    sizes = np.bincount(labels, minlength=count).tolist()
    return list(zip(clusters.names(texts, labels.tolist(), central), sizes, strict=True))


def _facts(found: Polarity) -> str:
    linked = "" if found.correlation is None else f", correlation with grounding {found.correlation:+.2f}"
    middle = "" if found.mean is None else f", mean {found.mean:+.2f}"
    missing = "; ".join(f"{one.what}: {one.why}" for one in found.skipped)
    partial = "" if found.complete else f"; NOT COMPLETE: {missing}"
    return f"{len(found.items)} concepts by {found.model}{middle}{linked}{partial}"


def _plain(value: Any) -> Any:
    """JSON values alone."""
    match value:
        case UUID():
            return str(value)
        case dict():
            return {str(name): _plain(inner) for name, inner in cast("dict[Any, Any]", value).items()}
        case list() | tuple():
            return [_plain(inner) for inner in cast("list[Any]", value)]
        case _:
            return value
