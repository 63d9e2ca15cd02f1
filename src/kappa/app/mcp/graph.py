"""The graph, as tools for agents."""

import json
from typing import Annotated, Any, TypeVar
from uuid import UUID

from pydantic import BaseModel, Field

from kappa.app.api.graph_schemas import (
    MAX_AROUND,
    ConceptDetail,
    EnrichedPathsView,
    PolarityView,
    RelatedView,
    SearchView,
)
from kappa.app.api.measure_schemas import KeptArtifact, TypeView
from kappa.app.api.schemas import Kind, Line
from kappa.app.mcp.api import Api
from kappa.app.mcp.server import READS, Server
from kappa.app.remote import segment
from kappa.graph.config import MAX_HOPS, MAX_PATH_HOPS, MAX_PATHS
from kappa.graph.model import Direction

M = TypeVar("M", bound=BaseModel)

VOCABULARY = "kappa://graph/vocabulary"
DEADLINE = 20.0
"""Seconds; what was found by then is the answer, and an agent that waits longer gives up."""
MOST = 200
"""Concepts in one answer: an agent has to read them all."""
LONGEST = 2_000_000
"""Bytes of a result that are read."""

TheConcept = Annotated[Line, Field(description="A concept's label or id; a label that several have is refused")]
Ontologies = Annotated[
    list[Line] | None, Field(description="Only concepts of these ontologies; labels are looked for there")
]
Types = Annotated[
    list[Line] | None, Field(description="Only relations of these types, as in LIVES_IN; graph/vocabulary has them all")
]
Way = Annotated[Direction, Field(description="Along relations, against them, or both")]
Limit = Annotated[int, Field(ge=1, le=MOST, description="So many concepts at most")]
Hops = Annotated[int, Field(ge=1, le=MAX_HOPS, description="How many relations away")]


def offer(server: Server, api: Api) -> None:
    tools = GraphTools(api)
    every = (
        tools.search, tools.concept, tools.related, tools.path, tools.polarity, tools.list_results, tools.read_result
    )  # fmt: skip
    for tool in every:
        server.offer(tool, READS)

    @server.resource(
        VOCABULARY,
        name="graph/vocabulary",
        title="Relation types",
        description="The types that relations have, with what was measured of each: category, whether it speaks for "
        "or against, what its targets rest on. Needs the permission graph:read.",
        mime_type="application/json",
    )
    async def vocabulary() -> str:  # pyright: ignore[reportUnusedFunction]
        types = await api.get_list("/graph/vocabulary", TypeView)
        return json.dumps([one.model_dump(mode="json") for one in types], indent=2)


class ResultList(BaseModel):
    items: list[KeptArtifact]


class ResultDetail(BaseModel):
    artifact: KeptArtifact
    content: Any = Field(default=None, description="What it says")
    picture: str | None = Field(default=None, description="SVG, where it was asked for")


