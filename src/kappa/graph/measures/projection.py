"""Embeddings on a plane: principal components, or t-SNE begun from them. Nothing in it is left to chance."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

ROUNDS = 500
EXAGGERATED = 150
"""Rounds in which likeness counts for more than it is, so that clusters form."""
EXAGGERATION = 12.0
PERPLEXITY = 30.0
MOST_TSNE = 2_000
"""Concepts: every pair is looked at in every round."""
COMPONENTS = 50
PLACES = 4
_TINY = 1e-12


def unit(vectors: NDArray[np.floating]) -> Doubles:
    """Each one long."""
    wide = vectors.astype(np.float64)
    return wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), _TINY)


def components(vectors: Doubles, count: int) -> Doubles:
    """The coordinates along the directions in which the vectors differ most; the strongest part of each is positive."""
    centred = vectors - vectors.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
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
    alike = affinities(reduced, min(PERPLEXITY, (count - 1) / 3))
    places = reduced[:, :2] / max(float(reduced[:, 0].std()), _TINY) * 1e-4
    speed, gains = np.zeros_like(places), np.ones_like(places)
    pace = max(count / EXAGGERATION / 4, 50.0)
    for at in range(rounds):
        each_round(at)
        early = at < EXAGGERATED
        slope = _slope(alike * EXAGGERATION if early else alike, places)
        same_way = slope * speed > 0
        gains = np.maximum(np.where(same_way, gains * 0.8, gains + 0.2), 0.01)
        speed = (0.5 if early else 0.8) * speed - pace * gains * slope
        places = places + speed
        places -= places.mean(axis=0)
    return fitted(places)


def affinities(vectors: Doubles, perplexity: float) -> Doubles:
    """How likely each two are neighbours, all pairs together 1; every vector has about so many neighbours."""
    far = distances(vectors)
    np.fill_diagonal(far, np.inf)
    count, wanted = len(vectors), np.log(perplexity)
    nearest = far.min(axis=1, keepdims=True)
    shifted = far - nearest
    low, high, width = np.zeros((count, 1)), np.full((count, 1), np.inf), np.ones((count, 1))
    shares = np.zeros_like(far)
    for _ in range(50):
        shares = np.exp(-shifted * width)
        whole = shares.sum(axis=1, keepdims=True)
        shares /= whole
        entropy = np.log(whole) + width * np.where(shares > 0, shifted * shares, 0.0).sum(axis=1, keepdims=True)
        wide = entropy > wanted
        low, high = np.where(wide, width, low), np.where(wide, high, width)
        width = np.where(np.isinf(high), width * 2, (low + high) / 2)
    both = shares + shares.T
    return np.maximum(both / both.sum(), _TINY)


def distances(vectors: Doubles) -> Doubles:
    """Squared, between each two."""
    squares = (vectors * vectors).sum(axis=1)
    return np.maximum(squares[:, None] + squares[None, :] - 2 * vectors @ vectors.T, 0.0)


def _slope(alike: Doubles, places: Doubles) -> Doubles:
    near = 1 / (1 + distances(places))
    np.fill_diagonal(near, 0.0)
    pull = (alike - near / max(float(near.sum()), _TINY)) * near
    return 4 * (pull.sum(axis=1)[:, None] * places - pull @ places)
