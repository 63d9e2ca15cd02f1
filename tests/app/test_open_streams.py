"""A stream ends within seconds when its reader loses what opened it: token, session, account or permission."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx2
import pytest

from kappa.app.api.streams import Route
from kappa.app.mcp.inprocess import InProcess
from kappa.graph import backup
from kappa.graph.errors import BadBackup
from tests.app.conftest import Site
from tests.app.patience import becomes
from tests.ground import PATIENCE

PASSWORD = "a password of some length"


@pytest.fixture
async def job(site: Site, operator: httpx2.AsyncClient) -> int:
    """One that nothing will claim."""
    site.services.open_streams._every = 0.01
    made = await operator.post("/jobs", json={"kind": "self_test", "delay": 3600})
    return made.json()["id"]


async def reader(site: Site, operator: httpx2.AsyncClient, *, by_cookie: bool) -> httpx2.AsyncClient:
    """Ada, with a token or a session."""
    made = await operator.post("/users", json={"name": "ada", "roles": ["read_only"], "password": PASSWORD})
    assert made.status_code == 201, made.text
    client = await site.stack.enter_async_context(
        httpx2.AsyncClient(transport=InProcess(site.app), base_url="http://kappa.test")
    )
    if by_cookie:
        session = await client.post("/sessions", json={"name": "ada", "password": PASSWORD})
        client.cookies["kappa_session"] = session.cookies["kappa_session"]
        client.headers["x-csrf-token"] = session.json()["csrf_token"]
    else:
        token = await operator.post("/users/ada/tokens", json={"name": "reads"})
        client.headers["authorization"] = f"Bearer {token.json()['token']}"
    return client


async def _revoke(operator: httpx2.AsyncClient, _: httpx2.AsyncClient) -> httpx2.Response:
    tokens = (await operator.get("/users/ada/tokens")).json()
    return await operator.delete(f"/tokens/{tokens[0]['id']}")


async def _switch_off(operator: httpx2.AsyncClient, _: httpx2.AsyncClient) -> httpx2.Response:
    return await operator.patch("/users/ada", json={"enabled": False})


async def _take_role(operator: httpx2.AsyncClient, _: httpx2.AsyncClient) -> httpx2.Response:
    return await operator.patch("/users/ada", json={"roles": []})


async def _drop(operator: httpx2.AsyncClient, _: httpx2.AsyncClient) -> httpx2.Response:
    return await operator.delete("/users/ada")


async def _sign_out(_: httpx2.AsyncClient, ada: httpx2.AsyncClient) -> httpx2.Response:
    return await ada.delete("/sessions/current")


LOSSES: dict[str, tuple[bool, Callable[[httpx2.AsyncClient, httpx2.AsyncClient], Awaitable[httpx2.Response]]]] = {
    "token revoked": (False, _revoke),
    "switched off": (False, _switch_off),
    "role taken": (False, _take_role),
    "user removed": (False, _drop),
    "signed out": (True, _sign_out),
    "session of one switched off": (True, _switch_off),
    "session without the role": (True, _take_role),
}


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_stream_ends_with_what_opened_it(site: Site, operator: httpx2.AsyncClient, job: int, loss: str) -> None:
    by_cookie, lose = LOSSES[loss]
    ada = await reader(site, operator, by_cookie=by_cookie)
    async with asyncio.timeout(PATIENCE), ada.stream("GET", f"/jobs/{job}/events") as stream:
        lines = stream.aiter_lines()
        assert await anext(lines) == "event: job"
        done = await lose(operator, ada)
        assert done.is_success, done.text
        async for _ in lines:
            pass
    assert not site.services.open_streams._streams
    assert not site.services.watchtower._watchers
    assert (await ada.get(f"/jobs/{job}/events")).status_code in (401, 403)


async def test_the_streams_of_others_go_on(site: Site, operator: httpx2.AsyncClient, job: int) -> None:
    ada = await reader(site, operator, by_cookie=False)
    other = await site.token("read_only")
    streams = site.services.open_streams
    with_other = {"Authorization": f"Bearer {other}"}
    path = f"/jobs/{job}/events"
    async with (
        asyncio.timeout(PATIENCE),
        ada.stream("GET", path) as one,
        ada.stream("GET", path, headers=with_other) as another,
    ):
        lines, others = one.aiter_lines(), another.aiter_lines()
        assert [await anext(lines), await anext(others)] == ["event: job"] * 2
        await _revoke(operator, ada)
        async for _ in lines:
            pass
        assert [credential.secret for credential in streams._streams] == [other]
        await operator.post(f"/jobs/{job}/cancel")
        assert any(["cancelled" in line async for line in others])
    await becomes(lambda: streams._checking is None, what="nobody is looked for")


async def test_a_file_that_is_cut_short_is_not_taken_for_a_whole_one(site: Site, operator: httpx2.AsyncClient) -> None:
    site.services.open_streams._every = 0.01
    await operator.post("/users", json={"name": "ada", "roles": ["platform_admin"]})
    token = (await operator.post("/users/ada/tokens", json={"name": "backs up"})).json()["token"]
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        asyncio.timeout(PATIENCE),
        httpx2.AsyncClient(transport=InProcess(site.app), base_url="http://kappa.test", headers=headers) as ada,
        ada.stream("POST", "/backup") as answer,
    ):
        assert answer.status_code == 200
        await _revoke(operator, ada)
        await becomes(lambda: not site.services.open_streams._streams, what="the stream has ended")
        content = [piece async for piece in answer.aiter_bytes()]
    with pytest.raises(BadBackup):
        backup.verify(content)


def test_every_route_ends_its_streams_so() -> None:
    from kappa.app.api import application

    routes = [route for group in application.GROUPS for route in group.router.routes]
    assert routes
    assert all(isinstance(route, Route) for route in routes)
