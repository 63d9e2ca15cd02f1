"""One person's requests don't keep others waiting: priority, live jobs, kept uploads, questions at once."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx2
import psycopg
import pytest

from kappa.app.api import application
from kappa.app.api.ingest_schemas import UPLOADS
from kappa.app.permissions import Permission
from kappa.app.settings import Settings
from kappa.app.usecases.ingest import Ingestions
from kappa.app.usecases.jobs import Jobs
from kappa.app.usecases.limits import LIVE_JOBS, LiveJobs
from kappa.app.usecases.principal import Principal
from kappa.app.usecases.questions import Asking
from kappa.app.usecases.turns import CALLER, Turns
from kappa.app.web import site as pages
from kappa.graph import Answer
from tests.app.conftest import KAPPA, Site
from tests.app.patience import becomes
from tests.ground import PATIENCE

Connection = psycopg.Connection[tuple[Any, ...]]

LATER = {"kind": "self_test", "delay": 3600}
NOTHING = Answer(0, True, (), "snapshot")


# Priority


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/jobs", {"kind": "self_test", "priority": 1}),
        ("/ingest", {"ontology": "notes", "text": "Otters eat fish.", "priority": 1}),
        ("/tools/nothing/runs", {"priority": 1}),
    ],
    ids=["job", "ingestion", "tool run"],
)
async def test_a_priority_above_zero_needs_the_permission(site: Site, path: str, body: dict[str, Any]) -> None:
    contributor, curator = await site.client("contributor"), await site.client("curator")
    refused = await contributor.post(path, json=body)
    assert refused.status_code == 403, refused.text
    assert "jobs:prioritise" in refused.json()["detail"]
    assert (await contributor.post(path, json=body | {"priority": -1})).status_code != 403
    assert (await curator.post(path, json=body)).status_code != 403


async def test_to_retry_what_somebody_else_made_urgent_needs_the_permission(site: Site, connection: Connection) -> None:
    contributor, curator = await site.client("contributor"), await site.client("curator")
    made = (await contributor.post("/jobs", json=LATER)).json()["id"]
    assert (await curator.patch(f"/jobs/{made}/priority", json={"priority": 5})).status_code == 200
    assert (await contributor.post(f"/jobs/{made}/cancel")).status_code == 200
    refused = await contributor.post(f"/jobs/{made}/retry")
    assert (refused.status_code, "jobs:prioritise" in refused.json()["detail"]) == (403, True)
    assert (await curator.post(f"/jobs/{made}/retry")).status_code == 201


async def test_an_urgent_schedule_needs_the_permission(site: Site) -> None:
    await site.services.people.put_role(
        KAPPA, "planner", ["account:use", "jobs:enqueue", "schedules:view", "schedules:manage"]
    )
    await site.services.people.make_user(KAPPA, "planner", roles=["planner"])
    made = await site.services.credentials.make_token(KAPPA, "test", user="planner", user_permissions=frozenset())
    planner, operator = await site.client(token=made.secret), await site.client()
    plan = {"name": "often", "cron": "0 3 * * *", "kind": "self_test", "priority": 1}
    assert (await planner.post("/schedules", json=plan)).status_code == 403
    assert (await planner.post("/schedules", json=plan | {"priority": 0})).status_code == 201
    assert (await planner.patch("/schedules/often", json={"priority": 1})).status_code == 403
    assert (await operator.patch("/schedules/often", json={"priority": 1})).status_code == 200
    assert (await planner.patch("/schedules/often", json={"cron": "* * * * *"})).status_code == 403
    assert (await planner.post("/schedules/often/run")).status_code == 403
    assert (await planner.patch("/schedules/often", json={"enabled": False})).status_code == 200


# Live jobs


def ingestions(site: Site, settings: Settings, live: LiveJobs) -> Ingestions:
    made = Ingestions(site.services.client, site.services.graph, settings, live)
    site.stack.callback(made.close)
    return made


async def limited(site: Site, most: int) -> Callable[[str], Awaitable[httpx2.AsyncClient]]:
    """The same server with room for few live jobs of each person."""
    live = LiveJobs(site.services.client, most)
    services = replace(
        site.services, jobs=Jobs(site.services.client, live), ingestions=ingestions(site, site.services.settings, live)
    )
    app = application.build(services, site.guard, pages.beside(services), pages.large)
    return replace(site, app=app).client


async def test_who_has_many_live_jobs_is_told_to_wait_and_others_are_not(site: Site) -> None:
    client = await limited(site, 3)
    contributor, curator, operator = [await client(role) for role in ("contributor", "curator", "platform_admin")]
    ids = [(await contributor.post("/jobs", json=LATER)).json()["id"] for _ in range(3)]
    refused = await contributor.post("/jobs", json=LATER)
    assert refused.status_code == 429
    assert refused.json()["detail"].startswith("contributor has 3 jobs that are not over")
    assert int(refused.headers["retry-after"]) > 0
    sent = await contributor.post("/ingest", json={"ontology": "notes", "text": "Otters eat fish."})
    assert sent.status_code == 429
    assert (await curator.post("/jobs", json=LATER)).status_code == 201
    assert [(await operator.post("/jobs", json=LATER)).status_code for _ in range(5)] == [201] * 5
    assert (await contributor.post(f"/jobs/{ids[0]}/cancel")).status_code == 200
    assert (await contributor.post("/jobs", json=LATER)).status_code == 201
    assert (await contributor.post(f"/jobs/{ids[0]}/retry")).status_code == 429


async def test_a_retry_counts_for_whom_it_is_made(site: Site, connection: Connection) -> None:
    client = await limited(site, 3)
    contributor, curator = await client("contributor"), await client("curator")
    job = (await contributor.post("/jobs", json=LATER)).json()["id"]
    assert (await contributor.post(f"/jobs/{job}/cancel")).status_code == 200
    answers = [await curator.post(f"/jobs/{job}/retry") for _ in range(4)]
    assert [answer.status_code for answer in answers] == [201, 201, 201, 429]
    assert answers[-1].json()["detail"].startswith("contributor has 3 jobs that are not over")
    assert (await curator.post("/jobs", json=LATER)).status_code == 201


async def test_the_documents_of_one_submission_are_one_job_to_the_limit(site: Site, connection: Connection) -> None:
    contributor = await (await limited(site, 2))("contributor")
    parent = (await contributor.post("/jobs", json=LATER)).json()["id"]
    connection.execute(
        "INSERT INTO kappa.jobs (lane, kind, state, submitted_by, parent_id, spawn_key) "
        "SELECT 'system', 'self_test', 'queued', 'contributor', %s, n::text FROM generate_series(1, 5) AS n",
        [parent],
    )
    assert (await contributor.post("/jobs", json=LATER)).status_code == 201
    assert (await contributor.post("/jobs", json=LATER)).status_code == 429


async def test_many_requests_at_once_make_no_more_jobs_than_are_allowed(site: Site, connection: Connection) -> None:
    contributor = await (await limited(site, 5))("contributor")
    answers = await asyncio.gather(*(contributor.post("/jobs", json=LATER) for _ in range(40)))
    assert {answer.status_code for answer in answers} == {201, 429}
    assert connection.execute("SELECT count(*) FROM kappa.jobs").fetchone() == (5,)


async def test_what_one_person_has_is_counted_without_a_look_at_what_others_have(
    site: Site, connection: Connection
) -> None:
    connection.execute(
        "INSERT INTO kappa.jobs (lane, kind, state, submitted_by) "
        "SELECT 'system', 'self_test', 'queued', 'user ' || n % 500 FROM generate_series(1, 20000) AS n"
    )
    connection.execute("ANALYZE kappa.jobs")
    plan = connection.execute(b"EXPLAIN " + LIVE_JOBS.sql, {"name": "user 7", "most": 1000}).fetchall()
    assert any("jobs_submitter" in line for (line,) in plan), plan


async def test_a_self_test_of_an_hour_is_refused(site: Site) -> None:
    contributor = await site.client("contributor")
    refused = await contributor.post("/jobs", json={"kind": "self_test", "payload": {"seconds": 3600}})
    assert refused.status_code == 422


# Uploads


async def test_what_one_person_has_uploaded_is_bounded(site: Site, connection: Connection) -> None:
    settings = site.services.settings.model_copy(update={"max_kept_uploads": 40})
    live = LiveJobs(site.services.client, 10)
    services = replace(site.services, ingestions=ingestions(site, settings, live))
    small = replace(site, app=application.build(services, site.guard, pages.beside(services), pages.large))
    contributor, curator = await small.client("contributor"), await small.client("curator")

    async def upload(client: httpx2.AsyncClient, name: str) -> httpx2.Response:
        return await client.post(UPLOADS, params={"name": name}, content=f"{name}: otters eat fish.\n".encode())

    assert (await upload(contributor, "a.txt")).status_code == 201
    assert (await upload(contributor, "a.txt")).status_code == 201, "the same file again takes no more"
    refused = await upload(contributor, "b.txt")
    assert (refused.status_code, refused.json()["code"]) == (413, "quota_exceeded")
    assert "KAPPA_MAX_KEPT_UPLOADS" in refused.json()["detail"]
    assert connection.execute("SELECT count(*) FROM kappa_graph.uploads").fetchone() == (1,)
    assert [(await upload(curator, f"{n}.txt")).status_code for n in range(3)] == [201] * 3


# Questions


async def test_places_go_round_the_names_and_nobody_has_more_than_a_share() -> None:
    turns = Turns(4, 2)
    ada = [turns.enter("ada") for _ in range(5)]
    assert [place.done() for place in ada] == [True, True, False, False, False]
    bob = [turns.enter("bob") for _ in range(3)]
    assert [place.done() for place in bob] == [True, True, False]
    turns.give_up("ada", ada[2])
    turns.leave("bob")
    assert bob[2].done()
    assert not ada[3].done()
    eve = turns.enter("eve")
    turns.leave("ada")
    assert (ada[3].done(), eve.done()) == (True, False), "whoever waited first"
    turns.leave("ada")
    assert (ada[4].done(), eve.done()) == (False, True), "and then the next one"
    for name, count in (("ada", 1), ("bob", 2), ("eve", 1)):
        for _ in range(count):
            turns.leave(name)
    assert ada[4].done()
    turns.give_up("ada", ada[4])
    assert [turns.enter(name).done() for name in "abcde"] == [True, True, True, True, False]


async def test_fifty_questions_of_one_person_leave_room_for_anothers(site: Site) -> None:
    free, began = threading.Event(), 0

    def held(asking: Asking) -> Answer:
        nonlocal began
        began += 1
        assert free.wait(PATIENCE)
        return NOTHING

    async def ask(name: str, act: Callable[[Asking], Answer]) -> bool:
        CALLER.set(Principal(1, name, frozenset({Permission.GRAPH_READ})))
        return await site.services.graph.ask("neighbors", act, lambda answer: answer.complete, deadline=60)

    share = site.services.settings.questions_per_person
    asked = [asyncio.create_task(ask("ada", held)) for _ in range(50)]
    try:
        await becomes(lambda: began == share)
        assert await asyncio.create_task(ask("bob", lambda _: NOTHING))
        assert began == share
    finally:
        free.set()
    assert all(await asyncio.gather(*asked))


async def test_a_question_over_http_counts_for_whoever_asks(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    enter = Turns.enter

    def noted(self: Turns, name: str) -> asyncio.Future[None]:
        seen.append(name)
        return enter(self, name)

    monkeypatch.setattr(Turns, "enter", noted)
    reader = await site.client("read_only")
    assert (await reader.get("/graph/ontologies")).status_code == 200
    assert seen == ["read_only"]
