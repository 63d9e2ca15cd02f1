"""`kg admin` against a running server."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.conftest import Up
from tests.app.person import Person, hired, line_of, served
from tests.conftest import Server
from tests.ground import PATIENCE, eventually


@pytest.fixture(scope="module")
def shared(server: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with served(server, template, tmp_path_factory) as up:
        yield up


@pytest.fixture
def kg(shared: Up) -> Person:
    return Person(shared.home)


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "gates"
    made.mkdir()
    yield made
    (made / "1").touch()  # nothing waits on for ever


def gated(kg: Person, gates: Path) -> int:
    return int(kg.says("job", "enqueue", "gated", "--payload", json.dumps({"gates": str(gates)}))["id"])


def becomes(up: Up, job: int, state: str) -> None:
    with up.client() as client:
        eventually(lambda: client.get(f"/jobs/{job}").json()["state"] == state, what=f"job {job} is {state}")


def test_the_status_names_leader_workers_and_lanes(shared: Up, kg: Person, gates: Path) -> None:
    with shared.client() as client:
        eventually(lambda: client.get("/admin/workers/status").json()["leader"], what="somebody leads")
    becomes(shared, gated(kg, gates), "running")
    now = kg.says("admin", "workers")
    assert set(now) == {"version", "leader", "workers", "lanes", "pools"}
    assert now["leader"] == now["workers"][0]["owner"]
    gates_lane = next(lane for lane in now["lanes"] if lane["name"] == "gates")
    assert (gates_lane["slots_used"], gates_lane["jobs"]) == (1, {"running": 1})
    shown = kg("admin", "workers").stdout
    assert now["leader"] in shown
    assert [line.split() for line in shown.splitlines() if line.startswith("gates ")] == [
        ["gates", "open", "■□□□", "1/4", "0", "0", "0", "1"]
    ]


def test_a_drained_lane_finishes_what_runs_and_claims_nothing_until_it_resumes(
    shared: Up, kg: Person, gates: Path, tmp_path: Path
) -> None:
    running = gated(kg, gates)
    becomes(shared, running, "running")
    assert "draining" in kg("admin", "workers", "lanes", "drain", "gates").stdout
    waits = gated(kg, gates)
    (gates / "1").touch()
    assert kg("job", "watch", running).returncode == 0
    drained = kg.says("admin", "workers", "lanes", "drain", "gates")
    assert (drained["enabled"], drained["slots_used"], drained["jobs"]) == (False, 0, {"queued": 1})
    assert kg.says("admin", "workers", "lanes", "resume", "gates")["enabled"] is True
    assert kg("job", "watch", waits).returncode == 0


def test_more_slots_are_used_at_once(shared: Up, kg: Person, gates: Path) -> None:
    assert kg.says("admin", "workers", "lanes", "edit", "gates", "--max-slots", 1)["max_slots"] == 1
    first, second = gated(kg, gates), gated(kg, gates)
    becomes(shared, first, "running")
    assert kg.says("job", "show", second)["state"] == "queued"
    kg("admin", "workers", "lanes", "edit", "gates", "--max-slots", 4)
    becomes(shared, second, "running")


def test_every_column_of_a_lane_can_be_edited(kg: Person) -> None:
    options = "--max-slots 3 --poll-interval-ms 700 --lease-ttl 90s --stale-timeout 1h --executor async --kinds a,b"
    changed = kg.says("admin", "workers", "lanes", "edit", "system", *options.split())
    assert {name: changed[name] for name in changed if name not in ("jobs", "slots_used", "enabled", "held_by")} == {
        "name": "system", "kinds": ["a", "b"], "max_slots": 3, "poll_interval_ms": 700, "lease_ttl": 90.0,
        "stale_timeout": 3600.0, "executor": "async",
    }  # fmt: skip
    lanes = kg.says("admin", "workers", "lanes")
    assert changed in lanes
    row = next(line for line in kg("admin", "workers", "lanes").stdout.splitlines() if line.startswith("system "))
    assert row.split() == ["system", "open", "□□□", "0/3", "700", "ms", "90s", "1h", "async", "a,", "b"]
    assert kg.says("admin", "workers", "lanes", "edit", "system", "--kinds", "")["kinds"] == []


def test_an_edit_that_makes_no_sense_is_refused(kg: Person) -> None:
    edit = ("admin", "workers", "lanes", "edit")
    assert kg.refused(2, *edit, "tools").startswith("nothing to change")
    assert kg.refused(1, *edit, "nowhere", "--max-slots", 1) == "there is no lane 'nowhere'"
    assert kg.refused(1, *edit, "../lanes", "--max-slots", 1)
    assert "ingestion" in kg.refused(1, *edit, "tools", "--kinds", "ingestion")
    assert kg(*edit, "tools", "--executor", "hamster").returncode == 2
    assert kg(*edit, "tools", "--lease-ttl", "long").returncode == 2
    assert "stand behind it" in kg.refused(2, "admin", "workers", "--json", "lanes")


def test_workers_are_watched_live(kg: Person) -> None:
    with kg.begins("admin", "workers", "--watch", "--every", "0.1s", "--json") as watching:
        first = json.loads(line_of(watching.stdout))
        assert all(lane["enabled"] for lane in first["lanes"])
        kg("admin", "workers", "lanes", "drain", "tools")
        while all(lane["enabled"] for lane in json.loads(line_of(watching.stdout))["lanes"]):
            pass
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=PATIENCE)
        assert watching.returncode == 130
    kg("admin", "workers", "lanes", "resume", "tools")


def test_a_pipe_gets_no_live_table(kg: Person) -> None:
    with kg.begins("admin", "workers", "--watch", "--every", "0.1s") as watching:
        seen = [line_of(watching.stdout)]
        while not seen[-1].startswith("tools"):
            seen.append(watching.stdout.readline())  # type: ignore[union-attr]
        watching.send_signal(signal.SIGINT)
        rest, _ = watching.communicate(timeout=PATIENCE)
        assert "\x1b" not in "".join(seen) + rest


def test_only_those_who_may_see_workers_see_them(shared: Up) -> None:
    curator = hired(shared, "cora", "curator")
    assert curator.refused(4, "admin", "workers") == "cora lacks the permission workers:view"
    assert curator.refused(4, "admin", "workers", "--watch") == "cora lacks the permission workers:view"
    assert (
        curator.refused(4, "admin", "workers", "lanes", "drain", "tools") == "cora lacks the permission workers:manage"
    )
    assert curator.refused(4, "admin", "audit") == "cora lacks the permission audit:view"


def test_without_a_server_the_exit_code_is_3(home: Path) -> None:
    assert Person(home).refused(3, "admin", "workers", "--watch").startswith("no server runs here")


def test_the_audit_log_tells_who_did_what(kg: Person) -> None:
    kg("admin", "workers", "lanes", "drain", "maintenance")
    kg("admin", "workers", "lanes", "resume", "maintenance")
    page = kg.says("admin", "audit", "--limit", 2)
    assert [(one["who"], one["action"], one["target"], one["detail"]) for one in page["items"]] == [
        ("operator", "lane.edit", "maintenance", {"enabled": True}),
        ("operator", "lane.edit", "maintenance", {"enabled": False}),
    ]
    older = kg.says("admin", "audit", "--limit", 1, "--before", page["next"])
    assert older["items"][0]["id"] < page["next"]
    everything = kg.says("admin", "audit", "--all")
    assert everything["items"][-1]["action"] == "user.make"
    assert "lane.edit" in kg("admin", "audit").stdout
