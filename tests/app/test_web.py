"""The web pages without a browser: who gets in, what is refused, what every answer has, what each may see."""

import re
from collections.abc import Iterable
from functools import partial
from html import unescape
from pathlib import Path
from uuid import uuid4

import httpx2
import psycopg
import pytest

from kappa.app.api import application
from kappa.app.kinds.cleanup import HOURLY
from kappa.app.permissions import ROLES, Permission
from kappa.app.usecases.overview import Overview, Pulse
from kappa.app.web import drawings, files, ingest, rendering, site
from kappa.app.web import site as pages
from kappa.app.web.pages import POLICY, way_back
from kappa.engine import Executor, Lane
from kappa.graph import Graph
from kappa.graph.store import ontologies, proposals
from tests.app.conftest import KAPPA, Site
from tests.app.patience import becomes
from tests.app.worlds import populate

PASSWORD = "correct horse battery"
PAGES = list(site.pages())
DOCUMENT = Path(__file__).parents[2] / "docs" / "web.md"
SHOWN = [
    "/ui/", "/ui/jobs", "/ui/schedules", "/ui/schedules/artifact_cleanup",
    "/ui/lanes", "/ui/lanes/system", "/ui/graph", "/ui/graph/path", "/ui/graph/polarity",
    "/ui/graph/map", "/ui/graph/vocabulary", "/ui/ontologies", "/ui/ingest", "/ui/tools", "/ui/tools/new", "/ui/fleet",
    "/ui/people", "/ui/people/platform_admin", "/ui/roles", "/ui/audit", "/ui/account",
]  # fmt: skip
SOMETHING = {
    "job_id": "4711", "token_id": "4711", "run_id": "4711", "name": "nobody", "doing": "drain", "concept": "nothing",
    "proposal": "4711",
    "document": "00000000-0000-0000-0000-000000000000",
}  # fmt: skip


