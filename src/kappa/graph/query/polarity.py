"""Concepts along the axis between two others, by their embeddings."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kappa.graph.config import MAX_LIMIT
from kappa.graph.errors import BadQuestion, UnknownConcept
from kappa.graph.model import Concept, Direction, Order, Polarity, PolarityItem, Skipped, Where
from kappa.graph.query.asking import Asked, Desk, Question, Seed, check_limit, or_stopped
from kappa.graph.query.filters import WHY
from kappa.graph.query.grounding import Groundings
from kappa.graph.query.neighbors import check_hops
from kappa.graph.query.server import Stopped
from kappa.graph.query.vectors import PLACES, Doubles
from kappa.graph.store import concepts
from kappa.graph.store import vectors as stored
from kappa.graph.store.vectors import Block, Kind

NEUTRAL = 0.3
"""How far from the middle a concept takes no side."""
MOST_FITTED = 2
"""Points that a line goes through whatever they are."""
LEAST_SPREAD = 1e-12
"""Less is rounding."""


class Axis(NamedTuple):
    """From the negative pole to the positive one."""

    positive: Concept
    negative: Concept
    kind: Kind
    middle: Doubles
    along: Doubles
    """Of length 1."""
    length: float


def polarity(
    desk: Desk,
    positive: Seed,
    negative: Seed,
    *,
    candidates: Sequence[Seed] | None,
    max_hops: int,
    direction: Direction,
    relation_types: Sequence[str] | None,
    where: Where | None,
    limit: int,
    asked: Asked,
) -> Polarity:
    check_hops(max_hops)
    check_limit(limit)
    with desk.question(asked) as question:
        axis = _axis(question, positive, negative)
        poles = np.array(sorted((axis.positive.node, axis.negative.node)), np.int64)
        hops: dict[int, int | None] = {}
        if candidates:
            given: list[int] = question.numbers(candidates).tolist()
            hops = {node: None for node in given if node not in poles}
        with question.walk(poles, direction, relation_types, where) as (walker, filters):
            if candidates is None:
                reach = walker.reach(poles, max_hops, filters, Order.HOP, MAX_LIMIT)
                hops = dict(zip(reach.nodes.tolist(), reach.hops.tolist(), strict=True))
                question.skipped.extend(reach.skipped)
        block, without = _embeddings(question, axis.kind, list(hops), limit)
        rows = question.rows(block.nodes.tolist())
        grounded = _groundings(question, list(rows))
    items = _items(axis, block, rows, hops, grounded)
    positions = [item.position for item in items]
    skipped = tuple(question.skipped)
    answer = Polarity(
        walker.epoch, not skipped, skipped, walker.served_by, axis.positive, axis.negative, axis.kind.model,
        length=axis.length,
        items=items,
        without_embedding=without,
        mean=float(np.mean(positions)) if positions else None,
        spread=float(np.std(positions)) if positions else None,
        correlation=correlation([(item.position, item.grounding) for item in items if item.grounding is not None]),
    )  # fmt: skip
    return or_stopped(answer, items)


def _axis(question: Question, positive: Seed, negative: Seed) -> Axis:
    poles = [int(question.numbers([pole])[0]) for pole in (positive, negative)]
    if poles[0] == poles[1]:
        raise BadQuestion("the poles are one and the same concept")
    rows = question.fetch(lambda connection: concepts.rows(connection, poles))()
    found = {node: (model, vector) for node, model, vector in question.fetch(
        lambda connection: concepts.embeddings(connection, poles))}  # fmt: skip
    for pole, node in zip((positive, negative), poles, strict=True):
        if node not in rows:
            raise UnknownConcept(f"there is no concept {pole}")
        if node not in found:
            raise BadQuestion(f"the pole {rows[node].label!r} has no embedding")
    kinds = [Kind(found[node][0], len(found[node][1])) for node in poles]
    if kinds[0] != kinds[1]:
        raise BadQuestion(
            f"the poles have no embeddings of a common model: {kinds[0].model!r} ({kinds[0].dimension} dimensions) and "
            f"{kinds[1].model!r} ({kinds[1].dimension})"
        )
    ends = np.array([found[node][1] for node in poles], np.float64)
    length = float(np.linalg.norm(ends[0] - ends[1]))
    if not np.isfinite(length) or not length:
        raise BadQuestion("the embeddings of the poles are equal: there is no axis between them")
    return Axis(rows[poles[0]], rows[poles[1]], kinds[0], ends.mean(axis=0), (ends[0] - ends[1]) / length, length)


def _embeddings(question: Question, kind: Kind, nodes: Sequence[int], limit: int) -> tuple[Block, int]:
    """Of the first candidates that have one; and how many have none."""
    nothing = Block(np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, kind.dimension), np.float32))
    if not nodes:
        return nothing, 0
    try:
        with question.state() as session:
            having = session.run(lambda connection: stored.having(connection, kind, np.array(nodes, np.int64)))
            known = set(having.tolist())
            chosen = np.array([node for node in nodes if node in known][:limit], np.int64)
            block = session.run(lambda connection: stored.some(connection, kind, chosen))
            return block, len(nodes) - len(known)
    except Stopped as stopped:
        question.skipped.append(Skipped("the embeddings of the candidates", WHY[stopped.stop]))
        return nothing, 0


def _groundings(question: Question, nodes: Sequence[int]) -> dict[int, float]:
    try:
        found = question.fetch(lambda connection: Groundings(connection).of(connection, nodes))
    except Stopped as stopped:
        question.skipped.append(Skipped("the grounding of the candidates", WHY[stopped.stop]))
        return {}
    return {node: grounded.value for node, grounded in found.items()}


def correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Pearson's; None below three pairs, or where one side is all the same."""
    if len(pairs) < MOST_FITTED + 1:
        return None
    x, y = (side - side.mean() for side in np.array(pairs, np.float64).T)
    size = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(np.clip(round(float(x @ y) / size, PLACES), -1.0, 1.0)) if size > LEAST_SPREAD else None


def _items(
    axis: Axis, block: Block, rows: dict[int, Concept], hops: dict[int, int | None], grounded: dict[int, float]
) -> tuple[PolarityItem, ...]:
    from_middle = block.vectors.astype(np.float64) - axis.middle
    along = from_middle @ axis.along
    beside: Doubles = np.linalg.norm(from_middle - along[:, None] * axis.along, axis=1)
    positions = np.round(2 * along / axis.length, PLACES) + 0.0
    distances: Doubles = np.round(2 * beside / axis.length, PLACES)
    placed = sorted(zip((-positions).tolist(), block.nodes.tolist(), distances.tolist(), strict=True))
    return tuple(
        PolarityItem(
            rows[node],
            -position + 0.0,
            "positive" if -position > NEUTRAL else "negative" if -position < -NEUTRAL else "neutral",
            distance,
            hops[node],
            grounded.get(node),
        )
        for position, node, distance in placed
        if node in rows
    )
