"""Users, roles, tokens, sessions and the audit log: what is given to whom, and how it is taken away."""

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx2
import psycopg
import pytest

from kappa.app.api.routing import COOKIE
from kappa.app.permissions import ROLES, Permission
from kappa.app.usecases import credentials
from tests.app.conftest import KAPPA, Site
from tests.app.patience import becomes, blocked, waiting

Connection = psycopg.Connection[tuple[Any, ...]]
PASSWORD = "a long enough password"
ADDRESS = "192.0.2.7"


def one(connection: Connection, statement: str, *params: object) -> Any:
    row = connection.execute(statement, params).fetchone()
    assert row is not None
    return row[0]


async def browser(site: Site, address: str = ADDRESS) -> httpx2.AsyncClient:
    """A client with no token, at an address."""
    transport = httpx2.ASGITransport(app=site.app, raise_app_exceptions=False, client=(address, 4711))
    return await site.stack.enter_async_context(httpx2.AsyncClient(transport=transport, base_url="http://kappa.test"))


async def person(site: Site, name: str = "ada", *roles: str) -> str:
    """A user with a password and a token, whose secret this gives."""
    await site.services.people.make_user(KAPPA, name, password=PASSWORD, roles=roles or ["contributor"])
    made = await site.services.credentials.make_token(KAPPA, "test", user=name, user_permissions=frozenset())
    return made.secret


async def sign_in(client: httpx2.AsyncClient, name: str = "ada", password: str = PASSWORD) -> httpx2.Response:
    return await client.post("/sessions", json={"name": name, "password": password})


async def entries(client: httpx2.AsyncClient, action: str) -> list[dict[str, Any]]:
    found = (await client.get("/audit", params={"limit": 500})).json()["items"]
    return [entry for entry in found if entry["action"] == action]


# Tokens


