"""The local models: `python -m benchmarks.ingest [--quick] [--json FILE]`.

How quick the embedding thread is beside the bare model, how quick the extractor reads, and how right both are on the
labelled sets of the tests. The thresholds of matching are shown as a table, for whoever chooses them anew, and once
more as chosen on one half of the pairs and measured on the other.
"""

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.report import Report, console
from kappa.graph.ingest.embedding import Thresholds
from kappa.graph.ingest.local.embed import LocalEmbedder, Model
from kappa.graph.ingest.local.extract import LocalExtractor
from kappa.graph.ingest.match import Candidate, decide, decide_type, type_text
from tests.graph.ingest.judging import Pair, Score, gold, judge, pairs

WORDS = (
    "otter",
    "river",
    "lease token",
    "graph database",
    "epoch",
    "blood pressure",
    "carbon emission",
    "soil",
    "erosion",
)


def labels(count: int) -> list[str]:
    return [" ".join(WORDS[n * step % len(WORDS)] for step in range(1, 2 + n % 3)) for n in range(count)]


def speed(report: Report, count: int) -> None:
    texts = labels(count)
    model = Model()
    tokens = model.tokens(texts)
    model.run(tokens[:8])

    def timed(run: Callable[[], object]) -> float:
        began = time.perf_counter()
        run()
        return count / (time.perf_counter() - began)

    bare = timed(lambda: [model.run([one]) for one in model.tokens(texts)])
    report.figure("bare model, one label a run, a second", bare)
    padded = timed(lambda: [model.run(model.tokens(texts[at : at + 32])) for at in range(0, count, 32)])
    report.figure("bare model, padded batches of 32, a second", padded)
    with LocalEmbedder() as embedder:
        embedder.embed(texts[:8])
        whole = timed(lambda: embedder.embed(texts))
        report.figure("embedder, one caller with all of them, a second", whole)
        with ThreadPoolExecutor(16) as callers:
            many = timed(lambda: list(callers.map(lambda text: embedder.embed([text]), texts)))
        report.figure("embedder, 16 callers one by one, a second", many)
    report.bar("embedder, 16 callers, of the bare model one by one", many / bare, 0.9)


def reading(report: Report, times: int) -> None:
    extractor = LocalExtractor()
    text = "\n\n".join(sentence.text for sentence in gold()) * times
    extractor.extract(text[:200])
    began = time.perf_counter()
    extractor.extract(text)
    report.figure("extractor, words a second", len(text.split()) / (time.perf_counter() - began))
    for name, held_out in (("mended with", False), ("held out", True)):
        result = judge([one for one in gold() if one.held_out == held_out], extractor)
        for what, score in (("concepts", result.concepts), ("relations", result.relations), ("ends only", result.ends)):
            report.figure(f"{what}, {name}: precision", score.precision)
            report.figure(f"{what}, {name}: recall", score.recall)
        for band, score in sorted(result.by_confidence.items()):
            report.figure(f"relations, {name}, confidence {band}: right of {score.given}", score.precision)


def matched(some: list[tuple[Pair, float]], thresholds: Thresholds, types: bool) -> Score:
    score = Score()
    for pair, likeness in some:
        decider = decide_type if types else decide
        same = decider(pair.one, [Candidate(0, pair.other, likeness)], thresholds).same is not None
        score.wanted += pair.same
        score.given += same
        score.right += same and pair.same
        score.met += same and pair.same
    return score


def weighed(score: Score) -> float:
    """F at one half: a wrong merge costs more than a missed one."""
    p, r = score.precision, score.recall
    return 1.25 * p * r / (0.25 * p + r) if p + r else 0.0


def calibration(report: Report) -> None:
    with LocalEmbedder() as embedder:
        for name, types in (("labels", False), ("types", True)):
            some = pairs(f"{name}.tsv")
            write = type_text if types else str
            likeness = (
                embedder.embed([write(p.one) for p in some]) * embedder.embed([write(p.other) for p in some])
            ).sum(1)
            both = list(zip(some, likeness.tolist(), strict=True))
            chosen = matched(both, embedder.thresholds, types)
            report.figure(f"{name}: precision at the model's thresholds", chosen.precision)
            report.figure(f"{name}: recall at the model's thresholds", chosen.recall)
            spec = matched(both, Thresholds(0.85, 0.75, 0.75, 0.85), types)
            report.figure(f"{name}: recall at a provider's thresholds", spec.recall)
            own = embedder.thresholds
            grid = [
                Thresholds(own.same, own.contains, own.stem, step / 100)
                if types
                else Thresholds(step / 100, own.contains, own.stem, own.types)
                for step in range(50, 91)
            ]
            for thresholds in grid[::5]:
                score = matched(both, thresholds, types)
                value = thresholds.types if types else thresholds.same
                console.print(f"    {name} {value:.2f}  {score}  weighed {weighed(score):.3f}")
            halves = (both[::2], both[1::2])
            for mine, other in (halves, halves[::-1]):
                best = max(grid, key=lambda one: weighed(matched(mine, one, types)))
                value = best.types if types else best.same
                console.print(
                    f"    {name}, chosen on one half: {value:.2f}; on the other: {matched(other, best, types)}"
                )


def main() -> None:
    options = argparse.ArgumentParser(prog="benchmarks.ingest", description=__doc__)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    report = Report("Local models")
    calibration(report)
    reading(report, 2 if given.quick else 10)
    speed(report, 300 if given.quick else 2000)
    report.show()
    if given.json:
        report.write(given.json)


if __name__ == "__main__":
    main()
