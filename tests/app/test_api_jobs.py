"""Jobs over HTTP: in, seen, approved, cancelled, retried, watched."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel

from kappa.app.usecases.watching import Watchtower
from kappa.engine import AsyncClient, Engine, Job, JobContext, JobState, Lane
from kappa.engine.testing import drain, working
from tests.app.conftest import KAPPA, Site
from tests.app.patience import becomes


class Trip(BaseModel):
    miles: int


class Handlers:
    """Kinds that the tests need: one that asks for approval, one that runs until it is let go."""

    def __init__(self, engine: Engine) -> None:
        self.go = threading.Event()
        self.steps = 0
        engine.job("trip", approval=True, estimate=lambda trip: {"cost": trip.miles * 2})(self.trip)
        engine.job("long", idempotent=True)(self.long)
        engine.lane(Lane("travel", kinds=("trip", "long"), max_slots=4))
        engine.install()

    def trip(self, ctx: JobContext, payload: Trip) -> int:
        return payload.miles

    def long(self, ctx: JobContext) -> None:
        """A new report at every look, until it is cancelled or let go."""
        while not self.go.wait(0.02):
            self.steps += 1
            ctx.progress(self.steps, message="on the way")
            ctx.raise_if_cancelled()


@pytest.fixture
async def handlers(site: Site) -> AsyncIterator[Handlers]:
    made = Handlers(site.engine)
    yield made
    made.go.set()


async def put(client: httpx2.AsyncClient, kind: str = "self_test", **more: Any) -> int:
    made = await client.post("/jobs", json={"kind": kind, **more})
    assert made.status_code == 201, made.text
    return made.json()["id"]


async def state(client: httpx2.AsyncClient, job: int) -> str:
    return (await client.get(f"/jobs/{job}")).json()["state"]


def is_in(client: httpx2.AsyncClient, job: int, wanted: str) -> Any:
    async def look() -> bool:
        return await state(client, job) == wanted

    return becomes(look, what=f"job {job} is {wanted}")


async def rewritten(site: Site, job: int) -> list[str]:
    """The events of a job's stream, until it ends by itself."""
    client = await site.client("read_only")
    return (await client.get(f"/jobs/{job}/events")).text.split("\n\n")


# In


async def test_a_job_of_a_key_that_is_live_is_given_back(operator: httpx2.AsyncClient) -> None:
    body = {"kind": "self_test", "dedup_key": "nightly"}
    first, second = await operator.post("/jobs", json=body), await operator.post("/jobs", json=body)
    assert [(one.status_code, one.json()["status"]) for one in (first, second)] == [(201, "created"), (200, "existing")]
    assert first.json()["id"] == second.json()["id"]
    assert second.headers["location"] == first.headers["location"]


async def test_what_was_asked_for_is_what_the_job_has(site: Site) -> None:
    client = await site.client("contributor")
    asked = {"payload": {"steps": 7}, "priority": -5, "timeout": 90, "max_attempts": 2, "dedup_key": "k"}
    shown = (await client.get(f"/jobs/{await put(client, **asked)}")).json()
    assert shown["payload"] == {"steps": 7, "seconds": 0.0, "fail": False}
    assert (shown["priority"], shown["timeout"], shown["max_attempts"]) == (-5, 90, 2)
    assert (shown["submitted_by"], shown["lane"], shown["dedup_key"]) == ("contributor", "checks", "k")


async def test_a_job_can_wait_for_a_time(operator: httpx2.AsyncClient) -> None:
    at = datetime.now(UTC) + timedelta(hours=2)
    shown = (await operator.get(f"/jobs/{await put(operator, at=at.isoformat())}")).json()
    assert (shown["state"], datetime.fromisoformat(shown["run_at"])) == ("scheduled", at)
    delayed = (await operator.get(f"/jobs/{await put(operator, delay=3600)}")).json()
    assert delayed["state"] == "scheduled"
    wait = datetime.fromisoformat(delayed["run_at"]) - datetime.fromisoformat(delayed["created_at"])
    assert wait == timedelta(hours=1)