class GraphTools:
    """Each is one question to the API."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def search(
        self,
        text: Annotated[Line | None, Field(description="Words of labels, descriptions and search terms")] = None,
        like: Annotated[
            Line | None, Field(description="Concepts like this one, by its embedding: a concept's label or id")
        ] = None,
        ontologies: Ontologies = None,
        limit: Limit = 20,
        min_similarity: Annotated[
            float, Field(ge=-1, le=1, description="With `like`: nothing less similar counts as near")
        ] = 0.0,
    ) -> SearchView:
        """Find concepts of the knowledge graph by words, by what they are like, or by both; the best first.

        Begin here: the others take what it finds.
        """
        body = {
            "text": text, "like": like, "limit": limit, "min_similarity": min_similarity, "where": _where(ontologies),
            "measures": True,
        }  # fmt: skip
        return await self._ask("search", SearchView, body)

    async def concept(
        self,
        concept: TheConcept,
        ontology: Annotated[Line | None, Field(description="Whose label it is")] = None,
        evidence: Annotated[int, Field(ge=0, le=MOST, description="So many quotes at most")] = 10,
    ) -> ConceptDetail:
        """Show a concept with the quotes that speak of it, each with its document and place: what to cite.

        `measured` says how well it is founded: grounding from −1, contradicted, to 1, supported, with its interval and
        the relations that count most; confidence says how much there is to judge by.
        """
        asked = {"ontology": ontology, "evidence": evidence}
        return await self._api.get(f"/graph/concepts/{segment(concept)}", ConceptDetail, asked)

    async def related(
        self,
        concept: TheConcept,
        max_hops: Hops = 2,
        direction: Way = "both",
        relation_types: Types = None,
        ontologies: Ontologies = None,
        limit: Limit = 30,
    ) -> RelatedView:
        """What stands around a concept, nearest first, each with the relation types on one shortest way to it.

        `found` says how many there are; if `complete` is false, `skipped` says what is missing and why.
        """
        body = {
            "concept": concept, "max_hops": max_hops, "direction": direction, "relation_types": relation_types,
            "where": _where(ontologies), "limit": limit, "measures": True,
        }  # fmt: skip
        return await self._ask("related", RelatedView, body)

    async def path(
        self,
        start: TheConcept,
        goal: TheConcept,
        count: Annotated[int, Field(ge=1, le=MAX_PATHS, description="So many paths, the shortest")] = 1,
        max_hops: Annotated[int, Field(ge=1, le=MAX_PATH_HOPS, description="How long a path may be")] = 6,
        direction: Way = "both",
        relation_types: Types = None,
        ontologies: Ontologies = None,
        around: Annotated[int, Field(ge=1, le=MAX_AROUND, description="So many neighbours of each concept")] = 5,
    ) -> EnrichedPathsView:
        """How two concepts are connected: the shortest paths, and what stands around each concept on them.

        An empty `items` says that there is none so short.
        """
        body = {
            "start": start, "goal": goal, "count": count, "max_hops": max_hops, "direction": direction,
            "relation_types": relation_types, "where": _where(ontologies), "around_limit": around, "measures": True,
        }  # fmt: skip
        return await self._ask("enriched-path", EnrichedPathsView, body)

    async def polarity(
        self,
        positive: TheConcept,
        negative: TheConcept,
        candidates: Annotated[
            list[Line] | None, Field(description="These concepts; else those around the poles", max_length=1000)
        ] = None,
        max_hops: Hops = 2,
        ontologies: Ontologies = None,
        limit: Limit = 50,
    ) -> PolarityView:
        """Where concepts stand on the axis between two poles, by their embeddings: 1 is positive, −1 negative."""
        body = {
            "positive": positive, "negative": negative, "candidates": candidates, "max_hops": max_hops,
            "where": _where(ontologies), "limit": limit,
        }  # fmt: skip
        return await self._ask("polarity", PolarityView, body)

    async def list_results(
        self,
        kind: Annotated[Kind | None, Field(description="Only of this kind: projection or polarity")] = None,
        ontology: Annotated[Line | None, Field(description="Only of this ontology")] = None,
        limit: Annotated[int, Field(ge=1, le=MOST, description="So many at most")] = 20,
    ) -> ResultList:
        """What jobs like projection and polarity left, the latest first. read_result has what is in it."""
        asked = {"kind": kind, "ontology": ontology, "limit": limit}
        return ResultList(items=await self._api.get_list("/artifacts", KeptArtifact, asked))

    async def read_result(
        self,
        artifact: Annotated[UUID, Field(description="Its id: `artifact` in the result of the job")],
        picture: Annotated[bool, Field(description="The picture, as SVG text, instead of the content")] = False,
    ) -> ResultDetail:
        """Read what a job like projection or polarity left: what it says, or its picture."""
        found = await self._api.get(f"/artifacts/{artifact}", KeptArtifact)
        if picture:
            data = await self._api.get_bytes(f"/artifacts/{artifact}/data", LONGEST)
            return ResultDetail(artifact=found, picture=data.decode())
        data = await self._api.get_bytes(f"/artifacts/{artifact}/content", LONGEST)
        return ResultDetail(artifact=found, content=json.loads(data))

    async def _ask(self, question: str, answer: type[M], body: dict[str, Any]) -> M:
        return await self._api.post(f"/query/{question}", answer, body | {"deadline": DEADLINE})


def _where(ontologies: list[str] | None) -> dict[str, Any] | None:
    return {"ontologies": ontologies} if ontologies else None