async def test_a_token_is_shown_once_and_kept_as_its_hash(
    operator: httpx2.AsyncClient, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        made = (await operator.post("/tokens", json={"name": "laptop"})).json()
        listed = await operator.get("/tokens")
        audited = await operator.get("/audit")
    secret = made["token"]
    assert one(connection, "SELECT hash FROM kappa.tokens WHERE id = %s", made["id"]) == (
        hashlib.sha256(secret.encode()).digest()
    )
    everything = connection.execute("SELECT to_jsonb(t)::text FROM kappa.tokens AS t").fetchall()
    for place in (listed.text, audited.text, caplog.text, str(everything)):
        assert secret not in place
    assert "laptop" in listed.text


def test_secrets_have_no_place_in_a_repr() -> None:
    token = credentials.NewToken(1, None, "kappa_secret")
    session = credentials.Session(KAPPA, None, "cookie_secret", "csrf_secret")  # type: ignore[arg-type]
    assert "secret" not in repr(token) + str(token) + repr(session) + str(session)


async def test_a_token_that_ran_out_counts_no_more(site: Site, connection: Connection) -> None:
    client = await site.client(token=await person(site))
    made = (await client.post("/tokens", json={"name": "short", "lasts": 60})).json()
    short = await site.client(token=made["token"])
    assert (await short.get("/me")).status_code == 200
    connection.execute("UPDATE kappa.tokens SET expires_at = now() WHERE id = %s", [made["id"]])
    assert (await short.get("/me")).status_code == 401


async def test_a_token_lasts_ninety_days_unless_told_otherwise(
    operator: httpx2.AsyncClient, connection: Connection
) -> None:
    days = "SELECT extract(day FROM expires_at - created_at)::int FROM kappa.tokens WHERE id = %s"
    usual = (await operator.post("/tokens", json={"name": "usual"})).json()
    always = (await operator.post("/tokens", json={"name": "always", "lasts": None})).json()
    assert one(connection, days, usual["id"]) == 90
    assert always["expires_at"] is None


@pytest.mark.parametrize("lasts", [0, -1, 10 * 366 * 86400, "soon"])
async def test_a_token_lasts_for_a_sensible_time(operator: httpx2.AsyncClient, lasts: object) -> None:
    assert (await operator.post("/tokens", json={"name": "odd", "lasts": lasts})).status_code == 422


async def test_a_revoked_token_counts_no_more_at_once(site: Site) -> None:
    client = await site.client(token=await person(site))
    made = (await client.post("/tokens", json={"name": "lost"})).json()
    lost = await site.client(token=made["token"])
    assert (await lost.get("/me")).status_code == 200
    assert (await client.delete(f"/tokens/{made['id']}")).status_code == 204
    assert (await lost.get("/me")).status_code == 401
    assert (await client.delete(f"/tokens/{made['id']}")).status_code == 204, "to revoke it again changes nothing"


async def test_a_token_may_what_both_its_scopes_and_its_user_may(site: Site) -> None:
    client = await site.client(token=await person(site))
    made = (await client.post("/tokens", json={"name": "reader", "scopes": ["jobs:view"]})).json()
    scoped = await site.client(token=made["token"])
    assert (await scoped.get("/jobs")).status_code == 200
    assert (await scoped.post("/jobs", json={"kind": "self_test"})).status_code == 403
    assert (await scoped.get("/me")).status_code == 403
    await site.services.people.change_user(KAPPA, "ada", roles=[])
    assert (await scoped.get("/jobs")).status_code == 403


async def test_a_token_can_not_be_made_wider_than_its_maker(site: Site) -> None:
    client = await site.client(token=await person(site))
    refused = await client.post("/tokens", json={"name": "more", "scopes": ["jobs:view", "workers:manage"]})
    assert (refused.status_code, "workers:manage" in refused.json()["detail"]) == (403, True)
    unknown = await client.post("/tokens", json={"name": "odd", "scopes": ["jobs:fly"]})
    assert (unknown.status_code, "jobs:fly" in unknown.json()["detail"]) == (422, True)


async def test_a_scoped_token_can_not_make_a_wider_one(site: Site) -> None:
    client = await site.client(token=await person(site))
    made = (await client.post("/tokens", json={"name": "a", "scopes": ["account:use"]})).json()
    scoped = await site.client(token=made["token"])
    assert (await scoped.post("/tokens", json={"name": "b", "scopes": ["jobs:view"]})).status_code == 403
    heir = await site.client(token=(await scoped.post("/tokens", json={"name": "c"})).json()["token"])
    assert (await heir.get("/me")).json()["permissions"] == ["account:use"]


async def test_a_scoped_token_can_not_become_its_whole_user_by_a_new_password(site: Site) -> None:
    client = await site.client(token=await person(site, "ada", "admin"))
    made = (await client.post("/tokens", json={"name": "a", "scopes": ["account:use"]})).json()
    scoped = await site.client(token=made["token"])
    refused = await scoped.put("/me/password", json={"password": "another long password"})
    assert refused.status_code == 403
    assert (await sign_in(await browser(site), password="another long password")).status_code == 401


async def test_nobody_sees_or_revokes_the_tokens_of_others(site: Site) -> None:
    ada = await site.client(token=await person(site, "ada"))
    bob = await site.client(token=await person(site, "bob"))
    made = (await ada.post("/tokens", json={"name": "hers"})).json()
    assert "hers" not in (await bob.get("/tokens")).text
    assert (await bob.delete(f"/tokens/{made['id']}")).status_code == 404
    assert (await (await site.client(token=made["token"])).get("/me")).status_code == 200
    assert (await bob.get("/users/ada/tokens")).status_code == 403


async def test_an_admin_makes_sees_and_revokes_the_tokens_of_lesser_users(site: Site) -> None:
    await person(site)
    admin = await site.client("admin")
    made = (await admin.post("/users/ada/tokens", json={"name": "for ada"})).json()
    theirs = await site.client(token=made["token"])
    assert (await theirs.get("/me")).json()["name"] == "ada"
    assert "for ada" in (await admin.get("/users/ada/tokens")).text
    assert (await admin.delete(f"/tokens/{made['id']}")).status_code == 204
    assert (await theirs.get("/me")).status_code == 401
    assert (await admin.post("/users/nobody/tokens", json={"name": "x"})).status_code == 404
    assert (await admin.get("/users/nobody/tokens")).status_code == 404


@pytest.mark.parametrize("scopes", [None, ["jobs:view"], ["account:use"], []])
async def test_an_admin_can_not_make_a_token_of_somebody_who_may_more(site: Site, scopes: list[str] | None) -> None:
    await person(site, "root", "platform_admin")
    admin = await site.client("admin")
    refused = await admin.post("/users/root/tokens", json={"name": "x", "scopes": scopes})
    assert refused.status_code == 403


async def test_the_last_use_of_a_token_is_noted(operator: httpx2.AsyncClient) -> None:
    await operator.get("/me")
    assert (await operator.get("/tokens")).json()[0]["last_used_at"] is not None


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer kappa_\xff", "Bearer " + "x" * 9000])
async def test_an_odd_authorization_is_no_authorization(site: Site, header: str) -> None:
    client = await site.client(None)
    answer = await client.get("/me", headers={"Authorization": header.encode("latin-1")})
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


# Users


async def test_a_user_is_made_with_roles_and_seen(operator: httpx2.AsyncClient) -> None:
    made = await operator.post("/users", json={"name": "ada", "password": PASSWORD, "roles": ["curator"]})
    assert made.status_code == 201
    seen = (await operator.get("/users/ada")).json()
    assert (seen["roles"], seen["enabled"], seen["has_password"]) == (["curator"], True, True)
    assert seen["permissions"] == sorted(map(str, ROLES["curator"]))
    assert "ada" in [user["name"] for user in (await operator.get("/users")).json()]
    assert "argon2" not in (await operator.get("/users")).text + made.text


async def test_there_is_one_user_of_a_name(operator: httpx2.AsyncClient) -> None:
    first, second = await asyncio.gather(*(operator.post("/users", json={"name": "ada"}) for _ in range(2)))
    assert sorted([first.status_code, second.status_code]) == [201, 409]


@pytest.mark.parametrize("name", ["", "Ada", "a b", "-a", "a" * 64, "a\n", "a\0", "ä", 7, None])
async def test_a_user_has_a_plain_name(operator: httpx2.AsyncClient, name: object) -> None:
    assert (await operator.post("/users", json={"name": name})).status_code == 422


async def test_a_user_with_a_role_that_is_not_there_is_not_made(operator: httpx2.AsyncClient) -> None:
    refused = await operator.post("/users", json={"name": "ada", "roles": ["contributor", "king"]})
    assert (refused.status_code, "king" in refused.json()["detail"]) == (422, True)
    assert (await operator.get("/users/ada")).status_code == 404


@pytest.mark.parametrize("password", ["short", "elevenchars", "x" * 1025, ""])
async def test_a_password_is_neither_short_nor_endless(operator: httpx2.AsyncClient, password: str) -> None:
    refused = await operator.post("/users", json={"name": "ada", "password": password})
    assert refused.status_code == 422
    assert not password or password not in refused.text
    assert (await operator.get("/users/ada")).status_code == 404
    assert (await operator.put("/me/password", json={"password": password})).status_code == 422


async def test_new_roles_count_for_tokens_and_sessions_that_are_there(site: Site, operator: httpx2.AsyncClient) -> None:
    token = await site.client(token=await person(site))
    session = await browser(site)
    await sign_in(session)
    assert (await operator.patch("/users/ada", json={"roles": ["read_only"]})).json()["roles"] == ["read_only"]
    for client in (token, session):
        assert (await client.get("/me")).json()["permissions"] == sorted(map(str, ROLES["read_only"]))


async def test_a_user_who_is_switched_off_is_out_at_once(site: Site, operator: httpx2.AsyncClient) -> None:
    token = await site.client(token=await person(site))
    session = await browser(site)
    assert (await sign_in(session)).status_code == 201
    assert (await operator.patch("/users/ada", json={"enabled": False})).json()["enabled"] is False
    assert [(await client.get("/me")).status_code for client in (token, session)] == [401, 401]
    assert (await sign_in(await browser(site))).status_code == 401
    await operator.patch("/users/ada", json={"enabled": True})
    assert (await session.get("/me")).status_code == 401, "the session is over, not asleep"
    assert (await sign_in(await browser(site))).status_code == 201


async def test_a_user_who_is_removed_is_out_at_once(site: Site, operator: httpx2.AsyncClient) -> None:
    token = await site.client(token=await person(site))
    session = await browser(site)
    await sign_in(session)
    assert (await operator.delete("/users/ada")).status_code == 204
    assert [(await client.get("/me")).status_code for client in (token, session)] == [401, 401]
    assert [(await operator.delete("/users/ada")).status_code, (await operator.get("/users/ada")).status_code] == [
        404,
        404,
    ]


async def test_a_new_password_ends_sessions_and_counts(site: Site, operator: httpx2.AsyncClient) -> None:
    await person(site)
    session = await browser(site)
    await sign_in(session)
    await operator.patch("/users/ada", json={"password": "another long password"})
    assert (await session.get("/me")).status_code == 401
    assert (await sign_in(session)).status_code == 401
    assert (await sign_in(session, password="another long password")).status_code == 201


async def test_a_user_changes_their_own_password(site: Site) -> None:
    await person(site)
    session = await browser(site)
    csrf = (await sign_in(session)).json()["csrf_token"]
    changed = await session.put(
        "/me/password", json={"password": "another long password"}, headers={"X-CSRF-Token": csrf}
    )
    assert changed.status_code == 204
    assert (await session.get("/me")).status_code == 401
    assert (await sign_in(session, password="another long password")).status_code == 201


async def test_a_sign_in_with_the_old_password_does_not_outlive_its_change(
    site: Site, operator: httpx2.AsyncClient, connection: Connection
) -> None:
    """The password was right when it was looked at, and wrong when the session began."""
    await person(site)
    session = await browser(site)
    connection.execute("INSERT INTO kappa.sign_in_failures VALUES ('name zoe', now() - interval '1 hour')")
    with connection.transaction():
        # A sign-in clears old failures away just before its session begins: here it waits.
        connection.execute("SELECT FROM kappa.sign_in_failures WHERE key = 'name zoe' FOR UPDATE")
        signing_in = asyncio.create_task(sign_in(session))
        await blocked(connection, 1)
        changing = asyncio.create_task(operator.patch("/users/ada", json={"password": "another long password"}))
        await becomes(lambda: changing.done() or waiting(connection) == 2, what="the change is made, or waits as well")
    assert (await signing_in).status_code in (201, 401)
    assert (await changing).status_code == 200
    assert (await session.get("/me")).status_code == 401


async def test_the_last_platform_admin_stays(site: Site, operator: httpx2.AsyncClient) -> None:
    for act in (
        operator.delete("/users/platform_admin"),
        operator.patch("/users/platform_admin", json={"enabled": False}),
        operator.patch("/users/platform_admin", json={"roles": ["admin"]}),
    ):
        refused = await act
        assert (refused.status_code, "last platform_admin" in refused.json()["detail"]) == (409, True)
    assert (await operator.get("/users/platform_admin")).json()["roles"] == ["platform_admin"]
    await person(site, "second", "platform_admin")
    assert (await operator.delete("/users/platform_admin")).status_code == 204


REMOVALS: dict[str, Callable[[httpx2.AsyncClient, str], Any]] = {
    "drop": lambda client, name: client.delete(f"/users/{name}"),
    "switch off": lambda client, name: client.patch(f"/users/{name}", json={"enabled": False}),
    "demote": lambda client, name: client.patch(f"/users/{name}", json={"roles": []}),
}


@pytest.mark.parametrize("how", REMOVALS)
async def test_two_platform_admins_who_remove_each_other_at_once_leave_one(
    site: Site, connection: Connection, how: str
) -> None:
    ann = await site.client(token=await person(site, "ann", "platform_admin"))
    bob = await site.client(token=await person(site, "bob", "platform_admin"))
    with connection.transaction():
        connection.execute("SELECT FROM kappa.users WHERE name IN ('ann', 'bob') FOR UPDATE")
        both = asyncio.gather(REMOVALS[how](ann, "bob"), REMOVALS[how](bob, "ann"))
        await blocked(connection, 2)
    statuses = sorted(answer.status_code for answer in await both)
    assert statuses in ([200, 409], [204, 409])
    left = """
        SELECT count(*) FROM kappa.users JOIN kappa.user_roles ON user_id = id
         WHERE enabled AND role = 'platform_admin'
    """
    assert one(connection, left) == 1


# Nobody can give what they lack


async def test_an_admin_can_not_make_a_platform_admin(site: Site) -> None:
    admin = await site.client("admin")
    await person(site, "ada")
    assert (await admin.post("/users", json={"name": "x", "roles": ["platform_admin"]})).status_code == 403
    assert (await admin.patch("/users/ada", json={"roles": ["platform_admin"]})).status_code == 403
    assert (await admin.patch("/users/admin", json={"roles": ["admin", "platform_admin"]})).status_code == 403
    assert (await admin.get("/users/x")).status_code == 404
    assert (await admin.get("/users/ada")).json()["roles"] == ["contributor"]


async def test_an_admin_can_not_change_a_platform_admin(site: Site) -> None:
    admin = await site.client("admin")
    await person(site, "root", "platform_admin")
    await person(site, "second", "platform_admin")
    for change in ({"password": "another long password"}, {"enabled": False}, {"roles": ["admin"]}, {}):
        assert (await admin.patch("/users/root", json=change)).status_code == 403
    assert (await admin.delete("/users/root")).status_code == 403
    assert (await sign_in(await browser(site), "root")).status_code == 201


@pytest.mark.parametrize("role", ROLES)
async def test_nobody_acts_on_somebody_who_may_do_more(site: Site, operator: httpx2.AsyncClient, role: str) -> None:
    manages = frozenset({Permission.ACCOUNT_USE, Permission.USERS_VIEW, Permission.USERS_MANAGE})
    may = ROLES[role] | manages
    await site.services.people.put_role(KAPPA, "manages", may)
    await site.services.people.put_role(KAPPA, "shared", [Permission.ACCOUNT_USE])
    actor = await site.client(token=await person(site, "actor", "manages"))
    wrong: list[tuple[str, str, int]] = []
    for theirs, permissions in ROLES.items():
        name = theirs.replace("_", "-")
        allowed = permissions <= may
        await person(site, name, theirs, "shared")
        made = (await operator.post(f"/users/{name}/tokens", json={"name": "fleet", "scopes": ["account:use"]})).json()
        target = await site.client(token=made["token"])
        for method, path, body in (
            ("PUT", "/roles/shared", {"permissions": []}),
            ("PATCH", f"/users/{name}", {"password": "another long password"}),
            ("PATCH", f"/users/{name}", {"roles": []}),
            ("PATCH", f"/users/{name}", {"enabled": False}),
            ("PATCH", f"/users/{name}", {"enabled": True}),
            ("POST", f"/users/{name}/tokens", {"name": "x", "scopes": []}),
            ("DELETE", f"/tokens/{made['id']}", None),
            ("DELETE", f"/users/{name}", None),
        ):
            answer = await actor.request(method, path, json=body)
            if (answer.status_code < 300) != allowed or (not allowed and answer.status_code != 403):
                wrong.append((f"{method} {path}", str(body), answer.status_code))
            if answer.status_code == 403:
                assert sorted(set(permissions) - may)[0] in answer.json()["detail"]
            if path == "/roles/shared":
                await operator.put(path, json={"permissions": ["account:use"]})
            if body == {"roles": []}:
                await operator.patch(path, json={"roles": [theirs, "shared"]})
        assert (await target.get("/me")).status_code == (401 if allowed else 200)
        if not allowed:
            assert [one for one in await entries(operator, "token.revoke") if one["target"] == str(made["id"])] == []
            await site.services.people.drop_user(KAPPA, name)
    assert wrong == []


async def test_somebody_revokes_their_own_tokens_whatever_they_may_do(site: Site, operator: httpx2.AsyncClient) -> None:
    wide = (await operator.post("/tokens", json={"name": "wide"})).json()
    narrow = (await operator.post("/tokens", json={"name": "narrow", "scopes": ["account:use"]})).json()
    client = await site.client(token=narrow["token"])
    assert (await client.delete(f"/tokens/{wide['id']}")).status_code == 204
    assert (await client.delete(f"/tokens/{narrow['id']}")).status_code == 204
    assert (await client.get("/me")).status_code == 401


async def test_an_admin_can_not_put_more_into_a_role_than_they_have(site: Site) -> None:
    admin = await site.client("admin")
    refused = await admin.put("/roles/ops", json={"permissions": ["jobs:view", "workers:manage"]})
    assert (refused.status_code, "workers:manage" in refused.json()["detail"]) == (403, True)


async def test_an_admin_can_not_touch_or_give_a_role_that_goes_beyond(site: Site, operator: httpx2.AsyncClient) -> None:
    admin = await site.client("admin")
    await person(site)
    await operator.put("/roles/ops", json={"permissions": ["workers:manage"]})
    assert (await admin.put("/roles/ops", json={"permissions": ["jobs:view"]})).status_code == 403
    assert (await admin.delete("/roles/ops")).status_code == 403
    assert (await admin.patch("/users/ada", json={"roles": ["ops"]})).status_code == 403


async def test_a_scoped_token_can_not_change_a_user_beyond_its_scopes(site: Site, operator: httpx2.AsyncClient) -> None:
    await person(site)
    made = (await operator.post("/tokens", json={"name": "users", "scopes": ["users:manage"]})).json()
    scoped = await site.client(token=made["token"])
    assert (await scoped.patch("/users/ada", json={"password": "another long password"})).status_code == 403
    assert (await scoped.post("/users", json={"name": "x", "roles": ["read_only"]})).status_code == 403
    assert (await scoped.post("/users", json={"name": "x"})).status_code == 201


# Custom roles


async def test_a_custom_role_gives_its_permissions_and_follows_its_changes(
    site: Site, operator: httpx2.AsyncClient
) -> None:
    made = await operator.put("/roles/ops", json={"permissions": ["account:use", "workers:view"]})
    assert made.json() == {
        "name": "ops", "permissions": ["account:use", "workers:view"], "builtin": False, "users": 0,
    }  # fmt: skip
    client = await site.client(token=await person(site, "ada", "ops", "read_only"))
    assert (await client.get("/admin/workers/lanes")).status_code == 200
    assert (await client.get("/jobs")).status_code == 200
    await operator.put("/roles/ops", json={"permissions": ["account:use"]})
    assert (await client.get("/admin/workers/lanes")).status_code == 403
    used = await operator.delete("/roles/ops")
    assert (used.status_code, "1 users" in used.json()["detail"]) == (409, True)
    await operator.patch("/users/ada", json={"roles": []})
    assert (await operator.delete("/roles/ops")).status_code == 204
    assert (await operator.delete("/roles/ops")).status_code == 404


@pytest.mark.parametrize("role", ROLES)
async def test_the_roles_of_kappa_stay_as_they_are(operator: httpx2.AsyncClient, role: str) -> None:
    before = (await operator.get("/roles")).json()
    assert (await operator.put(f"/roles/{role}", json={"permissions": []})).status_code == 409
    assert (await operator.delete(f"/roles/{role}")).status_code == 409
    assert (await operator.get("/roles")).json() == before


async def test_a_role_has_permissions_that_there_are(operator: httpx2.AsyncClient) -> None:
    refused = await operator.put("/roles/ops", json={"permissions": ["jobs:fly"]})
    assert (refused.status_code, "jobs:fly" in refused.json()["detail"]) == (422, True)
    assert (await operator.put("/roles/Ops!", json={"permissions": []})).status_code == 422


async def test_every_permission_is_listed_with_its_meaning(operator: httpx2.AsyncClient) -> None:
    assert {one["name"] for one in (await operator.get("/permissions")).json()} == set(map(str, Permission))


# Sessions


async def test_the_cookie_is_for_the_server_alone(site: Site) -> None:
    await person(site)
    signed = await sign_in(await browser(site))
    flags = signed.headers["set-cookie"].lower()
    assert signed.status_code == 201
    for flag in (f"{COOKIE}=", "httponly", "samesite=strict", "path=/", "expires="):
        assert flag in flags
    assert "secure" not in flags
    transport = httpx2.ASGITransport(app=site.app)
    async with httpx2.AsyncClient(transport=transport, base_url="https://kappa.test") as safe:
        assert "secure" in (await sign_in(safe)).headers["set-cookie"].lower()


async def test_only_the_hash_of_a_session_is_kept(site: Site, connection: Connection) -> None:
    await person(site)
    client = await browser(site)
    csrf = (await sign_in(client)).json()["csrf_token"]
    key = client.cookies[COOKIE].split(".")[0]
    assert one(connection, "SELECT hash FROM kappa.sessions") == hashlib.sha256(key.encode()).digest()
    kept = str(connection.execute("SELECT to_jsonb(s)::text FROM kappa.sessions AS s").fetchall())
    assert key not in kept
    assert csrf not in kept


async def test_a_cookie_that_was_changed_is_refused(site: Site) -> None:
    await person(site)
    client = await browser(site)
    await sign_in(client)
    key, mac = client.cookies[COOKIE].split(".")
    other = await site.client(None)
    made_up = [
        key,
        f"{key}.",
        f".{mac}",
        f"{key}x.{mac}",
        f"{key}.{mac[:-1]}{'0' if mac[-1] != '0' else '1'}",
        ".",
        "x",
    ]
    for cookie in made_up:
        answer = await other.get("/me", headers={"Cookie": f"{COOKIE}={cookie}"})
        assert answer.status_code == 401, cookie
    odd = await other.get("/me", headers={"Cookie": f"{COOKIE}=é.ü".encode("latin-1")})
    assert odd.status_code == 401
    assert (await other.get("/me", headers={"Cookie": f"{COOKIE}={key}.{mac}"})).status_code == 200


async def test_a_change_with_the_cookie_needs_the_csrf_token(site: Site) -> None:
    token = await person(site)
    client = await browser(site)
    csrf = (await sign_in(client)).json()["csrf_token"]
    job = {"kind": "self_test"}
    assert (await client.get("/jobs")).status_code == 200
    for wrong in ({}, {"X-CSRF-Token": "0" * 64}, {"X-CSRF-Token": ""}, {"X-CSRF-Token": "é".encode("latin-1")}):
        assert (await client.post("/jobs", json=job, headers=wrong)).status_code == 403
    assert (await client.get("/jobs")).json()["items"] == []
    assert (await client.post("/jobs", json=job, headers={"X-CSRF-Token": csrf})).status_code == 201
    assert (await (await site.client(token=token)).post("/jobs", json=job)).status_code == 201


async def test_the_csrf_token_of_another_session_does_not_fit(site: Site) -> None:
    await person(site)
    first, second = await browser(site), await browser(site)
    await sign_in(first)
    other = (await sign_in(second)).json()["csrf_token"]
    assert (await first.post("/tokens", json={"name": "x"}, headers={"X-CSRF-Token": other})).status_code == 403


async def test_signing_out_ends_the_session_and_no_other(site: Site) -> None:
    await person(site)
    client, other = await browser(site), await browser(site)
    csrf = (await sign_in(client)).json()["csrf_token"]
    await sign_in(other)
    stolen = {"Cookie": f"{COOKIE}={client.cookies[COOKIE]}"}
    assert (await client.delete("/sessions/current")).status_code == 403
    out = await client.delete("/sessions/current", headers={"X-CSRF-Token": csrf})
    assert (out.status_code, COOKIE in client.cookies) == (204, False)
    assert (await (await site.client(None)).get("/me", headers=stolen)).status_code == 401
    assert (await other.get("/me")).status_code == 200


async def test_a_session_runs_out(site: Site, connection: Connection) -> None:
    await person(site)
    client = await browser(site)
    await sign_in(client)
    hours = "SELECT extract(epoch FROM expires_at - created_at)::int / 3600 FROM kappa.sessions"
    assert one(connection, hours) == site.services.settings.session_hours
    connection.execute("UPDATE kappa.sessions SET expires_at = now()")
    assert (await client.get("/me")).status_code == 401
    await sign_in(client)
    assert one(connection, "SELECT count(*) FROM kappa.sessions") == 1, "what ran out is cleared away"


# The throttle


async def test_wrong_names_and_wrong_passwords_look_the_same(site: Site) -> None:
    await person(site)
    await site.services.people.make_user(KAPPA, "tokens-only", roles=["contributor"])
    client = await browser(site)
    answers = [
        await sign_in(client, "ada", "wrong"),
        await sign_in(client, "nobody", "wrong"),
        await sign_in(client, "tokens-only", "wrong"),
    ]
    seen = {(answer.status_code, answer.json()["detail"]) for answer in answers}
    assert seen == {(401, "name and password don't fit")}


async def test_an_unknown_name_takes_the_same_path(site: Site, connection: Connection) -> None:
    client = await browser(site)
    statuses = [(await sign_in(client, "nobody", "wrong")).status_code for _ in range(6)]
    assert statuses == [401] * 5 + [429]
    here = "SELECT count(*) FROM kappa.sign_in_failures WHERE key = %s"
    assert one(connection, here, f"name nobody at {ADDRESS}") == 5


async def test_fifty_failures_for_a_name_shut_it_from_every_address(site: Site, connection: Connection) -> None:
    await person(site)
    connection.execute("INSERT INTO kappa.sign_in_failures (key) SELECT 'name ada' FROM generate_series(1, 47)")
    for place in range(3):
        assert (await sign_in(await browser(site, f"192.0.2.{place}"), password="wrong")).status_code == 401
    shut = await sign_in(await browser(site, "198.51.100.1"))
    assert (shut.status_code, 0 < int(shut.headers["retry-after"]) <= 900) == (429, True)
    connection.execute("UPDATE kappa.sign_in_failures SET at = at - interval '15 minutes'")
    assert (await sign_in(await browser(site))).status_code == 201


async def test_a_right_sign_in_forgets_the_failures_of_the_name(site: Site, connection: Connection) -> None:
    await person(site)
    client = await browser(site)
    for _ in range(4):
        await sign_in(client, password="wrong")
    assert (await sign_in(client)).status_code == 201
    here = "SELECT count(*) FROM kappa.sign_in_failures WHERE key = %s"
    assert one(connection, here, f"name ada at {ADDRESS}") == 0
    assert one(connection, here, "name ada") == 4, "others may have guessed at it meanwhile"
    address = "SELECT count(*) FROM kappa.sign_in_failures WHERE key = %s"
    assert one(connection, address, f"address {ADDRESS}") == 4, "who knows one password can't clear an address"


async def test_thirty_failures_from_an_address_shut_it_for_every_name(site: Site, connection: Connection) -> None:
    await person(site)
    connection.execute(
        "INSERT INTO kappa.sign_in_failures (key) SELECT 'address ' || %s FROM generate_series(1, 29)", [ADDRESS]
    )
    client = await browser(site)
    assert (await sign_in(client, "nobody", "wrong")).status_code == 401
    assert (await sign_in(client)).status_code == 429
    assert (await sign_in(await browser(site, "198.51.100.1"))).status_code == 201


async def test_of_twenty_tries_at_once_five_are_looked_at(site: Site, connection: Connection) -> None:
    await person(site)
    client = await browser(site)
    with connection.transaction():
        # Reading goes on and nothing can be noted: whoever counts before others have noted counts wrong.
        connection.execute("LOCK TABLE kappa.sign_in_failures IN SHARE MODE")
        tries = asyncio.gather(*(sign_in(client, password="wrong") for _ in range(20)))
        await blocked(connection, 2)
    assert Counter(answer.status_code for answer in await tries) == {401: 5, 429: 15}


async def test_tries_of_many_names_at_once_from_one_address_all_count(site: Site, connection: Connection) -> None:
    connection.execute(
        "INSERT INTO kappa.sign_in_failures (key) SELECT 'address ' || %s FROM generate_series(1, 29)", [ADDRESS]
    )
    client = await browser(site)
    with connection.transaction():
        connection.execute("LOCK TABLE kappa.sign_in_failures IN SHARE MODE")
        tries = asyncio.gather(*(sign_in(client, f"name{number}", "wrong") for number in range(8)))
        await blocked(connection, 3)
    assert Counter(answer.status_code for answer in await tries) == {401: 1, 429: 7}


# The audit log


async def test_every_act_of_administration_is_written_down(site: Site, operator: httpx2.AsyncClient) -> None:
    acts: list[tuple[str, str, str, str, dict[str, Any] | None]] = [
        ("user.make", "ada", "POST", "/users", {"name": "ada", "password": PASSWORD, "roles": ["curator"]}),
        ("user.change", "ada", "PATCH", "/users/ada", {"password": "another long password"}),
        ("role.put", "ops", "PUT", "/roles/ops", {"permissions": ["workers:view"]}),
        ("role.drop", "ops", "DELETE", "/roles/ops", None),
        ("token.make", "", "POST", "/users/ada/tokens", {"name": "hers"}),
        ("user.drop", "ada", "DELETE", "/users/ada", None),
        ("user.change", "platform_admin", "PUT", "/me/password", {"password": "another long password"}),
    ]
    for number, (action, target, method, path, body) in enumerate(acts):
        request_id = f"request-{number}"
        answer = await operator.request(method, path, json=body, headers={"X-Request-Id": request_id})
        assert answer.is_success, answer.text
        entry = (await operator.get("/audit", params={"limit": 1})).json()["items"][0]
        assert (entry["action"], entry["who"], entry["request_id"]) == (action, "platform_admin", request_id)
        assert entry["target"] == target or not target
    log = (await operator.get("/audit", params={"limit": 500})).text
    assert PASSWORD not in log
    assert "another long" not in log


async def test_revoking_and_signing_in_are_written_down(site: Site, operator: httpx2.AsyncClient) -> None:
    await person(site)
    made = (await operator.post("/tokens", json={"name": "x"})).json()
    for _ in range(2):
        await operator.delete(f"/tokens/{made['id']}", headers={"X-Request-Id": "revoke-it"})
    (revoked,) = await entries(operator, "token.revoke")
    assert (revoked["target"], revoked["request_id"]) == (str(made["id"]), "revoke-it")
    await (await browser(site)).post(
        "/sessions", json={"name": "ada", "password": PASSWORD}, headers={"X-Request-Id": "sign-in"}
    )
    (begun,) = await entries(operator, "session.begin")
    assert (begun["who"], begun["request_id"]) == ("ada", "sign-in")


async def test_what_was_refused_is_written_down_as_refused(site: Site, operator: httpx2.AsyncClient) -> None:
    admin = await site.client("admin")
    before = (await operator.get("/audit")).json()["items"]
    await admin.post("/users", json={"name": "x", "roles": ["platform_admin"]})
    await admin.put("/roles/ops", json={"permissions": ["workers:manage"]})
    token = (await operator.post("/tokens", json={"name": "x"})).json()["id"]
    assert (await admin.delete(f"/tokens/{token}")).status_code == 403
    await operator.delete("/users/platform_admin")
    items = (await operator.get("/audit")).json()["items"]
    after = [one for one in items[: len(items) - len(before)] if one["action"] != "token.make"]
    assert items[len(items) - len(before) :] == before
    assert [(one["who"], one["action"], one["target"], one["detail"]["wanted"]) for one in reversed(after)] == [
        ("admin", "access.refused", "x", "user.make"),
        ("admin", "access.refused", "ops", "role.put"),
        ("admin", "access.refused", str(token), "token.revoke"),
    ]
    assert "platform_admin" in after[0]["detail"]["reason"]
    assert after[0]["request_id"]


async def test_the_audit_log_is_read_page_by_page(operator: httpx2.AsyncClient) -> None:
    for number in range(5):
        await operator.put(f"/roles/r{number}", json={"permissions": []})
    whole = [entry["id"] for entry in (await operator.get("/audit", params={"limit": 500})).json()["items"]]
    pages: list[int] = []
    before: dict[str, int] = {}
    while True:
        page = (await operator.get("/audit", params={"limit": 2, **before})).json()
        pages += [entry["id"] for entry in page["items"]]
        if page["next"] is None:
            break
        before = {"before": page["next"]}
    assert pages == whole == sorted(whole, reverse=True)
