"""The fleet's workers."""

from starlette.responses import Response

from kappa.app.permissions import Permission
from kappa.app.web.pages import Pages, Visit, listed

pages = Pages()

PAGE = 100


@pages.get("/fleet", Permission.FLEET_VIEW)
async def fleet(visit: Visit) -> Response:
    found = await visit.services.fleet_workers.list(after=visit.asked("after") or "", limit=PAGE + 1)
    shown, after = listed(found, PAGE, lambda one: one.worker)
    lanes = await visit.services.client.lanes() if visit.may(Permission.WORKERS_VIEW) else []
    return visit.page(
        "fleet.html", workers=shown, next=after, count=await visit.services.fleet_workers.count(),
        lanes=[lane for lane in lanes if lane.executor == "fleet"], live=visit.asked("after") is None,
    )  # fmt: skip
