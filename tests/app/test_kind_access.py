"""Who may have a job of which kind made, by every way to one: enqueued, retried, approved, scheduled, run now."""

import re
import secrets
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import psycopg
import pytest

from kappa.app.kinds.access import ACCESS
from kappa.app.permissions import ROLES, Permission
from kappa.engine import Engine, JobContext, Lane, tools
from kappa.engine.testing import drain
from kappa.graph import Graph
from kappa.graph.store import ontologies, proposals
from tests.app.conftest import KAPPA, Site, Up
from tests.app.person import Person
from tests.app.test_api_middleware import check_problem
from tests.app.test_api_people import entries
from tests.app.test_api_permissions import ROUTES
from tests.app.test_mcp import agent, refusal
from tests.app.test_web import visitor
from tests.app.worlds import populate

Connection = psycopg.Connection[tuple[Any, ...]]

EVERYBODY = frozenset(ROLES)
CONTRIBUTORS = EVERYBODY - {"read_only"}
CURATORS = CONTRIBUTORS - {"contributor"}
OPERATORS = frozenset({"platform_admin"})
MAY_MAKE: dict[str, frozenset[str]] = {
    "self_test": CONTRIBUTORS,
    "projection": CONTRIBUTORS,
    "polarity": CONTRIBUTORS,
    "ingestion": CONTRIBUTORS,
    "ingest_image": CONTRIBUTORS,
    "source_embedding": CURATORS,
    "vocab_refresh": CURATORS,
    "vocab_consolidate": CURATORS,
    "epistemic_remeasurement": CURATORS,
    "ontology_annealing": CURATORS,
    "proposal_execution": CURATORS,
    "artifact_cleanup": OPERATORS,
    "restore": OPERATORS,
    "tool_run": CONTRIBUTORS,
}
"""By hand: who may, if there is a way at all. What the code declares is held against it."""
REQUESTED = {"proposal_execution", "restore", "tool_run"}
"""Kinds whose jobs one request makes, and nothing else from outside."""
APPROVED = {"ingestion", "ingest_image", "vocab_consolidate", "artifact_cleanup"}

_numbers = count(1)


async def put_upload(site: Site, owner: str) -> UUID:
    """A file that somebody handed in."""
    key = uuid4()
    async with site.services.client.transaction() as connection:
        await connection.execute(
            "INSERT INTO kappa_graph.uploads (key, owner, name, sha256, size, media_type, bytes, words, chunks,"
            " ocr_pages, expires_at) VALUES (%s, %s, 'a.txt', %s, 5, 'text/plain', 'otter', 1, 1, 0,"
            " now() + interval '1 day')",
            [key, owner, secrets.token_bytes(32)],
        )
    return key


async def payload_of(site: Site, kind: str, owner: str) -> Any:
    """What a job of this kind takes; what it names is the owner's."""
    match kind:
        case "ingestion" | "ingest_image":
            return {"upload": str(await put_upload(site, owner)), "ontology": "zoology"}
        case "polarity":
            return {"positive": "River", "negative": "Sea"}
        case "proposal_execution":
            return {"proposal": 1}
        case "restore":
            return {"file": 1, "mode": "replace"}
        case "tool_run":
            return {"run_id": 1}
        case _:
            return {}


async def planner(site: Site, role: str) -> httpx2.AsyncClient:
    """Somebody with a role who may also make schedules."""
    name = f"{role}_planner"
    if name not in site.tokens:
        await site.services.people.put_role(
            KAPPA, name, [*ROLES[role], Permission.SCHEDULES_MANAGE, Permission.SCHEDULES_VIEW]
        )
    return await site.client(name)


async def only(site: Site, *permissions: Permission) -> httpx2.AsyncClient:
    """Somebody who has these permissions and no others."""
    name = f"only-{next(_numbers)}"
    await site.services.people.put_role(KAPPA, name, permissions)
    return await site.client(name)


