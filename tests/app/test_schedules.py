"""Schedules through every door: API, command line, agents, pages."""

import asyncio
import html
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx2
import psycopg
import pytest

from kappa.app.permissions import Permission
from kappa.engine.schedule import next_due
from tests.app.conftest import KAPPA, Site, Up
from tests.app.patience import blocked
from tests.app.person import Person, served
from tests.app.test_api_middleware import check_problem
from tests.app.test_mcp import agent, call, refusal
from tests.app.test_web import Browser, fault, visitor
from tests.conftest import Server

Connection = psycopg.Connection[tuple[Any, ...]]
NIGHTLY = {
    "name": "nightly",
    "cron": "30 2 * * *",
    "kind": "self_test",
    "payload": {"steps": 3, "seconds": 0.0, "fail": False},
}


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def next_after_put(connection: Connection, name: str, cron: str, timezone: str) -> datetime:
    """When it is due first after it was put as it is."""
    row = connection.execute("SELECT since FROM kappa.schedules WHERE name = %s", [name]).fetchone()
    assert row is not None
    return next_due(cron, timezone, row[0])


async def made(client: httpx2.AsyncClient, **changes: Any) -> dict[str, Any]:
    answer = await client.post("/schedules", json=NIGHTLY | changes)
    assert answer.status_code == 201, answer.text
    return answer.json()


# The API


async def test_a_schedule_is_made_and_seen_with_its_next_times(
    operator: httpx2.AsyncClient, connection: Connection
) -> None:
    found = await made(operator, timezone="Europe/Berlin", priority=5, missed="skip")
    due = next_after_put(connection, "nightly", "30 2 * * *", "Europe/Berlin")
    assert moment(found["next_at"]) == due
    times = [moment(at) for at in found["next_times"]]
    assert times == [due, *(next_due("30 2 * * *", "Europe/Berlin", at) for at in times[:-1])]
    assert len(times) == 5
    wanted = {"payload": NIGHTLY["payload"], "priority": 5, "missed": "skip", "enabled": True, "is_declared": False}
    assert {name: found[name] for name in wanted} == wanted
    assert (await operator.get("/schedules/nightly")).json() == found
    listed = {one["name"]: one for one in (await operator.get("/schedules")).json()["items"]}
    assert listed["nightly"] == {name: value for name, value in found.items() if name != "next_times"}
    assert listed["artifact_cleanup"]["is_declared"]


async def test_schedules_are_listed_page_by_page(
    operator: httpx2.AsyncClient, admin: Browser, connection: Connection
) -> None:
    connection.execute(
        "INSERT INTO kappa.schedules (name, cron, kind) SELECT format('one-%s', n), '0 3 * * *', 'self_test'"
        " FROM generate_series(100, 349) n"
    )
    names = sorted(name for (name,) in connection.execute("SELECT name FROM kappa.schedules").fetchall())
    found: list[str] = []
    pages, after = 0, None
    while pages == 0 or after is not None:
        page = (await operator.get("/schedules", params={"after": after} if after else {})).raise_for_status().json()
        found += [one["name"] for one in page["items"]]
        pages, after = pages + 1, page["next"]
    assert (found, pages) == (names, 3)
    short = (await operator.get("/schedules?limit=2&after=one-100")).json()
    assert ([one["name"] for one in short["items"]], short["next"]) == (["one-101", "one-102"], "one-102")
    assert (await operator.get("/schedules?limit=501")).status_code == 422
    first = (await admin.get("/ui/schedules")).text
    assert "/ui/schedules/one-100" in first
    assert "/ui/schedules/one-349" not in first
    assert "/ui/schedules/one-349" in (await admin.get("/ui/schedules?after=one-348")).text


async def test_a_preview_of_what_is_rarely_due_looks_only_some_years_ahead(operator: httpx2.AsyncClient) -> None:
    found = await made(operator, cron="0 0 29 2 */7")  # a leap day that is a Sunday
    assert found["next_times"] == [found["next_at"]]


