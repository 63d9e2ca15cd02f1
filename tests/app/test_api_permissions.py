"""Every route declares who may use it, and holds to that for every role; docs/permissions.md says the same."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from kappa.app.api import application
from kappa.app.permissions import MEANING, ROLES, Permission
from kappa.app.usecases import (
    audit,
    backups,
    credentials,
    curation,
    graph,
    jobs,
    ontologies,
    people,
    schedules,
    submission,
    tools,
    workers,
)
from tests.app.conftest import KAPPA, Site

DOCUMENT = Path(__file__).parents[2] / "docs" / "permissions.md"
OPEN = {"GET /healthz", "GET /readyz", "GET /metrics", "GET /openapi.json", "POST /sessions"}
SOMETHING = {
    "job_id": "4711", "token_id": "4711", "run_id": "4711", "name": "nobody", "path": "a.txt", "concept": "nothing",
    "merge_id": "4711", "artifact_id": "00000000-0000-0000-0000-000000000000",
    "proposal_id": "4711",
}  # fmt: skip


class Declared(NamedTuple):
    method: str
    path: str
    permission: str

    @property
    def label(self) -> str:
        return f"{self.method} {self.path.replace(':path}', '}')}"

    @property
    def url(self) -> str:
        return re.sub(r"{(\w+)[^}]*}", lambda found: SOMETHING[found[1]], self.path)


def declared(app: FastAPI) -> Iterator[Declared]:
    """Every route there is, with its permission; one that has none is an error."""
    for context in iter_route_contexts(app.routes):
        assert context.path is not None
        extra = getattr(context.original_route, "openapi_extra", None) or {}
        for method in sorted(getattr(context.original_route, "methods", None) or {"ANY"}):
            permission = extra.get("x-permission")
            if permission is None:
                raise LookupError(f"{method} {context.path} declares no permission")
            yield Declared(method, context.path, permission)


ROUTES = list(declared(application.api()))


async def ask(client: httpx2.AsyncClient, route: Declared) -> int:
    body = {"json": {}} if route.method in ("POST", "PUT", "PATCH") else {}
    return (await client.request(route.method, route.url, **body)).status_code


def test_every_route_declares_a_permission_that_there_is() -> None:
    assert len(ROUTES) > 30
    for route in ROUTES:
        assert route.permission == "open" or route.permission in set(Permission), route.label


def test_only_what_must_be_open_is_open() -> None:
    assert {route.label for route in ROUTES if route.permission == "open"} <= OPEN


def test_every_permission_is_asked_for_somewhere() -> None:
    asked = {route.permission for route in ROUTES}
    # The first is asked for inside of the use case, for it depends on whose job it is; the second by the fleet's calls,
    # which stand beside the routes: test_fleet_calls.py.
    assert set(Permission) - asked == {Permission.JOBS_MANAGE, Permission.FLEET_WORK}


def test_a_route_without_a_permission_is_found() -> None:
    app = application.api()
    app.add_api_route("/planted", lambda: None, methods=["GET"])
    with pytest.raises(LookupError, match="GET /planted declares no permission"):
        list(declared(app))


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_may_use_the_routes_of_its_permissions_and_no_others(site: Site, role: str) -> None:
    client = await site.client(role)
    wrong: list[tuple[str, int]] = []
    for route in ROUTES:
        status = await ask(client, route)
        allowed = route.permission == "open" or route.permission in ROLES[role]
        fits = (status not in (401, 403) or route.label == "POST /sessions") if allowed else status == 403
        if not fits or status >= 500:
            wrong.append((route.label, status))
    assert wrong == []


async def test_without_a_token_only_the_open_routes_answer(site: Site) -> None:
    client = await site.client(None)
    wrong: list[tuple[str, int]] = []
    for route in ROUTES:
        status = await ask(client, route)
        if (status == 401) != (route.permission != "open"):
            wrong.append((route.label, status))
    assert wrong == []


async def test_a_made_up_token_is_no_token(site: Site) -> None:
    client = await site.client(token="kappa_" + "A" * 43)
    assert {await ask(client, route) for route in ROUTES if route.permission != "open"} == {401}


async def test_a_token_scoped_to_nothing_may_nothing(site: Site) -> None:
    await site.token("platform_admin")
    theirs = frozenset(map(str, Permission))
    made = await site.services.credentials.make_token(
        KAPPA, "nothing", user="platform_admin", user_permissions=theirs, scopes=[]
    )
    client = await site.client(token=made.secret)
    assert {await ask(client, route) for route in ROUTES if route.permission != "open"} == {403}


async def test_openapi_says_each_permission(site: Site) -> None:
    document = (await (await site.client(None)).get("/openapi.json")).json()
    said = {
        f"{method.upper()} {path}": operation["x-permission"]
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    assert said == {route.label: route.permission for route in ROUTES if route.label in said}
    assert {route.label for route in ROUTES} - set(said) <= OPEN


def table(text: str, heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, cell by cell."""
    below = text.split(f"\n## {heading}\n", 1)[1]
    rows = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert rows is not None
    cells = [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows[0].splitlines()]
    return [cells[0], *cells[2:]]


def test_the_document_lists_every_permission_and_its_meaning() -> None:
    rows = table(DOCUMENT.read_text(), "Permissions")[1:]
    assert dict(rows) == {str(name): meaning for name, meaning in MEANING.items()}


def test_the_document_lists_what_every_role_may() -> None:
    head, *rows = table(DOCUMENT.read_text(), "Roles")
    said = {role: {row[0] for row in rows if row[place] == "✓"} for place, role in enumerate(head) if place}
    assert said == {role: set(map(str, permissions)) for role, permissions in ROLES.items()}


def test_the_document_lists_every_audited_action() -> None:
    rows = table(DOCUMENT.read_text(), "The audit log")[1:]
    said = {action.strip(" `") for row in rows for action in row[0].split(",")}
    modules = (
        audit,
        backups,
        credentials,
        curation,
        graph,
        jobs,
        ontologies,
        people,
        schedules,
        submission,
        tools,
        workers,
    )
    sources = "".join(Path(str(module.__file__)).read_text() for module in modules)
    assert said == set(
        re.findall(
            r'"((?:access|user|role|token|session|job|schedule|lane|tool|tool_run|graph|ontology|proposal)\.[a-z_]+)"',
            sources,
        )
    )
