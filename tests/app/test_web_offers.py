"""Nobody is shown a way that they may not go: every form, button, poll, link and picture of every page, for every role.

Who may is read off the route that a target leads to, so that a new page or button needs no line here.
"""

from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pytest
from starlette.routing import compile_path

from kappa.app.permissions import ROLES, Permission
from kappa.app.web import files
from kappa.app.web import site as site_pages
from kappa.engine import Schedule
from kappa.graph import Graph
from kappa.graph.store import ontologies, proposals
from tests.app.conftest import KAPPA, Site
from tests.app.test_api_permissions import ROUTES
from tests.app.test_web import Browser, visitor
from tests.app.worlds import in_memory, populate

WAYS = [
    (page.method, compile_path("/ui" + page.path)[0], page.permission) for page in site_pages.pages()
] + [(route.method, compile_path(route.path)[0], route.permission) for route in ROUTES]  # fmt: skip
ELSEWHERE = ["/graph/documents/{document}", "/ingest/submit"]
"""What only evidence and an upload lead to: other tests have these."""
ALONE = {f"only_{one.replace(':', '_')}": {one} for one in Permission}
WITHOUT = {f"all_but_{one.replace(':', '_')}": set(Permission) - {one} for one in Permission}


def asked_by(method: str, target: str) -> str | None:
    """The permission that a target asks for; None if it is open."""
    path = unquote(urlsplit(target).path)
    if path.startswith(files.PREFIX):
        return None
    for way, pattern, permission in WAYS:
        if way == method and pattern.match(path):
            return None if permission in (None, "open") else str(permission)
    raise LookupError(f"nothing answers {method} {path}")


class Offers(HTMLParser):
    """Where a page leads to, by a click or by itself, as method and target."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ways: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.ways.append((has.get("method", "get").upper(), has["action"]))
        self.ways += [("POST", has[name]) for name in ("formaction", "hx-post") if name in has]
        self.ways += [
            ("GET", has[name])
            for name in ("href", "src", "hx-get", "data-drawing")
            if name in has and not has[name].startswith("#")
        ]


@pytest.fixture
async def furnished(site: Site) -> list[str]:
    """Every page, with as much on it as there can be."""
    admin = await site.client("platform_admin")
    ids, epoch = await populate(admin)
    await in_memory(site, epoch)

    def propose(graph: Graph) -> None:
        with graph.transaction() as connection:
            number = ontologies.get(connection, "zoology").number
            proposals.add(connection, uuid4(), "rename", number, {"name": "animals"}, {"words": []}, 0)

    await site.services.graph.write(propose)
    client = site.services.client
    theirs = await client.enqueue("self_test", submitted_by="somebody")
    ended = await client.enqueue("self_test", submitted_by="somebody")
    await client.cancel(ended.id)
    await client.put_schedule(Schedule("mine", "0 3 * * *", "self_test"))
    sent = {"ontology": "notes", "text": "Otters eat fish.", "name": "notes.md"}
    unapproved = (await admin.post("/ingest", json=sent)).raise_for_status().json()["job"]
    tool = {"name": "quick", "version": "1", "argv": ["true"]}
    (await admin.post("/tools", json=tool)).raise_for_status()
    run = (await admin.post("/tools/quick/runs", json={})).raise_for_status().json()
    await site.services.people.put_role(KAPPA, "spare", ["account:use"])
    everything = frozenset(map(str, Permission))
    await site.services.people.make_user(KAPPA, "colleague", roles=["read_only"])
    await site.services.credentials.make_token(KAPPA, "laptop", user="colleague", user_permissions=everything)
    return [
        "/ui/", "/ui/jobs", f"/ui/jobs/{theirs.id}", f"/ui/jobs/{ended.id}", f"/ui/jobs/{unapproved}",
        f"/ui/jobs/{run['job_id']}", "/ui/schedules", "/ui/schedules/artifact_cleanup",
        "/ui/schedules/mine", "/ui/lanes", "/ui/lanes/system", "/ui/graph", "/ui/graph?q=otter",
        f"/ui/graph/concepts/{ids['Otter']}", "/ui/graph/path?from=Otter&to=Whale",
        "/ui/graph/polarity?positive=River&negative=Sea", "/ui/graph/map", "/ui/graph/vocabulary", "/ui/ontologies",
        "/ui/ingest", "/ui/tools", "/ui/tools/new", "/ui/tools/quick", f"/ui/runs/{run['id']}", "/ui/fleet",
        "/ui/people", "/ui/people/colleague", "/ui/people/platform_admin", "/ui/roles", "/ui/audit", "/ui/account",
    ]  # fmt: skip


async def beyond(browser: Browser, pages: list[str], may: set[str]) -> list[str]:
    """What pages lead to and its visitor may not have."""
    found: list[str] = []
    for path in pages:
        answer = await browser.get(path)
        asks = asked_by("GET", path)
        assert answer.status_code == (403 if asks not in may else 200), (path, answer.text)
        if answer.status_code == 200:
            found += [
                f"{path}: {method} {target} asks for {asks}"
                for method, target in Offers(answer.text).ways
                if (asks := asked_by(method, target)) is not None and asks not in may
            ]
    return found


@pytest.mark.parametrize("roles", [ROLES, ALONE, WITHOUT], ids=["of Kappa", "of one permission", "of all but one"])
async def test_nobody_is_shown_a_way_that_they_may_not_go(
    site: Site, furnished: list[str], roles: dict[str, set[Permission]]
) -> None:
    wrong: list[str] = []
    for role, permissions in roles.items():
        only = None if roles is ROLES else permissions
        browser = await visitor(site, role, f"a-{role}", only)
        may = set(map(str, permissions)) | {str(Permission.ACCOUNT_USE)}
        wrong += [f"{role}: {one}" for one in await beyond(browser, furnished, may)]
    assert wrong == []


async def test_after_a_change_nobody_is_sent_where_they_may_not_go(site: Site, furnished: list[str]) -> None:
    curator = await visitor(
        site, "narrow", only=[Permission.GRAPH_READ, Permission.GRAPH_CURATE, Permission.JOBS_ENQUEUE]
    )
    for path in ("/ui/graph/map", "/ui/ontologies/anneal", "/ui/proposals/1/approve", "/ui/proposals/1/execute"):
        answer = await curator.post(path)
        assert answer.status_code == 303, (path, answer.text)
        assert (await curator.get(answer.headers["location"])).status_code == 200, path


async def test_whoever_may_do_everything_is_shown_the_way_to_everything(site: Site, furnished: list[str]) -> None:
    """Else the test above would look past what nobody is shown."""
    browser = await visitor(site, "platform_admin", "somebody-else")
    shown = [way for path in furnished for way in Offers((await browser.get(path)).text).ways]
    assert [
        page.path
        for page in site_pages.pages()
        if page.permission is not None
        and not any(
            method == page.method and compile_path("/ui" + page.path)[0].match(unquote(urlsplit(target).path))
            for method, target in shown
        )
    ] == ELSEWHERE
