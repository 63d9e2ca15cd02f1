"""Ten thousand requests that nobody in their right mind would send: none fails the server, and nothing is lost.

What was acknowledged is written down on the way: every 201 is a job in the table, and no job is there without one.
"""

import asyncio
import json
import os
import random
from collections import Counter
from typing import Any
from urllib.parse import quote, unquote

import psycopg
import pytest
from starlette.types import Message

from kappa.app.api import application
from tests.app.conftest import KAPPA, Site

EACH = int(os.environ.get("KAPPA_TEST_BODIES") or 0)
"""So many to every route, which takes a while; else so many in all:"""
REQUESTS = 10_000
SEED = 8420
"""What `make test` finds it finds again; other dice by `KAPPA_TEST_SEED`."""
KEPT = 40
AT_ONCE = 8
TOO_LATE = (b'"code":"question_stopped"', b'"code":"graph_busy"')
"""Good answers of a server that was given a second, in which its machine did something else."""

KEPT_JOBS = "SELECT * FROM kappa.all_jobs WHERE id = ANY (%s) ORDER BY id"

NASTY = (
    "", " ", "\x00", "a\x00b", "\ud800", "\udfff\ud800", "\uffff", "\u202e", "💥" * 50, "'; DROP TABLE kappa.jobs; --",
    "%s", "%(id)s", "{}", "../../etc/passwd", "%00", "null", "NaN", "-0", "1e999", "0x10", "９", "true", "\r\nX-Bad: 1",
    "x" * 5_000, "self_test", "checks", "platform_admin", "contributor", "jobs:view", "2026-13-45T99:99:99Z",
    "9999-12-31T23:59:59.999999-23:59", "0001-01-01T00:00:00+23:59", "P1Y",
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 2, 5, 32767, 32768, -32768, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63) - 1, 10**400, 1e308, -1e308, 5e-324,
    0.1, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
TYPES = (
    "application/json", "application/json; charset=utf-16", "application/problem+json", "text/plain", "",
    "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "multipart/form-data", "application/xml",
    "application/octet-stream", "not a type", "application/json\x00",
)  # fmt: skip