@pytest.mark.parametrize(
    "at", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"]
)
async def test_a_time_at_the_end_of_the_calendar_spoils_no_list(operator: httpx2.AsyncClient, at: str) -> None:
    await put(operator)
    assert (await operator.post("/jobs", json={"kind": "self_test", "at": at})).status_code in (201, 422)
    assert (await operator.get("/jobs")).status_code == 200


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"payload": {"steps": 0}}, "steps"),
        ({"payload": {"steps": "many"}}, "steps"),
        ({"payload": [1]}, "self_test"),
        ({"payload": {"note": "a\0b"}}, ""),
        ({"priority": 40000}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"at": "2030-01-01T00:00:00"}, "at"),
        ({"delay": -1}, "delay"),
        ({"timeout": 0}, "timeout"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"dedup_key": ""}, "dedup_key"),
        ({"dedup_key": "a\0b"}, "dedup_key"),
        ({"colour": "red"}, "colour"),
        ({"kind": "no spaces"}, "kind"),
        ({"kind": "unheard_of"}, "unheard_of"),
        ({"kind": None}, "kind"),
    ],
)
async def test_a_bad_job_is_refused_by_name_and_not_made(
    operator: httpx2.AsyncClient, body: dict[str, Any], named: str
) -> None:
    refused = await operator.post("/jobs", json={"kind": "self_test", **body})
    if named:
        assert refused.status_code == 422
        assert named in refused.json()["detail"]
        assert (await operator.get("/jobs")).json()["items"] == []
    else:
        assert refused.status_code in (201, 422)


# Seen


async def test_jobs_are_found_by_state_kind_lane_and_submitter(site: Site, handlers: Handlers) -> None:
    ada, bob = await site.client("contributor"), await site.client("curator")
    later, trip, mine = await put(ada, delay=60), await put(ada, "trip", payload={"miles": 1}), await put(bob)

    async def found(**filters: Any) -> set[int]:
        return {job["id"] for job in (await ada.get("/jobs", params=filters)).json()["items"]}

    assert await found() == {later, trip, mine}
    assert await found(state="queued") == {mine}
    assert await found(state=["queued", "scheduled"]) == {later, mine}
    assert await found(kind="trip") == {trip}
    assert await found(kind=["trip", "self_test"]) == {later, trip, mine}
    assert await found(lane="travel") == {trip}
    assert await found(submitted_by="curator") == {mine}
    assert await found(lane="nowhere") == set()
    assert (await ada.get("/jobs", params={"state": "tired"})).status_code == 422


async def test_pages_have_every_job_once_while_more_come_in_and_others_end(
    site: Site, operator: httpx2.AsyncClient
) -> None:
    there = [await put(operator) for _ in range(9)]
    await drain(site.engine)
    there += [await put(operator) for _ in range(8)]
    seen: list[int] = []
    before: dict[str, int] = {}
    while True:
        page = (await operator.get("/jobs", params={"limit": 4, **before})).json()
        seen += [job["id"] for job in page["items"]]
        if page["next"] is None:
            break
        before = {"before": page["next"]}
        await put(operator)
        # From the live jobs to the ended ones: it must not be lost between the two.
        await operator.post(f"/jobs/{there[-len(seen) - 1]}/cancel") if len(seen) < 8 else None
    assert seen == sorted(there, reverse=True)


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "before=0", "before=x", f"before={2**63}", "lane=%00"])
async def test_a_page_that_makes_no_sense_is_refused(operator: httpx2.AsyncClient, query: str) -> None:
    assert (await operator.get(f"/jobs?{query}")).status_code == 422


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""), ("GET", "/events"), ("POST", "/approve"), ("POST", "/reject"), ("POST", "/cancel"),
        ("POST", "/retry"), ("PATCH", "/priority"),
    ],
)  # fmt: skip
async def test_a_job_that_is_not_there_is_not_found(operator: httpx2.AsyncClient, method: str, path: str) -> None:
    answer = await operator.request(method, f"/jobs/4711{path}", json={"priority": 1} if method == "PATCH" else None)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert (await operator.request(method, f"/jobs/{2**63}{path}")).status_code == 422


async def test_a_traceback_is_for_those_who_see_workers(site: Site) -> None:
    contributor, operator = await site.client("contributor"), await site.client("platform_admin")
    job = await put(contributor, payload={"fail": True}, max_attempts=1)
    await drain(site.engine)
    for path in (f"/jobs/{job}", "/jobs"):
        assert "Traceback" in (await operator.get(path)).text
        shown = (await contributor.get(path)).text
        assert "Traceback" not in shown
        assert '"error_detail":null' in shown
    assert (await contributor.get(f"/jobs/{job}")).json()["error_summary"]
    assert "Traceback" not in "".join(await rewritten(site, job))


