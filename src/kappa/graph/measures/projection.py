"""Embeddings on a plane: principal components, or t-SNE begun from them. Nothing in it is left to chance."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

ROUNDS = 500
EXAGGERATED = 150
"""Rounds in which likeness counts for more than it is, so that clusters form."""
EXAGGERATION = 12.0
PERPLEXITY = 30.0
"""Concepts: every pair is looked at in every round."""
COMPONENTS = 50
ROWS = 64
PLACES = 4
_TINY = 1e-12


def unit(vectors: NDArray[np.floating]) -> Doubles:
    """Each one long."""
    wide = vectors.astype(np.float64)
    return wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), _TINY)


def components(vectors: Doubles, count: int) -> Doubles:
    """The coordinates along the directions in which the vectors differ most; the strongest part of each is positive."""
    centred = vectors - vectors.mean(axis=0)
    if len(centred) > centred.shape[1]:
        # Many vectors: from how their numbers vary together, a small table whatever their number.
        directions: Doubles = np.linalg.eigh(centred.T @ centred)[1].T[::-1]
    else:
        directions = np.linalg.svd(centred, full_matrices=False)[2]
    chosen: Doubles = directions[:count]
    strongest = np.abs(chosen).argmax(axis=1)
    chosen = chosen * np.where(chosen[np.arange(len(chosen)), strongest] < 0, -1.0, 1.0)[:, None]
    found: Doubles = centred @ chosen.T
    missing = count - len(chosen)
    wide: Doubles = np.hstack([found, np.zeros((len(found), max(0, missing)))])
    return wide


def fitted(points: Doubles) -> Doubles:
    """Around the middle, the farthest coordinate at 1 or -1."""
    centred: Doubles = points - (points.max(axis=0) + points.min(axis=0)) / 2
    size = float(np.abs(centred).max()) if len(centred) else 0.0
    return np.round(centred / size if size > _TINY else centred * 0.0, PLACES) + 0.0


def pca(vectors: Doubles) -> Doubles:
    return fitted(components(vectors, 2))


def tsne(vectors: Doubles, each_round: Callable[[int], None] = lambda _: None, rounds: int = ROUNDS) -> Doubles:
    """Neighbours stay neighbours; how far clusters are from each other says little."""
    count = len(vectors)
    if count < 4:
        return pca(vectors)
    reduced = components(vectors, min(COMPONENTS, vectors.shape[1]))
    alike = affinities(reduced, min(PERPLEXITY, (count - 1) / 3), lambda: each_round(0))
    places = reduced[:, :2] / max(float(reduced[:, 0].std()), _TINY) * 1e-4
    speed, gains = np.zeros_like(places), np.ones_like(places)
    pace = max(count / EXAGGERATION / 4, 50.0)
    room = np.empty((count, count))
    alike *= EXAGGERATION
    for at in range(rounds):
        each_round(at)
        early = at < EXAGGERATED
        if at == EXAGGERATED:
            alike /= EXAGGERATION
        slope = _slope(alike, places, room)
        same_way = slope * speed > 0
        gains = np.maximum(np.where(same_way, gains * 0.8, gains + 0.2), 0.01)
        speed = (0.5 if early else 0.8) * speed - pace * gains * slope
        places = places + speed
        places -= places.mean(axis=0)
    return fitted(places)


def affinities(vectors: Doubles, perplexity: float, each_block: Callable[[], None] = lambda: None) -> Doubles:
    """How likely each two are neighbours, all pairs together 1; every vector has about so many neighbours."""
    both = np.empty((len(vectors), len(vectors)))
    for rows in _blocks(len(vectors)):
        each_block()
        far = distances(vectors[rows], vectors)
        far[np.arange(len(far)), np.arange(len(vectors))[rows]] = np.inf
        both[rows] = _shares(far, float(np.log(perplexity)))
    both += both.T.copy()
    both /= both.sum()
    return np.maximum(both, _TINY, out=both)


def _shares(far: Doubles, wanted: float) -> Doubles:
    """For each row, how likely each column is its neighbour: the entropy is as wanted."""
    shifted = far - far.min(axis=1, keepdims=True)
    finite = np.where(np.isinf(shifted), 0.0, shifted)
    low, high, width = np.zeros((len(far), 1)), np.full((len(far), 1), np.inf), np.ones((len(far), 1))
    shares = np.zeros_like(far)
    for _ in range(50):
        np.exp(-shifted * width, out=shares)
        whole = shares.sum(axis=1, keepdims=True)
        shares /= whole
        entropy = np.log(whole) + width * (finite * shares).sum(axis=1, keepdims=True)
        wide = entropy > wanted
        low, high = np.where(wide, width, low), np.where(wide, high, width)
        width = np.where(np.isinf(high), width * 2, (low + high) / 2)
    return shares


def distances(vectors: Doubles, others: Doubles) -> Doubles:
    """Squared, from each of the ones to each of the others."""
    far = vectors @ others.T
    far *= -2
    far += (vectors * vectors).sum(axis=1)[:, None]
    far += (others * others).sum(axis=1)
    return np.maximum(far, 0.0, out=far)


def _slope(alike: Doubles, places: Doubles, near: Doubles) -> Doubles:
    """`near` is room for a table of all pairs: to make it anew each round would take longer than to fill it."""
    squares = (places * places).sum(axis=1, keepdims=True)
    ones = np.ones_like(squares)
    # One more than the squared distance, by one product.
    np.matmul(np.hstack([-2 * places, squares, ones]), np.hstack([places, ones, squares + 1]).T, out=near)
    np.maximum(near, 1.0, out=near)
    np.reciprocal(near, out=near)
    np.fill_diagonal(near, 0.0)
    share = 1 / max(float(near.sum()), _TINY)
    slope = np.empty_like(places)
    for rows in _blocks(len(places)):
        pull = near[rows] * -share
        pull += alike[rows]
        pull *= near[rows]
        slope[rows] = 4 * (pull.sum(axis=1)[:, None] * places[rows] - pull @ places)
    return slope


def _blocks(count: int) -> Iterator[slice]:
    """Some rows at a time: so many that what is done to them stays near the processor."""
    for begin in range(0, count, ROWS):
        yield slice(begin, begin + ROWS)
