"""Concepts by what is said of them, and by where their embeddings point."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from psycopg import Connection

from kappa.graph.config import MAX_TEXT
from kappa.graph.errors import BadQuestion, UnknownConcept
from kappa.graph.identity import kept
from kappa.graph.model import Matched, SearchAnswer, SearchHit, ServedBy, Skipped, Where
from kappa.graph.query import vectors
from kappa.graph.query.asking import Asked, Desk, Question, Seed, check_limit, or_stopped
from kappa.graph.query.filters import WHY, Filter
from kappa.graph.query.server import Session, Stopped
from kappa.graph.query.vectors import Near, Nearest
from kappa.graph.store import clock, concepts, texts
from kappa.graph.store import vectors as stored
from kappa.graph.store.adjacency import Ints
from kappa.graph.store.texts import Said, TextHit
from kappa.graph.store.vectors import Kind
from kappa.pg.queries import Query, Row

FUSION = 60
"""Of two rankings, a concept's score is the sum of 1 / (60 + its rank in each)."""
DEPTH = 100
"""How much of each ranking is fused: so many, or as many as are asked for if that is more."""
TRIES = 3
"""How often both rankings are made, if something is committed between them each time."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where embeddings should point."""

    kind: Kind
    vector: Sequence[float]
    never: int = 0
    """The concept whose own embedding it is."""


@dataclass(slots=True)
class Found:
    """What both rankings gave, at one epoch."""

    epoch: int = 0
    served_by: ServedBy = "sql"
    texts: list[TextHit] = field(default_factory=list[TextHit])
    near: dict[int, float] = field(default_factory=dict[int, float])
    """Similarities of the nearest, in order."""
    others: dict[int, float] = field(default_factory=dict[int, float])
    """Similarities of what was found by its text."""
    skipped: list[Skipped] = field(default_factory=list[Skipped])
    stop: int = 0


def search(
    desk: Desk,
    *,
    text: str | None,
    vector: Sequence[float] | None,
    model: str | None,
    like: Seed | None,
    where: Where | None,
    limit: int,
    min_similarity: float,
    asked: Asked,
) -> SearchAnswer:
    check_limit(limit)
    _check(text, vector, model, like, min_similarity)
    with desk.question(asked) as question:
        filters = question.filters(where)
        target = None
        if like is not None:
            target = _like(question, like, model)
        elif vector is not None and model is not None:
            target = Target(Kind(kept(model), len(vector)), vector)
        said = texts.said(text) if text is not None else None
        found = _found(question, said, target, filters, max(limit, DEPTH) if said and target else limit, min_similarity)
        if found.stop and not found.texts and not found.near:
            raise Stopped(found.stop)
        items = _hits(question, found, said is not None, limit)
    skipped = (*found.skipped, *question.skipped)
    model = target.kind.model if target else None
    return or_stopped(SearchAnswer(found.epoch, not skipped, skipped, found.served_by, items, model), items)


def _check(
    text: str | None, vector: Sequence[float] | None, model: str | None, like: Seed | None, min_similarity: float
) -> None:
    if text is None and vector is None and like is None:
        raise BadQuestion("a search needs a text, a vector or a concept to be like")
    if vector is not None and like is not None:
        raise BadQuestion("a search is for a vector or for what is like a concept, not for both")
    if text is not None and len(text) > MAX_TEXT:
        raise BadQuestion(f"a text of {len(text)} characters: there may be {MAX_TEXT}")
    if not -1.0 <= min_similarity <= 1.0:
        raise BadQuestion(f"a similarity of {min_similarity:g}: it is -1 to 1")
    if min_similarity and vector is None and like is None:
        raise BadQuestion(
            "min_similarity needs a vector, or a concept to be like: a search by words alone compares no embeddings"
        )
    if vector is not None:
        if model is None:
            raise BadQuestion("a vector means nothing without the model that made it")
        _check_vector(vector)


