"""The five admin endpoints: what is going on, and the knobs."""

import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import psycopg
import pytest

from kappa.engine import JobContext, Lane
from kappa.engine.testing import drain, working
from tests.app.conftest import Site
from tests.app.patience import becomes

LANES = "/admin/workers/lanes"


@pytest.fixture
async def gate(site: Site) -> AsyncIterator[threading.Event]:
    """Jobs of the kind `held`, in the lane `gated` with one slot, run until this is set."""
    opened = threading.Event()

    def held(ctx: JobContext) -> None:
        opened.wait(30)

    site.engine.job("held", idempotent=True)(held)
    site.engine.lane(Lane("gated", kinds=("held",), max_slots=1))
    site.engine.install()
    yield opened
    opened.set()


async def put(client: httpx2.AsyncClient, kind: str = "self_test", **more: Any) -> int:
    return (await client.post("/jobs", json={"kind": kind, **more})).json()["id"]


async def lane(client: httpx2.AsyncClient, name: str) -> dict[str, Any]:
    return next(lane for lane in (await client.get(LANES)).json() if lane["name"] == name)


def uses(client: httpx2.AsyncClient, slots: int) -> Any:
    async def look() -> bool:
        return (await lane(client, "gated"))["slots_used"] == slots

    return becomes(look, what=f"{slots} slots are used")


async def test_the_lanes_are_shown_with_what_they_have_to_do(operator: httpx2.AsyncClient) -> None:
    await put(operator)
    await put(operator, delay=60)
    checks = await lane(operator, "checks")
    assert checks["jobs"] == {"queued": 1, "scheduled": 1}
    assert (checks["kinds"], checks["max_slots"], checks["slots_used"]) == (["self_test"], 4, 0)
    assert (checks["enabled"], checks["executor"], checks["lease_ttl"]) == (True, "thread", 60)


async def test_the_status_shows_workers_the_leader_and_pools(site: Site, operator: httpx2.AsyncClient) -> None:
    nobody = (await operator.get("/admin/workers/status")).json()
    assert (nobody["leader"], nobody["workers"]) == (None, [])
    async with working(site.engine) as worker:

        async def led() -> bool:
            return (await operator.get("/admin/workers/status")).json()["leader"] == worker.owner

        await becomes(led, what="the worker leads")
        status = (await operator.get("/admin/workers/status")).json()
    (seen,) = status["workers"]
    assert (seen["owner"], seen["leads"], "checks" in seen["lanes"]) == (worker.owner, True, True)
    assert {pool["name"] for pool in status["pools"]} == {"queue", "auth", "fleet", "graph"}
    assert {one["name"] for one in status["lanes"]} >= {"checks", "interactive", "maintenance", "system", "tools"}


async def test_more_slots_count_for_a_worker_that_runs(
    site: Site, operator: httpx2.AsyncClient, gate: threading.Event
) -> None:
    for _ in range(3):
        await put(operator, "held")
    async with working(site.engine):
        await uses(operator, 1)
        edited = await operator.patch(f"{LANES}/gated", json={"max_slots": 3})
        assert (edited.status_code, edited.json()["max_slots"]) == (200, 3)
        await uses(operator, 3)
        gate.set()


async def test_a_lane_drains_and_resumes(site: Site, operator: httpx2.AsyncClient, gate: threading.Event) -> None:
    first = await put(operator, "held")
    async with working(site.engine):
        await uses(operator, 1)
        assert (await operator.patch(f"{LANES}/gated", json={"enabled": False})).json()["enabled"] is False
        second = await put(operator, "held")
        gate.set()

        async def ended() -> bool:
            return (await operator.get(f"/jobs/{first}")).json()["state"] == "succeeded"

        await becomes(ended, what="what runs finishes")
        assert (await lane(operator, "gated"))["jobs"] == {"queued": 1}
        await operator.patch(f"{LANES}/gated", json={"enabled": True})

        async def claimed() -> bool:
            return (await operator.get(f"/jobs/{second}")).json()["state"] == "succeeded"

        await becomes(claimed, what="the lane claims again")


async def test_a_drained_lane_claims_nothing(site: Site, operator: httpx2.AsyncClient) -> None:
    await operator.patch(f"{LANES}/checks", json={"enabled": False})
    kept = await put(operator)
    site.engine.job("marker")(lambda ctx: None)
    site.engine.lane(Lane("markers", kinds=("marker",)))
    site.engine.install()
    async with working(site.engine):
        marker = await put(operator, "marker")

        async def passed() -> bool:
            return (await operator.get(f"/jobs/{marker}")).json()["state"] == "succeeded"

        await becomes(passed, what="the other lane works")
        assert (await operator.get(f"/jobs/{kept}")).json()["state"] == "queued"


async def test_a_lane_that_a_job_holds_says_so_and_is_edited_all_the_same(
    operator: httpx2.AsyncClient, connection: psycopg.Connection[Any]
) -> None:
    connection.execute("UPDATE kappa.lanes SET held_by = 7, hold_token = 1 WHERE name = 'checks'")
    edited = (await operator.patch(f"{LANES}/checks", json={"enabled": False})).json()
    assert (edited["enabled"], edited["held_by"]) == (False, 7)
    connection.execute("UPDATE kappa.lanes SET held_by = NULL, hold_token = NULL")
    freed = await lane(operator, "checks")
    assert (freed["enabled"], freed["held_by"]) == (False, None)