async def ended(site: Site, kind: str, owner: str) -> int:
    """A job of somebody's that is over."""
    payload = await payload_of(site, kind, owner)
    made = await site.services.client.enqueue(kind, payload, submitted_by=owner, auto_approve="somebody")
    await site.services.client.cancel(made.id)
    return made.id


def as_expected(status: int, role: str, kind: str, *also: Permission) -> bool:
    """Whether an answer is right, where the way asks for these permissions too."""
    if role not in MAY_MAKE[kind] or not ROLES[role] >= set(also):
        return status == 403
    return status == 422 if kind in REQUESTED else status == 201


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_enqueues_the_kinds_that_it_may_and_no_others(site: Site, role: str) -> None:
    client = await site.client(role)
    wrong: list[tuple[str, int]] = []
    for kind in MAY_MAKE:
        body = {"kind": kind, "payload": await payload_of(site, kind, role)}
        status = (await client.post("/jobs", json=body)).status_code
        if not as_expected(status, role, kind, Permission.JOBS_ENQUEUE):
            wrong.append((kind, status))
    assert wrong == []


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_retries_the_kinds_that_it_may_enqueue(site: Site, role: str) -> None:
    client = await site.client(role)
    wrong: list[tuple[str, int]] = []
    for kind in MAY_MAKE:
        status = (await client.post(f"/jobs/{await ended(site, kind, role)}/retry")).status_code
        if not as_expected(status, role, kind, Permission.JOBS_RETRY):
            wrong.append((kind, status))
    assert wrong == []


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_schedules_the_kinds_that_it_may_enqueue(
    site: Site, operator: httpx2.AsyncClient, role: str
) -> None:
    client, owner = await planner(site, role), f"{role}_planner"
    wrong: list[tuple[str, str, int]] = []
    for kind in MAY_MAKE:
        asks = (Permission.JOBS_ENQUEUE, *([Permission.JOBS_APPROVE] if kind in APPROVED else []))
        schedule = {"cron": "0 3 * * *", "kind": kind, "payload": await payload_of(site, kind, owner)}
        added = await client.post("/schedules", json={"name": f"add-{kind}", **schedule})
        harmless = {"name": f"edit-{kind}", "cron": "0 3 * * *", "kind": "self_test", "payload": {}}
        (await operator.post("/schedules", json=harmless)).raise_for_status()
        edited = await client.patch(f"/schedules/edit-{kind}", json=schedule)
        status = 201 if edited.status_code == 200 else edited.status_code
        wrong += [
            (how, kind, status)
            for how, status in (("add", added.status_code), ("edit", status))
            if not as_expected(status, role, kind, *asks)
        ]
        if edited.status_code != 200:
            assert (await operator.get(f"/schedules/edit-{kind}")).json()["kind"] == "self_test"
    assert wrong == []


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_runs_a_schedule_now_if_it_may_enqueue_its_kind(
    site: Site, connection: Connection, role: str
) -> None:
    client, owner = await planner(site, role), f"{role}_planner"
    wrong: list[tuple[str, int]] = []
    for kind in MAY_MAKE:
        payload = psycopg.types.json.Jsonb(await payload_of(site, kind, owner))
        connection.execute(
            "INSERT INTO kappa.schedules (name, cron, kind, payload, enabled) VALUES (%s, '0 3 * * *', %s, %s, false)",
            [f"run-{kind}", kind, payload],
        )
        ran = (await client.post(f"/schedules/run-{kind}/run")).status_code
        resumed = (await client.post(f"/schedules/run-{kind}/resume")).status_code
        asks = (Permission.JOBS_ENQUEUE, *([Permission.JOBS_APPROVE] if kind in APPROVED else []))
        if not as_expected(ran, role, kind, Permission.JOBS_ENQUEUE):
            wrong.append((f"run {kind}", ran))
        if not as_expected(201 if resumed == 200 else resumed, role, kind, *asks):
            wrong.append((f"resume {kind}", resumed))
    assert wrong == []


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_approves_the_kinds_that_it_may_enqueue(site: Site, role: str) -> None:
    client = await site.client(role)
    wrong: list[tuple[str, int]] = []
    for kind in sorted(APPROVED):
        payload = await payload_of(site, kind, "somebody")
        job = (await site.services.client.enqueue(kind, payload, submitted_by="somebody")).id
        status = (await client.post(f"/jobs/{job}/approve")).status_code
        allowed = role in MAY_MAKE[kind] and Permission.JOBS_APPROVE in ROLES[role]
        if status != (200 if allowed else 403):
            wrong.append((kind, status))
    assert wrong == []


