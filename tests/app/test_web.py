"""The web pages without a browser: who gets in, what is refused, what every answer has, what each may see."""

import re

import httpx2
import pytest

from kappa.app.web import site
from tests.app.conftest import KAPPA, Site

PASSWORD = "correct horse battery"
PAGES = list(site.pages())
SHOWN = [
    "/ui/", "/ui/jobs", "/ui/lanes", "/ui/graph", "/ui/graph/path", "/ui/graph/polarity", "/ui/tools", "/ui/tools/new",
    "/ui/fleet", "/ui/people", "/ui/roles", "/ui/audit", "/ui/account",
]  # fmt: skip


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


async def visitor(site: Site, role: str | None) -> Browser:
    """Somebody with this role who has signed in; nobody yet if it is None."""
    browser = Browser(await site.client(None))
    if role is not None:
        await site.services.people.make_user(KAPPA, role, password=PASSWORD, roles=[role])
        assert (await browser.sign_in(role)).status_code == 303
    return browser


@pytest.fixture
async def admin(site: Site) -> Browser:
    return await visitor(site, "platform_admin")


@pytest.fixture
async def reader(site: Site) -> Browser:
    return await visitor(site, "read_only")


@pytest.mark.parametrize("path", SHOWN)
async def test_a_page_is_shown(admin: Browser, path: str) -> None:
    answer = await admin.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/html")
