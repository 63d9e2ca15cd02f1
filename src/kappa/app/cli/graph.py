"""`kg search`, `kg related`, `kg path`, `kg polarity`, `kg concept`: the graph, asked."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from kappa.app import remote, settings
from kappa.app.api.graph_schemas import (
    LEAST_DEADLINE,
    MAX_AROUND,
    AnswerView,
    ConceptDetail,
    EnrichedPathsView,
    PathsView,
    PolarityView,
    RelatedView,
    SearchView,
)
from kappa.app.cli import artifacts, drawings, show, values
from kappa.app.remote import Server
from kappa.graph.config import MAX_HOPS, MAX_LIMIT, MAX_PATH_HOPS, MAX_PATHS, TIMEOUT

T = TypeVar("T")

concept_app = typer.Typer(no_args_is_help=True, help="Concepts: what they are, and who says so.")

ANSWERED_WITHIN = TIMEOUT[1] + 10
"""Seconds; the server answers at the question's deadline."""


class Way(StrEnum):
    OUT = "out"
    IN = "in"
    BOTH = "both"


ConceptName = Annotated[str, typer.Argument(metavar="CONCEPT", help="Its label, or its id.", show_default=False)]
Ontology = Annotated[
    list[str] | None, typer.Option("--ontology", help="Only concepts of this ontology; may be repeated.")
]
Types = Annotated[list[str] | None, typer.Option("--type", help="Only relations of this type; may be repeated.")]
Towards = Annotated[Way, typer.Option("--direction", help="Along relations, against them, or both.")]
Confidence = Annotated[float, typer.Option(min=0, max=1, help="Only relations that are at least so certain.")]
Hops = Annotated[int, typer.Option(min=1, max=MAX_HOPS, help="How far away.")]
Limit = Annotated[int, typer.Option(min=1, max=MAX_LIMIT, help="So many at most.")]
Deadline = Annotated[
    float | None,
    typer.Option(
        parser=values.seconds, metavar="DURATION", help="What is found within it is the answer, as in 5s.",
        show_default="the server's",
    ),
]  # fmt: skip


def search(
    text: Annotated[
        str | None,
        typer.Argument(metavar="TEXT", help="Words of labels, descriptions and search terms.", show_default=False),
    ] = None,
    like: Annotated[
        str | None, typer.Option(help="Concepts like this one, by its embedding: its label, or its id.")
    ] = None,
    ontology: Ontology = None,
    limit: Limit = 20,
    min_similarity: Annotated[
        float, typer.Option(min=0, max=1, help="With --like: nothing less similar counts as near.")
    ] = 0.0,
    deadline: Deadline = None,
    as_json: show.AsJson = False,
) -> None:
    """Find concepts by words, by what they are like, or by both; the best first.

    Example: kg search 'deep sleep' --ontology 'coffee and sleep'
    """
    if text is None and like is None:
        raise typer.BadParameter("a search needs a TEXT, or --like with a concept")
    if min_similarity and like is None:
        raise typer.BadParameter(
            "it needs --like: a search by words alone compares no embeddings", param_hint="--min-similarity"
        )
    body = {
        "text": text, "like": like, "limit": limit, "min_similarity": min_similarity, "measures": True,
        **_where(ontology, 0.0),
    }  # fmt: skip
    found = _ask("search", SearchView, body, deadline)
    if as_json:
        show.as_json(found)
        return
    if found.items:
        show.out.print(drawings.search(found))
    else:
        show.say("no concept like that")
    _caution(found)


def related(
    concept: ConceptName,
    hops: Hops = 2,
    kinds: Types = None,
    ontology: Ontology = None,
    direction: Towards = Way.BOTH,
    min_confidence: Confidence = 0.0,
    limit: Limit = 50,
    deadline: Deadline = None,
    as_json: show.AsJson = False,
) -> None:
    """Draw what is around a concept as a tree, nearest first.

    Example: kg related caffeine --hops 3 --type PREVENTS
    """
    body = {
        "concept": concept, "max_hops": hops, "limit": limit, "measures": True,
        **_walk(direction, kinds, ontology, min_confidence),
    }  # fmt: skip
    with remote.open_server(settings.load()) as server:
        found = _question(server, "related", RelatedView, body, deadline)
        seed = None if as_json else _shown(server, concept, ontology, evidence=0).concept
    if seed is None:
        show.as_json(found)
        return
    show.out.print(drawings.related(seed, found.items))
    if found.found > len(found.items):
        show.say(f"{len(found.items)} of {found.found}: --limit shows more")
    _caution(found)


