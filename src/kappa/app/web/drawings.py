"""What is drawn on the server, as numbers for SVG: the templates have the shapes."""

from collections.abc import Sequence
from dataclasses import dataclass

NEUTRAL = 0.3
WIDTH = 240.0
HEIGHT = 48.0


def sparkline(values: Sequence[float], width: float = WIDTH, height: float = HEIGHT) -> tuple[str, str]:
    """The points of a line through values from left to right, and of the area below it."""
    if len(values) < 2:
        return "", ""
    top = max(values) or 1.0
    step = width / (len(values) - 1)
    points = [f"{index * step:.1f},{height - 1 - (height - 3) * value / top:.1f}" for index, value in enumerate(values)]
    line = " ".join(points)
    return line, f"0,{height:g} {line} {width:g},{height:g}"


def share(done: float | None, total: float | None) -> float | None:
    """How much of it is done, from 0 to 1; None where nobody can say."""
    if done is None or not total or total < 0:
        return None
    return min(1.0, max(0.0, done / total))


AXIS_WIDTH = 900.0
PHONE_WIDTH = 360.0
ROW = 26.0


@dataclass(frozen=True, slots=True)
class Mark:
    """A concept on the axis: where its point stands, and where its label does."""

    label: str
    position: float
    x: float
    y: float
    at_end: bool
    """The label stands to the left of the point: away from the middle where there is room."""
    tone: str


@dataclass(frozen=True, slots=True)
class Axis:
    """The axis between two poles, drawn."""

    width: float
    height: float
    zero: float
    low: float
    high: float
    """Where -0.3 and 0.3 are, between which is neither."""
    minus: float
    plus: float
    marks: list[Mark]


def axis(items: Sequence[tuple[str, float]], width: float = AXIS_WIDTH) -> Axis:
    """Concepts from the negative pole on the left to the positive one; a row for each, so that no label is hidden."""
    reach = max([1.0, *(abs(position) for _, position in items)]) * 1.04

    def x(position: float) -> float:
        return round(width * (0.5 + position / reach / 2), 1)

    marks: list[Mark] = []
    for row, (label, position) in enumerate(items):
        wide = 7.5 * len(label) + 12
        outwards = x(position) + wide <= width if position > 0 else x(position) - wide >= 0
        tone = "plus" if position > NEUTRAL else "minus" if position < -NEUTRAL else "neither"
        marks.append(Mark(label, position, x(position), 40 + ROW * row, (position > 0) != outwards, tone))
    height = 40 + ROW * max(1, len(items))
    return Axis(width, height, x(0), x(-NEUTRAL), x(NEUTRAL), x(-1), x(1), marks)
