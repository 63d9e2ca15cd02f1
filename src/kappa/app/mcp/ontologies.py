"""Ontologies and proposals, as tools for agents: to look at. Decisions are people's."""

from typing import Annotated

from pydantic import BaseModel, Field

from kappa.app.api.ontology_schemas import OntologyDetail, ProposalView
from kappa.app.mcp.api import Api
from kappa.app.mcp.server import READS, Server
from kappa.graph.model import ProposalState


class OntologyList(BaseModel):
    items: list[OntologyDetail]


class ProposalList(BaseModel):
    items: list[ProposalView]


def offer(server: Server, api: Api) -> None:
    tools = OntologyTools(api)
    for tool in (tools.ontologies, tools.proposals):
        server.offer(tool, READS)


class OntologyTools:
    def __init__(self, api: Api) -> None:
        self._api = api

    async def ontologies(self) -> OntologyList:
        """The named parts of the graph, and how many documents, concepts, quotes and relations each has."""
        return OntologyList(items=await self._api.get_list("/graph/masses", OntologyDetail))

    async def proposals(
        self,
        state: Annotated[ProposalState | None, Field(description="Only those that are so")] = "pending",
        limit: Annotated[int, Field(ge=1, le=100, description="So many at most")] = 20,
    ) -> ProposalList:
        """Changes of ontologies that were proposed (merge, split, rename, dissolve), and what speaks for them."""
        asked = {"state": state, "limit": limit}
        return ProposalList(items=await self._api.get_list("/graph/proposals", ProposalView, asked))
