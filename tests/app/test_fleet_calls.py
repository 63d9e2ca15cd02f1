"""The calls of `/fleet/v1` over HTTP: who may call, what is refused and how, and what a worker that comes back gets."""

import asyncio
import json
from typing import Any

import psycopg
import pytest

from kappa.app.permissions import ROLES, Permission
from kappa.app.usecases.credentials import WorkerLimits
from kappa.engine import Executor, Lane
from kappa.engine.fleet.dispatch import Pass
from tests.app.conftest import KAPPA, Site, Up
from tests.app.remote import Remote
from tests.ground import eventually

Connection = psycopg.Connection[tuple[Any, ...]]

HELD = {"task": 4711, "token": 4712}
CALLS: dict[str, dict[str, Any]] = {
    "hello": {"kinds": ["crunch"]},
    "request_task": {"request_id": "r", "kinds": ["crunch"]},
    "beat": {"tasks": [HELD]},
    "update_task": HELD,
    "complete_task": HELD,
    "fail_task": HELD,
    "release_task": HELD,
}
FILES = {
    "tasks/4711/inputs/a": "GET",
    "tasks/4711/logs/stdout": "PUT",
    "tasks/4711/artifacts/a": "PUT",
    "tasks/4711/exit/0": "PUT",
}
BLOCKED = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"
)


@pytest.fixture(autouse=True)
def few_seats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAPPA_TASK_SEMAPHORE_SIZE", "1")


@pytest.fixture
def lane(site: Site) -> None:
    site.engine.lane(Lane("far", kinds=("crunch", "dig"), max_slots=1000, executor=Executor.FLEET))
    site.engine.install()


@pytest.fixture
async def remote(site: Site, lane: None) -> Remote:
    await until(lambda: site.services.fleet.fleet.kinds_for(Pass(0), ["crunch"]))
    return Remote(site, await site.token("platform_admin"))


async def until(look: Any) -> None:
    await asyncio.to_thread(eventually, look)


async def put(site: Site, payload: Any = None, **fields: Any) -> int:
    return (await site.services.client.enqueue("crunch", payload, **fields)).id


async def every_call(remote: Remote) -> dict[str, Any]:
    answers = {name: await remote.call(name, **words) for name, words in CALLS.items()}
    for name, method in FILES.items():
        answers[f"{method} {name}"] = await remote.file(method, name, token=1, size=0, at=0)
    return answers


# Who may


def test_every_call_is_among_those_that_are_asked_here(site: Site) -> None:
    assert set(site.services.fleet.calls) == {*CALLS, *(name.split("/")[2] for name in FILES)}


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_may_call_if_it_may_work(site: Site, role: str) -> None:
    site.engine.lane(Lane("far", kinds=("crunch",), executor=Executor.FLEET))
    site.engine.install()
    allowed = Permission.FLEET_WORK in ROLES[role]
    for name, answer in (await every_call(Remote(site, await site.token(role)))).items():
        if allowed:
            assert answer.status in (200, 409), name
        else:
            assert (answer.status, answer.json()["code"]) == (403, "forbidden"), name
            assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize("token", [None, "", "kappa_" + "A" * 43, "\xff\xfe"])
async def test_nobody_else_may_call(site: Site, token: str | None) -> None:
    for name, answer in (await every_call(Remote(site, token))).items():
        assert (answer.status, answer.json()["code"]) == (401, "not_authenticated"), name
        assert int(answer.headers["retry-after"]) > 0
        assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_token_that_is_scoped_to_something_else_may_not_call(site: Site, remote: Remote) -> None:
    made = await site.services.credentials.make_token(
        KAPPA, "reads", user="platform_admin", user_permissions=frozenset(), scopes=[Permission.JOBS_VIEW]
    )
    assert {one.status for one in (await every_call(Remote(site, made.secret))).values()} == {403}


# Tokens that change


