"""Behind a proxy: whose address and scheme count, who is locked out of sign-in, and what a form must show."""

from dataclasses import replace
from typing import Any

import httpx2
import psycopg
import pytest
from starlette.types import Receive, Scope, Send

from kappa.app.api import application
from kappa.app.api.middleware import Proxied
from kappa.app.settings import BadSetting, Settings, load
from kappa.app.web import site as pages
from tests.app.conftest import KAPPA, Site

Connection = psycopg.Connection[tuple[Any, ...]]

PASSWORD = "correct horse battery staple"
PROXY = "10.0.0.7"


async def seen(
    trusted: str | None, client: str, forwarded: list[str] | None = None, proto: list[str] | None = None
) -> tuple[str, str]:
    """The address and the scheme that the application sees."""
    found: list[tuple[str, str]] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        found.append((scope["client"][0], scope["scheme"]))

    async def nothing(*_: Any) -> Any: ...

    headers = [(b"x-forwarded-for", one.encode()) for one in forwarded or []]
    headers += [(b"x-forwarded-proto", one.encode()) for one in proto or []]
    scope = {"type": "http", "client": (client, 1), "scheme": "http", "headers": headers}
    await Proxied(application, Settings(trusted_proxies=trusted).proxies)(scope, nothing, nothing)
    return found[0]


@pytest.mark.parametrize(
    ("client", "forwarded", "address"),
    [
        (PROXY, ["192.0.2.1"], "192.0.2.1"),
        (PROXY, ["6.6.6.6, 192.0.2.1"], "192.0.2.1"),
        (PROXY, ["6.6.6.6", "192.0.2.1"], "192.0.2.1"),
        (PROXY, ["6.6.6.6, 192.0.2.1, 10.0.0.9"], "192.0.2.1"),
        (PROXY, ["10.0.0.8, 10.0.0.9"], "10.0.0.8"),
        (PROXY, ["192.0.2.1:4711"], "192.0.2.1"),
        (PROXY, ["[2001:db8::1]:4711"], "2001:db8::1"),
        (PROXY, ["2001:db8::1"], "2001:db8::1"),
        (PROXY, ["192.0.2.1, unknown"], PROXY),
        (PROXY, ["192.0.2.1, unknown, 10.0.0.9"], "10.0.0.9"),
        (PROXY, [""], PROXY),
        (PROXY, [], PROXY),
        ("::ffff:10.0.0.7", ["192.0.2.1"], "192.0.2.1"),
        ("192.0.2.9", ["6.6.6.6"], "192.0.2.9"),
    ],
)
async def test_the_right_most_address_that_is_no_proxys_counts(client: str, forwarded: list[str], address: str) -> None:
    assert (await seen("10.0.0.0/8", client, forwarded))[0] == address


async def test_nobody_is_believed_by_default() -> None:
    assert await seen(None, "127.0.0.1", ["6.6.6.6"], ["https"]) == ("127.0.0.1", "http")


@pytest.mark.parametrize(
    ("client", "proto", "scheme"),
    [
        (PROXY, ["https"], "https"),
        (PROXY, ["http, https"], "https"),
        (PROXY, ["https", "http"], "http"),
        (PROXY, ["gopher"], "http"),
        ("192.0.2.9", ["https"], "http"),
    ],
)
async def test_the_scheme_is_that_of_the_nearest_proxy(client: str, proto: list[str], scheme: str) -> None:
    assert (await seen("10.0.0.0/8, 127.0.0.1", client, None, proto))[1] == scheme


@pytest.mark.parametrize(
    ("value", "what"),
    [("10.0.0.0/33", "10.0.0.0/33"), ("localhost", "localhost"), ("127.0.0.1, 10.0.0.1/8", "host bits")],
)
def test_a_proxy_that_is_no_address_is_an_error_at_start(
    monkeypatch: pytest.MonkeyPatch, value: str, what: str
) -> None:
    monkeypatch.setenv("KAPPA_TRUSTED_PROXIES", value)
    with pytest.raises(BadSetting, match=r"^KAPPA_TRUSTED_PROXIES is ") as error:
        load()
    assert what in str(error.value)


def behind(site: Site) -> Site:
    """The same server, which trusts a proxy."""
    services = replace(site.services, settings=site.services.settings.model_copy(update={"trusted_proxies": PROXY}))
    return replace(site, app=application.build(services, site.guard, pages.beside(services), pages.large))


async def browser(site: Site, address: str, **headers: str) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=site.app, client=(address, 4711))
    client = httpx2.AsyncClient(transport=transport, base_url="http://kappa.test", headers=headers)
    return await site.stack.enter_async_context(client)


async def sign_in(
    client: httpx2.AsyncClient, password: str = PASSWORD, name: str = "ada", **headers: str
) -> httpx2.Response:
    return await client.post("/sessions", json={"name": name, "password": password}, headers=headers)


@pytest.fixture
async def ada(site: Site) -> Site:
    await site.services.people.make_user(KAPPA, "ada", password=PASSWORD, roles=["contributor"])
    return site


