"""JSON routes read JSON whatever its content type says; a page of another site gains nothing from that."""

import json
import re
import subprocess
from typing import Any

import httpx2
import pytest

from kappa.app.api import application
from kappa.app.api.routing import COOKIE
from tests.app.conftest import Site, Up
from tests.app.test_api_middleware import check_problem
from tests.app.test_api_people import browser, person, sign_in
from tests.app.test_api_permissions import SOMETHING
from tests.ground import require_program

FORM = "application/x-www-form-urlencoded"
UNTRUE = [None, FORM, "text/plain", "text/plain; charset=utf-8", "application/octet-stream", "not a type"]
FORMS = [FORM, "text/plain", "multipart/form-data; boundary=x", None]
"""What a form of a web page, or a script of another site, can send without asking the server first."""


def json_routes() -> list[tuple[str, str]]:
    document = application.api().openapi()
    return [
        (method.upper(), re.sub(r"{(\w+)}", lambda found: SOMETHING[found[1]], path))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    ]


def typed(kind: str | None) -> dict[str, str]:
    return {"Content-Type": kind} if kind else {}


def told(answer: httpx2.Response) -> tuple[int, dict[str, Any]]:
    """An answer without what differs from request to request."""
    return answer.status_code, {**answer.json(), "request_id": None}


async def test_every_json_route_answers_the_same_whatever_the_content_type_says(operator: httpx2.AsyncClient) -> None:
    routes = json_routes()
    assert len(routes) > 20
    wrong: list[tuple[str, str, str | None]] = []
    for method, path in routes:
        for body in (b'{"no_such_field": 1}', b"max_slots=3"):
            wanted = await operator.request(method, path, content=body, headers=typed("application/json"))
            assert wanted.status_code == 422, f"{method} {path}"
            for kind in UNTRUE:
                answer = await operator.request(method, path, content=body, headers=typed(kind))
                if told(answer) != told(wanted):
                    wrong.append((method, path, kind))
    assert wrong == []


def test_curl_without_a_content_type_edits_a_lane(up: Up) -> None:
    require_program("curl")
    line = (
        'curl -s -w "%{http_code}" -X PATCH $KAPPA/admin/workers/lanes/interactive'
        ' -H "Authorization: Bearer $TOKEN" -d \'{"max_slots": 3}\''
    )
    done = subprocess.run(
        ["bash", "-c", line], env={"KAPPA": up.url, "TOKEN": up.token, "PATH": "/usr/bin:/bin"}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout.endswith("200"), done.stdout
    assert json.loads(done.stdout.removesuffix("200"))["max_slots"] == 3


@pytest.mark.parametrize("kind", ["application/json", FORM, None])
@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        (b"max_slots=3", 422, "body: invalid JSON at character 0: Expecting value"),
        (b'{"max_slots": 3', 422, "body: invalid JSON at character 15: Expecting ',' delimiter"),
        (b'{"executor": "\xff"}', 400, "the body is not JSON: byte 14 is not UTF-8 (invalid start byte)"),
        (b"[" * 200_000, 422, "the body is nested too deeply"),
        (b'{"max_slots": ' + b"9" * 5000 + b"}", 400, "the body has a number with too many digits"),
        (b"[1]", 422, "body: must be a JSON object"),
        (b'{"max_slots": "three"}', 422, "body.max_slots: Input should be a valid integer"),
    ],
    ids=["form", "cut off", "not utf-8", "deep", "endless", "a list", "a wrong value"],
)
async def test_a_body_that_is_not_json_is_told_what_is_wrong_with_it(
    operator: httpx2.AsyncClient, kind: str | None, body: bytes, status: int, detail: str
) -> None:
    answer = await operator.patch("/admin/workers/lanes/checks", content=body, headers=typed(kind))
    assert (answer.status_code, check_problem(answer)["detail"]) == (status, detail)


async def test_a_multipart_upload_is_no_json(operator: httpx2.AsyncClient) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = await operator.post("/jobs", content=b'{"kind": "self_test"}', headers=headers)
    assert answer.status_code == 422
    assert "a multipart upload is not JSON: send the body as JSON" in check_problem(answer)["detail"]
    assert (await operator.get("/jobs")).json()["items"] == []


