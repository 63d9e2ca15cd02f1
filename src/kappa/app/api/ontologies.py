"""Ontologies and the proposals about them, over HTTP."""

from typing import Annotated

from fastapi import Path, Query, Response

from kappa.app.api.json_pieces import listed
from kappa.app.api.ontology_schemas import OntologyDetail, ProposalView, RenameOntology
from kappa.app.api.routing import Routes, Uses, Who
from kappa.app.api.schemas import EnqueuedJob, JobId, Line
from kappa.app.permissions import Permission
from kappa.engine import Enqueued
from kappa.graph.model import ProposalState

routes = Routes("ontologies", "/graph")

Name = Annotated[Line, Path()]
Number = Annotated[JobId, Path()]


@routes.get("/ontologies/{name:path}", Permission.GRAPH_READ, 404, 501)
async def show(services: Uses, name: Name) -> OntologyDetail:
    """An ontology, and how much is in it."""
    return OntologyDetail.model_validate(await services.ontologies.show(name))


@routes.patch("/ontologies/{name:path}", Permission.GRAPH_CURATE, 404, 409, 501)
async def rename(services: Uses, who: Who, name: Name, body: RenameOntology) -> OntologyDetail:
    """Give it another name. Its concepts keep their ids. Refused while an ingestion works on it."""
    return OntologyDetail.model_validate(await services.ontologies.rename(who, name, body.name))


@routes.delete("/ontologies/{name:path}", Permission.GRAPH_CURATE, 404, 409, 501, status_code=204)
async def delete(services: Uses, who: Who, name: Name) -> None:
    """Delete it with its documents and concepts, for good. Refused while an ingestion works on it."""
    await services.ontologies.delete(who, name)


@routes.get("/masses", Permission.GRAPH_READ, 501, response_model=list[OntologyDetail])
async def masses(services: Uses) -> Response:
    """Every ontology, and how much is in it."""
    return await listed(services, OntologyDetail, await services.ontologies.all())


@routes.post("/annealing", Permission.GRAPH_CURATE, status_code=201)
async def anneal(services: Uses, who: Who) -> EnqueuedJob:
    """Have all ontologies looked at: a job that writes proposals."""
    return _job(await services.ontologies.anneal(who))


@routes.get("/proposals", Permission.GRAPH_READ, 501)
async def proposals(
    services: Uses,
    state: Annotated[ProposalState | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[ProposalView]:
    """Proposals, the newest first."""
    return [ProposalView.model_validate(one) for one in await services.ontologies.proposals(state, limit)]


@routes.get("/proposals/{proposal_id}", Permission.GRAPH_READ, 404, 501)
async def show_proposal(services: Uses, proposal_id: Number) -> ProposalView:
    return ProposalView.model_validate(await services.ontologies.proposal(proposal_id))


@routes.post("/proposals/{proposal_id}/approve", Permission.GRAPH_CURATE, 404, 409, 501)
async def approve(services: Uses, who: Who, proposal_id: Number) -> ProposalView:
    """Say yes. It is carried out by `execute`."""
    return ProposalView.model_validate(await services.ontologies.decide(who, proposal_id, "approved"))


@routes.post("/proposals/{proposal_id}/reject", Permission.GRAPH_CURATE, 404, 409, 501)
async def reject(services: Uses, who: Who, proposal_id: Number) -> ProposalView:
    """Say no, for good: it is not proposed again."""
    return ProposalView.model_validate(await services.ontologies.decide(who, proposal_id, "rejected"))


@routes.post("/proposals/{proposal_id}/execute", Permission.GRAPH_CURATE, 404, 409, 501, status_code=201)
async def execute(services: Uses, who: Who, proposal_id: Number) -> EnqueuedJob:
    """Have an approved proposal carried out: a job, which waits for ingestions that work on its ontologies."""
    return _job(await services.ontologies.execute(who, proposal_id))


@routes.post("/proposals/{proposal_id}/undo", Permission.GRAPH_CURATE, 404, 409, 501, status_code=201)
async def undo(services: Uses, who: Who, proposal_id: Number) -> EnqueuedJob:
    """Have what was carried out undone: a job."""
    return _job(await services.ontologies.undo(who, proposal_id))


def _job(made: Enqueued) -> EnqueuedJob:
    return EnqueuedJob(id=made.id, status="created" if made.created else "existing")
