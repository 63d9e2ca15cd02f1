"""Everybody answers the same question in turns; answers must agree, medians are compared."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from benchmarks.report import Report

Answer: TypeAlias = tuple[int, float]
"""What was found, and the seconds that it took."""
Ask: TypeAlias = Callable[..., Answer]


class Disagreement(AssertionError):
    """Two engines that answer one question differently."""


def timed(ask: Callable[..., int]) -> Ask:
    """Taken from outside, for those in this process."""

    def asked(*question: int) -> Answer:
        began = time.perf_counter()
        found = ask(*question)
        return found, time.perf_counter() - began

    return asked


def contest(
    report: Report, what: str, contenders: Mapping[str, Ask], questions: Sequence[tuple[int, ...]], patience: float
) -> dict[str, list[float]]:
    """Seconds of each, question by question; the median is a figure.

    Each asks a question once to warm up and once for the record. Who has used up `patience` seconds for the
    record sits the rest out.
    """
    took: dict[str, list[float]] = {name: [] for name in contenders}
    for question in questions:
        wanted: int | None = None
        for name, ask in contenders.items():
            if sum(took[name]) > patience:
                continue
            found, first = ask(*question)
            seconds = ask(*question)[1] if first < patience / 4 else first
            wanted = found if wanted is None else wanted
            if found != wanted:
                raise Disagreement(f"{what} {question}: {name} found {found}, the first one {wanted}")
            took[name].append(seconds)
    for name, times in took.items():
        report.figure(f"{what}: {name}, ms", 1000 * statistics.median(times))
    return took


def ratio(one: Sequence[float], other: Sequence[float]) -> float:
    """Of the medians over the questions that both have answered."""
    both = min(len(one), len(other))
    return statistics.median(one[:both]) / statistics.median(other[:both])