async def limited(site: Site, **limits: Any) -> str:
    await site.token("platform_admin")
    made = await site.services.credentials.make_token(
        KAPPA, "limited", user="platform_admin", user_permissions=frozenset(), limits=WorkerLimits(**limits)
    )
    return made.secret


CHANGES = {
    "revoked": ("UPDATE kappa.tokens SET revoked_at = now()", 401),
    "deleted": ("DELETE FROM kappa.tokens", 401),
    "expired": ("UPDATE kappa.tokens SET expires_at = now()", 401),
    "narrowed": ("UPDATE kappa.tokens SET scopes = '{jobs:view}'", 403),
    "disabled": ("UPDATE kappa.users SET enabled = false", 401),
    "demoted": ("DELETE FROM kappa.user_roles", 403),
    "weakened": ("UPDATE kappa.roles SET permissions = '{jobs:view}'", 403),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_token_that_changes_is_looked_at_anew_at_once(
    remote: Remote, connection: Connection, change: str
) -> None:
    statement, status = CHANGES[change]
    assert (await remote.call("beat")).status == 200
    connection.execute(statement.encode())
    until_refused = asyncio.get_running_loop().time() + 30  # half of what it would be remembered for
    while (said := await remote.call("beat")).status == 200:
        assert asyncio.get_running_loop().time() < until_refused
    assert said.status == status


@pytest.mark.parametrize("change", CHANGES)
async def test_who_waits_with_a_token_that_changes_gets_no_task(
    site: Site, remote: Remote, connection: Connection, change: str
) -> None:
    waits = remote.says("request_task", request_id="r1", kinds=["crunch"], wait=60)
    await until(lambda: site.services.fleet.fleet.room.waiting == 1)
    connection.execute(CHANGES[change][0].encode())
    answer = await waits.answer()
    assert answer.json().get("tasks") == []
    assert site.services.fleet.fleet.room.waiting == 0
    job = await put(site)
    assert connection.execute("SELECT state::text FROM kappa.jobs WHERE id = %s", [job]).fetchall() == [("queued",)]
    assert not site.services.fleet._waiting


async def test_who_waits_with_another_token_goes_on_waiting(site: Site, remote: Remote, connection: Connection) -> None:
    waits = remote.says("request_task", request_id="r1", kinds=["crunch"], wait=60)
    await until(lambda: site.services.fleet.fleet.room.waiting == 1)
    await limited(site, machines=1)
    connection.execute("UPDATE kappa.tokens SET revoked_at = now() WHERE name = 'limited'")
    await until(lambda: bool(site.services.fleet._looking) or bool(site.services.fleet._doorman.known(_bearer(remote))))
    await put(site)
    assert len((await waits.answer()).json()["tasks"]) == 1


def _bearer(remote: Remote) -> bytes:
    return f"Bearer {remote.token}".encode()


async def test_a_token_is_not_remembered_beyond_its_end(site: Site, remote: Remote, connection: Connection) -> None:
    (token,) = connection.execute("SELECT id FROM kappa.tokens").fetchall()[0]
    with connection.transaction():  # so that nobody hears of it
        connection.execute("ALTER TABLE kappa.tokens DISABLE TRIGGER USER")
        connection.execute("UPDATE kappa.tokens SET expires_at = now() + interval '4 seconds' WHERE id = %s", [token])
        connection.execute("ALTER TABLE kappa.tokens ENABLE TRIGGER USER")
    assert (await remote.call("beat")).status == 200
    until_refused = asyncio.get_running_loop().time() + 30
    while (said := await remote.call("beat")).status == 200:
        assert asyncio.get_running_loop().time() < until_refused
    assert said.status == 401


async def test_while_nobody_would_say_that_it_was_revoked_a_token_is_remembered_briefly(
    site: Site, remote: Remote, connection: Connection, request: pytest.FixtureRequest, url: str
) -> None:
    admin: Connection = request.getfixturevalue("server").admin
    name = psycopg.sql.Identifier(url.rsplit("/", 1)[1])
    assert (await remote.call("beat")).status == 200
    listens = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'kappa listen'"
    try:
        admin.execute(psycopg.sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        connection.execute(f"SELECT pg_terminate_backend(pid) {listens}".encode())
        await until(lambda: connection.execute(f"SELECT count(*) {listens}".encode()).fetchall() == [(0,)])
        assert (await remote.call("beat")).status == 200
        connection.execute("UPDATE kappa.tokens SET revoked_at = now()")
        until_refused = asyncio.get_running_loop().time() + 30
        while (said := await remote.call("beat")).status == 200:
            assert asyncio.get_running_loop().time() < until_refused
        assert said.status == 401
    finally:
        admin.execute(psycopg.sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))


# Limits of tokens


async def test_a_token_for_some_kinds_gets_no_others(site: Site, remote: Remote) -> None:
    worker = Remote(site, await limited(site, kinds=["dig"]))
    await put(site)
    hello = await worker.call("hello", kinds=["crunch", "dig"])
    assert hello.json()["kinds"] == ["dig"]
    assert (await worker.ask(kinds=("crunch", "dig"))).json()["tasks"] == []
    assert (await worker.ask("r2", wait=50)).json()["tasks"] == []  # at once: no such job will ever be its
    made = await site.services.client.enqueue("dig", None)
    (given,) = (await worker.ask("r3", kinds=("crunch", "dig"), wait=50)).json()["tasks"]
    assert given["task"] == made.id


async def test_a_token_for_one_machine_is_for_one(site: Site, remote: Remote, connection: Connection) -> None:
    token = await limited(site, machines=1)
    first, second = Remote(site, token, "first"), Remote(site, token, "second")
    assert (await first.call("hello", kinds=["crunch"])).status == 200
    for said in (await second.call("hello", kinds=["crunch"]), await second.ask()):
        assert (said.status, said.json()["code"]) == (429, "too_many_machines")
        assert int(said.headers["retry-after"]) >= 30
    assert (await first.ask()).status == 200
    # A silent one makes room; a sign of life of it takes no place back.
    connection.execute("UPDATE kappa.fleet_workers SET seen_at = now() - interval '6 minutes'")
    assert (await second.ask("r2")).status == 200
    await first.call("beat")
    await site.services.fleet.fleet.tell_seen()
    assert (await first.call("hello", kinds=["crunch"])).status == 429
    assert (await second.ask("r3")).status == 200


async def test_a_token_for_so_many_requests_a_minute_is_for_no_more(site: Site, remote: Remote) -> None:
    worker = Remote(site, await limited(site, requests_per_minute=12))
    said = [await worker.call("beat") for _ in range(4)]
    assert [one.status for one in said[:2]] == [200, 200]
    assert (said[-1].status, said[-1].json()["code"]) == (429, "limited")
    assert 1 <= int(said[-1].headers["retry-after"]) <= 5
    assert (await remote.call("beat")).status == 200


# The gate


async def wait_until_claims_are_blocked(connection: Connection) -> None:
    await until(lambda: connection.execute(BLOCKED).fetchall())


async def test_more_callers_than_seats_are_told_so_before_anything_is_read(
    site: Site, remote: Remote, connection: Connection, url: str
) -> None:
    await put(site)
    held = await remote.task()
    with psycopg.connect(url) as other:
        other.execute("SELECT pg_advisory_xact_lock(1262568293, 0)")
        waiting = [remote.says("request_task", request_id="a", kinds=["crunch"])]
        await wait_until_claims_are_blocked(connection)
        waiting += [remote.says("request_task", request_id=f"b{n}", kinds=["crunch"]) for n in range(63)]
        await until(lambda: site.services.fleet.fleet.room.full)
        refused = [
            await remote.begin("request_task").answer(),  # whose body never comes
            await remote.begin("request_task").send(b"\xff{{{").answer(),
            await Remote(site, None).begin("request_task").answer(),
            await remote.begin("request_task", "GET").answer(),
            *[await remote.ask(f"c{n}") for n in range(20)],
        ]
        assert {(one.status, one.json()["code"]) for one in refused} == {(503, "busy")}
        assert {int(one.headers["retry-after"]) for one in refused} <= {1, 2, 3}
        assert len({one.json()["retry_after"] for one in refused}) > 15  # they don't come back together
        # Everything else is done meanwhile.
        assert (await remote.call("beat", tasks=[held])).json()["notices"] == []
        assert (await remote.call("update_task", **held, started=True, done=1)).status == 200
        assert (await remote.call("complete_task", **held)).json() == {"state": "succeeded"}
        assert (await remote.call("hello", kinds=["crunch"])).status == 200
        assert all(one.under_way for one in waiting)
        other.rollback()
        assert {(await one.answer()).status for one in waiting} == {200}
    assert (await remote.ask("d")).status == 200


# Who waits


async def test_who_hangs_up_while_waiting_gets_no_task(site: Site, remote: Remote) -> None:
    room = site.services.fleet.fleet.room
    waits = remote.says("request_task", request_id="r1", kinds=["crunch"], wait=50)
    await until(lambda: room.waiting)
    waits.hang_up()
    await waits.answer()
    assert room.waiting == 0
    made = await put(site)
    assert (await site.services.client.show(made)).state == "queued"


async def test_a_worker_that_lost_its_connection_and_asks_again_gets_the_task(site: Site, remote: Remote) -> None:
    room = site.services.fleet.fleet.room
    first = remote.says("request_task", request_id="r1", kinds=["crunch"], wait=50)
    await until(lambda: room.waiting)
    again = remote.says("request_task", request_id="r1", kinds=["crunch"], wait=50)
    for _ in range(5):
        await asyncio.sleep(0)
    first.hang_up()
    await first.answer()
    made = await put(site)
    assert [one["task"] for one in (await again.answer()).json()["tasks"]] == [made]


async def test_a_server_that_drains_gives_nothing_out_and_hears_the_rest(site: Site, remote: Remote) -> None:
    await put(site)
    held = await remote.task()
    waits = remote.says("request_task", request_id="r2", kinds=["crunch"], wait=50)
    await until(lambda: site.services.fleet.fleet.room.waiting)
    site.services.fleet.fleet.drain()
    assert (await waits.answer()).json()["tasks"] == []
    said = await remote.ask("r3")
    assert (said.status, said.json()["code"], "retry-after" in said.headers) == (503, "draining", True)
    assert (await remote.call("beat", tasks=[held])).status == 200
    assert (await remote.call("complete_task", **held)).json() == {"state": "succeeded"}


# What is said


async def test_every_word_may_be_said_twice(site: Site, remote: Remote) -> None:
    for call, words, state in (
        ("complete_task", {"result": {"n": 1}}, "succeeded"),
        ("fail_task", {"summary": "no"}, "failed"),
        ("fail_task", {"outcome": "cancelled"}, "cancelled"),
        ("fail_task", {"outcome": "timed_out"}, "timed_out"),
        ("fail_task", {"outcome": "snooze", "after": 60}, "scheduled"),
        ("release_task", {"started": False}, "queued"),
    ):
        made = await put(site)
        held = await remote.task(f"r{made}")
        assert held["task"] == made
        for _ in range(2):
            assert (await remote.call("update_task", **held, done=1, total=3)).json() == {"cancel": None}
        said = await asyncio.gather(*(remote.call(call, **held, **words) for _ in range(3)))
        assert {(one.status, one.json()["state"]) for one in said} == {(200, state)}
        lost = await remote.call("update_task", **held)
        assert (lost.status, lost.json()["code"]) == (409, "lost")
        await site.services.client.cancel(made, "over") if state in ("queued", "scheduled") else None


async def test_a_payload_goes_as_it_is_however_deep(site: Site, remote: Remote, connection: Connection) -> None:
    made = await put(site, {"n": [1.5, None, "\u2028 ü"]})
    deep = "[" * 400 + "]" * 400
    connection.execute("UPDATE kappa.jobs SET payload = jsonb_set(payload, '{deep}', %s::jsonb)", [deep])
    (given,) = (await remote.ask()).json()["tasks"]
    assert given["task"] == made
    assert given["payload"]["n"] == [1.5, None, "\u2028 ü"]
    assert json.dumps(given["payload"]["deep"]) == deep


async def test_what_no_database_keeps_is_refused_for_good(site: Site, remote: Remote) -> None:
    await put(site)
    held = await remote.task()
    for words in ({"message": "a\0b"}, {"checkpoint": {"a\0": 1}}, {"checkpoint": float("nan")}):
        said = await remote.call("update_task", **held, **words)
        assert (said.status, said.json()["code"], said.headers.get("retry-after")) == (400, "bad_request", None)
    said = await remote.call("complete_task", **held, result=["\0"])
    assert said.status == 400
    assert (await remote.call("complete_task", **held, result="fine")).json() == {"state": "succeeded"}


async def test_paths_that_nobody_knows_are_counted_as_one(site: Site, remote: Remote) -> None:
    for n in range(50):
        for path in (f"no-such-{n}", f"tasks/{n}/secrets/{n}", f"tasks/²{n}/inputs/a", f"tasks/9{'9' * n}/x/y"):
            said = await remote.begin(path).send(b"").answer()
            assert (said.status, said.json()["code"]) == (404, "not_found")
    assert len(site.services.fleet.answers) <= 3


async def test_a_call_has_one_method_and_a_body_has_an_end(site: Site, remote: Remote) -> None:
    for name in CALLS:
        for method in ("GET", "PUT", "DELETE", "PATCH"):
            said = await remote.begin(name, method).send(b"").answer()
            assert (said.status, said.json()["code"]) == (405, "no_such_method")
        endless = remote.begin(name)
        for _ in range(20):
            endless.send(b" " * 100_000, more=True)
        assert (await endless.answer()).json()["code"] == "too_large"


# A real server


def test_what_a_killed_server_acknowledged_is_there(up: Up, connection: Connection) -> None:
    connection.execute(
        "INSERT INTO kappa.lanes (name, kinds, executor, max_slots) VALUES ('far', '{crunch}', 'fleet', 9)"
    )
    connection.execute("SELECT pg_notify('kappa_lane', 'far')")
    for _ in range(3):
        connection.execute("INSERT INTO kappa.jobs (lane, kind, state) VALUES ('far', 'crunch', 'queued')")
    with up.client() as client:
        asked = {"worker": "w", "request_id": "r1", "kinds": ["crunch"], "count": 3, "wait": 20}
        tasks = client.post("/fleet/v1/request_task", json=asked).json()["tasks"]
        first, second, third = ({"worker": "w", "task": one["task"], "token": one["token"]} for one in tasks)
        done = client.post("/fleet/v1/complete_task", json={**first, "result": {"n": 1}})
        said = client.post("/fleet/v1/update_task", json={**second, "started": True, "done": 7, "checkpoint": [7]})
        assert (done.json(), said.json()) == ({"state": "succeeded"}, {"cancel": None})
        up.process.kill()
        up.process.wait()
    finished = connection.execute("SELECT id, state::text, result FROM kappa.finished_jobs").fetchall()
    assert finished == [(first["task"], "succeeded", {"n": 1})]
    kept = connection.execute(
        "SELECT progress_done, checkpoint, attempt FROM kappa.jobs WHERE id = %s", [second["task"]]
    )
    assert kept.fetchall() == [(7.0, [7], 1)]
    owned = connection.execute("SELECT lease_owner, lease_token FROM kappa.jobs WHERE id = %s", [third["task"]])
    assert owned.fetchall()[0][1] == third["token"]