async def test_everything_of_a_lane_can_be_edited(operator: httpx2.AsyncClient) -> None:
    changes = {
        "kinds": ["self_test", "another"], "max_slots": 9, "poll_interval_ms": 777, "lease_ttl": 20.0,
        "stale_timeout": 99.0, "enabled": False, "executor": "async",
    }  # fmt: skip
    edited = await operator.patch(f"{LANES}/checks", json=changes, headers={"X-Request-Id": "edit-it"})
    assert {name: edited.json()[name] for name in changes} == changes
    assert edited.json() == await lane(operator, "checks")
    entry = (await operator.get("/audit", params={"limit": 1})).json()["items"][0]
    assert (entry["action"], entry["target"], entry["request_id"]) == ("lane.edit", "checks", "edit-it")
    assert entry["detail"]["max_slots"] == 9


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_slots": 17}, "16 slots"),
        ({"max_slots": 1001, "executor": "async"}, "1,000"),
        ({"max_slots": 0}, "max_slots"),
        ({"max_slots": 2**31}, "max_slots"),
        ({"max_slots": "two"}, "max_slots"),
        ({"poll_interval_ms": 1}, "poll_interval_ms"),
        ({"lease_ttl": 0.5}, "lease_ttl"),
        ({"stale_timeout": 0}, "stale_timeout"),
        ({"executor": "gpu"}, "executor"),
        ({"kinds": ["self_test", "ingestion"]}, "ingestion"),
        ({"kinds": ["self_test", "bad kind"]}, "kinds"),
        ({"kinds": []}, "self_test"),
        ({"name": "other"}, "name"),
        ({"enabled": None}, "nothing to change"),
        ({}, "nothing to change"),
    ],
)
async def test_an_edit_that_makes_no_sense_is_refused_and_changes_nothing(
    operator: httpx2.AsyncClient, changes: dict[str, Any], named: str
) -> None:
    await put(operator)
    before = await lane(operator, "checks")
    refused = await operator.patch(f"{LANES}/checks", json=changes)
    assert (refused.status_code, refused.headers["content-type"]) == (422, "application/problem+json")
    assert named in refused.json()["detail"]
    assert await lane(operator, "checks") == before
    assert "lane.edit" not in (await operator.get("/audit")).text


@pytest.mark.parametrize("name", ["nowhere", "%27", "a" * 400, "é"])
async def test_a_lane_that_is_not_there_is_not_found(operator: httpx2.AsyncClient, name: str) -> None:
    assert (await operator.patch(f"{LANES}/{name}", json={"max_slots": 1})).status_code == 404


async def test_anybodys_job_can_be_cancelled_and_prioritised(site: Site, operator: httpx2.AsyncClient) -> None:
    contributor = await site.client("contributor")
    job = await put(contributor)
    path = f"/admin/workers/jobs/{job}"
    raised = await operator.patch(f"{path}/priority", json={"priority": 50}, headers={"X-Request-Id": "raise"})
    assert (raised.status_code, raised.json()["priority"]) == (200, 50)
    ended = await operator.post(f"{path}/cancel", headers={"X-Request-Id": "end"})
    assert (ended.json()["state"], ended.json()["reason"]) == ("cancelled", "cancelled by platform_admin")
    log = (await operator.get("/audit")).json()["items"]
    written = [(entry["action"], entry["target"], entry["request_id"]) for entry in log[:2]]
    assert written == [("job.cancel", str(job), "end"), ("job.prioritise", str(job), "raise")]
    assert (await operator.post(f"{path}/cancel")).status_code == 409
    assert (await operator.patch(f"{path}/priority", json={"priority": 1})).status_code == 409
    assert (await operator.post("/admin/workers/jobs/4711/cancel")).status_code == 404
    assert (await operator.patch("/admin/workers/jobs/4711/priority", json={"priority": 1})).status_code == 404


async def test_the_knobs_of_workers_need_no_other_permission(site: Site, operator: httpx2.AsyncClient) -> None:
    job = await put(await site.client("contributor"))
    made = (await operator.post("/tokens", json={"name": "ops", "scopes": ["workers:manage"]})).json()
    ops = await site.client(token=made["token"])
    assert (await ops.get(LANES)).status_code == 403
    assert (await ops.post(f"/admin/workers/jobs/{job}/cancel")).status_code == 200
    assert (await ops.patch(f"{LANES}/checks", json={"max_slots": 2})).status_code == 200


async def test_a_higher_priority_is_claimed_first(site: Site, operator: httpx2.AsyncClient) -> None:
    await operator.patch(f"{LANES}/checks", json={"max_slots": 1})
    jobs = [await put(operator) for _ in range(3)]
    await operator.patch(f"/admin/workers/jobs/{jobs[2]}/priority", json={"priority": 10})
    await drain(site.engine)
    shown = [(await operator.get(f"/jobs/{job}")).json() for job in jobs]
    assert min(shown, key=lambda job: job["started_at"])["id"] == jobs[2]