async def test_a_kind_of_ones_own_asks_for_leave_to_enqueue(site: Site) -> None:
    site.engine.job("greet", approval=True)(lambda ctx: None)
    site.engine.lane(Lane("greetings", kinds=("greet", "elsewhere")))
    site.engine.install()
    contributor, curator = await site.client("contributor"), await site.client("curator")
    for kind in ("greet", "elsewhere"):
        assert (await (await site.client("read_only")).post("/jobs", json={"kind": kind})).status_code == 403
        assert (await contributor.post("/jobs", json={"kind": kind})).status_code == 201
    job = (await contributor.post("/jobs", json={"kind": "greet"})).json()["id"]
    assert (await curator.post(f"/jobs/{job}/approve")).status_code == 200


async def test_a_handler_may_spawn_what_nobody_may_enqueue(site: Site) -> None:
    def parent(ctx: JobContext) -> None:
        ctx.spawn("restore", {"file": 1, "mode": "replace"}, key="child")

    site.engine.job("parent")(parent)
    site.engine.lane(Lane("parents", kinds=("parent",)))
    site.engine.install()
    contributor = await site.client("contributor")
    assert (await contributor.post("/jobs", json={"kind": "parent"})).status_code == 201
    await drain(site.engine)
    (child,) = (await contributor.get("/jobs", params={"kind": "restore"})).json()["items"]
    assert child["error_summary"] == "the backup of this job is not there any more: restore it anew"
    assert (await contributor.post(f"/jobs/{child['id']}/retry")).status_code == 403


# What a payload names


async def test_nobody_ingests_the_upload_of_somebody_else(site: Site, operator: httpx2.AsyncClient) -> None:
    contributor, theirs = await site.client("contributor"), await put_upload(site, "somebody")
    mine = await put_upload(site, "contributor")
    job = await ended(site, "ingestion", "somebody")
    for body in (
        {"upload": str(theirs), "ontology": "zoology"},
        {"uploads": [str(mine), str(theirs)], "ontology": "zoology"},
        {"upload": str(uuid4()), "ontology": "zoology"},
    ):
        refused = await contributor.post("/jobs", json={"kind": "ingestion", "payload": body})
        problem = check_problem(refused)
        assert (refused.status_code, problem["detail"].startswith("there is no upload")) == (404, True)
        scheduled = {"name": "theirs", "cron": "0 3 * * *", "kind": "ingestion", "payload": body}
        assert (await (await planner(site, "contributor")).post("/schedules", json=scheduled)).status_code in (403, 404)
    # As with documents that are submitted: whoever manages the jobs of others may use what others uploaded.
    body = {"kind": "ingestion", "payload": {"upload": str(theirs), "ontology": "zoology"}}
    curator = await site.client("curator")
    assert (await curator.post("/jobs", json=body)).status_code == 201
    assert (await curator.post(f"/jobs/{job}/retry")).status_code == 201
    found = (await operator.get("/jobs", params={"submitted_by": "contributor"})).json()["items"]
    assert found == []


async def test_a_schedule_names_only_uploads_that_its_maker_may_use(site: Site, operator: httpx2.AsyncClient) -> None:
    maker = await only(
        site, Permission.SCHEDULES_MANAGE, Permission.JOBS_ENQUEUE, Permission.JOBS_APPROVE, Permission.GRAPH_INGEST
    )
    payload = {"upload": str(await put_upload(site, "somebody")), "ontology": "zoology"}
    wanted = {"name": "theirs", "cron": "0 3 * * *", "kind": "ingestion", "payload": payload}
    assert (await maker.post("/schedules", json=wanted)).status_code == 404
    (await operator.post("/schedules", json={**wanted, "kind": "self_test", "payload": {}})).raise_for_status()
    changes = {"kind": "ingestion", "payload": payload}
    assert (await maker.patch("/schedules/theirs", json=changes)).status_code == 404
    assert (await operator.get("/schedules/theirs")).json()["kind"] == "self_test"


