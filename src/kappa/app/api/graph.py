"""The graph over HTTP: questions, concepts and what is written, and the settings of questions."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import Path, Query, Request, Response
from pydantic import BaseModel

from kappa.app.api.graph_schemas import (
    AddConcepts,
    AddRelations,
    AskDiversity,
    AskEnrichedPath,
    AskNeighbors,
    AskPath,
    AskPolarity,
    AskRelated,
    AskSearch,
    AskSubgraph,
    ConceptDetail,
    ConceptView,
    DiversityView,
    EditGraphSettings,
    EnrichedPathsView,
    EvidenceView,
    GraphSettings,
    GraphStatus,
    NeighborsView,
    OntologyView,
    PathsView,
    PolarityView,
    Question,
    RelatedView,
    RelationTypeView,
    SearchView,
    SubgraphView,
    WrittenView,
)
from kappa.app.api.json_pieces import listed, render
from kappa.app.api.measure_schemas import ExplainedView
from kappa.app.api.routing import Routes, Uses, Who
from kappa.app.api.schemas import Line
from kappa.app.permissions import Permission
from kappa.app.services import Services
from kappa.graph.model import Answer

if TYPE_CHECKING:
    from kappa.app.usecases.questions import Asking

A = TypeVar("A", bound=Answer)

routes = Routes("graph")

ASKED = (404, 409, 501, 504)
"""What may come of a question beside what may come of any request."""


@routes.post("/query/neighbors", Permission.GRAPH_READ, *ASKED, response_model=NeighborsView)
async def neighbors(services: Uses, request: Request, body: AskNeighbors) -> Response:
    """Concepts within so many hops of any seed, each once with its least distance; seeds left out."""

    def ask(asking: "Asking") -> Any:
        return asking.neighbors(body.seeds, body.walk, max_hops=body.max_hops, order=body.order, limit=body.limit)

    return await _answer(services, request, body, "neighbors", ask, NeighborsView)


@routes.post("/query/related", Permission.GRAPH_READ, *ASKED, response_model=RelatedView)
async def related(services: Uses, request: Request, body: AskRelated) -> Response:
    """Concepts around one, nearest first, each with the relation types on one shortest way to it."""

    def ask(asking: "Asking") -> Any:
        return asking.related(body.concept, body.walk, max_hops=body.max_hops, limit=body.limit, measures=body.measures)

    return await _answer(services, request, body, "related", ask, RelatedView)


@routes.post("/query/path", Permission.GRAPH_READ, *ASKED, response_model=PathsView)
async def path(services: Uses, request: Request, body: AskPath) -> Response:
    """The shortest paths between two concepts, without a concept twice; an empty list if there is none."""

    def ask(asking: "Asking") -> Any:
        return asking.paths(
            body.start, body.goal, body.walk, max_hops=body.max_hops, count=body.count, measures=body.measures
        )

    return await _answer(services, request, body, "path", ask, PathsView)


@routes.post("/query/enriched-path", Permission.GRAPH_READ, *ASKED, response_model=EnrichedPathsView)
async def enriched_path(services: Uses, request: Request, body: AskEnrichedPath) -> Response:
    """The same paths, with the neighbourhood of every concept on them, in one call."""

    def ask(asking: "Asking") -> Any:
        return asking.enriched_path(
            *body.ends, body.walk, max_hops=body.max_hops, count=body.count, around_hops=body.hops_around,
            around_limit=body.around_limit, measures=body.measures,
        )  # fmt: skip

    return await _answer(services, request, body, "enriched_path", ask, EnrichedPathsView)


@routes.post("/query/polarity", Permission.GRAPH_READ, *ASKED, response_model=PolarityView)
async def polarity(services: Uses, request: Request, body: AskPolarity) -> Response:
    """Where concepts stand on the axis between two poles, by their embeddings."""

    def ask(asking: "Asking") -> Any:
        return asking.polarity(
            body.positive, body.negative, body.walk, candidates=body.candidates, max_hops=body.max_hops,
            limit=body.limit,
        )  # fmt: skip

    return await _answer(services, request, body, "polarity", ask, PolarityView)


@routes.post("/query/subgraph", Permission.GRAPH_READ, *ASKED, response_model=SubgraphView)
async def subgraph(services: Uses, request: Request, body: AskSubgraph) -> Response:
    """Seeds, what is nearest around them, and all relations among these: enough to draw it."""

    def ask(asking: "Asking") -> Any:
        return asking.subgraph(body.seeds, body.walk, max_hops=body.max_hops, limit=body.limit)

    return await _answer(services, request, body, "subgraph", ask, SubgraphView)


@routes.post("/query/search", Permission.GRAPH_READ, *ASKED, response_model=SearchView)
async def search(services: Uses, request: Request, body: AskSearch) -> Response:
    """Concepts by words, by a vector, or like another one; the best first."""

    def ask(asking: "Asking") -> Any:
        return asking.search(
            body.text, body.passing, vector=body.vector, model=body.model, like=body.like, limit=body.limit,
            min_similarity=body.min_similarity, measures=body.measures,
        )  # fmt: skip

    return await _answer(services, request, body, "search", ask, SearchView)


@routes.post("/query/diversity", Permission.GRAPH_READ, *ASKED, response_model=DiversityView)
async def diversity(services: Uses, request: Request, body: AskDiversity) -> Response:
    """How unlike each other the concepts around one are."""

    def ask(asking: "Asking") -> Any:
        return asking.diversity(body.concept, body.walk, max_hops=body.max_hops, limit=body.limit)

    return await _answer(services, request, body, "diversity", ask, DiversityView)


@routes.post("/graph/concepts", Permission.GRAPH_WRITE, 501)
async def add_concepts(services: Uses, body: AddConcepts) -> WrittenView:
    """Write concepts. One that is there already, by its label, is found and keeps its description."""
    return WrittenView.of(
        await services.graph.add_concepts(body.ontology, body.value, body.embedding_model, body.vectors)
    )


@routes.post("/graph/relations", Permission.GRAPH_WRITE, 501)
async def add_relations(services: Uses, body: AddRelations) -> WrittenView:
    """Write relations between concepts that are there. Of two words on one relation the more certain stays."""
    return WrittenView.of(await services.graph.add_relations(body.ontology, body.value))


@routes.get("/graph/concepts/{concept:path}", Permission.GRAPH_READ, 404, 409, 501, 504)
async def show_concept(
    services: Uses,
    concept: Annotated[Line, Path(description="Its id, or its label")],
    ontology: Annotated[list[Line] | None, Query(description="Whose label it is: any of these")] = None,
    evidence: Annotated[int, Query(ge=0, le=1000, description="So many quotes at most")] = 20,
) -> ConceptDetail:
    """A concept, how well it is founded and why, and the quotes that speak of it."""
    found, quotes = await services.graph.concept(concept, ontology, evidence)
    return ConceptDetail(
        concept=ConceptView.model_validate(found), measured=ExplainedView.model_validate(found.measured),
        evidence=[EvidenceView.model_validate(one) for one in quotes],
    )  # fmt: skip


@routes.get("/graph/relation-types", Permission.GRAPH_READ, 501, 504, response_model=list[RelationTypeView])
async def relation_types(services: Uses) -> Response:
    """The vocabulary of relations."""
    return await listed(services, RelationTypeView, await services.graph.relation_types())


@routes.get("/graph/ontologies", Permission.GRAPH_READ, 501, 504, response_model=list[OntologyView])
async def ontologies(services: Uses) -> Response:
    """The named parts of the graph."""
    return await listed(services, OntologyView, await services.graph.ontologies())


@routes.get("/graph/status", Permission.GRAPH_READ, 501)
async def status(services: Uses) -> GraphStatus:
    """The graph in the memory of the server that answers, what its questions use, and the settings that count now."""
    epoch, live = await services.graph.epoch(), await services.graph.settings()
    now = services.graph.now()
    assert now is not None
    return GraphStatus.of(epoch, now, live)


@routes.get("/admin/graph/settings", Permission.GRAPH_MANAGE, 501)
async def settings(services: Uses) -> GraphSettings:
    """How many workers questions have, and how long they may take."""
    return GraphSettings.of(await services.graph.settings())


@routes.patch("/admin/graph/settings", Permission.GRAPH_MANAGE, 501)
async def edit_settings(services: Uses, who: Who, body: EditGraphSettings) -> GraphSettings:
    """Change them for every server, within a second. null leaves it to each server's own configuration."""
    return GraphSettings.of(await services.graph.edit_settings(who, body.changes()))


async def _answer(
    services: Services,
    request: Request,
    body: Question,
    name: str,
    ask: "Callable[[Asking], A]",
    view: type[BaseModel],
) -> Response:
    """Ask, and write the answer, in a thread: ten thousand concepts as JSON would keep the loop."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    content = await services.graph.ask(
        name, ask, lambda answer: render(view, answer),
        deadline=body.deadline, min_epoch=body.min_epoch, gone=gone,
    )  # fmt: skip
    return Response(content, media_type="application/json")
