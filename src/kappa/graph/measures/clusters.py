"""Concepts in clusters by the direction of their embeddings, and names for these by what their concepts are called."""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kappa.graph.measures.projection import Doubles

Labels = NDArray[np.int64]

MOST = 12
TRIES = 5
ROUNDS = 100
TERMS = 3
_WORD = re.compile(r"[^\W\d_][\w'-]{2,}")
_SAID_ANYWAY = frozenset({
    "and", "are", "but", "for", "from", "has", "have", "into", "its", "not", "off", "one", "out", "own", "per", "such",
    "than", "that", "the", "their", "this", "through", "two", "under", "use", "used", "was", "were", "with", "without",
})  # fmt: skip


def how_many(count: int) -> int:
    return max(1, min(MOST, count, round(math.sqrt(count / 2))))


def cluster(vectors: Doubles, count: int, seed: int, each_round: Callable[[], None] = lambda: None) -> Labels:
    """For each vector, of length 1, its cluster: 0 is the largest. The best of some tries, the same for a seed."""
    if not len(vectors):
        return np.empty(0, np.int64)
    rng = np.random.default_rng(seed)
    tries = [_one_try(vectors, min(count, len(vectors)), rng, each_round) for _ in range(TRIES)]
    labels = max(tries, key=lambda found: round(found[0], 9))[1]
    listed: list[int] = labels.tolist()
    sizes = Counter(listed)
    first = {label: listed.index(label) for label in sizes}
    order = sorted(sizes, key=lambda label: (-sizes[label], first[label]))
    renamed = np.zeros(max(sizes) + 1, np.int64)
    renamed[order] = np.arange(len(order))
    return renamed[labels]


def _one_try(
    vectors: Doubles, count: int, rng: np.random.Generator, each_round: Callable[[], None]
) -> tuple[float, Labels]:
    """How like its own middle each is, on the whole; and the clusters."""
    middles = vectors[_begin(vectors, count, rng)]
    labels: Labels = np.zeros(len(vectors), np.int64)
    for at in range(ROUNDS):
        each_round()
        alike = vectors @ middles.T
        found: Labels = alike.argmax(axis=1)
        if at and np.array_equal(found, labels):
            break
        labels = found
        sums: Doubles = (labels == np.arange(len(middles))[:, None]).astype(np.float64) @ vectors
        sizes = np.linalg.norm(sums, axis=1, keepdims=True)
        middles = np.where(sizes > 1e-12, sums / np.maximum(sizes, 1e-12), middles)
    return float((vectors * middles[labels]).sum()), labels


def _begin(vectors: Doubles, count: int, rng: np.random.Generator) -> list[int]:
    """Vectors far from each other: each next one the likelier, the less it is like those before."""
    chosen = [int(rng.integers(len(vectors)))]
    far = 1 - vectors @ vectors[chosen[0]]
    while len(chosen) < count:
        weights = np.maximum(far, 0.0) ** 2
        whole = float(weights.sum())
        if whole <= 1e-12:
            break
        chosen.append(
            int(np.searchsorted(np.cumsum(weights) / whole, rng.random(), side="right").clip(0, len(far) - 1))
        )
        far = np.minimum(far, 1 - vectors @ vectors[chosen[-1]])
    return chosen


def names(texts: Sequence[str], labels: Sequence[int], central: Sequence[str]) -> list[str]:
    """For each cluster the words that more of its texts have than others'; `central` names those that share none."""
    said = [set(_words(text)) for text in texts]
    everywhere = Counter(word for words in said for word in words)
    found: list[str] = []
    for number, middle in enumerate(central):
        own = [words for words, label in zip(said, labels, strict=True) if label == number]
        here = Counter(word for words in own for word in words)
        shared = {word: count for word, count in here.items() if count > 1}
        weights = {
            word: count / len(own) * math.log(1 + len(said) / everywhere[word]) for word, count in shared.items()
        }
        best = sorted(weights, key=lambda word: (-weights[word], word))[:TERMS]
        found.append(", ".join(best) or middle)
    return found


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.lower()) if word not in _SAID_ANYWAY]