# Approval


async def test_a_job_that_asks_for_approval_shows_its_cost_and_waits(site: Site, handlers: Handlers) -> None:
    contributor, curator = await site.client("contributor"), await site.client("curator")
    job = await put(contributor, "trip", payload={"miles": 21})
    shown = (await contributor.get(f"/jobs/{job}")).json()
    assert (shown["state"], shown["estimate"]) == ("awaiting_approval", {"cost": 42})
    assert (await contributor.post(f"/jobs/{job}/approve")).status_code == 403
    approved = (await curator.post(f"/jobs/{job}/approve", headers={"X-Request-Id": "yes"})).json()
    assert (approved["state"], approved["approved_by"]) == ("queued", "curator")
    again = await curator.post(f"/jobs/{job}/approve")
    assert (again.status_code, again.json()["code"]) == (409, "illegal_transition")
    await drain(site.engine)
    assert (await contributor.get(f"/jobs/{job}")).json()["result"] == 21


async def test_a_rejected_job_is_cancelled(site: Site, handlers: Handlers) -> None:
    contributor, curator = await site.client("contributor"), await site.client("curator")
    job = await put(contributor, "trip", payload={"miles": 1})
    rejected = (await curator.post(f"/jobs/{job}/reject")).json()
    assert (rejected["state"], rejected["reason"]) == ("cancelled", "rejected")
    assert (await curator.post(f"/jobs/{job}/approve")).status_code == 409
    assert (await curator.post(f"/jobs/{await put(curator)}/reject")).status_code == 409


async def test_approval_along_the_way_needs_the_permission(site: Site, handlers: Handlers) -> None:
    body = {"kind": "trip", "payload": {"miles": 1}, "auto_approve": True}
    contributor, curator = await site.client("contributor"), await site.client("curator")
    assert (await contributor.post("/jobs", json=body)).status_code == 403
    assert (await contributor.get("/jobs")).json()["items"] == []
    made = (await curator.post("/jobs", json=body)).json()
    shown = (await curator.get(f"/jobs/{made['id']}")).json()
    assert (shown["state"], shown["approved_by"]) == ("queued", "curator")


# Changed


async def test_a_queued_job_is_cancelled_at_once(site: Site) -> None:
    client = await site.client("contributor")
    job = await put(client)
    done = (await client.post(f"/jobs/{job}/cancel", json={"reason": "no longer needed"})).json()
    assert (done["state"], done["reason"]) == ("cancelled", "no longer needed")
    again = await client.post(f"/jobs/{job}/cancel")
    assert (again.status_code, "cancelled" in again.json()["detail"]) == (409, True)


async def test_a_running_job_is_told_to_stop(site: Site, handlers: Handlers) -> None:
    client = await site.client("contributor")
    job = await put(client, "long")
    async with working(site.engine):
        await is_in(client, job, "running")
        told = (await client.post(f"/jobs/{job}/cancel")).json()
        assert told["state"] in ("running", "cancelled")
        await is_in(client, job, "cancelled")
    assert (await client.get(f"/jobs/{job}")).json()["reason"] == "cancelled by contributor"


async def test_a_finished_job_is_retried_as_a_new_one(site: Site) -> None:
    client = await site.client("contributor")
    job = await put(client, payload={"steps": 2}, priority=-3)
    assert (await client.post(f"/jobs/{job}/retry")).status_code == 409
    await drain(site.engine)
    retried = await client.post(f"/jobs/{job}/retry")
    assert (retried.status_code, retried.headers["location"]) == (201, f"/jobs/{retried.json()['id']}")
    shown = (await client.get(retried.headers["location"])).json()
    assert (shown["retry_of"], shown["priority"], shown["submitted_by"]) == (job, -3, "contributor")
    assert shown["state"] == "queued"


async def test_the_priority_changes_until_the_job_runs(site: Site) -> None:
    curator = await site.client("curator")
    job = await put(curator)
    assert (await curator.patch(f"/jobs/{job}/priority", json={"priority": 9})).json()["priority"] == 9
    for wrong in ({"priority": 40000}, {"priority": None}, {}, {"priority": 1, "x": 1}):
        assert (await curator.patch(f"/jobs/{job}/priority", json=wrong)).status_code == 422
    await drain(site.engine)
    assert (await curator.patch(f"/jobs/{job}/priority", json={"priority": 1})).status_code == 409