def _check_vector(vector: Sequence[float]) -> None:
    try:
        with np.errstate(over="ignore"):
            array = np.asarray(vector, np.float64).astype(np.float32)
    except (TypeError, ValueError):
        array = np.empty((0, 0), np.float32)
    if array.ndim != 1 or not 1 <= len(array) <= stored.MAX_DIMENSIONS:
        raise BadQuestion(f"the vector is no list of 1 to {stored.MAX_DIMENSIONS} numbers")
    if not np.isfinite(array).all():
        raise BadQuestion("the vector has a number that is not finite")
    if not array.any():
        raise BadQuestion("the vector is zero throughout, and points nowhere")


def _like(question: Question, like: Seed, model: str | None) -> Target:
    """The embedding of a concept."""
    node = int(question.numbers([like])[0])
    found = question.fetch(lambda connection: concepts.embeddings(connection, [node]))
    if not found:
        if node not in question.rows([node]):
            raise UnknownConcept(f"there is no concept {like}")
        raise BadQuestion(f"concept {like} has no embedding to be like")
    _, own, vector = found[0]
    if model is not None and model != own:
        raise BadQuestion(f"the embedding of concept {like} is of model {own!r}, not of {model!r}")
    return Target(Kind(own, len(vector)), vector, node)


def _found(
    question: Question, said: Said | None, target: Target | None, filters: Filter, most: int, least: float
) -> Found:
    if target is None:
        assert said is not None
        return _by_text(question, said, filters, 0, most)
    wanted = Nearest(vectors.unit_of(target.vector), most, least, filters.ontology_ok, target.never)
    found, epoch = Found(), 0
    for _ in range(TRIES):
        found = _by_text(question, said, filters, target.never, most, epoch) if said is not None else Found()
        try:
            matrix = question.vectors(target.kind, found.epoch)
            through = None if matrix is not None else _read_through(question, said, target, wanted, filters)
        except Stopped as stopped:
            return _without_vectors(found, stopped.stop)
        if through is not None:
            # The words are looked for once more, in the vectors' state: what was found before is better than nothing.
            worse = through.stop and not through.near and len(through.texts) < len(found.texts)
            return _without_vectors(found, through.stop) if worse else through
        assert matrix is not None
        found.served_by = "snapshot"
        _take(found, matrix.nearest(wanted, question.limits))
        found.others = matrix.similarities(_nodes(found.texts), wanted.unit)
        if not matrix.concepts:
            _check_dimension(question, target.kind)
        epoch = matrix.epoch
        if said is None:
            found.epoch = epoch
        if found.epoch == epoch or found.stop:
            break
        # Something was committed between the two: again, so that both are of one epoch.
    return found


def _without_vectors(found: Found, stop: int) -> Found:
    found.stop = stop
    found.skipped.append(Skipped("the vectors", WHY[stop]))
    return found


def _take(found: Found, near: Near) -> None:
    found.near = dict(zip(near.nodes.tolist(), near.similarities.tolist(), strict=True))
    if near.stop:
        found.stop = near.stop
        found.skipped.append(Skipped("a part of the vectors", WHY[near.stop]))


def _nodes(hits: Sequence[TextHit]) -> Ints:
    return np.array([hit.node for hit in hits], np.int64)


def _check_dimension(question: Question, kind: Kind) -> None:
    """That there is nothing to compare with may be because the vector is of another length."""
    known = question.fetch(lambda connection: stored.dimension(connection, kind.model))
    if known is not None and known != kind.dimension:
        raise BadQuestion(f"the vector has {kind.dimension} dimensions, those of {kind.model!r} have {known}")


def _by_text(question: Question, said: Said, filters: Filter, never: int, most: int, epoch: int = 0) -> Found:
    with question.state(epoch) as session:
        found = Found(epoch=session.run(clock.now))
        _look_for(found, session, said, filters, never, most)
    return found