async def test_a_retry_of_ones_own_job_asks_again_whose_the_upload_is(site: Site) -> None:
    contributor, theirs = await site.client("contributor"), await put_upload(site, "somebody")
    payload = {"upload": str(theirs), "ontology": "zoology"}
    made = await site.services.client.enqueue("ingestion", payload, submitted_by="contributor")
    await site.services.client.cancel(made.id)
    assert (await contributor.post(f"/jobs/{made.id}/retry")).status_code == 404


async def test_an_approved_proposal_is_carried_out_by_those_who_curate(
    site: Site, operator: httpx2.AsyncClient
) -> None:
    await populate(operator)

    def propose(graph: Graph) -> None:
        with graph.transaction() as connection:
            number = ontologies.get(connection, "zoology").number
            proposals.add(connection, uuid4(), "rename", number, {"name": "zoology", "new_name": "animals"}, {}, 0)

    await site.services.graph.write(propose)
    (await operator.post("/graph/proposals/1/approve")).raise_for_status()
    contributor = await site.client("contributor")
    body = {"kind": "proposal_execution", "payload": {"proposal": 1}}
    assert (await contributor.post("/jobs", json=body)).status_code == 403
    problem = check_problem(await operator.post("/jobs", json=body))
    assert (problem["status"], "POST /graph/proposals/{proposal_id}/execute" in problem["detail"]) == (422, True)
    # A job of another kind with its key must not be taken for the one that carries it out.
    for key in ("proposal 1", "kappa:proposal 1", "ontology_annealing", "kappa:ontology_annealing"):
        await contributor.post("/jobs", json={"kind": "self_test", "delay": 3600, "dedup_key": key})
    for path in ("/graph/proposals/1/execute", "/graph/annealing"):
        answer = (await operator.post(path)).raise_for_status().json()
        assert answer["status"] == "created", path


# The audit log


async def test_what_changes_the_graph_for_all_is_written_down_by_whichever_way(
    site: Site, operator: httpx2.AsyncClient, connection: Connection
) -> None:
    curator = await site.client("curator")
    made = [
        (await curator.post("/jobs", json={"kind": "vocab_consolidate", "payload": {"target": 3}})).json()["id"],
        (await curator.post("/graph/annealing")).json()["id"],
    ]
    assert (await curator.post("/graph/annealing")).json()["status"] == "existing"
    await curator.post("/jobs", json={"kind": "self_test"})
    written = [
        (one["target"], one["who"], one["detail"]["kind"]) for one in reversed(await entries(operator, "job.enqueue"))
    ]
    assert written == [
        (str(made[0]), "curator", "vocab_consolidate"),
        (str(made[1]), "curator", "ontology_annealing"),
    ]
    connection.execute("ALTER TABLE kappa.audit ADD CHECK (action <> 'job.enqueue') NOT VALID")
    assert (await curator.post("/jobs", json={"kind": "vocab_refresh"})).status_code >= 400
    assert (await operator.get("/jobs", params={"kind": "vocab_refresh"})).json()["items"] == []


async def test_who_was_refused_a_job_is_written_down(site: Site, operator: httpx2.AsyncClient) -> None:
    contributor, theirs = await site.client("contributor"), await put_upload(site, "somebody")
    body = {"kind": "ingestion", "payload": {"upload": str(theirs), "ontology": "zoology"}}
    job = await ended(site, "vocab_refresh", "contributor")
    await contributor.post("/jobs", json={"kind": "ontology_annealing"})
    await contributor.post("/jobs", json=body)
    await contributor.post(f"/jobs/{job}/retry")
    await contributor.post("/jobs", json={"kind": "self_test", "payload": {"steps": "many"}})
    written = [
        (one["who"], one["target"], one["detail"]["wanted"])
        for one in reversed(await entries(operator, "access.refused"))
    ]
    assert written == [
        ("contributor", "ontology_annealing", "job.enqueue"),
        ("contributor", "ingestion", "job.enqueue"),
        ("contributor", str(job), "job.retry"),
    ]