async def test_the_jobs_of_others_are_for_those_who_manage_jobs(site: Site) -> None:
    await site.client("contributor")
    await site.services.people.make_user(KAPPA, "bob", roles=["contributor"])
    made = await site.services.credentials.make_token(KAPPA, "t", user="bob", user_permissions=frozenset())
    bob, ada, curator = (
        await site.client(token=made.secret),
        await site.client("contributor"),
        await site.client("curator"),
    )
    job, ended = await put(ada), await put(ada)
    await curator.post(f"/jobs/{ended}/cancel")
    assert (await bob.post(f"/jobs/{job}/cancel")).status_code == 403
    assert (await bob.post(f"/jobs/{ended}/retry")).status_code == 403
    assert await state(ada, job) == "queued"
    assert (await curator.patch(f"/jobs/{job}/priority", json={"priority": 2})).status_code == 200
    assert (await curator.post(f"/jobs/{ended}/retry")).status_code == 201
    assert (await curator.post(f"/jobs/{job}/cancel")).status_code == 200


async def test_what_people_do_with_jobs_is_written_down(site: Site, handlers: Handlers) -> None:
    operator = await site.client("platform_admin")
    trips = [await put(operator, "trip", payload={"miles": 1}) for _ in range(2)]
    acts: list[tuple[str, int, str, str, Any]] = [
        ("job.approve", trips[0], "POST", "approve", None),
        ("job.reject", trips[1], "POST", "reject", None),
        ("job.prioritise", trips[0], "PATCH", "priority", {"priority": 3}),
        ("job.cancel", trips[0], "POST", "cancel", {"reason": "rain"}),
        ("job.retry", trips[0], "POST", "retry", None),
    ]
    for action, job, method, path, body in acts:
        done = await operator.request(method, f"/jobs/{job}/{path}", json=body, headers={"X-Request-Id": path})
        assert done.is_success, done.text
        entry = (await operator.get("/audit", params={"limit": 1})).json()["items"][0]
        assert (entry["action"], entry["target"], entry["request_id"]) == (action, str(job), path)
    assert (await operator.post(f"/jobs/{trips[1]}/cancel")).status_code == 409
    assert (await operator.get("/audit", params={"limit": 1})).json()["items"][0]["action"] == "job.retry"


# Watched


class Stream:
    """An event stream of the application, event by event, without a server between."""

    def __init__(self, site: Site, job: int, token: str, method: str = "GET") -> None:
        self._sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._asked = False
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
            "method": method, "path": f"/jobs/{job}/events", "raw_path": b"", "root_path": "", "query_string": b"",
            "scheme": "http", "headers": [(b"authorization", f"Bearer {token}".encode())],
            "client": ("127.0.0.1", 1), "server": ("kappa.test", 80),
        }  # fmt: skip
        self.task = asyncio.create_task(site.app(scope, self._receive, self._sent.put))

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def message(self) -> dict[str, Any]:
        async with asyncio.timeout(30):
            return await self._sent.get()

    async def event(self) -> tuple[str, Any] | None:
        """The next event, or None at the end."""
        while True:
            message = await self.message()
            if message["type"] == "http.response.start":
                assert message["status"] == 200
                continue
            if not message.get("more_body"):
                return None
            lines = dict(line.split(": ", 1) for line in message["body"].decode().strip().splitlines())
            return lines["event"], json.loads(lines["data"])

    async def close(self) -> None:
        self._gone.set()
        await self.task


async def test_a_stream_shows_the_job_at_once_and_ends_with_it(site: Site, handlers: Handlers) -> None:
    client = await site.client("contributor")
    job = await put(client, "long")
    stream = Stream(site, job, await site.token("contributor"))
    first = await stream.event()
    assert first is not None
    assert (first[0], first[1]["state"]) == ("job", "queued")
    states: list[str] = []
    async with working(site.engine):
        while (event := await stream.event()) is not None:
            states.append(event[1]["state"])
            if event[1]["progress"]:
                handlers.go.set()
    assert states[0] == "running"
    assert states[-1] == "succeeded"
    await stream.task