class Mischief:
    """Requests made up by dice."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        document = application.api().openapi()
        self.schemas: dict[str, Any] = document["components"]["schemas"]
        self.operations = [
            (method.upper(), path, operation)
            for path, methods in sorted(document["paths"].items())
            for method, operation in sorted(methods.items())
        ]

    def any_request(self, number: int) -> tuple[str, tuple[str, str, bytes, dict[str, str], bytes]]:
        """The routes take turns."""
        method, path, operation = self.operations[number % len(self.operations)]
        return f"{method} {path}", self.request(method, path, operation)

    def request(
        self, method: str, path: str, operation: dict[str, Any]
    ) -> tuple[str, str, bytes, dict[str, str], bytes]:
        """Method, path, query, headers and body."""
        query: list[str] = []
        for parameter in operation.get("parameters", ()):
            name = parameter["name"]
            if parameter["in"] == "path":
                path = path.replace(f"{{{name}}}", self._segment(parameter["schema"]))
            elif parameter["in"] == "query" and self.dice.random() < 0.6:
                query += [f"{name}={self._escaped(self._word(parameter['schema']))}"] * self.dice.choice(
                    [1, 1, 1, 2, 40]
                )
        if self.dice.random() < 0.05:
            query.append(self.dice.choice(["&&&===", "a[]=1&a[0]=2", "%ff%fe", "=" * 2_000]))
        body = self._body(operation)
        kind = "application/json" if self.dice.random() < 0.8 else self.dice.choice(TYPES)
        headers = {"content-type": kind} if kind else {}
        return method, path, "&".join(query).encode("latin-1", "replace"), headers, body

    def _segment(self, schema: dict[str, Any]) -> str:
        word = self._word(schema)
        return self._escaped(word) or "%20"

    def _escaped(self, word: str) -> str:
        return quote(word.encode("utf-8", "surrogatepass"), safe="")[:3_000]

    def _word(self, schema: dict[str, Any]) -> str:
        if self.dice.random() < 0.5:
            return str(self.dice.randrange(1, 3 * KEPT))
        thing = self.dice.choice([*NASTY, *NUMBERS])
        return thing if isinstance(thing, str) else str(thing)[:400]

    def _body(self, operation: dict[str, Any]) -> bytes:
        content = operation.get("requestBody", {}).get("content", {})
        schema = content.get("application/json", {}).get("schema", {})
        roll = self.dice.random()
        if roll < 0.15:
            return self.dice.randbytes(self.dice.choice([0, 1, 7, 100, 3_000]))
        if roll < 0.2:
            return b"[" * self.dice.choice([10, 1_000, 50_000])
        if roll < 0.25:
            depth = self.dice.choice([50, 900, 20_000])
            return b'{"payload":' * depth + b"1" + b"}" * depth
        value = self._alike(schema) if roll < 0.85 else self._anything(4)
        text = json.dumps(value, ensure_ascii=self.dice.random() < 0.5)
        raw = text.encode("utf-8", "surrogatepass")
        if roll > 0.95 or 0.8 < roll < 0.85:
            return raw[: self.dice.randrange(len(raw) + 1)]
        return raw

    def _alike(self, schema: dict[str, Any]) -> Any:
        """Something that looks like what is wanted, with a fault here and there."""
        if self.dice.random() < 0.1:
            return self._anything(3)
        if "$ref" in schema:
            return self._alike(self.schemas[schema["$ref"].rsplit("/", 1)[1]])
        if options := schema.get("anyOf"):
            return self._alike(self.dice.choice(options))
        if values := schema.get("enum"):
            return self.dice.choice(values)
        match schema.get("type"):
            case "object":
                wanted = {
                    name: self._alike(part)
                    for name, part in schema.get("properties", {}).items()
                    if name in schema.get("required", ()) or self.dice.random() < 0.4
                }
                if self.dice.random() < 0.1:
                    wanted[self.dice.choice(NASTY)] = self._anything(2)
                return wanted
            case "array":
                return [self._alike(schema.get("items", {})) for _ in range(self.dice.choice([0, 1, 3, 600]))]
            case "integer" | "number":
                return self.dice.choice(NUMBERS) if self.dice.random() < 0.5 else self.dice.randrange(1, 30_000)
            case "string":
                return self._like_string(schema)
            case "boolean":
                return self.dice.random() < 0.5
            case "null":
                return None
            case _:
                return {"steps": self.dice.randrange(1, 5)} if self.dice.random() < 0.5 else self._anything(3)

    def _like_string(self, schema: dict[str, Any]) -> str:
        if schema.get("format") == "date-time" and self.dice.random() < 0.7:
            year, zone = self.dice.randrange(1, 10_000), self.dice.randrange(10)
            return f"{year:04}-0{self.dice.randrange(1, 9)}-11T00:00:00+0{zone}:00"
        roll = self.dice.random()
        if roll < 0.4:
            return self.dice.choice(["self_test", "checks", "contributor", "jobs:view"])
        if roll < 0.6:
            return f"name-{self.dice.randrange(20)}"
        return self.dice.choice(NASTY)

    def _anything(self, depth: int) -> Any:
        roll = self.dice.random()
        if depth == 0 or roll < 0.5:
            return self.dice.choice([*NASTY, *NUMBERS, None, True, False])
        if roll < 0.75:
            return [self._anything(depth - 1) for _ in range(self.dice.randrange(5))]
        return {self.dice.choice(NASTY): self._anything(depth - 1) for _ in range(self.dice.randrange(5))}


WHICH_MAKE_JOBS = ("POST /restore", "POST /graph/annealing", "POST /graph/proposals/", "POST /schedules/{name}/run")


class Caller:
    """Speaks ASGI to the application as uvicorn does, and hangs up after the first words of a stream."""

    def __init__(self, site: Site, token: str) -> None:
        self._app = site.app
        self._token = token
        self.answers: Counter[tuple[str, int]] = Counter()
        self.failures: list[str] = []
        self.acknowledged: list[int] = []

    async def send(
        self, name: str, method: str, path: str, query: bytes, headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes]:
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": method,
            "scheme": "http", "path": unquote(path), "raw_path": path.encode("ascii"), "query_string": query,
            "root_path": "", "client": ("127.0.0.1", 1), "server": ("kappa.test", 80),
            "headers": [
                (b"authorization", f"Bearer {self._token}".encode()),
                (b"content-length", str(len(body)).encode()),
                *((key.encode(), value.encode("latin-1")) for key, value in headers.items()),
            ],
        }  # fmt: skip
        parts = [body[: len(body) // 2], body[len(body) // 2 :]]
        answered = asyncio.Event()
        status, said = 0, b""

        async def receive() -> Message:
            if parts:
                return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
            await answered.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            nonlocal status, said
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                said += message.get("body", b"")
                answered.set()

        try:
            await self._app(scope, receive, send)
        except Exception as error:
            self.failures.append(f"{name} raised {error!r} for {path} {query!r} {headers} {body[:300]!r}")
        if (status >= 500 and not any(code in said for code in TOO_LATE)) or not status:
            self.failures.append(f"{name} answered {status} {said!r} to {path} {query!r} {headers} {body[:300]!r}")
        self.answers[name, status] += 1
        return status, said

    async def mischief(self, name: str, request: tuple[str, str, bytes, dict[str, str], bytes]) -> None:
        status, said = await self.send(name, *request)
        if status == 201 and (name == "POST /jobs" or name.endswith("/retry")):
            self.acknowledged.append(json.loads(said)["id"])
        elif status == 201 and name == "POST /ingest":
            self.acknowledged.append(json.loads(said)["job"])
        elif status == 201 and name.startswith(WHICH_MAKE_JOBS) and json.loads(said)["status"] == "created":
            self.acknowledged.append(json.loads(said)["id"])
        elif status == 201 and name.endswith("/runs"):
            self.acknowledged.append(json.loads(said)["job_id"])


async def _enqueue(caller: Caller, count: int) -> list[int]:
    body = json.dumps({"kind": "self_test", "payload": {"steps": 2}}).encode()
    made: list[int] = []
    for _ in range(count):
        status, said = await caller.send("ours", "POST", "/jobs", b"", {"content-type": "application/json"}, body)
        assert status == 201, said
        made.append(json.loads(said)["id"])
    return made


@pytest.mark.timeout(7200 if EACH else 900)
async def test_ten_thousand_random_requests_fail_nothing_and_lose_nothing(
    site: Site, connection: psycopg.Connection[tuple[Any, ...]]
) -> None:
    seed = int(os.environ.get("KAPPA_TEST_SEED") or SEED)
    mischief = Mischief(random.Random(seed))
    # What asks, and what must stay as it is, have numbers and names that dice don't show.
    connection.execute("SELECT setval(pg_get_serial_sequence('kappa.tokens', 'id'), 1000000)")
    await site.services.people.make_user(KAPPA, "the-one-who-asks", roles=["platform_admin"])
    token = await site.services.credentials.make_token(
        KAPPA, "asks", user="the-one-who-asks", user_permissions=frozenset()
    )
    caller = Caller(site, token.secret)
    prey = await _enqueue(caller, 3 * KEPT)
    connection.execute("SELECT setval(pg_get_serial_sequence('kappa.jobs', 'id'), 1000000)")
    kept = await _enqueue(caller, KEPT)
    before = connection.execute(KEPT_JOBS, [kept]).fetchall()

    done = 0
    while done < (EACH * len(mischief.operations) or REQUESTS):
        # A lane that lost its kind, or was switched off, would make the rest of the run too easy.
        connection.execute("UPDATE kappa.lanes SET kinds = '{self_test}', enabled = true WHERE name = 'checks'")
        batch = [mischief.any_request(done + one) for one in range(AT_ONCE * 25)]
        for begin in range(0, len(batch), AT_ONCE):
            await asyncio.gather(*(caller.mischief(name, request) for name, request in batch[begin : begin + AT_ONCE]))
        done += len(batch)

    assert not caller.failures, f"{len(caller.failures)} failures, the first: {caller.failures[0]}"
    assert before == connection.execute(KEPT_JOBS, [kept]).fetchall()
    there = {row[0] for row in connection.execute("SELECT id FROM kappa.all_jobs").fetchall()}
    assert there == {*prey, *kept, *caller.acknowledged}
    assert len(caller.acknowledged) == len(set(caller.acknowledged))
    status, said = await caller.send("ours", "GET", "/admin/workers/status", b"", {}, b"")
    assert status == 200
    assert {"checks"} <= {lane["name"] for lane in json.loads(said)["lanes"]}
    await _enqueue(caller, 1)
    refused = sum(count for (_, status), count in caller.answers.items() if status == 401)
    # The dice must have hit something: work was taken, and the token was good all along.
    assert caller.acknowledged
    assert refused == caller.answers["POST /sessions", 401]
