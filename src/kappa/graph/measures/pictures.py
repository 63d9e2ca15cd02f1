"""Pictures as SVG that stand alone: no script, nothing from elsewhere, readable on a light ground and on a dark one."""

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

COLOURS = (
    "#4c78a8", "#e4843c", "#54a24b", "#d95f5f", "#8f6bb3", "#3ba7a0", "#c98ba5", "#a9883f", "#7f8c9b", "#6b9bd1",
    "#b5662f", "#5f8f3e",
)  # fmt: skip
GREEN, RED, GREY = "#3f9b57", "#d05a52", "#8a8f98"
STYLE = (
    "svg{color:#24292f;background:transparent;font:12px system-ui,sans-serif}text{fill:currentColor}.dim{opacity:.65}"
    "@media (prefers-color-scheme:dark){svg{color:#e6edf3}}"
)

WIDTH, HEIGHT, EDGE, LEGEND = 1000, 720, 24, 280
LETTER = 6.6
"""Pixels, about."""
MOST_LABELS = 60
OF_EACH = 3
"""Concepts of a cluster that are named before those of others that are weightier."""
LONGEST = 32
ROW = 22
MOST_ROWS = 200
BEYOND = 1.25
"""Where what is beyond a pole is drawn at the latest."""

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Point(NamedTuple):
    """A concept on the map, each way from -1 to 1."""

    x: float
    y: float
    label: str
    cluster: int
    weight: int
    """Of two whose labels would overlap, the weightier has it."""


class Mark(NamedTuple):
    """A concept on the axis between two poles."""

    label: str
    position: float
    direction: str
    grounding: float | None


def projection(title: str, points: Sequence[Point], clusters: Sequence[tuple[str, int]]) -> bytes:
    """The map, and beside it the clusters with their names and sizes."""
    picture = _picture(WIDTH, HEIGHT, title)
    width, height = WIDTH - LEGEND - 2 * EDGE, HEIGHT - 2 * EDGE - 20
    placed = [
        (EDGE + (one.x + 1) / 2 * width, EDGE + 20 + (1 - one.y) / 2 * height, one)
        for one in points
    ]  # fmt: skip
    for x, y, one in placed:
        dot = _add(picture, "circle", cx=_n(x), cy=_n(y), r="4", fill=colour(one.cluster), fill_opacity="0.8")
        ET.SubElement(dot, "title").text = _text(one.label)
    _labels(picture, placed)
    for at, (name, size) in enumerate(clusters):
        y = EDGE + 32 + at * ROW
        x = WIDTH - LEGEND
        _add(picture, "circle", cx=_n(x), cy=_n(y - 4), r="5", fill=colour(at))
        _say(picture, x + 12, y, f"{_short(name)} ({size})")
    return _bytes(picture)


def _labels(picture: ET.Element, placed: Sequence[tuple[float, float, Point]]) -> None:
    taken: list[tuple[float, float, float, float]] = []
    dots = [(x - 4, y - 4, x + 4, y + 4) for x, y, _ in placed]
    for x, y, one in _in_turn(placed):
        if len(taken) == MOST_LABELS:
            return
        text = _short(one.label)
        wide = LETTER * len(text)
        places = [
            (x + 6, y + 4, "start", (x + 6, y - 8, x + 6 + wide, y + 5)),
            (x - 6, y + 4, "end", (x - 6 - wide, y - 8, x - 6, y + 5)),
            (x, y - 8, "middle", (x - wide / 2, y - 20, x + wide / 2, y - 7)),
            (x, y + 17, "middle", (x - wide / 2, y + 5, x + wide / 2, y + 18)),
        ]  # fmt: skip
        free = [
            place for place in places
            if place[3][0] >= 0 and place[3][1] > EDGE + 4 and place[3][2] <= WIDTH - LEGEND - 14
            and not any(_meet(place[3], other) for other in taken)
        ]  # fmt: skip
        if not free:
            continue
        # Rather where no other concept's point is under it.
        left, base, anchor, box = next((p for p in free if not any(_meet(p[3], dot) for dot in dots)), free[0])
        taken.append(box)
        _say(picture, left, base, text, anchor=anchor)


