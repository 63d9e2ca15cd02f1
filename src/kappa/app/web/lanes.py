"""Lanes: their rows, edited while they work; drained and resumed."""

from datetime import timedelta
from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import Response

from kappa.app.errors import NotFound, Refused
from kappa.app.permissions import Permission
from kappa.app.usecases.overview import COUNTED, LaneGlance
from kappa.app.web.pages import Pages, Visit, Whole
from kappa.engine import Executor
from kappa.pg import KappaError

pages = Pages()


class LaneForm(BaseModel):
    """A lane as its form has it; durations are seconds."""

    kinds: str = ""
    max_slots: Whole = Field(ge=1, le=1_000_000)
    poll_interval_ms: Whole = Field(ge=10, le=3_600_000)
    lease_ttl: float = Field(ge=1, le=86400, allow_inf_nan=False)
    stale_timeout: float = Field(gt=0, le=30 * 86400, allow_inf_nan=False)
    executor: Executor

    def changes(self) -> dict[str, Any]:
        return {
            "kinds": self.kinds.replace(",", " ").split(),
            "max_slots": self.max_slots,
            "poll_interval_ms": self.poll_interval_ms,
            "lease_ttl": timedelta(seconds=self.lease_ttl),
            "stale_timeout": timedelta(seconds=self.stale_timeout),
            "executor": self.executor.value,
        }


@pages.get("/lanes", Permission.WORKERS_VIEW)
async def lanes(visit: Visit) -> Response:
    glance = await visit.services.overview.glance()
    return visit.page("lanes.html", glance=glance, counted=COUNTED)


@pages.get("/lanes/{name}", Permission.WORKERS_VIEW)
async def lane(visit: Visit) -> Response:
    return await _shown(visit)


@pages.post("/lanes/{name}", Permission.WORKERS_MANAGE)
async def edit(visit: Visit) -> Response:
    name = visit.request.path_params["name"]
    try:
        wanted = visit.understood(LaneForm, dict(visit.form)).changes()
        now = (await _lane(visit)).lane
        changes = {key: value for key, value in wanted.items() if _differs(getattr(now, key), value)}
        if changes:
            await visit.services.workers.edit_lane(visit.who, name, changes)
    except NotFound:
        raise
    except KappaError as error:
        return await _shown(visit, fault=str(error))
    visit.services.overview.forget()
    return visit.elsewhere(f"/ui/lanes/{name}")


@pages.post("/lanes/{name}/{doing}", Permission.WORKERS_MANAGE)
async def switch(visit: Visit) -> Response:
    """Drain it, or let it work again."""
    name, doing = visit.request.path_params["name"], visit.request.path_params["doing"]
    if doing not in ("drain", "resume"):
        raise Refused(f"nobody can {doing} a lane")
    await visit.services.workers.edit_lane(visit.who, name, {"enabled": doing == "resume"})
    visit.services.overview.forget()
    return visit.elsewhere("/ui/lanes" if visit.word("back") == "lanes" else f"/ui/lanes/{name}")


async def _lane(visit: Visit) -> LaneGlance:
    name = visit.request.path_params["name"]
    glance = await visit.services.overview.glance()
    found = next((one for one in glance.lanes if one.lane.name == name), None)
    if found is None:
        raise NotFound(f"there is no lane {name!r}")
    return found


async def _shown(visit: Visit, fault: str = "") -> Response:
    found = await _lane(visit)
    values = {
        "kinds": "\n".join(found.lane.kinds), "max_slots": found.lane.max_slots,
        "poll_interval_ms": found.lane.poll_interval_ms, "lease_ttl": found.lane.lease_ttl.total_seconds(),
        "stale_timeout": found.lane.stale_timeout.total_seconds(), "executor": found.lane.executor.value,
    }  # fmt: skip
    if fault:
        values |= {name: visit.word(name) for name in values}
    return visit.page(
        "lane.html", 422 if fault else 200, one=found, values=values, fault=fault, executors=list(Executor),
        counted=COUNTED,
    )  # fmt: skip


def _differs(now: Any, wanted: Any) -> bool:
    return list(now) != wanted if isinstance(wanted, list) else now != wanted