@pytest.mark.parametrize("path", ["/sessions", "/ui/sign-in"])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_cookie_is_secure_where_the_browser_speaks_tls(ada: Site, path: str, scheme: str) -> None:
    client = await browser(behind(ada), PROXY, **{"X-Forwarded-Proto": scheme, "X-Forwarded-For": "192.0.2.1"})
    words = {"name": "ada", "password": PASSWORD}
    answer = await client.post(path, **({"json": words} if path == "/sessions" else {"data": words}))
    assert answer.status_code in (201, 303)
    assert ("secure" in answer.headers["set-cookie"].lower()) == (scheme == "https")


async def test_failures_from_one_address_behind_the_proxy_shut_out_nobody_else(
    ada: Site, connection: Connection
) -> None:
    proxied = behind(ada)
    connection.execute(
        "INSERT INTO kappa.sign_in_failures (key) SELECT 'address 192.0.2.66' FROM generate_series(1, 30)"
    )
    attacker = await browser(proxied, PROXY, **{"X-Forwarded-For": "192.0.2.66"})
    assert (await sign_in(attacker)).status_code == 429
    assert (await sign_in(await browser(proxied, PROXY, **{"X-Forwarded-For": "192.0.2.1"}))).status_code == 201


async def test_failures_elsewhere_dont_shut_somebody_out(ada: Site) -> None:
    attacker = await browser(ada, "192.0.2.66")
    assert [(await sign_in(attacker, "wrong")).status_code for _ in range(6)] == [401] * 5 + [429]
    assert (await sign_in(await browser(ada, "192.0.2.1"))).status_code == 201


async def test_who_signed_in_from_an_address_isnt_shut_out_from_it_by_others(ada: Site, connection: Connection) -> None:
    home = await browser(ada, "192.0.2.1")
    assert (await sign_in(home)).status_code == 201
    connection.execute(
        """INSERT INTO kappa.sign_in_failures (key)
           SELECT key FROM unnest(ARRAY['name ada', 'address 192.0.2.1']) AS key, generate_series(1, 500)"""
    )
    assert (await sign_in(home)).status_code == 201
    assert (await sign_in(await browser(ada, "192.0.2.2"))).status_code == 429, "many failures of a name, from anywhere"
    assert (await sign_in(home, name="bob")).status_code == 429
    assert [(await sign_in(home, "wrong")).status_code for _ in range(6)] == [401] * 5 + [429], "also from home"


async def test_the_addresses_of_one_network_of_ipv6_count_as_one(ada: Site) -> None:
    tries = [await sign_in(await browser(ada, f"2001:db8::{n}"), "wrong") for n in range(6)]
    assert [answer.status_code for answer in tries] == [401] * 5 + [429]


# Other sites


ELSEWHERE = [
    {"Origin": "https://evil.test"},
    {"Origin": "null"},
    {"Origin": "http://kappa.test.evil.test"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]


@pytest.mark.parametrize("headers", ELSEWHERE, ids=str)
@pytest.mark.parametrize("path", ["/sessions", "/ui/sign-in"])
async def test_a_page_of_another_site_signs_nobody_in(ada: Site, path: str, headers: dict[str, str]) -> None:
    client = await browser(ada, "192.0.2.1")
    words = {"name": "ada", "password": PASSWORD}
    answer = await client.post(path, headers=headers, **({"json": words} if path == "/sessions" else {"data": words}))
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


@pytest.mark.parametrize("headers", [{"Origin": "http://kappa.test"}, {"Origin": "http://kappa.test:80"}, {}], ids=str)
async def test_the_sites_own_page_signs_in(ada: Site, headers: dict[str, str]) -> None:
    assert (await sign_in(await browser(ada, "192.0.2.1"), **headers)).status_code == 201


class Unread:
    """A body that notes whether anybody reads it."""

    def __init__(self) -> None:
        self.pieces = 0

    async def __aiter__(self) -> Any:
        for _ in range(3):
            self.pieces += 1
            yield b"name=value&" * 100


async def send_form(site: Site, client: httpx2.AsyncClient, path: str, **headers: str) -> tuple[int, int]:
    """The status, and how many pieces of the form were read."""
    request = client.build_request(
        "POST", path, headers={"Content-Type": "application/x-www-form-urlencoded", **headers}
    )
    said = [(name.lower(), value) for name, value in request.headers.raw if name.lower() != b"content-length"]
    body, answered = Unread(), list[int]()
    pieces = body.__aiter__()

    async def receive() -> Any:
        piece = await anext(pieces, None)
        return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answered.append(message["status"])

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("192.0.2.1", 1),
        "server": ("kappa.test", 80), "headers": said,
    }  # fmt: skip
    await site.app(scope, receive, send)
    return answered[0], body.pieces


async def test_a_form_is_not_read_before_it_is_known_that_its_sender_may_send_it(ada: Site) -> None:
    client = await browser(ada, "192.0.2.1")
    assert (await sign_in(client)).status_code == 201
    own = {"Origin": "http://kappa.test"}
    assert await send_form(ada, client, "/ui/ingest", Origin="https://evil.test") == (403, 0)
    assert await send_form(ada, client, "/ui/ingest", **{"X-CSRF-Token": "wrong", **own}) == (403, 0)
    assert await send_form(ada, client, "/ui/ingest") == (403, 0), "a length that nobody knows, from who knows where"
    assert await send_form(ada, client, "/ui/people", **own) == (403, 0), "contributors make no users"
    status, pieces = await send_form(ada, client, "/ui/ingest", **own)
    assert (status, pieces > 0) == (403, True), "the token is missing in the form"
