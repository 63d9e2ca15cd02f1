"""What holds for every request: ids, headers, HEAD, sizes, odd bodies, problems, and a server that drains."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import psycopg
import pytest
from psycopg import sql

from kappa.app.api.middleware import SECURITY
from tests.app.conftest import Site
from tests.app.patience import becomes
from tests.app.test_api_permissions import ROUTES
from tests.conftest import Server

GETS = [route for route in ROUTES if route.method == "GET" and not route.path.endswith("/events")]


def check_problem(answer: httpx2.Response) -> dict[str, Any]:
    """Every error has this shape."""
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["request_id"] == answer.headers["x-request-id"]
    for name in ("type", "title", "code", "detail"):
        assert isinstance(problem[name], str)
        assert problem[name]
    assert "\n" not in problem["detail"]
    return problem


# Ids


async def test_a_sane_request_id_is_kept(operator: httpx2.AsyncClient) -> None:
    answer = await operator.get("/healthz", headers={"X-Request-Id": "abc-1.2_3"})
    assert answer.headers["x-request-id"] == "abc-1.2_3"


@pytest.mark.parametrize("given", ["", "a b", "x" * 65, "<script>", "a;b", "é".encode("latin-1")])
async def test_another_id_is_replaced(operator: httpx2.AsyncClient, given: str | bytes) -> None:
    answer = await operator.get("/healthz", headers={"X-Request-Id": given})
    assert re.fullmatch(r"[0-9a-f]{16}", answer.headers["x-request-id"])


async def test_every_request_has_an_id_of_its_own(operator: httpx2.AsyncClient) -> None:
    ids = {(await operator.get("/healthz")).headers["x-request-id"] for _ in range(10)}
    assert len(ids) == 10


# Headers


async def test_every_answer_has_the_security_headers(site: Site, operator: httpx2.AsyncClient) -> None:
    nobody = await site.client(None)
    answers = [
        await nobody.get("/healthz"),
        await nobody.get("/me"),
        await operator.get("/nowhere"),
        await operator.put("/jobs"),
        await operator.post("/jobs", content=b"{", headers={"Content-Type": "application/json"}),
        await operator.post("/jobs", content=b"x" * (site.services.settings.max_body + 1)),
        await operator.delete("/roles/admin"),
    ]
    assert [answer.status_code for answer in answers] == [200, 401, 404, 405, 422, 413, 409]
    site.guard.drain()
    answers.append(await operator.get("/jobs"))
    assert answers[-1].status_code == 503
    for answer in answers:
        assert {name: answer.headers.get(name) for name in SECURITY} == SECURITY


@pytest.mark.parametrize("route", GETS, ids=lambda route: route.label)
async def test_head_is_get_without_the_body(operator: httpx2.AsyncClient, route: Any) -> None:
    got, headed = await operator.get(route.url), await operator.head(route.url)
    assert (headed.status_code, headed.content) == (got.status_code, b"")
    assert set(headed.headers) == set(got.headers)
    assert headed.headers["content-type"] == got.headers["content-type"]


async def test_head_of_what_can_not_be_read_is_refused_like_get(operator: httpx2.AsyncClient) -> None:
    refused = await operator.head("/sessions")
    assert (refused.status_code, refused.content) == (405, b"")


# Problems


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "no_such_route"),
        ("GET", "/jobs/1/nowhere", 404, "no_such_route"),
        ("DELETE", "/jobs", 405, "no_such_method"),
        ("OPTIONS", "/jobs", 405, "no_such_method"),
        ("GET", "/jobs/1", 404, "not_found"),
        ("GET", "/jobs/one", 422, "not_understood"),
        ("GET", "/users/nobody", 404, "not_found"),
        ("DELETE", "/roles/admin", 409, "conflict"),
    ],
)
async def test_every_error_is_a_problem(
    operator: httpx2.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    answer = await operator.request(method, path)
    assert answer.status_code == status
    assert check_problem(answer)["code"] == code


async def test_a_path_that_is_no_text_finds_nothing(operator: httpx2.AsyncClient) -> None:
    for path in ("/%00", "/%ff%fe", "/jobs/%00", "/users/%ed%a0%80", "/" + "a" * 5000):
        answer = await operator.get(path)
        assert answer.status_code in (404, 422)
        check_problem(answer)


# Bodies

DEEP = 100_000
BODIES: dict[str, bytes] = {
    "nothing": b"",
    "half": b'{"kind": "self_te',
    "no json": b"kind=self_test",
    "a list": b"[]",
    "a number": b"7",
    "null": b"null",
    "not utf-8": b'{"kind": "\xff\xfe"}',
    "utf-16": json.dumps({"kind": "self_test"}).encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"kind": "self_test"}',
    "deep list": b'{"kind": "self_test", "payload": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep object": b'{"kind": "self_test", "payload": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "rather deep list": b'{"kind": "self_test", "payload": ' + b"[" * 600 + b"]" * 600 + b"}",
    "deep untyped": b'{"kind": "unhandled", "payload": ' + b"[" * 900 + b"]" * 900 + b"}",
    "rather deep untyped": b'{"kind": "unhandled", "payload": ' + b"[" * 300 + b"]" * 300 + b"}",
    "nul in the payload": b'{"kind": "unhandled", "payload": "a\\u0000b"}',
    "nul in a key": b'{"kind": "unhandled", "payload": {"a\\u0000": 1}}',
    "nul in the kind": b'{"kind": "self\\u0000test"}',
    "lone surrogate in the payload": b'{"kind": "unhandled", "payload": "\\ud800"}',
    "lone surrogate in a key of the payload": b'{"kind": "unhandled", "payload": {"\\udfff": 1}}',
    "lone surrogate in the kind": b'{"kind": "\\ud800"}',
    "lone surrogate in the dedup key": b'{"kind": "self_test", "dedup_key": "\\ud800"}',
    "lone surrogate as a field": b'{"kind": "self_test", "\\ud800": 1}',
    "nul as a field": b'{"kind": "self_test", "\\u0000": 1}',
    "huge int in the payload": b'{"kind": "unhandled", "payload": ' + b"9" * 4000 + b"}",
    "endless int in the payload": b'{"kind": "unhandled", "payload": ' + b"9" * 5000 + b"}",
    "huge int as priority": b'{"kind": "self_test", "priority": ' + b"9" * 4000 + b"}",
    "huge int as delay": b'{"kind": "self_test", "delay": ' + b"9" * 400 + b"}",
    "huge int as time": b'{"kind": "self_test", "at": ' + b"9" * 400 + b"}",
    "huge float": b'{"kind": "unhandled", "payload": 1e999}',
    "not a number": b'{"kind": "unhandled", "payload": NaN}',
    "not a number as delay": b'{"kind": "self_test", "delay": NaN}',
    "infinite delay": b'{"kind": "self_test", "delay": Infinity}',
    "the same field twice": b'{"kind": "self_test", "kind": "unhandled"}',
}


@pytest.fixture
async def anything(site: Site) -> None:
    """A lane for a kind without a handler, which takes whatever is JSON."""
    async with site.services.auth.connection(who="test") as connection:
        await connection.execute("INSERT INTO kappa.lanes (name, kinds) VALUES ('spare', '{unhandled}')")


@pytest.mark.usefixtures("anything")
@pytest.mark.parametrize("name", BODIES)
async def test_an_odd_body_is_taken_or_refused_but_never_a_failure(operator: httpx2.AsyncClient, name: str) -> None:
    answer = await operator.post("/jobs", content=BODIES[name], headers={"Content-Type": "application/json"})
    assert answer.status_code in (201, 400, 422), answer.text
    if answer.status_code == 201:
        shown = await operator.get(answer.headers["location"])
        assert shown.status_code == 200, shown.text
    else:
        check_problem(answer)
    assert (await operator.get("/jobs")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "/admin/workers/lanes/checks", b'{"lease_ttl": ' + b"9" * 400 + b"}"),
        ("PATCH", "/admin/workers/lanes/checks", b'{"kinds": ["\\ud800"]}'),
        ("PUT", "/roles/ops", b'{"permissions": ["\\ud800"]}'),
        ("PUT", "/roles/ops", b'{"permissions": ["a\\u0000"]}'),
        ("POST", "/tokens", b'{"name": "\\ud800"}'),
        ("POST", "/tokens", b'{"name": "x", "scopes": ["\\ud800"]}'),
        ("POST", "/tokens", b'{"name": "x", "lasts": ' + b"9" * 400 + b"}"),
        ("POST", "/sessions", b'{"name": "\\ud800", "password": "x"}'),
        ("POST", "/sessions", b'{"name": "x", "password": "\\ud800"}'),
        ("POST", "/users", b'{"name": "ada", "password": "\\ud800aaaaaaaaaaaaaaaa"}'),
        ("PUT", "/me/password", b'{"password": "\\ud800aaaaaaaaaaaaaaaa"}'),
    ],
)
async def test_odd_values_are_refused_everywhere(
    operator: httpx2.AsyncClient, method: str, path: str, body: bytes
) -> None:
    answer = await operator.request(method, path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (401, 422), answer.text
    check_problem(answer)


async def test_a_password_with_a_nul_is_only_a_password(operator: httpx2.AsyncClient, site: Site) -> None:
    password = "a nul \0 in the middle"
    assert (await operator.post("/users", json={"name": "ada", "password": password})).status_code == 201
    nobody = await site.client(None)
    assert (await nobody.post("/sessions", json={"name": "ada", "password": "a nul "})).status_code == 401
    assert (await nobody.post("/sessions", json={"name": "ada", "password": password})).status_code == 201


async def test_a_fault_never_repeats_what_was_sent(operator: httpx2.AsyncClient) -> None:
    secret = "S3cret" * 300
    answer = await operator.post("/users", json={"name": "ada", "password": secret})
    assert answer.status_code == 422
    assert "S3cret" not in answer.text


# Sizes


def job_of(size: int) -> bytes:
    frame = b'{"kind": "unhandled", "payload": ""}'
    return frame[:-2] + b"x" * (size - len(frame)) + frame[-2:]


async def in_pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 65536):
        yield body[start : start + 65536]


@pytest.mark.usefixtures("anything")
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_refused_and_one_at_it_is_taken(
    site: Site, operator: httpx2.AsyncClient, chunked: bool
) -> None:
    limit = site.services.settings.max_body
    headers = {"Content-Type": "application/json"}
    over, exact = job_of(limit + 1), job_of(limit)
    refused = await operator.post("/jobs", content=in_pieces(over) if chunked else over, headers=headers)
    assert ("content-length" in refused.request.headers) is not chunked
    assert refused.status_code == 413
    problem = check_problem(refused)
    assert (problem["code"], str(limit) in problem["detail"]) == ("too_large", True)
    assert (await operator.get("/jobs")).json()["items"] == []
    taken = await operator.post("/jobs", content=in_pieces(exact) if chunked else exact, headers=headers)
    assert taken.status_code == 201, taken.text


async def test_a_length_that_lies_is_counted(site: Site, operator: httpx2.AsyncClient) -> None:
    over = job_of(site.services.settings.max_body + 1)
    headers = {"Content-Type": "application/json", "Content-Length": "10"}
    assert (await operator.post("/jobs", content=in_pieces(over), headers=headers)).status_code == 413


# Draining


async def test_a_draining_server_turns_new_work_away(site: Site, operator: httpx2.AsyncClient) -> None:
    site.guard.drain()
    for method, path in (("GET", "/jobs"), ("POST", "/jobs"), ("GET", "/nowhere"), ("HEAD", "/me")):
        answer = await operator.request(method, path)
        assert (answer.status_code, answer.headers["connection"]) == (503, "close")
        assert int(answer.headers["retry-after"]) > 0
        if method != "HEAD":
            assert check_problem(answer)["code"] == "draining"
    assert (await operator.get("/healthz")).status_code == 200
    assert (await operator.get("/readyz")).status_code == 503


async def test_what_is_under_way_is_counted(site: Site, operator: httpx2.AsyncClient) -> None:
    await operator.get("/jobs")
    await operator.get("/nowhere")
    await operator.post("/jobs", content=b"{")
    assert site.guard.under_way == 0


async def test_a_server_without_its_database_is_alive_and_not_ready(
    site: Site, operator: httpx2.AsyncClient, server: Server, url: str
) -> None:
    name = sql.Identifier(url.rsplit("/", 1)[1])
    assert (await operator.get("/readyz")).status_code == 200
    server.admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
    ours = [url.rsplit("/", 1)[1]]
    server.admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", ours)
    away = await operator.get("/readyz")
    assert away.status_code == 503
    problem = check_problem(away)
    assert (problem["code"], away.headers["retry-after"]) == ("database_unavailable", "1")
    assert problem["detail"] == "the database is not available now"
    assert (await operator.get("/healthz")).status_code == 200
    server.admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))

    async def ready() -> bool:
        return (await operator.get("/readyz")).status_code == 200

    await becomes(ready, what="it is ready again")


async def test_a_session_of_the_database_that_was_ended_is_replaced(
    operator: httpx2.AsyncClient, connection: psycopg.Connection[tuple[Any, ...]]
) -> None:
    await operator.get("/jobs")
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    # With a wait: one that was told to end but hasn't yet would take a statement, and end in the middle of it.
    connection.execute(f"SELECT pg_terminate_backend(pid, 30000) {others}".encode())
    assert (await operator.get("/jobs")).status_code == 200