async def test_another_expression_or_time_zone_moves_the_next_time_at_once(
    operator: httpx2.AsyncClient, connection: Connection
) -> None:
    before = await made(operator)
    for changes in ({"cron": "0 4 1 * *"}, {"timezone": "Asia/Tokyo"}):
        after = (await operator.patch("/schedules/nightly", json=changes)).raise_for_status().json()
        assert moment(after["next_at"]) == next_after_put(connection, "nightly", after["cron"], after["timezone"])
        assert after["next_times"][0] == after["next_at"] != before["next_at"]
    same = (await operator.patch("/schedules/nightly", json={"payload": None, "priority": 2})).json()
    assert (same["payload"], same["priority"], same["next_at"]) == (None, 2, after["next_at"])


async def test_a_schedule_is_paused_and_resumed(operator: httpx2.AsyncClient, connection: Connection) -> None:
    await made(operator)
    paused = (await operator.post("/schedules/nightly/pause")).raise_for_status().json()
    assert (paused["enabled"], paused["next_at"], paused["next_times"]) == (False, None, [])
    resumed = (await operator.post("/schedules/nightly/resume")).raise_for_status().json()
    assert (resumed["enabled"], len(resumed["next_times"])) == (True, 5)
    assert moment(resumed["next_at"]) == next_after_put(connection, "nightly", "30 2 * * *", "UTC")


async def test_a_run_now_is_a_job_of_whoever_asked_and_moves_nothing(operator: httpx2.AsyncClient) -> None:
    before = await made(operator)
    run = await operator.post("/schedules/nightly/run")
    assert (run.status_code, run.headers["location"]) == (201, f"/jobs/{run.json()['id']}")
    job = (await operator.get(run.headers["location"])).json()
    assert (job["kind"], job["payload"], job["submitted_by"]) == ("self_test", NIGHTLY["payload"], "platform_admin")
    assert (await operator.get("/schedules/nightly")).json() == before


async def test_a_run_now_whose_audit_entry_can_not_be_written_is_no_job(
    operator: httpx2.AsyncClient, connection: Connection
) -> None:
    await made(operator)
    connection.execute("ALTER TABLE kappa.audit ADD CHECK (action <> 'schedule.run')")
    assert (await operator.post("/schedules/nightly/run")).status_code >= 400
    assert (await operator.get("/jobs")).json()["items"] == []


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"cron": "daily"}, "bad_schedule", "'daily' is not a cron expression: Wrong number of fields; it has five"),
        ({"cron": "61 * * * *"}, "bad_schedule", "Bad minute"),
        ({"timezone": "Mars/Olympus"}, "bad_schedule", "'Mars/Olympus': use a name such as UTC or Europe/Berlin"),
        ({"kind": "mystery"}, "unknown_kind", "kind 'mystery' is in no lane: add it to one, or use one of "),
        ({"payload": {"steps": "many"}}, "bad_payload", "'self_test' can't take this payload: steps: "),
        ({"missed": "never"}, "not_understood", "body.missed: "),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
async def test_what_can_not_be_is_refused_with_what_to_do_and_changes_nothing(
    operator: httpx2.AsyncClient, changes: dict[str, Any], code: str, says: str
) -> None:
    before = await made(operator)
    for answer in (
        await operator.patch("/schedules/nightly", json=changes),
        await operator.post("/schedules", json=NIGHTLY | changes | {"name": "other"}),
    ):
        problem = check_problem(answer)
        assert (answer.status_code, problem["code"]) == (422, code)
        assert says in problem["detail"]
    assert (await operator.get("/schedules/nightly")).json() == before
    assert (await operator.get("/schedules/other")).status_code == 404