async def test_a_stream_of_an_ended_job_shows_it_and_ends(site: Site) -> None:
    client = await site.client("contributor")
    job = await put(client)
    await client.post(f"/jobs/{job}/cancel")
    event, end = await rewritten(site, job)
    assert ('"state":"cancelled"' in event, end) == (True, "")
    answer = await client.get(f"/jobs/{job}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")


async def test_a_watcher_who_leaves_is_forgotten(site: Site) -> None:
    client = await site.client("contributor")
    stream = Stream(site, await put(client), await site.token("contributor"))
    await stream.event()
    await becomes(lambda: bool(site.services.watchtower._watchers))
    await stream.close()
    await becomes(lambda: not site.services.watchtower._watchers)


class Counting(AsyncClient):
    """A client that counts its looks at many jobs."""

    looks: list[list[int]]

    async def show_many(self, job_ids: Sequence[int]) -> list[Job]:
        self.looks.append(sorted(job_ids))
        return await super().show_many(job_ids)


async def test_one_statement_looks_for_however_many_watch(site: Site) -> None:
    operator = await site.client("platform_admin")
    jobs = [await put(operator) for _ in range(3)]
    async with Counting(site.engine.database, site.engine.registry) as client:
        client.looks = []
        tower = Watchtower(client, every=0.2)
        seen: list[Job] = []

        async def watch(job: int) -> None:
            async for news in tower.watch(job):
                seen.append(news)  # noqa: PERF401 - others look at it meanwhile

        watching = [asyncio.create_task(watch(job)) for job in jobs for _ in range(20)]
        await becomes(lambda: len(seen) == 60 and client.looks and client.looks[-1] == sorted(jobs))
        looked = len(client.looks)
        for job in jobs:
            await client.cancel(job)
        await asyncio.wait_for(asyncio.gather(*watching), 30)
        assert sum(job.state is JobState.CANCELLED for job in seen) == 60
        # Between the cancellations and the last word to sixty watchers lie some looks, not sixty.
        assert len(client.looks) - looked < 60
        assert all(len(set(look)) == len(look) <= 3 for look in client.looks)
        await tower.close()


async def test_a_server_that_drains_ends_a_quiet_stream(site: Site) -> None:
    client = await site.client("contributor")
    stream = Stream(site, await put(client), await site.token("contributor"))
    await stream.event()
    site.guard.drain()
    last = await stream.event()
    assert last is not None
    assert last[0] == "draining"
    assert await stream.event() is None


async def test_a_server_that_drains_ends_a_stream_that_is_never_quiet(site: Site, handlers: Handlers) -> None:
    client = await site.client("contributor")
    job = await put(client, "long")
    async with working(site.engine):
        stream = Stream(site, job, await site.token("contributor"))
        await is_in(client, job, "running")
        site.guard.drain()
        names: list[str] = []
        while (event := await stream.event()) is not None and len(names) < 10:
            names.append(event[0])
        handlers.go.set()
        assert names[-1] == "draining"
        await stream.close()


async def test_head_of_a_stream_ends_at_once(site: Site) -> None:
    client = await site.client("contributor")
    stream = Stream(site, await put(client), await site.token("contributor"), "HEAD")
    assert (await stream.message())["status"] == 200
    try:
        body = await stream.message()
        assert (body.get("body", b""), body.get("more_body", False)) == (b"", False)
        await asyncio.wait_for(asyncio.shield(stream.task), 10)
    finally:
        await stream.close()


async def test_an_approval_is_not_one_for_every_retry(site: Site) -> None:
    site.engine.job("costly", approval=True)(lambda ctx: None)
    site.engine.lane(Lane("costly_lane", kinds=("costly",)))
    await asyncio.to_thread(site.engine.install)
    contributor, curator = await site.client("contributor"), await site.client("curator")
    made = (await contributor.post("/jobs", json={"kind": "costly"})).json()["id"]
    assert (await curator.post(f"/jobs/{made}/approve")).json()["state"] == "queued"
    await curator.post(f"/jobs/{made}/cancel")
    again = (await contributor.post(f"/jobs/{made}/retry")).json()["id"]
    assert (await contributor.get(f"/jobs/{again}")).json()["state"] == "awaiting_approval"
    allowed = (await curator.post(f"/jobs/{made}/retry")).json()["id"]
    assert (await curator.get(f"/jobs/{allowed}")).json()["state"] == "queued"