# What is declared


def undeclared(engine: Engine) -> set[str]:
    """The kinds of an engine that say nothing of who may have their jobs made."""
    return set(engine.registry.kinds) - set(ACCESS)


def test_every_kind_of_kappa_declares_who_may_have_its_jobs_made(engine: Engine, home: Path) -> None:
    tools.install(engine, home, {}).close()
    assert undeclared(engine) == set()
    assert set(ACCESS) == set(MAY_MAKE) == set(engine.registry.kinds)
    with engine.client() as client:
        assert {kind for lane in client.lanes() for kind in lane.kinds} <= set(ACCESS)


def test_a_kind_that_declares_nothing_is_found(engine: Engine) -> None:
    engine.job("planted")(lambda ctx: None)
    assert undeclared(engine) == {"planted"}


def test_what_is_declared_is_what_each_role_is_meant_to_do() -> None:
    declared = {kind: {role for role in ROLES if access.permissions <= ROLES[role]} for kind, access in ACCESS.items()}
    assert declared == MAY_MAKE
    assert {kind for kind, access in ACCESS.items() if access.made_by} == REQUESTED


def test_the_requests_that_make_jobs_ask_for_what_their_kinds_ask_for() -> None:
    """A way that asks for less would be a way around."""
    asked = {route.label: route.permission for route in ROUTES}
    for kind in sorted(REQUESTED):
        requests = re.findall("`([^`]+)`", ACCESS[kind].made_by or "")
        assert requests
        assert {frozenset({asked[request]}) for request in requests} == {frozenset(map(str, ACCESS[kind].permissions))}


# The other doors


async def test_every_door_refuses_alike(up: Up) -> None:
    kg = Person(up.home)
    said = "jobs of kind 'restore' can't be enqueued, retried or scheduled: use `POST /restore`"
    assert kg.refused(1, "job", "enqueue", "restore", "--payload", '{"file": 1, "mode": "replace"}') == said
    assert kg.refused(1, "schedule", "add", "mine", "0 3 * * *", "restore") == said
    async with agent(up, "http") as client:
        assert await refusal(client, "enqueue_job", kind="restore", payload={"file": 1, "mode": "replace"}) == said
        assert await refusal(client, "add_schedule", name="mine", cron="0 3 * * *", kind="restore") == said
    assert kg.says("job", "enqueue", "self_test")["status"] == "created"


async def test_pages_offer_and_do_no_more_than_the_api(site: Site) -> None:
    curator = await visitor(site, "curator", "somebody")
    restore, cleanup = await ended(site, "restore", "curator"), await ended(site, "artifact_cleanup", "curator")
    waiting = (await site.services.client.enqueue("artifact_cleanup", {})).id
    mine = await ended(site, "self_test", "somebody")
    for job, doing in ((restore, "retry"), (cleanup, "retry"), (waiting, "approve")):
        target = f"/ui/jobs/{job}/{doing}"
        assert target not in (await curator.get(f"/ui/jobs/{job}")).text
        assert target not in (await curator.get("/ui/jobs")).text
        assert (await curator.post(target)).status_code == 403
    assert f"/ui/jobs/{waiting}/reject" in (await curator.get(f"/ui/jobs/{waiting}")).text
    assert f"/ui/jobs/{mine}/retry" in (await curator.get(f"/ui/jobs/{mine}")).text
    operator = await visitor(site, "platform_admin", "somebody-else")
    assert f"/ui/jobs/{waiting}/approve" in (await operator.get(f"/ui/jobs/{waiting}")).text
    assert f"/ui/jobs/{restore}/retry" not in (await operator.get(f"/ui/jobs/{restore}")).text
    assert (await operator.post(f"/ui/jobs/{restore}/retry")).status_code == 422