async def test_a_name_that_is_taken_or_unknown_is_said(operator: httpx2.AsyncClient) -> None:
    await made(operator)
    again = await operator.post("/schedules", json=NIGHTLY | {"cron": "0 0 * * *"})
    assert (again.status_code, "'nightly' already" in check_problem(again)["detail"]) == (409, True)
    nothing = await operator.patch("/schedules/nightly", json={})
    assert (nothing.status_code, check_problem(nothing)["detail"].startswith("nothing to change")) == (422, True)
    for method, path in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/run")):
        body = {"json": {"cron": "0 0 * * *"}} if method == "PATCH" else {}
        answer = await operator.request(method, f"/schedules/weekly{path}", **body)
        assert (answer.status_code, check_problem(answer)["detail"]) == (404, "there is no schedule 'weekly'")


async def test_one_that_the_server_declares_can_be_paused_and_not_deleted(operator: httpx2.AsyncClient) -> None:
    await made(operator)
    assert (await operator.delete("/schedules/nightly")).status_code == 204
    assert (await operator.get("/schedules/nightly")).status_code == 404
    kept = await operator.delete("/schedules/artifact_cleanup")
    assert (kept.status_code, "pause it instead" in check_problem(kept)["detail"]) == (409, True)
    assert (await operator.post("/schedules/artifact_cleanup/pause")).status_code == 200


async def test_every_change_is_in_the_audit_log(operator: httpx2.AsyncClient) -> None:
    await made(operator)
    await operator.patch("/schedules/nightly", json={"cron": "0 0 * * *"})
    await operator.post("/schedules/nightly/pause")
    job = (await operator.post("/schedules/nightly/run")).json()["id"]
    await operator.delete("/schedules/nightly")
    entries = [one for one in (await operator.get("/audit")).json()["items"] if one["target"] == "nightly"]
    assert [(one["action"], one["who"]) for one in reversed(entries)] == [
        (f"schedule.{act}", "platform_admin") for act in ("add", "edit", "edit", "run", "delete")
    ]
    details = {one["id"]: one["detail"] for one in entries}.values()
    assert {"cron": "0 0 * * *"} in details
    assert {"enabled": False} in details
    assert {"job": job} in details


async def with_only(site: Site, *permissions: Permission) -> httpx2.AsyncClient:
    await site.token("platform_admin")
    everything = frozenset(map(str, Permission))
    token = await site.services.credentials.make_token(
        KAPPA, "narrow", user="platform_admin", user_permissions=everything, scopes=list(permissions)
    )
    return await site.client(token=token.secret)


async def test_who_may_not_enqueue_may_only_pause(site: Site, operator: httpx2.AsyncClient) -> None:
    await made(operator)
    narrow = await with_only(site, Permission.SCHEDULES_MANAGE)
    for method, path, body in (
        ("POST", "/schedules", NIGHTLY | {"name": "other"}),
        ("PATCH", "/schedules/nightly", {"cron": "0 0 * * *"}),
        ("PATCH", "/schedules/nightly", {"enabled": False, "payload": {"steps": 9}}),
        ("POST", "/schedules/nightly/resume", None),
        ("POST", "/schedules/nightly/run", None),
    ):
        answer = await narrow.request(method, path, json=body)
        assert (answer.status_code, "jobs:enqueue" in check_problem(answer)["detail"]) == (403, True), path
    assert (await narrow.post("/schedules/nightly/pause")).status_code == 200