def _look_for(found: Found, session: Session, said: Said, filters: Filter, never: int, most: int) -> None:
    """One way after the other, until there is enough: none of a later way would be before one of an earlier."""

    def act(way: Query) -> Callable[[Connection[Row]], list[TextHit]]:
        return lambda connection: texts.find(connection, way, worded, filters.ontologies, never, most)

    best: dict[int, TextHit] = {}
    worded = said
    for way in texts.ways(said):
        try:
            worded = session.run(lambda connection: texts.worded(connection, said)) if worded is said else worded
            hits = session.run(act(way))
        except Stopped as stopped:
            found.stop = stopped.stop
            found.skipped.append(Skipped(f"what is found by {way.name.replace('_', ' ')}", WHY[stopped.stop]))
            break
        for hit in hits:
            if hit.node not in best or hit.score > best[hit.node].score:
                best[hit.node] = hit
        if len(best) >= most and way in (texts.NAMED, texts.EVERY_WORD):
            break
    found.texts = sorted(best.values(), key=lambda hit: (-hit.score, hit.node))[:most]


def _read_through(question: Question, said: Said | None, target: Target, wanted: Nearest, filters: Filter) -> Found:
    """All embeddings of the model, part by part, where there is no room to keep them. One state for everything."""
    kind = target.kind

    def act(low: int, high: int) -> Callable[[Connection[Row]], Near]:
        return lambda connection: vectors.nearest_of(
            stored.block(connection, kind, low, high, filters.ontologies), wanted
        )

    with question.state() as session:
        found = Found(epoch=session.run(clock.now))
        if said is not None:
            _look_for(found, session, said, filters, target.never, wanted.limit)
        try:
            bounds = session.run(lambda connection: stored.bounds(connection, kind))
            acts = [act(low, high) for low, high in stored.parts(kind, bounds)]
            parts, missing, stop, trouble = session.run_all(acts) if acts else ([], 0, 0, "")
            if missing:
                found.stop = stop
                why = WHY.get(stop, trouble)
                found.skipped.append(Skipped(f"{missing} of {len(acts)} parts of the vectors", why))
            _take(found, vectors.merged(parts, wanted.limit))
            rest = _nodes(found.texts)
            if len(rest):
                block = session.run(lambda connection: stored.some(connection, kind, rest))
                rows, sound = vectors.units(block.vectors)
                near = vectors.cosines(rows, wanted.unit)
                found.others = dict(zip(block.nodes[sound].tolist(), near[sound].tolist(), strict=True))
        except Stopped as stopped:
            found.stop = stopped.stop
            found.skipped.append(Skipped("a part of the vectors", WHY[stopped.stop]))
            return found
    if not bounds.vectors:
        _check_dimension(question, kind)
    return found


def _hits(question: Question, found: Found, by_text: bool, limit: int) -> tuple[SearchHit, ...]:
    said = {hit.node: hit for hit in found.texts}
    scores: dict[int, float] = {}
    if not by_text:
        scores = found.near
    elif not found.near:
        scores = {hit.node: hit.score for hit in found.texts}
    else:
        for ranking in (said, found.near):
            for rank, node in enumerate(ranking, start=1):
                scores[node] = scores.get(node, 0.0) + 1 / (FUSION + rank)
    order = sorted(scores, key=lambda node: (-scores[node], node))[:limit]
    rows = question.rows(order)
    similarities = {**found.others, **found.near}
    return tuple(
        SearchHit(rows[node], scores[node], similarities.get(node), _matched(said.get(node), node in found.near))
        for node in order
        if node in rows
    )


def _matched(hit: TextHit | None, near: bool) -> tuple[Matched, ...]:
    names: tuple[tuple[Matched, bool], ...] = (("vector", near),)
    if hit is not None:
        names = (("label", hit.label), ("terms", hit.terms), ("description", hit.description), *names)
    return tuple(name for name, there in names if there)
