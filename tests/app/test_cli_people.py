"""`kg user`, `kg role` and `kg token` against a running server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.conftest import Up
from tests.app.person import Person, hired, served
from tests.conftest import Server

PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def shared(server: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with served(server, template, tmp_path_factory) as up:
        yield up


@pytest.fixture
def kg(shared: Up) -> Person:
    return Person(shared.home)


def signs_in(up: Up, name: str, password: str) -> bool:
    with up.client() as client:
        answer = client.post("/sessions", json={"name": name, "password": password})
        assert answer.status_code in (201, 401), answer.text
        return answer.is_success


def test_a_user_with_a_password_from_standard_input(shared: Up, kg: Person) -> None:
    made = kg.says("user", "make", "ada", "--role", "contributor", "--password-stdin", stdin=f"{PASSWORD}\n")
    assert set(made) == {"name", "enabled", "has_password", "roles", "permissions", "created_at"}
    assert (made["roles"], made["has_password"]) == (["contributor"], True)
    assert signs_in(shared, "ada", PASSWORD)
    assert kg.says("user", "password", "ada", "--password-stdin", stdin="another long one")["password"] == "changed"
    assert signs_in(shared, "ada", "another long one")
    assert not signs_in(shared, "ada", PASSWORD)


def test_a_terminal_is_asked_twice_and_shows_nothing_of_the_password(shared: Up, kg: Person) -> None:
    code, seen = kg.on_terminal("user", "make", "typist", types=f"{PASSWORD}\n{PASSWORD}\n")
    assert code == 0, seen
    assert "Password of typist" in seen
    assert PASSWORD not in seen
    assert signs_in(shared, "typist", PASSWORD)


def test_a_password_that_is_missing_or_too_short_is_refused(kg: Person) -> None:
    assert "no password in its first line" in kg.refused(2, "user", "make", "eve", "--password-stdin")
    assert "--password-stdin reads it" in kg.refused(2, "user", "password", "operator")
    said = kg.refused(1, "user", "make", "eve", "--password-stdin", stdin="hunter2\n")
    assert said == "a password has 12 to 1024 characters"
    assert "there is no user 'eve'" in kg.refused(1, "user", "show", "eve")
    assert "--password" not in kg("user", "make", "--help").stdout.replace("--password-stdin", "")


def test_ones_own_password_needs_no_name(shared: Up) -> None:
    bob = hired(shared, "bob", "read_only")
    assert bob("user", "password", "--password-stdin", stdin=PASSWORD).stdout == "the password of bob is changed\n"
    assert signs_in(shared, "bob", PASSWORD)
    assert bob.says("user", "show") == {
        "name": "bob",
        "permissions": ["account:use", "graph:read", "jobs:view", "schedules:view", "tools:view"],
    }


def test_users_get_roles_are_switched_off_and_on_and_removed(shared: Up, kg: Person) -> None:
    carol = hired(shared, "carol", "read_only")
    assert kg.says("user", "roles", "carol", "contributor", "curator")["roles"] == ["contributor", "curator"]
    assert kg.says("user", "disable", "carol")["enabled"] is False
    carol.refused(4, "job", "list")
    assert kg.says("user", "enable", "carol")["enabled"] is True
    assert carol("job", "list").returncode == 0
    assert kg.says("user", "roles", "carol", "--none")["roles"] == []
    assert kg("user", "roles", "carol").returncode == 2
    assert "carol" in kg("user", "list").stdout
    assert "carol" in [user["name"] for user in kg.says("user", "list")]
    assert "--yes says so" in kg.refused(2, "user", "drop", "carol")
    assert kg.says("user", "drop", "carol", "--yes") == {"dropped": "carol"}
    assert kg.refused(1, "user", "show", "carol") == "there is no user 'carol'"


def test_the_last_administrator_stays(kg: Person) -> None:
    assert "last platform_admin" in kg.refused(1, "user", "disable", "operator")


def test_a_token_is_all_that_standard_output_has(shared: Up, kg: Person) -> None:
    made = kg("token", "make", "CI", "--scope", "jobs:view", "--scope", "account:use", "--lasts", "30d")
    assert made.stdout.startswith("kappa_")
    assert made.stdout.count("\n") == 1
    assert made.stdout.strip() not in made.stderr
    bearer = Person(shared.home, token=made.stdout.strip())
    assert bearer("job", "list").returncode == 0
    assert bearer.refused(4, "job", "enqueue", "self_test") == "operator lacks the permission jobs:enqueue"
    (mine,) = [token for token in kg.says("token", "list") if token["name"] == "CI"]
    assert (mine["scopes"], mine["revoked_at"]) == (["jobs:view", "account:use"], None)
    assert kg("token", "revoke", mine["id"]).stdout == f"token {mine['id']} is revoked\n"
    bearer.refused(4, "job", "list")
    row = next(line for line in kg("token", "list").stdout.splitlines() if " CI " in line)
    assert "revoked" in row


def test_a_token_for_somebody_else(shared: Up, kg: Person) -> None:
    hired(shared, "dora", "contributor")
    made = kg.says("token", "make", "robot", "--user", "dora", "--never-expires")
    assert (set(made), made["expires_at"]) == ({"id", "expires_at", "token"}, None)
    assert Person(shared.home, token=made["token"]).says("user", "show")["name"] == "dora"
    assert "robot" in [token["name"] for token in kg.says("token", "list", "--user", "dora")]
    assert kg.says("token", "revoke", made["id"]) == {"revoked": [made["id"]]}
    assert kg.refused(1, "token", "make", "x", "--user", "nobody") == "there is no user 'nobody'"
    assert "'fly'" in kg.refused(1, "token", "make", "x", "--scope", "fly")


def test_roles_of_ones_own_design(kg: Person) -> None:
    role = kg.says("role", "put", "auditor", "account:use", "audit:view")
    assert role == {"name": "auditor", "permissions": ["account:use", "audit:view"], "builtin": False, "users": 0}
    assert role in kg.says("role", "list")
    assert "auditor" in kg("role", "list").stdout
    assert "audit:view" in [one["name"] for one in kg.says("role", "permissions")]
    assert kg("role", "drop", "auditor").stdout == "the role auditor is removed\n"
    assert "belongs to Kappa" in kg.refused(1, "role", "drop", "curator")


def test_nobody_gives_what_they_dont_have(shared: Up) -> None:
    chief = hired(shared, "chief", "admin")
    assert "goes beyond" in chief.refused(4, "user", "make", "pawn", "--role", "platform_admin")
    assert "goes beyond" in chief.refused(4, "role", "put", "worker", "workers:manage")
    reader = hired(shared, "rita", "read_only")
    assert reader.refused(4, "user", "list") == "rita lacks the permission users:view"
    assert reader.refused(4, "role", "list") == "rita lacks the permission users:view"
    assert reader.refused(4, "token", "list", "--user", "chief") == "rita lacks the permission users:view"


def test_without_a_server_the_exit_code_is_3(home: Path) -> None:
    for command in ("user", "role", "token"):
        assert Person(home).refused(3, command, "list").startswith("no server runs here")
