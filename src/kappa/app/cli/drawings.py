"""How the graph looks in a terminal: neighbourhoods as trees, paths as chains, polarity as an axis."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from kappa.app.api.graph_schemas import (
    ConceptDetail,
    ConceptView,
    EnrichedPathsView,
    NeighborView,
    PathView,
    PolarityView,
    RelatedConceptView,
    RelationView,
    SearchView,
)
from kappa.app.api.measure_schemas import ExplainedView, ReasonView
from kappa.app.cli import show
from kappa.app.cli.tables import cell

HALF = 20
"""Cells of the axis on each side of its middle."""
SAID = 80

_SIDES = {True: "green", False: "red"}
_COLOURS = {"positive": "green", "negative": "red", "neutral": "yellow"}


def name(concept: ConceptView) -> Text:
    return Text.assemble((show.printable(concept.label), "bold"), (f"  {show.printable(concept.ontology)}", "dim"))


def related(seed: ConceptView, items: Sequence[RelatedConceptView]) -> Tree:
    """A branch for each distance, and on it the concepts with the way to them."""
    tree = Tree(name(seed), guide_style="dim")
    for hop, level in groupby(items, key=lambda item: item.hop):
        branch = tree.add(Text("1 hop" if hop == 1 else f"{hop} hops", style="cyan"))
        for item in level:
            way = show.printable(" → ".join(item.types))
            branch.add(
                Text.assemble(
                    (way, "magenta"), "  ", name(item.concept), (f"  {item.degree}", "dim"), grounded(item.concept)
                )
            )
    return tree


def grounded(concept: ConceptView) -> Text:
    """Whether more speaks for it or against it, where anything does."""
    found = concept.measured.grounding if concept.measured is not None else None
    if found is None or not found.supports + found.contradictions:
        return Text("")
    return Text(f"  {found.value:+.2f}", style=_SIDES[found.value > 0])


def paths(items: Sequence[PathView]) -> Group:
    return Group(*(chain(path) for path in items))


def chain(path: PathView) -> Text:
    """A path from left to right, with what its concepts rest on; an arrow points as its relation does."""
    drawn = Text.assemble((show.printable(path.concepts[0].label), "bold"), grounded(path.concepts[0]))
    for before, relations, after in zip(path.concepts, path.relations, path.concepts[1:], strict=False):
        drawn.append_text(_arrow(before, relations))
        drawn.append(show.printable(after.label), "bold").append_text(grounded(after))
    return drawn


def _arrow(before: ConceptView, relations: Sequence[RelationView]) -> Text:
    there = [one.type for one in relations if one.from_id == before.id]
    back = [one.type for one in relations if one.from_id != before.id]
    types = show.printable(", ".join(dict.fromkeys([*there, *back])))
    left, right = ("←" if back else "─"), ("→" if there else "─")
    return Text.assemble((f" {left}─ ", "dim"), (types, "magenta"), (f" ─{right} ", "dim"))


def enriched(found: EnrichedPathsView) -> Group:
    """Each path as a chain, and under it what is around its concepts."""
    drawn: list[RenderableType] = []
    for path in found.items:
        tree = Tree(chain(path), guide_style="dim")
        for concept in path.concepts:
            _around(tree.add(name(concept)), found.around.get(concept.id, ()))
        drawn.append(tree)
    return Group(*drawn)


def _around(branch: Tree, items: Iterable[NeighborView]) -> None:
    for item in items:
        away = "" if item.hop == 1 else f"  {item.hop} hops"
        branch.add(Text.assemble(name(item.concept), (f"  {item.degree}{away}", "dim")))


def polarity(found: PolarityView) -> Group:
    """The axis, with the negative pole on the left; a row for each concept, and where it stands."""
    minus, plus = show.printable(found.negative.label), show.printable(found.positive.label)
    rows = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    rows.add_column("concept", overflow="fold")
    rows.add_column(Text.assemble((minus, "red"), ("  ←  →  ", "dim"), (plus, "green")), no_wrap=True, justify="center")
    for title in ("position", "off axis", "hops", "grounding"):
        rows.add_column(title, justify="right")
    for item in found.items:
        rows.add_row(
            name(item.concept), axis(item.position, item.direction), f"{item.position:+.2f}", f"{item.distance:.2f}",
            "-" if item.hop is None else str(item.hop), "" if item.grounding is None else f"{item.grounding:+.2f}",
        )  # fmt: skip
    mean = "" if found.mean is None else f"mean {found.mean:+.2f}, spread {found.spread or 0:.2f}, "
    linked = "" if found.correlation is None else f"correlation with grounding {found.correlation:+.2f}, "
    facts = f"{mean}{linked}by {found.model}"
    if found.without_embedding:
        facts += f"; {found.without_embedding} more have no embedding"
    return Group(rows, Text(show.printable(facts), style="dim"))


def axis(position: float, direction: str) -> Text:
    """A bar from the middle to where the concept stands; what is beyond a pole stands at the pole."""
    place = round(max(-1.0, min(1.0, position)) * HALF)
    cells = ["─"] * (2 * HALF + 1)
    for at in range(min(place, 0), max(place, 0) + 1):
        cells[HALF + at] = "━"
    cells[HALF] = "┼"
    cells[HALF + place] = "●"
    first, last = HALF + min(place, 0), HALF + max(place, 0) + 1
    colour = _COLOURS[direction]
    return Text.assemble(
        ("├" + "".join(cells[:first]), "dim"), ("".join(cells[first:last]), colour),
        ("".join(cells[last:]) + "┤", "dim"),
    )  # fmt: skip


def search(found: SearchView) -> Table:
    rows = show.table("score", "concept", "ontology", "found by", "what it is", "id")
    for hit in found.items:
        what = hit.concept.description
        rows.add_row(
            f"{hit.score:.2f}", Text.assemble((show.printable(hit.concept.label), "bold"), grounded(hit.concept)),
            cell(hit.concept.ontology),
            cell(", ".join(hit.matched)), cell(what if len(what) <= SAID else what[: SAID - 1] + "…"),
            str(hit.concept.id),
        )  # fmt: skip
    return rows


def founded(found: ExplainedView) -> dict[str, Text]:
    """Grounding and confidence, each with what it follows from."""
    ground, sure = found.grounding, found.confidence
    for_it = (
        f"{ground.supports} for it ({ground.support:.1f}), {ground.contradictions} against ({ground.contradiction:.1f})"
    )
    counts = f"{sure.relations} relations of {sure.types} types, {sure.evidence} quotes in {sure.sources} sources"
    value = Text(f"{ground.value:+.2f}", style=_SIDES[ground.value > 0] if ground.value else "")
    return {
        "grounding": Text.assemble(value, (f"  {ground.low:+.2f} to {ground.high:+.2f}  {for_it}", "dim")),
        "confidence": Text.assemble(f"{sure.value:.2f}", (f"  {counts}", "dim")),
    }


def reasons(found: Sequence[ReasonView]) -> Table:
    rows = show.table("weight", "because", "says", "confidence", "documents", "stance")
    for one in found:
        rows.add_row(
            Text(f"{one.weight:+.2f}", style=_SIDES[one.weight > 0]), cell(one.label, "bold"), cell(one.type),
            f"{one.confidence:.2f}", str(one.documents), f"{one.stance:+.2f} by {one.by}",
        )  # fmt: skip
    return rows


def concept(detail: ConceptDetail, near: Sequence[RelatedConceptView]) -> Group:
    """What it is, what is around it, and who says so."""
    about = detail.concept
    facts = Table.grid(padding=(0, 2))
    told = {
        "id": about.id, "ontology": about.ontology, "what it is": about.description,
        "also": ", ".join(about.search_terms),
    }  # fmt: skip
    for title, value in told.items():
        if value:
            facts.add_row(Text(title, style="dim"), Text(show.printable(value), overflow="fold"))
    for title, line in founded(detail.measured).items():
        facts.add_row(Text(title, style="dim"), line)
    parts: list[RenderableType] = [facts]
    if detail.measured.reasons:
        parts += ["", reasons(detail.measured.reasons)]
    parts += ["", related(about, near)]
    if detail.evidence:
        quotes = show.table("evidence", "document", "characters")
        for one in detail.evidence:
            quotes.add_row(cell(f"“{one.quote}”"), cell(one.document_name), f"{one.start}–{one.end}")
        parts += ["", quotes]
    return Group(*parts)