class Browser:
    """Somebody with a cookie, who sends forms as a browser does."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client

    async def sign_in(self, name: str, password: str = PASSWORD, wanted: str = "") -> httpx2.Response:
        return await self.client.post("/ui/sign-in", data={"name": name, "password": password, "next": wanted})

    async def get(self, path: str) -> httpx2.Response:
        return await self.client.get(path)

    async def csrf(self) -> str:
        found = re.search(r'name="csrf_token" value="(\w+)"', (await self.get("/ui/account")).text)
        assert found is not None
        return found[1]

    async def post(self, path: str, **fields: str | list[str]) -> httpx2.Response:
        return await self.client.post(path, data={"csrf_token": await self.csrf(), **fields})


async def visitor(
    site: Site, role: str | None, name: str | None = None, only: Iterable[Permission] | None = None
) -> Browser:
    """Somebody with this role who has signed in; nobody yet if it is None. With `only` the role is a custom one."""
    browser = Browser(await site.client(None))
    if role is not None:
        if only is not None:
            await site.services.people.put_role(KAPPA, role, sorted({Permission.ACCOUNT_USE, *only}))
        await site.services.people.make_user(KAPPA, name or role, password=PASSWORD, roles=[role])
        assert (await browser.sign_in(name or role)).status_code == 303
    return browser


@pytest.fixture
async def admin(site: Site) -> Browser:
    return await visitor(site, "platform_admin")


@pytest.fixture
async def reader(site: Site) -> Browser:
    return await visitor(site, "read_only")


def line(answer: httpx2.Response) -> str:
    """What an error page says."""
    found = re.search(r"</h1>\s*<p>(.*?)</p>", answer.text)
    assert found is not None, answer.text
    return unescape(found[1])


def fault(answer: httpx2.Response) -> str:
    """What a form says is wrong."""
    found = re.search(r'role="alert">(.*?)</p>', answer.text)
    assert found is not None, answer.text
    return unescape(found[1])


# What every page has


@pytest.mark.parametrize("path", SHOWN)
async def test_a_page_is_shown_under_a_policy_that_lets_nothing_else_in(admin: Browser, path: str) -> None:
    answer = await admin.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert POLICY.startswith("default-src 'self';")
    for name, value in {
        "x-content-type-options": "nosniff", "x-frame-options": "DENY", "referrer-policy": "no-referrer",
        "cache-control": "no-store", "cross-origin-opener-policy": "same-origin",
    }.items():  # fmt: skip
        assert answer.headers[name] == value


@pytest.mark.parametrize("path", [*SHOWN, "/ui/sign-in", "/ui/nowhere"])
async def test_a_page_has_no_script_or_style_in_it_and_nothing_from_outside(admin: Browser, path: str) -> None:
    text = (await admin.get(path)).text
    assert re.findall(r"<script(?![^>]*\ssrc=)", text) == []
    assert re.findall(r"<style|\sstyle=|\son[a-z]+=|javascript:", text) == []
    assert [
        found for found in re.findall(r'(?:src|href|action)="([^"]*)"', text) if not found.startswith(("/", "#"))
    ] == []


async def test_every_form_that_changes_something_carries_the_token(admin: Browser, site: Site) -> None:
    await site.services.client.enqueue("self_test")
    for path in SHOWN:
        forms = re.findall(r'<form method="post".*?</form>', (await admin.get(path)).text, re.DOTALL)
        assert forms, path
        assert all('name="csrf_token"' in form for form in forms), path


async def test_static_files_are_kept_by_browsers_until_they_change(site: Site) -> None:
    client = await site.client(None)
    address = files.address(files.load(), "kappa.css")
    first = await client.get(address)
    assert (first.status_code, first.headers["content-type"]) == (200, "text/css; charset=utf-8")
    assert "immutable" in first.headers["cache-control"]
    again = await client.get(address, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for odd in ("nothing.css", "../site.py", "..%2fsite.py", "vendor/"):
        assert (await client.get(f"/ui/static/{odd}")).status_code == 404


def test_what_is_vendored_comes_with_its_licence() -> None:
    assert {"vendor/htmx.min.js", "vendor/htmx.LICENSE"} <= files.load().keys()


# Who gets in


async def test_the_cookie_is_out_of_reach_for_scripts_and_other_sites(site: Site) -> None:
    await site.services.people.make_user(KAPPA, "ada", password=PASSWORD, roles=["read_only"])
    browser = await visitor(site, None)
    answer = await browser.sign_in("ada", wanted="/ui/jobs?state=live")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/jobs?state=live")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secure" not in cookie, "that came by plain http"
    client = await site.client(None)
    client.base_url = httpx2.URL("https://kappa.test")
    assert "; secure" in (await Browser(client).sign_in("ada")).headers["set-cookie"].lower()


@pytest.mark.parametrize("path", SHOWN)
async def test_a_stranger_is_shown_the_way_in_and_comes_back(site: Site, path: str) -> None:
    answer = await (await visitor(site, None)).get(path)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/ui/sign-in?next={path}")


async def test_a_poll_whose_session_is_over_leads_to_the_way_in(site: Site) -> None:
    answer = await (await site.client(None)).get("/ui/jobs", headers={"HX-Request": "true"})
    assert (answer.status_code, answer.headers["hx-redirect"]) == (401, "/ui/sign-in")


@pytest.mark.parametrize(
    "wanted",
    ["https://evil.test/", "//evil.test/ui/", "/ui//evil.test", "/jobs", "/ui/\\evil.test", "javascript:alert(1)", "",
     "/ui/\r\nSet-Cookie: a=b", "ui/"],
)  # fmt: skip
def test_nobody_is_led_away_from_the_site(wanted: str) -> None:
    assert way_back(wanted) == "/ui/"


async def test_a_wrong_password_says_so_and_too_many_are_not_listened_to(site: Site) -> None:
    await site.services.people.make_user(KAPPA, "ada", password=PASSWORD)
    browser = await visitor(site, None)
    for _ in range(5):
        answer = await browser.sign_in("ada", "wrong " + PASSWORD)
        assert (answer.status_code, fault(answer)) == (401, "name and password don't fit")
        assert "wrong " not in answer.text
    answer = await browser.sign_in("ada")
    assert (answer.status_code, fault(answer)) == (429, "too many sign-ins failed: wait before the next try")
    assert int(answer.headers["retry-after"]) > 0


async def test_a_sign_in_that_another_site_sends_is_refused(site: Site) -> None:
    await site.services.people.make_user(KAPPA, "ada", password=PASSWORD)
    client = await site.client(None)
    answer = await client.post(
        "/ui/sign-in", data={"name": "ada", "password": PASSWORD}, headers={"Sec-Fetch-Site": "cross-site"}
    )
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


async def test_a_session_by_token_may_no_more_than_the_token_and_ends_with_it(site: Site) -> None:
    await site.services.people.make_user(KAPPA, "ada", roles=["platform_admin"])
    everything = frozenset(map(str, Permission))
    made = await site.services.credentials.make_token(
        KAPPA, "narrow", user="ada", user_permissions=everything, scopes=["account:use", "jobs:view"]
    )
    client = await site.client(None)
    assert (await client.post("/ui/sign-in", data={"token": made.secret})).status_code == 303
    assert (await client.get("/ui/jobs")).status_code == 200
    assert (await client.get("/ui/lanes")).status_code == 403
    assert (await client.get("/me")).json()["permissions"] == ["account:use", "jobs:view"]
    await site.services.credentials.revoke_token(KAPPA, made.id)
    assert (await client.get("/ui/jobs")).status_code == 303
    refused = await client.post("/ui/sign-in", data={"token": made.secret})
    assert (refused.status_code, fault(refused)) == (401, "the token is unknown, expired or revoked")


async def test_after_signing_out_the_cookie_is_worth_nothing(site: Site, reader: Browser) -> None:
    cookies = dict(reader.client.cookies)
    assert (await reader.post("/ui/sign-out")).status_code == 303
    stranger = await site.client(None)
    stranger.cookies.update(cookies)
    assert (await stranger.get("/ui/account")).status_code == 303


# What is refused


@pytest.mark.parametrize("given", [None, "", "0" * 64, "é"])
async def test_a_change_without_the_token_is_refused_and_does_nothing(
    site: Site, admin: Browser, given: str | None
) -> None:
    fields = {} if given is None else {"csrf_token": given}
    answer = await admin.client.post("/ui/lanes/system/drain", data=fields)
    assert answer.status_code == 403
    assert next(lane for lane in await site.services.client.lanes() if lane.name == "system").enabled


async def test_the_token_of_another_session_is_refused(site: Site, admin: Browser, reader: Browser) -> None:
    answer = await admin.client.post("/ui/lanes/system/drain", data={"csrf_token": await reader.csrf()})
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.permission is not None], ids=lambda p: p.method + p.path
)
def test_every_page_declares_a_permission_that_there_is(page: site.Page) -> None:
    assert page.permission in set(Permission)


def test_only_the_way_in_is_open() -> None:
    assert {page.path for page in PAGES if page.permission is None} == {"/sign-in"}


def test_the_document_lists_every_page() -> None:
    said = set(re.findall(r"`(/ui/[^`]*)`", re.sub(r"{\w+}", "{}", DOCUMENT.read_text())))
    paths = {"/ui" + re.sub(r"{[^}]+}", "{}", page.path) for page in PAGES if page.method == "GET"}
    inside = {"/ui/sign-in", "/ui/graph/suggest", "/ui/graph/around.json", "/ui/graph/path.json"}
    assert said == paths - inside


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_sees_the_pages_of_its_permissions_and_no_others(site: Site, role: str) -> None:
    browser = await visitor(site, role)
    token = await browser.csrf()
    wrong: list[tuple[str, int]] = []
    for page in PAGES:
        if page.permission is None or page.path == "/sign-out":
            continue
        path = "/ui" + re.sub(r"{(\w+)[^}]*}", lambda found: SOMETHING[found[1]], page.path)
        data = {"csrf_token": token} if page.method == "POST" else None
        status = (await browser.client.request(page.method, path, data=data)).status_code
        if (status != 403) != (page.permission in ROLES[role]) or status >= 500:
            wrong.append((f"{page.method} {page.path}", status))
    assert wrong == []


async def test_errors_are_pages_with_one_clear_line(admin: Browser) -> None:
    for path, status, says in (
        ("/ui/jobs/4711", 404, "there is no job 4711"),
        ("/ui/nowhere", 404, "there is no page /ui/nowhere"),
        ("/ui/jobs?state=odd", 422, "there is no state 'odd'"),
        ("/ui/jobs?before=x", 422, "before is a number, and 'x' is none"),
        ("/ui/graph/concepts/Unicorn", 404, "there is no concept 'Unicorn'"),
        ("/ui/runs/4711", 404, "there is no tool run 4711"),
    ):
        answer = await admin.get(path)
        assert (answer.status_code, line(answer)) == (status, says)
        assert answer.headers["content-security-policy"] == POLICY


async def test_a_body_that_is_too_large_is_refused_with_a_line(admin: Browser) -> None:
    answer = await admin.post("/ui/tools/new", description="x" * 2_000_000)
    assert answer.status_code == 413


@pytest.mark.parametrize("depth", [300, 700, 950, 20_000])
@pytest.mark.parametrize("nested", [("[", "]"), ('{"a":[', "]}")], ids=["lists", "objects"])
async def test_json_in_a_form_that_is_nested_too_deeply_is_refused(
    site: Site, depth: int, nested: tuple[str, str]
) -> None:
    made = await (await site.client()).post("/tools", json={"name": "counts", "version": "1", "argv": ["true"]})
    assert made.status_code == 201, made.text
    admin = await visitor(site, "platform_admin", "ada")
    deep = nested[0] * depth + "1" + nested[1] * depth
    fields = {"cron": "0 3 * * *", "timezone": "UTC", "kind": "self_test", "priority": "0", "missed": "fire_once"}
    for path, sent in (
        ("/ui/schedules", {"name": "deep", **fields, "payload": deep}),
        (f"/ui/schedules/{HOURLY.name}", {**fields, "payload": deep}),
        ("/ui/tools/counts/run", {"inputs": deep}),
    ):
        answer = await admin.post(path, **sent)
        assert answer.status_code == 422, path
        assert fault(answer)
    assert (await admin.get("/ui/schedules")).status_code == 200


async def test_what_people_write_is_shown_and_never_run(site: Site, admin: Browser) -> None:
    nasty = "<script>alert(1)</script>\"'&{{ 70 * 70707 }}"
    job = await site.services.client.enqueue("self_test", {"steps": 1}, dedup_key=nasty, submitted_by=nasty)
    for path in ("/ui/jobs", f"/ui/jobs/{job.id}", f"/ui/graph?q={nasty}"):
        text = (await admin.get(path)).text
        assert "<script>alert" not in text
        assert "4949490" not in text


# What is done


async def test_nobody_cancels_the_jobs_of_others_without_the_permission(site: Site) -> None:
    contributor = await visitor(site, "contributor")
    theirs = await site.services.client.enqueue("self_test", None, submitted_by="somebody")
    own = await site.services.client.enqueue("self_test", None, submitted_by="contributor")
    text = (await contributor.get("/ui/jobs")).text
    assert f"/ui/jobs/{own.id}/cancel" in text
    assert f"/ui/jobs/{theirs.id}/cancel" not in text
    assert (await contributor.post(f"/ui/jobs/{theirs.id}/cancel")).status_code == 403
    assert (await contributor.post(f"/ui/jobs/{own.id}/cancel")).status_code == 303
    assert "cancelled" in (await contributor.get(f"/ui/jobs/{own.id}")).text


async def test_a_change_is_in_the_audit_log_with_its_request(admin: Browser) -> None:
    answer = await admin.post("/ui/lanes/system/drain")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/lanes/system")
    text = (await admin.get("/ui/audit")).text
    assert "lane.edit" in text
    assert answer.headers["x-request-id"] in text


async def test_a_lane_that_can_not_be_so_keeps_what_was_typed(admin: Browser) -> None:
    fields = {
        "max_slots": "17",
        "poll_interval_ms": "500",
        "lease_ttl": "60",
        "stale_timeout": "60",
        "executor": "thread",
    }
    answer = await admin.post("/ui/lanes/system", kinds="restore", **fields)
    assert answer.status_code == 422
    assert "a thread lane has 1 to 16 slots" in fault(answer)
    assert 'value="17"' in answer.text


@pytest.mark.parametrize("slots", ["1.000", "1e1", "1_0", "", "1.5"])
async def test_what_is_not_digits_is_no_number_of_slots(admin: Browser, slots: str) -> None:
    fields = {"poll_interval_ms": "500", "lease_ttl": "60", "stale_timeout": "60", "executor": "thread"}
    answer = await admin.post("/ui/lanes/system", kinds="restore", max_slots=slots, **fields)
    assert answer.status_code == 422
    assert fault(answer).startswith("max slots: ")


async def test_a_new_token_is_shown_once_and_in_no_address(site: Site, admin: Browser) -> None:
    answer = await admin.post("/ui/account/tokens", name="laptop", days="30", scopes=["account:use"])
    (secret,) = re.findall(r"kappa_[\w-]{43}", answer.text)
    assert answer.status_code == 200
    assert "location" not in answer.headers
    assert (await (await site.client(token=secret)).get("/me")).json()["permissions"] == ["account:use"]
    assert "kappa_" not in re.sub("kappa_session", "", (await admin.get("/ui/account")).text)


async def test_a_token_for_somebody_else_may_be_given_less_than_they_have(site: Site, admin: Browser) -> None:
    await site.services.people.make_user(KAPPA, "ada", roles=["contributor"])
    page = (await admin.get("/ui/people/ada")).text
    assert 'name="scopes" value="graph:ingest"' in page
    assert 'name="scopes" value="workers:manage"' not in page, "she may not do that herself"
    answer = await admin.post("/ui/people/ada/tokens", name="feeder", days="30", scopes=["graph:ingest"])
    (secret,) = re.findall(r"kappa_[\w-]{43}", answer.text)
    (made,) = await site.services.credentials.tokens(user="ada")
    assert made.scopes == ["graph:ingest"]
    assert (await (await site.client(token=secret)).get("/me")).status_code == 403


async def test_a_token_for_fleet_workers_has_limits_and_no_other_scope(site: Site, admin: Browser) -> None:
    limits = {"kinds": "self_test, tool_run", "machines": "40", "requests_per_minute": "600"}
    answer = await admin.post("/ui/account/tokens", name="lab", days="30", **limits)
    assert answer.status_code == 200, answer.text
    (made,) = await site.services.credentials.tokens(user="platform_admin")
    assert (made.scopes, made.kinds) == (["fleet:work"], ["self_test", "tool_run"])
    assert (made.machines, made.requests_per_minute) == (40, 600)
    for said in ("kinds: self_test, tool_run", "40 machines at once", "600 requests a minute"):
        assert said in answer.text
    refused = await admin.post("/ui/account/tokens", name="wide", scopes=["jobs:view"], machines="2")
    assert (refused.status_code, "its scope is fleet:work" in fault(refused)) == (422, True)
    reader = await visitor(site, "read_only")
    assert 'name="machines"' not in (await reader.get("/ui/account")).text


async def test_an_empty_fleet_tells_how_to_bring_a_machine_in_without_showing_its_token(admin: Browser) -> None:
    text = (await admin.get("/ui/fleet")).text
    assert "--token-file FILE" in text
    assert "--token …" not in text


async def test_a_password_is_kept_as_it_was_typed(site: Site, admin: Browser) -> None:
    spaced = "  spaces around me  "
    assert (await admin.post("/ui/people", name="ada", password=spaced, roles=["read_only"])).status_code == 303
    assert (await (await visitor(site, None)).sign_in("ada", spaced)).status_code == 303


async def test_a_name_that_can_not_be_is_refused_in_plain_words(admin: Browser) -> None:
    answer = await admin.post("/ui/people", name="Böse", roles=["read_only"])
    assert answer.status_code == 422
    assert fault(answer).startswith("name: it should begin with a small letter or a digit and have only small letters")


async def test_nobody_is_offered_a_role_beyond_their_own(site: Site) -> None:
    text = (await (await visitor(site, "admin")).get("/ui/people")).text
    assert 'value="curator"' in text
    assert 'value="platform_admin"' not in text


def _has(site: Site, epoch: int) -> bool:
    now = site.services.graph.now()
    return now is not None and (now.snapshot.epoch or 0) >= epoch


async def test_the_graph_is_drawn_from_what_a_walk_finds(site: Site, reader: Browser) -> None:
    ids, epoch = await populate(await site.client("platform_admin"))
    await becomes(partial(_has, site, epoch), what="the snapshot has it")
    found = (await reader.get(f"/ui/graph/around.json?seed={ids['Otter']}")).json()
    assert {node["label"] for node in found["nodes"]} == {"Otter", "River", "Fish"}
    assert {edge["type"] for edge in found["edges"]} == {"LIVES_IN", "EATS"}
    # What is drawn already is tied to what comes along.
    more = (
        await reader.get(f"/ui/graph/around.json?seed={ids['River']}&drawn={ids['Otter']}&drawn={ids['Whale']}")
    ).json()
    tied = {(edge["from"], edge["to"]) for edge in more["edges"]}
    assert (ids["Otter"], ids["River"]) in tied
    assert (ids["Whale"], ids["Sea"]) in tied


async def test_a_concept_is_shown_with_how_well_it_is_founded_and_why(site: Site, reader: Browser) -> None:
    client = await site.client("platform_admin")
    ids, _ = await populate(client)
    said = [
        {"from": "Heron", "to": "Otter", "type": "SUPPORTS", "confidence": 0.9},
        {"from": "Krill", "to": "Otter", "type": "CONTRADICTS", "confidence": 0.5},
    ]
    told = (await client.post("/graph/relations", json={"ontology": "zoology", "relations": said})).json()
    await becomes(partial(_has, site, told["epoch"]), what="the snapshot has it")
    found = (await client.get(f"/graph/concepts/{ids['Otter']}")).json()["measured"]
    ground, sure = found["grounding"], found["confidence"]
    page = (await reader.get(f"/ui/graph/concepts/{ids['Otter']}")).text
    assert f"{ground['value']:+.2f}" in page
    assert f"{ground['low']:+.2f} to {ground['high']:+.2f}; 1 for, 1 against" in page
    assert f"{sure['value']:.2f}" in page
    assert "4 relations of 4 types, 0 quotes in 0 sources" in page
    reasons = re.findall(r"<td[^>]*>([+-]\d.\d\d)</td><td><a[^>]*>(\w+)</a></td><td>([\w ]+)</td>", page)
    assert reasons == [("+0.90", "Heron", "supports"), ("-0.50", "Krill", "contradicts")]
    short = f"grounding {ground['value']:+.2f}, confidence {sure['value']:.2f}"
    for path in ("/ui/graph?q=otter", f"/ui/graph/concepts/{ids['River']}", "/ui/graph/path?from=Otter&to=Whale"):
        assert short in (await reader.get(path)).text, path
    alone = re.escape(f"{ground['value']:+.2f}")
    shorter = re.compile(rf">Otter</a>.*?{alone}<", re.DOTALL)
    for path in ("/ui/graph/polarity?positive=River&negative=Sea", "/ui/graph?ontology=zoology"):
        assert shorter.search((await reader.get(path)).text), path


async def test_a_proposal_is_decided_by_those_who_may(site: Site, admin: Browser, reader: Browser) -> None:
    await populate(await site.client("contributor"))

    def propose(graph: Graph) -> None:
        with graph.transaction() as connection:
            number = ontologies.get(connection, "zoology").number
            proposals.add(connection, uuid4(), "rename", number, {"name": "animals"}, {"words": ["otter"]}, 0)

    await site.services.graph.other(propose)
    (one,) = await site.services.ontologies.proposals(None, 10)
    assert "/ui/proposals/" not in (await reader.get("/ui/ontologies")).text
    assert (await reader.post(f"/ui/proposals/{one.id}/approve")).status_code == 403
    assert f"/ui/proposals/{one.id}/approve" in (await admin.get("/ui/ontologies")).text
    assert (await admin.post(f"/ui/proposals/{one.id}/approve")).status_code == 303
    assert (await site.services.ontologies.proposal(one.id)).state == "approved"
    text = (await admin.get("/ui/ontologies")).text
    assert f"/ui/proposals/{one.id}/execute" in text
    assert f"/ui/proposals/{one.id}/approve" not in text
    done = await admin.post(f"/ui/proposals/{one.id}/execute")
    assert done.headers["location"].startswith("/ui/jobs/")


async def test_files_are_read_before_anything_is_submitted(site: Site) -> None:
    contributor = await visitor(site, "contributor")
    files = [
        ("files", ("notes.txt", b"Otters live in rivers. Otters eat fish.")),
        ("files", ("odd.bin", b"\0\1\2\3" * 99)),
    ]
    token = await contributor.csrf()
    answer = await contributor.client.post("/ui/ingest", data={"csrf_token": token, "ontology": "rivers"}, files=files)
    assert answer.status_code == 200, answer.text
    assert "odd.bin" in fault(answer)
    assert "Submit and approve" not in answer.text
    (key,) = re.findall(r'name="uploads" value="([^"]+)"', answer.text)
    refused = await contributor.post("/ui/ingest/submit", ontology="rivers", uploads=[key], approve="yes")
    assert refused.status_code == 403
    done = await contributor.post("/ui/ingest/submit", ontology="rivers", uploads=[key])
    assert done.status_code == 303
    job = await contributor.get(done.headers["location"])
    assert "awaiting approval" in job.text
    assert re.search(r"<dt>chunks</dt>\s*<dd[^>]*>1</dd>", job.text)
    again = await contributor.post("/ui/ingest/submit", ontology="rivers", uploads=[key])
    assert (again.status_code, "is there already" in fault(again)) == (409, True)
    assert 'value="rivers"' in again.text, "the form is there to go on with"
    assert "Read again what is there already" in again.text


async def test_who_sends_what_is_there_already_is_told_how_much_was_left_out(site: Site) -> None:
    contributor = await visitor(site, "contributor")
    texts = {"one.txt": b"Otters eat fish.", "same.txt": b"Otters eat fish.", "other.txt": b"Herons eat frogs."}
    token = await contributor.csrf()
    answer = await contributor.client.post(
        "/ui/ingest", data={"csrf_token": token, "ontology": "rivers"},
        files=[("files", sent) for sent in texts.items()],
    )  # fmt: skip
    keys = re.findall(r'name="uploads" value="([^"]+)"', answer.text)
    assert len(keys) == 3
    first = await contributor.post("/ui/ingest/submit", ontology="rivers", uploads=keys[:1])
    assert "left out" not in (await contributor.get(first.headers["location"])).text
    rest = await contributor.post("/ui/ingest/submit", ontology="rivers", uploads=keys)
    assert "2 documents were left out" in (await contributor.get(rest.headers["location"])).text


async def test_a_job_that_was_taken_and_did_not_start_yet_is_at_no_attempt(site: Site) -> None:
    admin = await visitor(site, "platform_admin")
    made = await site.services.client.enqueue("self_test")
    async with site.services.client.transaction() as connection:
        await connection.execute(
            "UPDATE kappa.jobs SET state = 'running', lease_token = 1, lease_owner = 'here',"
            " lease_until = now() + '1 min' WHERE id = %s",
            [made.id],
        )
    text = (await admin.get(f"/ui/jobs/{made.id}")).text
    assert "taken by here; its lease ends" in text
    assert "attempt 0" not in text


async def test_whoever_may_only_ingest_does_so_and_is_told_of_the_job(site: Site) -> None:
    await populate(await site.client())
    feeder = await visitor(site, "feeder", only=[Permission.GRAPH_INGEST])
    page = await feeder.get("/ui/ingest")
    assert 'href="/ui/ingest"' in page.text
    assert "zoology" not in page.text
    files = {"files": ("notes.txt", b"Otters live in rivers. Otters eat fish.")}
    token = await feeder.csrf()
    answer = await feeder.client.post("/ui/ingest", data={"csrf_token": token, "ontology": "rivers"}, files=files)
    (key,) = re.findall(r'name="uploads" value="([^"]+)"', answer.text)
    assert "Submit for approval" in answer.text
    done = await feeder.post("/ui/ingest/submit", ontology="rivers", uploads=[key])
    assert done.status_code == 303
    (job,) = await site.services.client.list_jobs(kinds=["ingestion"])
    told = await feeder.get(done.headers["location"])
    assert (told.status_code, f"Job {job.id} was submitted." in told.text) == (200, True)


async def test_whoever_may_write_but_not_ingest_is_not_offered_to(site: Site) -> None:
    asked = [Permission.GRAPH_WRITE, Permission.GRAPH_READ, Permission.JOBS_ENQUEUE]
    writer = await visitor(site, "writer", only=asked)
    assert "/ui/ingest" not in (await writer.get("/ui/graph")).text
    for answer in (
        await writer.get("/ui/ingest"),
        await writer.post("/ui/ingest"),
        await writer.post("/ui/ingest/submit"),
    ):
        assert (answer.status_code, line(answer)) == (403, "writer lacks the permission graph:ingest")


async def test_an_upload_may_be_larger_than_other_bodies_but_not_by_any_measure(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "LARGEST", 3_000_000)
    app = application.build(site.services, site.guard, pages.beside(site.services), pages.large)
    contributor = await visitor(site, "contributor")
    token = await contributor.csrf()
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://kappa.test", cookies=contributor.client.cookies
    ) as client:
        for size, status in ((2_000_000, 422), (4_000_000, 413)):
            files = {"files": ("zeros.bin", bytes(size))}
            answer = await client.post(
                "/ui/ingest", data={"csrf_token": token, "ontology": "rivers"}, files=files,
                headers={"Origin": "http://kappa.test"},
            )  # fmt: skip
            assert answer.status_code == status


# At a glance


async def test_alarms_say_what_needs_somebody(site: Site) -> None:
    client = site.services.client
    await client.declare_lane(Lane("idle", kinds=("idle_kind",)))
    await client.enqueue("idle_kind")
    overview = Overview(client)
    said = [alarm.text for alarm in (await overview.glance()).alarms]
    assert said == [
        "nobody leads: retries, schedules and lost leases wait until somebody does",
        "no worker serves the lane idle, and 1 job waits",
    ]
    await client.edit_lane("idle", enabled=False)
    overview.forget()
    said = [alarm.text for alarm in (await overview.glance()).alarms]
    assert "the lane idle is drained, and 1 job waits" in said


async def test_jobs_that_no_remote_worker_offers_to_do_are_an_alarm(site: Site, url: str) -> None:
    """A kind that needs the database, say, in a lane that was made a fleet lane."""
    client = site.services.client
    await client.declare_lane(Lane("far", kinds=("far_kind", "other_kind"), executor=Executor.FLEET))
    await client.enqueue("far_kind")
    await client.enqueue("other_kind")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO kappa.fleet_workers (owner, pass, worker, kinds, cores, memory_mb, labels, slots, version) "
            "VALUES ('fleet:1:w', 1, 'w', '{other_kind}', 1, 1, '{}', 1, '1')"
        )
        overview = Overview(client)
        said = [alarm.text for alarm in (await overview.glance()).alarms]
        assert [text for text in said if "far" in text] == [
            "no remote worker offers far_kind, and 1 job waits in the fleet lane far"
        ]
        connection.execute("UPDATE kappa.fleet_workers SET seen_at = now() - interval '6 minutes'")
        overview.forget()
        assert sum("no remote worker offers" in alarm.text for alarm in (await overview.glance()).alarms) == 2


async def test_ended_jobs_are_counted_without_being_read(site: Site) -> None:
    client = site.services.client
    before = await client.finished_so_far()
    for _ in range(3):
        await client.cancel((await client.enqueue("self_test")).id)

    async def counted() -> bool:
        # A session tells what it wrote when it was idle for a moment.
        return await client.finished_so_far() == before + 3

    await becomes(counted, what="three more jobs")


async def test_a_count_that_begins_anew_is_no_throughput() -> None:
    counts = iter([10, 40, 5, 65])

    async def count() -> int:
        return next(counts)

    pulse = Pulse(count)
    for minute in range(4):
        await pulse.run_once(60.0 * minute)
    assert pulse.per_minute() == [30.0, 0.0, 60.0]


@pytest.mark.parametrize(
    ("values", "line"), [([], ""), ([1.0], ""), ([0, 0], "0.0,47.0 240.0,47.0"), ([0, 2], "0.0,47.0 240.0,2.0")]
)
def test_a_line_is_drawn_through_its_values(values: list[float], line: str) -> None:
    assert drawings.sparkline(values)[0] == line


def test_labels_of_the_axis_stay_inside_of_the_picture() -> None:
    axis = drawings.axis(
        [("a rather long label that goes on", 1.3), ("short", 0.31), ("middle", 0.0), ("far left", -1.0)]
    )
    for mark in axis.marks:
        wide = 7.5 * len(mark.label)
        assert (mark.x - wide if mark.at_end else mark.x) >= 0
        assert (mark.x if mark.at_end else mark.x + wide) <= axis.width
    assert [mark.tone for mark in axis.marks] == ["plus", "plus", "neither", "minus"]


def test_every_template_can_be_compiled() -> None:
    environment = rendering.Templates(files.load())._environment
    names = environment.list_templates()
    assert len(names) > 30
    for name in names:
        environment.get_template(name)


async def test_a_run_that_backs_off_is_queued_and_says_from_when_it_is_available(site: Site, admin: Browser) -> None:
    await admin.post("/ui/tools/new", name="waits", version="1", command="false")
    answer = await admin.post("/ui/tools/waits/run", inputs="{}")
    run = await site.services.tool_runs.tools.show(int(answer.headers["location"].rsplit("/", 1)[-1]))
    async with site.services.client.transaction() as connection:  # as after an attempt that failed
        due = "UPDATE kappa.jobs SET state = 'scheduled', run_at = '2100-01-01 UTC' WHERE id = %s"
        await connection.execute(due, [run.job_id])
    for path in (f"/ui/runs/{run.id}", "/ui/tools?status=queued", "/ui/tools/waits"):
        text = (await admin.get(path)).text
        assert '<span class="badge queued">queued</span>' in text, path
        assert 'title="2100-01-01 00:00:00 UTC"' in text, path
    assert 'value="scheduled"' not in (await admin.get("/ui/tools")).text
    assert (await admin.get("/ui/tools?status=scheduled")).status_code == 422