def _in_turn(placed: Sequence[tuple[float, float, Point]]) -> list[tuple[float, float, Point]]:
    """The first few of each cluster, and then all others, the weightiest first: no cluster is without a name."""
    before: Counter[int] = Counter()
    first: list[tuple[float, float, Point]] = []
    rest: list[tuple[float, float, Point]] = []
    for one in sorted(placed, key=lambda p: (-p[2].weight, p[2].label, p[0], p[1])):
        (first if before[one[2].cluster] < OF_EACH else rest).append(one)
        before[one[2].cluster] += 1
    return first + rest


def _meet(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def polarity(negative: str, positive: str, marks: Sequence[Mark], facts: str) -> bytes:
    """A row for each concept: where it stands between the poles, and how it is grounded."""
    shown = marks[:MOST_ROWS]
    name, plot, last = 240, 520, 140
    height = 2 * EDGE + ROW * (len(shown) + 3)
    picture = _picture(name + plot + last + 2 * EDGE, height, f"{negative} to {positive}")
    middle = EDGE + name + plot / 2
    reach = plot / 2 / BEYOND
    top, bottom = EDGE + 1.5 * ROW, EDGE + ROW * (len(shown) + 2)
    for at, colour in ((-1, RED), (0, GREY), (1, GREEN)):
        x = _n(middle + at * reach)
        _add(picture, "line", x1=x, x2=x, y1=_n(top), y2=_n(bottom), stroke=colour, stroke_opacity="0.6")
    _say(picture, middle - reach, EDGE + ROW, _short(negative), anchor="middle", weight="bold")
    _say(picture, middle + reach, EDGE + ROW, _short(positive), anchor="middle", weight="bold")
    _say(picture, EDGE + name + plot + 10, EDGE + ROW, "grounding", dim=True)
    colours = {"positive": GREEN, "negative": RED}
    for at, one in enumerate(shown):
        y = EDGE + ROW * (at + 2) + 4
        x = middle + max(-BEYOND, min(BEYOND, one.position)) * reach
        colour = colours.get(one.direction, GREY)
        _say(picture, EDGE + name - 10, y + 4, _short(one.label), anchor="end")
        _add(picture, "line", x1=_n(middle), x2=_n(x), y1=_n(y), y2=_n(y), stroke=colour)
        dot = _add(picture, "circle", cx=_n(x), cy=_n(y), r="5", fill=colour)
        ET.SubElement(dot, "title").text = _text(f"{one.label}: {one.position:+.2f}")
        if one.grounding:
            _say(picture, EDGE + name + plot + 10, y + 4, f"{one.grounding:+.2f}")
    more = f"; {len(marks) - len(shown)} more are not drawn" if len(marks) > len(shown) else ""
    _say(picture, EDGE, height - EDGE / 2, facts + more, dim=True)
    return _bytes(picture)


def _picture(width: float, height: float, title: str) -> ET.Element:
    picture = ET.Element(
        "svg", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {_n(width)} {_n(height)}", width=_n(width),
        height=_n(height), role="img",
    )  # fmt: skip
    ET.SubElement(picture, "title").text = _text(title)
    ET.SubElement(picture, "style").text = STYLE
    _say(picture, EDGE, EDGE, title, weight="bold")
    return picture


def _add(picture: ET.Element, tag: str, **look: str) -> ET.Element:
    """An element; in names of its attributes `_` stands for `-`."""
    return ET.SubElement(picture, tag, {name.replace("_", "-"): value for name, value in look.items()})


def _say(
    picture: ET.Element,
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    weight: str = "normal",
    dim: bool = False,
) -> None:
    said = _add(picture, "text", x=_n(x), y=_n(y), text_anchor=anchor, font_weight=weight)
    said.text = _text(text)
    if dim:
        said.set("class", "dim")


def colour(cluster: int) -> str:
    """What a cluster's concepts have on the map."""
    return COLOURS[cluster % len(COLOURS)]


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _text(text: str) -> str:
    """Without what XML can't say."""
    return _NOT_XML.sub("�", text)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _bytes(picture: ET.Element) -> bytes:
    ET.indent(picture)
    return ET.tostring(picture, encoding="utf-8", xml_declaration=True)
