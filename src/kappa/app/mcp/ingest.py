"""Documents into the graph, as a tool for agents."""

from typing import Annotated
from uuid import UUID

from pydantic import Field, StringConstraints

from kappa.app.api.ingest_schemas import SubmittedView
from kappa.app.api.schemas import NO_NUL, Line
from kappa.app.mcp.api import Api
from kappa.app.mcp.server import ADDS, Server

MOST = 200_000
"""Characters of a text that comes as an argument; what is longer is a file, and is uploaded."""


def offer(server: Server, api: Api) -> None:
    server.offer(IngestTools(api).ingest, ADDS)


class IngestTools:
    """One call of the API."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def ingest(
        self,
        ontology: Annotated[Line, Field(description="The part of the graph that it goes into; made if there is none")],
        text: Annotated[
            Annotated[str, StringConstraints(min_length=1, max_length=MOST, pattern=NO_NUL)] | None,
            Field(description="The document itself, as text or Markdown"),
        ] = None,
        name: Annotated[Line | None, Field(description="What the text is called, as evidence will cite it")] = None,
        uploads: Annotated[
            list[UUID] | None, Field(description="In place of a text: keys of files uploaded by POST /ingest/uploads")
        ] = None,
        provider: Annotated[Line | None, Field(description="Who extracts; the server's choice if not given")] = None,
        auto_approve: Annotated[bool, Field(description="Approve it at once; needs jobs:approve")] = False,
        force: Annotated[bool, Field(description="Read it again although its content is there already")] = False,
    ) -> SubmittedView:
        """Read a document into the knowledge graph: concepts, relations, and the quotes that speak for both.

        It is a job, and returns at once: wait_for_job sees it through. A job in the state awaiting_approval shows what
        it will cost as `estimate`, and goes on after approve_job. Content that the ontology has already is refused.
        """
        return await self._api.post(
            "/ingest",
            SubmittedView,
            {
                "ontology": ontology, "text": text, "name": name,
                "uploads": None if uploads is None else [str(key) for key in uploads],
                "provider": provider, "auto_approve": auto_approve, "force": force,
            },
        )  # fmt: skip