@pytest.mark.parametrize("origin", [{}, {"Origin": "https://elsewhere.test"}, {"Sec-Fetch-Site": "cross-site"}])
@pytest.mark.parametrize("kind", FORMS)
async def test_a_form_of_another_site_does_nothing_by_cookie_alone(
    site: Site, kind: str | None, origin: dict[str, str]
) -> None:
    await person(site)
    client = await browser(site)
    csrf = (await sign_in(client)).json()["csrf_token"]
    assert COOKIE in client.cookies
    body = json.dumps({"kind": "self_test", "csrf_token": csrf, "X-CSRF-Token": csrf}).encode()
    for content in (b'{"kind": "self_test"}', body):
        refused = await client.post("/jobs", content=content, headers={**typed(kind), **origin})
        assert refused.status_code == (403 if origin or "multipart" not in (kind or "") else 422), refused.text
        check_problem(refused)
    assert (await client.get("/jobs")).json()["items"] == []


@pytest.mark.parametrize("origin", [{"Origin": "https://elsewhere.test"}, {"Sec-Fetch-Site": "cross-site"}])
@pytest.mark.parametrize("kind", FORMS)
async def test_a_form_of_another_site_signs_nobody_in(site: Site, kind: str | None, origin: dict[str, str]) -> None:
    """As whoever made that form, in whose name the visitor would then work."""
    await person(site)
    client = await browser(site)
    answer = await client.post(
        "/sessions", content=json.dumps({"name": "ada", "password": "a long enough password"}).encode(),
        headers={**typed(kind), **origin},
    )  # fmt: skip
    assert (answer.status_code, COOKIE in client.cookies) == (403, False)
    assert "Content-Type: application/json" in check_problem(answer)["detail"]


async def test_a_script_of_this_site_says_that_it_sends_json(site: Site) -> None:
    await person(site)
    client = await browser(site)
    headers = {"Origin": "http://kappa.test", "Sec-Fetch-Site": "same-origin"}
    signed = await client.post("/sessions", json={"name": "ada", "password": "a long enough password"}, headers=headers)
    assert signed.status_code == 201
    headers["X-CSRF-Token"] = signed.json()["csrf_token"]
    assert (await client.post("/jobs", json={"kind": "self_test"}, headers=headers)).status_code == 201


def optional_bodies() -> list[str]:
    document = application.api().openapi()
    return [
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if "requestBody" in operation and not operation["requestBody"].get("required")
    ]


@pytest.mark.parametrize("origin", [{}, {"Origin": "https://elsewhere.test"}])
async def test_a_script_of_this_site_may_leave_out_a_body_that_is_optional(site: Site, origin: dict[str, str]) -> None:
    await person(site, "ada", "platform_admin")
    client = await browser(site)
    csrf = {"X-CSRF-Token": (await sign_in(client)).json()["csrf_token"]}
    same = {"Origin": "http://kappa.test", "Sec-Fetch-Site": "same-origin"}
    job = (await client.post("/jobs", json={"kind": "self_test", "delay": 1000}, headers={**same, **csrf})).json()["id"]
    routes = optional_bodies()
    assert len(routes) >= 4
    for route in routes:
        method, path = route.split(" ")
        path = re.sub(r"{(\w+)}", lambda found: SOMETHING[found[1]], path).replace(SOMETHING["job_id"], str(job))
        assert (await client.request(method, path, headers={**same, **origin})).status_code == 403, "no CSRF token"
        form = {**same, **csrf, **typed(FORM)}
        assert (await client.request(method, path, content=b"{}", headers=form)).status_code == 403, "a form"
        answer = await client.request(method, path, headers={**same, **csrf})
        assert answer.status_code in (200, 404, 409), (route, answer.text)
    assert (await client.get(f"/jobs/{job}")).json()["state"] == "cancelled"


async def test_with_a_token_a_script_of_any_site_may_say_nothing_of_the_type(site: Site) -> None:
    client = await site.client("contributor")
    headers = {"Origin": "https://elsewhere.test", "Content-Type": "text/plain"}
    assert (await client.post("/jobs", content=b'{"kind": "self_test"}', headers=headers)).status_code == 201