async def test_a_schedule_of_a_kind_that_asks_for_approval_needs_somebody_who_may_give_it(
    site: Site, operator: httpx2.AsyncClient
) -> None:
    cleanup = {"name": "sweep", "cron": "0 5 * * *", "kind": "artifact_cleanup", "payload": {}}
    narrow = await with_only(
        site, Permission.SCHEDULES_MANAGE, Permission.JOBS_ENQUEUE, Permission.GRAPH_MANAGE, Permission.TOOLS_MANAGE
    )
    await made(operator, enabled=False)
    for method, path, body in (
        ("POST", "/schedules", cleanup),
        ("PATCH", "/schedules/nightly", {"kind": "artifact_cleanup", "payload": {}}),
        ("PATCH", "/schedules/artifact_cleanup", {"payload": {"tool_artifacts_days": 0.01}}),
    ):
        answer = await narrow.request(method, path, json=body)
        assert (answer.status_code, "jobs:approve" in check_problem(answer)["detail"]) == (403, True), path
    await made(operator, **cleanup)
    states: list[str] = []
    for client in (narrow, operator):
        run = (await client.post("/schedules/sweep/run")).raise_for_status().json()["id"]
        states.append((await operator.get(f"/jobs/{run}")).json()["state"])
    assert states == ["awaiting_approval", "queued"], "one approval is not one for every time"


async def test_an_edit_is_of_the_kind_that_the_schedule_has_by_then(
    site: Site, operator: httpx2.AsyncClient, url: str, connection: Connection
) -> None:
    await made(operator)
    narrow = await with_only(site, Permission.SCHEDULES_MANAGE, Permission.JOBS_ENQUEUE)
    with psycopg.connect(url) as other:
        other.execute("UPDATE kappa.schedules SET kind = 'artifact_cleanup' WHERE name = 'nightly'")
        editing = asyncio.create_task(narrow.patch("/schedules/nightly", json={"payload": {}}))
        await blocked(connection, 1)
        other.commit()
        answer = await editing
    assert (answer.status_code, "jobs:approve" in check_problem(answer)["detail"]) == (403, True)
    assert (await operator.get("/schedules/nightly")).json()["payload"] == NIGHTLY["payload"]


async def test_a_schedule_that_was_written_by_hand_does_not_hide_the_others(
    operator: httpx2.AsyncClient, connection: Connection
) -> None:
    connection.execute("INSERT INTO kappa.schedules (name, cron, kind) VALUES ('odd', 'every day', 'self_test')")
    found = (await operator.get("/schedules/odd")).raise_for_status().json()
    assert (found["next_at"], found["next_times"]) == (None, [])
    assert "odd" in {one["name"] for one in (await operator.get("/schedules")).json()["items"]}
    assert (await operator.post("/schedules/odd/pause")).status_code == 200
    assert "'every day' is not a cron" in check_problem(await operator.post("/schedules/odd/resume"))["detail"]


# The command line


