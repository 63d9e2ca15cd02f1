"""Five thousand requests of workers out of their minds: none fails the server, and nothing of others is touched."""

import asyncio
import json
import os
import random
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from pydantic.json_schema import models_json_schema

from kappa.engine import Executor, Lane
from kappa.engine.fleet import wire
from tests.app.conftest import KAPPA, Site
from tests.app.remote import Remote, Request
from tests.app.test_api_random_bodies import SEED, Mischief

REQUESTS = 5_000
KEPT = 20
PREY = 300
AT_ONCE = 8
HANG_UP_AFTER = 0.02

MODELS = {
    "hello": wire.Hello,
    "request_task": wire.RequestTask,
    "beat": wire.Beat,
    "update_task": wire.UpdateTask,
    "complete_task": wire.CompleteTask,
    "fail_task": wire.FailTask,
    "release_task": wire.ReleaseTask,
}
EVERYTHING = "SELECT * FROM kappa.all_jobs WHERE id = ANY (%s) ORDER BY id"
LEASES = "SELECT id, lease_owner, lease_token, claims FROM kappa.jobs WHERE id = ANY (%s) ORDER BY id"


class WorkersMischief(Mischief):
    """The same dice over what workers say."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__(dice)
        _, document = models_json_schema([(model, "validation") for model in MODELS.values()])
        self.schemas = document["$defs"]
        body = {
            name: {"content": {"application/json": {"schema": {"$ref": f"#/$defs/{model.__name__}"}}}}
            for name, model in MODELS.items()
        }
        self.operations = [
            (method, f"/fleet/v1/{name}", {"requestBody": body[name]})
            for name in MODELS
            for method in ("POST",) * 12 + ("GET", "PUT", "DELETE")
        ]
        words = [{"name": name, "in": "query", "schema": {}} for name in ("worker", "token", "at", "size")]
        path = [{"name": name, "in": "path", "schema": {}} for name in ("task", "name")]
        self.operations += [
            (method, f"/fleet/v1/tasks/{{task}}/{sort}/{{name}}", {"parameters": words + path, "requestBody": {}})
            for sort in ("inputs", "logs", "artifacts", "exit", "secrets")
            for method in ("GET", "PUT", "POST", "HEAD")
        ]

    def call(self) -> tuple[str, tuple[str, str, bytes, dict[str, str], bytes]]:
        method, path, operation = self.dice.choice(self.operations)
        return f"{method} {path}", self.request(method, path, operation)

    def _like_string(self, schema: dict[str, Any]) -> str:
        if self.dice.random() < 0.6:
            return self.dice.choice(["w", "crunch", "tool_run", "r1", "gpu", f"r{self.dice.randrange(1000)}"])
        return super()._like_string(schema)


class Mad:
    """Sends what the dice say, and hangs up if there is no answer soon."""

    def __init__(self, site: Site, token: str) -> None:
        self._site = site
        self._token = token
        self.failures: list[str] = []
        self.statuses: set[int] = set()

    async def send(self, name: str, method: str, path: str, query: bytes, headers: dict[str, str], body: bytes) -> None:
        request = Request(self._site, method, path, self._token, query=query.decode("latin-1"))
        request.begin().send(body[: len(body) // 2], more=True).send(body[len(body) // 2 :])
        hang_up = asyncio.get_running_loop().call_later(HANG_UP_AFTER, request.hang_up)
        try:
            await request.answer()
        except Exception as error:
            self.failures.append(f"{name} raised {error!r} for {path} {query!r} {body[:300]!r}")
            return
        finally:
            hang_up.cancel()
        self.statuses.add(request.status)
        if request.status in (0, 500) or request.status == 503:
            self.failures.append(
                f"{name} answered {request.status} {request.body!r} to {path} {query!r} {body[:300]!r}"
            )
        elif request.status != 200 and "code" not in request.json():
            self.failures.append(f"{name} refused without a reason: {request.body!r}")


@pytest.mark.timeout(600)
async def test_five_thousand_random_calls_fail_nothing_and_lose_nothing(
    site: Site, connection: psycopg.Connection[tuple[Any, ...]]
) -> None:
    seed = int(os.environ.get("KAPPA_TEST_SEED") or SEED)
    mischief = WorkersMischief(random.Random(seed))
    connection.execute("UPDATE kappa.lanes SET executor = 'fleet' WHERE name = 'tools'")
    site.engine.lane(Lane("far", kinds=("crunch",), max_slots=10_000, executor=Executor.FLEET))
    site.engine.install()
    kept = [(await site.services.client.enqueue("crunch", {"n": n}, max_attempts=3)).id for n in range(KEPT)]
    sane = Remote(site, await site.token("platform_admin"))
    tasks = (await sane.ask(count=KEPT, wait=30)).json()["tasks"]
    assert sorted(one["task"] for one in tasks) == kept
    prey = [(await site.services.client.enqueue("crunch", {"n": n}, max_attempts=3)).id for n in range(PREY)]
    before = [connection.execute(query, [kept]).fetchall() for query in (EVERYTHING, LEASES)]

    await site.services.people.make_user(KAPPA, "mad", roles=["platform_admin"])
    made = await site.services.credentials.make_token(KAPPA, "mad", user="mad", user_permissions=frozenset())
    mad = Mad(site, made.secret)
    mine: list[Any] = []
    for turn in range(REQUESTS // AT_ONCE):
        batch = [mischief.call() for _ in range(AT_ONCE)]
        if turn % 10 == 0:  # something that it may spoil
            mine += (await Remote(site, made.secret).ask(f"real-{turn}", count=3)).json().get("tasks", [])
        if mine and turn % 3 == 0:
            target = mine[turn % len(mine)]
            held = {"worker": "w", "task": target["task"], "token": target["token"]}
            call = mischief.dice.choice(["update_task", "complete_task", "fail_task", "release_task"])
            words = {"message": "\0", "checkpoint": mischief.dice.choice([float("inf"), "\0", [1]])}
            said = {**held, **(words if call == "update_task" else {})}
            body = json.dumps(said).encode()
            batch.append((call, ("POST", f"/fleet/v1/{quote(call)}", b"", {}, body)))
        await asyncio.gather(*(mad.send(name, *request) for name, request in batch))

    assert mad.failures == []
    assert {200, 400, 404, 405, 409} <= mad.statuses
    assert [connection.execute(query, [kept]).fetchall() for query in (EVERYTHING, LEASES)] == before
    there = connection.execute("SELECT count(*) FROM kappa.all_jobs WHERE id = ANY (%s)", [prey]).fetchall()
    assert there == [(PREY,)]
    done = [await sane.call("complete_task", task=one["task"], token=one["token"], result=1) for one in tasks]
    assert {one.json()["state"] for one in done} == {"succeeded"}
