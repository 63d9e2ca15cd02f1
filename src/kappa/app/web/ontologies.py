"""Ontologies, and what is proposed about them: looked at, decided, carried out, undone."""

from starlette.responses import Response

from kappa.app.errors import AppError, Refused
from kappa.app.permissions import Permission
from kappa.app.web.pages import Pages, Visit

pages = Pages()

SHOWN = 50


@pages.get("/ontologies", Permission.GRAPH_READ)
async def ontologies(visit: Visit) -> Response:
    return await _shown(visit)


@pages.post("/ontologies/rename", Permission.GRAPH_CURATE)
async def rename(visit: Visit) -> Response:
    try:
        if not visit.word("new_name"):
            raise Refused("an ontology needs a name")
        await visit.services.ontologies.rename(visit.who, visit.word("name"), visit.word("new_name"))
    except AppError as error:
        return await _shown(visit, str(error))
    return visit.elsewhere("/ui/ontologies")


@pages.post("/ontologies/delete", Permission.GRAPH_CURATE)
async def delete(visit: Visit) -> Response:
    name = visit.word("name")
    try:
        if visit.word("sure") != name:
            raise Refused(f"type {name} to delete it with all that is in it")
        await visit.services.ontologies.delete(visit.who, name)
    except AppError as error:
        return await _shown(visit, str(error))
    return visit.elsewhere("/ui/ontologies")


@pages.post("/ontologies/anneal", Permission.GRAPH_CURATE)
async def anneal(visit: Visit) -> Response:
    """Have all ontologies looked at, and changes proposed."""
    return visit.to_job((await visit.services.ontologies.anneal(visit.who)).id, "/ui/ontologies")


@pages.post("/proposals/{proposal:int}/{doing}", Permission.GRAPH_CURATE)
async def decide(visit: Visit) -> Response:
    number, doing, use = visit.number("proposal"), visit.request.path_params["doing"], visit.services.ontologies
    match doing:
        case "approve":
            await use.decide(visit.who, number, "approved")
        case "reject":
            await use.decide(visit.who, number, "rejected")
        case "execute":
            return visit.to_job((await use.execute(visit.who, number)).id, "/ui/ontologies")
        case "undo":
            return visit.to_job((await use.undo(visit.who, number)).id, "/ui/ontologies")
        case _:
            raise Refused(f"nobody can {doing} a proposal")
    return visit.elsewhere("/ui/ontologies")


async def _shown(visit: Visit, fault: str = "") -> Response:
    return visit.page(
        "ontologies.html", 422 if fault else 200, all=await visit.services.ontologies.all(), fault=fault,
        proposals=await visit.services.ontologies.proposals(None, SHOWN),
    )  # fmt: skip
