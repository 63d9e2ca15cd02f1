"""The first page: the cluster at a glance for those who run it, one's own work for everybody else."""

from starlette.responses import Response

from kappa.app.permissions import Permission
from kappa.app.usecases.overview import COUNTED
from kappa.app.web.pages import Pages, Visit

pages = Pages()

RECENT = 8


@pages.get("/", Permission.ACCOUNT_USE)
async def dashboard(visit: Visit) -> Response:
    services = visit.services
    glance = await services.overview.glance() if visit.may(Permission.WORKERS_VIEW) else None
    recent = []
    if visit.may(Permission.JOBS_VIEW):
        mine = None if glance is not None else visit.who.name
        recent = await services.client.list_jobs(submitted_by=mine, limit=RECENT)
    return visit.page(
        "dashboard.html", glance=glance, recent=recent, counted=COUNTED,
        pools=services.pools() if glance is not None else (),
        graph=services.graph.now() if visit.may(Permission.GRAPH_READ) else None,
    )  # fmt: skip