def path(
    start: Annotated[str, typer.Argument(metavar="FROM", help="A concept's label, or its id.", show_default=False)],
    goal: Annotated[str, typer.Argument(metavar="TO", help="Another one's.", show_default=False)],
    count: Annotated[int, typer.Option(min=1, max=MAX_PATHS, help="So many paths, the shortest.")] = 1,
    around: Annotated[
        int | None, typer.Option(min=1, max=MAX_AROUND, help="And so many neighbours of each concept on them.")
    ] = None,
    hops: Annotated[int, typer.Option(min=1, max=MAX_PATH_HOPS, help="How long a path may be.")] = 6,
    kinds: Types = None,
    ontology: Ontology = None,
    direction: Towards = Way.BOTH,
    min_confidence: Confidence = 0.0,
    deadline: Deadline = None,
    as_json: show.AsJson = False,
) -> None:
    """Draw the shortest paths between two concepts as chains. Exits with 1 if there is none.

    Example: kg path 'physical exercise' memory --count 3 --around 5
    """
    body: dict[str, Any] = {
        "start": start, "goal": goal, "count": count, "max_hops": hops, "measures": True,
        **_walk(direction, kinds, ontology, min_confidence),
    }  # fmt: skip
    found: PathsView
    if around is not None:
        found = _ask("enriched-path", EnrichedPathsView, body | {"around_limit": around}, deadline)
    else:
        found = _ask("path", PathsView, body, deadline)
    if as_json:
        show.as_json(found)
    elif isinstance(found, EnrichedPathsView):
        show.out.print(drawings.enriched(found))
    else:
        show.out.print(drawings.paths(found.items), soft_wrap=True)
    if not as_json:
        _caution(found)
    if not found.items:
        if not as_json:
            show.say(f"no path of at most {hops} hops")
        raise typer.Exit(1)


def polarity(
    positive: Annotated[str, typer.Argument(metavar="POSITIVE", help="The pole at 1.", show_default=False)],
    negative: Annotated[str, typer.Argument(metavar="NEGATIVE", help="The pole at −1.", show_default=False)],
    candidate: Annotated[
        list[str] | None, typer.Option(help="This concept; may be repeated. Else what is around the poles.")
    ] = None,
    hops: Hops = 2,
    kinds: Types = None,
    ontology: Ontology = None,
    direction: Towards = Way.BOTH,
    min_confidence: Confidence = 0.0,
    limit: Limit = 50,
    deadline: Deadline = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep it as an artifact, by a job, and write its picture there.")
    ] = None,
    as_json: show.AsJson = False,
) -> None:
    """Draw where concepts stand between two poles, by their embeddings.

    Example: kg polarity 'deep sleep' caffeine --hops 2
    """
    body = {
        "positive": positive, "negative": negative, "candidates": candidate, "max_hops": hops, "limit": limit,
        **_walk(direction, kinds, ontology, min_confidence),
    }  # fmt: skip
    if save is not None:
        asked = {name: value for name, value in body.items() if name != "where"}
        asked |= {"ontologies": ontology, "min_confidence": min_confidence}
        artifacts.drawn("polarity", asked, save, as_json)
        return
    found = _ask("polarity", PolarityView, body, deadline)
    if as_json:
        show.as_json(found)
        return
    show.out.print(drawings.polarity(found))
    _caution(found)


@concept_app.command(name="show")
def show_concept(
    concept: ConceptName,
    ontology: Ontology = None,
    evidence: Annotated[int, typer.Option(min=0, max=1000, help="So many quotes at most.")] = 20,
    as_json: show.AsJson = False,
) -> None:
    """Show a concept, how well it is founded and why, what is next to it, and the quotes that speak of it.

    Example: kg concept show caffeine
    """
    with remote.open_server(settings.load()) as server:
        detail = _shown(server, concept, ontology, evidence=evidence)
        if as_json:
            show.as_json(detail)
            return
        near = _question(
            server, "related", RelatedView, {"concept": str(detail.concept.id), "max_hops": 1, "measures": True}, None
        )
    show.out.print(drawings.concept(detail, near.items))
    _caution(near)


def _ask(question: str, answer: type[T], body: dict[str, Any], deadline: float | None) -> T:
    with remote.open_server(settings.load()) as server:
        return _question(server, question, answer, body, deadline)


def _question(server: Server, question: str, answer: type[T], body: dict[str, Any], deadline: float | None) -> T:
    if deadline is not None and not LEAST_DEADLINE <= deadline <= TIMEOUT[1]:
        raise typer.BadParameter(
            f"it should be {LEAST_DEADLINE:g} to {TIMEOUT[1]:g} seconds", param_hint="'--deadline'"
        )
    given = {name: value for name, value in (body | {"deadline": deadline}).items() if value is not None}
    return server.post(f"/query/{question}", answer, given, within=ANSWERED_WITHIN)


def _shown(server: Server, concept: str, ontologies: list[str] | None, *, evidence: int) -> ConceptDetail:
    asked = {"evidence": evidence, "ontology": ontologies}
    return server.get(f"/graph/concepts/{remote.segment(concept)}", ConceptDetail, asked)


def _walk(direction: Way, kinds: list[str] | None, ontology: list[str] | None, sure: float) -> dict[str, Any]:
    return {"direction": direction.value, "relation_types": kinds or None, **_where(ontology, sure)}


def _where(ontology: list[str] | None, sure: float) -> dict[str, Any]:
    return {"where": {"ontologies": ontology, "min_confidence": sure}} if ontology or sure else {}


def _caution(found: AnswerView) -> None:
    """What a person should know before believing that this is all."""
    for one in found.skipped:
        show.say(f"not complete: {show.printable(one.what)}: {show.printable(one.why)}")