@pytest.fixture(scope="module")
def shared(server: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with served(server, template, tmp_path_factory) as up:
        yield up


def test_somebody_makes_edits_runs_and_deletes_a_schedule_in_a_terminal(shared: Up) -> None:
    kg = Person(shared.home)
    options = (
        "--timezone",
        "Europe/Berlin",
        "--payload",
        json.dumps(NIGHTLY["payload"]),
        "--priority",
        4,
        "--missed",
        "skip",
    )
    added = kg.says("schedule", "add", "mine", "30 2 * * *", "self_test", *options)
    assert (added["timezone"], added["payload"], added["priority"], added["missed"]) == (
        *("Europe/Berlin", NIGHTLY["payload"], 4, "skip"),
    )  # fmt: skip
    edited = kg.says("schedule", "edit", "mine", "--cron", "0 4 * * 1", "--payload", "null")
    assert (edited["cron"], edited["payload"], edited["priority"]) == ("0 4 * * 1", None, 4)
    shown = kg("schedule", "show", "mine").stdout
    assert "0 4 * * 1 (Europe/Berlin)" in shown
    local = [datetime.fromisoformat(at).astimezone() for at in edited["next_times"]]
    assert [at for at in local if f"{at:%Y-%m-%d %H:%M:%S} ({at:%A})" not in shown] == []
    assert kg.says("schedule", "pause", "mine")["enabled"] is False
    (row,) = [line for line in kg("schedule", "list").stdout.splitlines() if line.startswith("mine ")]
    assert row.split()[:2] == ["mine", "paused"]
    assert kg.says("schedule", "resume", "mine")["enabled"] is True
    job = kg.says("schedule", "run-now", "mine")["id"]
    assert kg.says("job", "show", job)["submitted_by"] == "operator"
    assert kg.says("schedule", "delete", "mine") == {"deleted": "mine"}
    assert kg.refused(1, "schedule", "show", "mine") == "there is no schedule 'mine'"


def test_what_is_typed_wrong_about_a_schedule_is_one_line(shared: Up) -> None:
    kg = Person(shared.home)
    add = ("schedule", "add", "wrong")
    said = kg.refused(1, *add, "daily", "self_test")
    assert "it has five fields" in said
    assert "six, which begin with the second" in said
    assert kg.refused(1, "schedule", "show", "a/b") == "there is nothing at /schedules/a/b"
    assert "Europe/Berlin" in kg.refused(1, *add, "0 3 * * *", "self_test", "--timezone", "Berlin")
    assert "is in no lane" in kg.refused(1, *add, "0 3 * * *", "mystery")
    assert "steps" in kg.refused(1, *add, "0 3 * * *", "self_test", "--payload", '{"steps": "many"}')
    assert kg.refused(2, *add, "0 3 * * *", "self_test", "--payload", "{").startswith("--payload")
    assert kg.refused(2, "schedule", "edit", "artifact_cleanup").startswith("nothing to change")
    assert "pause it instead" in kg.refused(1, "schedule", "delete", "artifact_cleanup")


# Agents


async def test_an_agent_makes_edits_runs_and_deletes_a_schedule(shared: Up) -> None:
    async with agent(shared, "http") as client:
        added = await call(client, "add_schedule", name="agents", cron="30 2 * * *", kind="self_test", payload={})
        assert (added["enabled"], len(added["next_times"])) == (True, 5)
        edited = await call(client, "edit_schedule", name="agents", cron="0 4 * * *", enabled=False)
        assert (edited["cron"], edited["next_times"]) == ("0 4 * * *", [])
        assert (await call(client, "edit_schedule", name="agents", enabled=True))["next_at"] is not None
        shown = await call(client, "show_schedule", name="agents")
        listed = await call(client, "list_schedules")
        assert {name: value for name, value in shown.items() if name != "next_times"} in listed["items"]
        assert (await call(client, "list_schedules", limit=1))["next"] == listed["items"][0]["name"]
        run = await call(client, "run_schedule", name="agents")
        assert (await call(client, "show_job", job_id=run["id"]))["kind"] == "self_test"
        assert "it has five fields" in await refusal(client, "edit_schedule", name="agents", cron="daily")
        assert await call(client, "delete_schedule", name="agents") == {"deleted": "agents"}
        assert await refusal(client, "show_schedule", name="agents") == "there is no schedule 'agents'"


# Pages


@pytest.fixture
async def admin(site: Site) -> Browser:
    return await visitor(site, "platform_admin", "somebody")


FORM = {"cron": "30 2 * * *", "timezone": "UTC", "kind": "self_test", "payload": '{"steps": 3}', "priority": "0",
        "missed": "fire_once"}  # fmt: skip


async def test_a_schedule_is_made_edited_run_and_deleted_on_pages(
    site: Site, admin: Browser, operator: httpx2.AsyncClient
) -> None:
    answer = await admin.post("/ui/schedules", name="paged", **FORM)
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/schedules/paged")
    found = (await operator.get("/schedules/paged")).json()
    assert (found["payload"], found["enabled"]) == (NIGHTLY["payload"], True)
    page = (await admin.get("/ui/schedules/paged")).text
    for at in found["next_times"]:
        assert f"{moment(at).astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" in page
    answer = await admin.post("/ui/schedules/paged", **FORM | {"cron": "0 4 * * *", "payload": ""})
    assert answer.status_code == 303, answer.text
    edited = (await operator.get("/schedules/paged")).json()
    assert (edited["cron"], edited["payload"]) == ("0 4 * * *", None)
    assert (await admin.post("/ui/schedules/paged/pause", back="list")).headers["location"] == "/ui/schedules"
    assert not (await operator.get("/schedules/paged")).json()["enabled"]
    assert (await admin.post("/ui/schedules/paged/resume")).headers["location"] == "/ui/schedules/paged"
    run = await admin.post("/ui/schedules/paged/run")
    assert re.fullmatch(r"/ui/jobs/\d+", run.headers["location"])
    assert (await admin.post("/ui/schedules/paged/delete")).headers["location"] == "/ui/schedules"
    assert (await operator.get("/schedules/paged")).status_code == 404


async def test_a_form_that_is_wrong_says_why_and_keeps_what_was_typed(
    admin: Browser, operator: httpx2.AsyncClient
) -> None:
    before = await made(operator)
    for path, name in (("/ui/schedules", {"name": "paged"}), ("/ui/schedules/nightly", {})):
        for field, typed, says in (
            ("cron", "daily", "it has five fields"),
            ("timezone", "Berlin", "use a name such as"),
            ("kind", "mystery", "is in no lane"),
            ("payload", "{", "payload is no JSON"),
            ("payload", '{"steps": "many"}', "can't take this payload: steps"),
            ("priority", "high", "priority must be an integer"),
        ):
            answer = await admin.post(path, **{**FORM, **name, field: typed})
            assert (answer.status_code, says in fault(answer)) == (422, True), (path, field, fault(answer))
            assert typed.replace('"', "&#34;") in answer.text
    assert (await operator.get("/schedules/nightly")).json() == before


def shown(page: httpx2.Response) -> str:
    """What a browser sends back of the form as it was."""
    found = re.search(r'name="shown" value="([^"]*)"', page.text)
    assert found is not None
    return html.unescape(found[1])


async def test_a_form_changes_what_was_changed_in_it_and_no_more(
    admin: Browser, operator: httpx2.AsyncClient, connection: Connection
) -> None:
    await made(operator)
    connection.execute("UPDATE kappa.schedules SET payload = '{\"steps\": true}' WHERE name = 'nightly'")
    was = shown(await admin.get("/ui/schedules/nightly"))
    await operator.patch("/schedules/nightly", json={"cron": "0 4 * * *", "priority": 7})
    typed = FORM | {"payload": '{"steps": 1}', "missed": "skip", "shown": was}
    wrong = await admin.post("/ui/schedules/nightly", **typed | {"kind": "mystery"})
    assert (wrong.status_code, shown(wrong)) == (422, was)
    assert (await admin.post("/ui/schedules/nightly", **typed)).status_code == 303
    found = (await operator.get("/schedules/nightly")).json()
    assert (found["cron"], found["priority"], found["missed"]) == ("0 4 * * *", 7, "skip")
    assert found["payload"]["steps"] is not True
    assert found["payload"]["steps"] == 1


async def test_an_error_of_a_schedule_is_on_its_pages(
    admin: Browser, operator: httpx2.AsyncClient, connection: Connection
) -> None:
    await made(operator)
    connection.execute(
        "UPDATE kappa.schedules SET failures = 3, error = 'no <room>', retry_at = now() WHERE name = 'nightly'"
    )
    for path in ("/ui/schedules", "/ui/schedules/nightly"):
        page = (await admin.get(path)).text
        assert "failing" in page
        assert "no &lt;room&gt;" in page
    assert json.loads((await operator.get("/schedules/nightly")).text)["failures"] == 3


async def test_whoever_may_only_look_is_shown_no_button(site: Site, operator: httpx2.AsyncClient) -> None:
    await made(operator)
    reader = await visitor(site, "read_only")
    for path in ("/ui/schedules", "/ui/schedules/nightly"):
        page = (await reader.get(path)).text
        assert 'action="/ui/schedules' not in page
        assert "nightly" in page
    assert (await reader.post("/ui/schedules/nightly/pause")).status_code == 403
