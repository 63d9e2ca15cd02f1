"""Backup, restore, ontologies and proposals through the API and the command line."""

import json
from pathlib import Path

import httpx2
import psycopg

from kappa.engine.testing import drain
from kappa.graph.backup import verify
from tests.app.conftest import Site, Up
from tests.app.person import kg
from tests.graph.dump import dump

CONCEPTS = {"ontology": "rivers", "concepts": [{"label": "Otter", "description": "swims"}, {"label": "Fish"}]}


async def test_a_backup_is_a_stream_and_comes_back_as_a_job(site: Site, operator: httpx2.AsyncClient, url: str) -> None:
    assert (await operator.post("/graph/concepts", json=CONCEPTS)).status_code == 200
    before = dump(url)
    taken = await operator.post("/backup")
    assert (taken.status_code, taken.headers["content-type"]) == (200, "application/gzip")
    assert verify([taken.content])[1].rows["concepts"] == 2
    assert (await operator.delete("/graph/ontologies/rivers")).status_code == 204
    assert dump(url)["concepts"] == []
    made = await operator.post("/restore", params={"mode": "replace"}, content=taken.content)
    assert made.status_code == 201
    await drain(site.engine)
    job = (await operator.get(f"/jobs/{made.json()['id']}")).json()
    assert (job["state"], job["result"]["rows"]["concepts"]) == ("succeeded", 2)
    assert dump(url) == before


async def test_what_is_no_backup_makes_no_job(site: Site, operator: httpx2.AsyncClient, url: str) -> None:
    for content in (b"", b"{}", b"no backup"):
        refused = await operator.post("/restore", params={"mode": "merge"}, content=content)
        assert (refused.status_code, refused.json()["code"]) == (422, "refused")
    assert (await operator.post("/restore", params={"mode": "sideways"}, content=b"x")).status_code == 422
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM kappa.restore_files").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM kappa.jobs").fetchone() == (0,)


async def test_a_large_body_is_taken_in_by_this_route_alone(site: Site, operator: httpx2.AsyncClient) -> None:
    large = b"\x1f\x8b" + bytes(3 << 20)
    assert (await operator.post("/restore", params={"mode": "merge"}, content=large)).status_code == 201
    assert (await operator.post("/graph/concepts", content=large)).status_code == 413


async def test_ontologies_are_renamed_and_deleted_unless_an_ingestion_works_on_them(
    site: Site, operator: httpx2.AsyncClient, url: str
) -> None:
    await operator.post("/graph/concepts", json=CONCEPTS)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO kappa.jobs (lane, kind, state, payload) "
            "VALUES ('interactive', 'ingestion', 'queued', '{\"ontology\": \"rivers\"}')"
        )
        for answer in (
            await operator.patch("/graph/ontologies/rivers", json={"name": "brooks"}),
            await operator.delete("/graph/ontologies/rivers"),
        ):
            assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        connection.execute("DELETE FROM kappa.jobs")
    renamed = await operator.patch("/graph/ontologies/rivers", json={"name": "a/b c"})
    assert renamed.json()["concepts"] == 2
    assert (await operator.get("/graph/ontologies/a%2Fb%20c")).json()["name"] == "a/b c"
    assert (await operator.get("/graph/ontologies/rivers")).status_code == 404
    await operator.post("/graph/concepts", json=CONCEPTS)
    taken = await operator.patch("/graph/ontologies/rivers", json={"name": "a/b c"})
    assert taken.status_code == 409
    assert (await operator.delete("/graph/ontologies/a%2Fb%20c")).status_code == 204
    assert [one["name"] for one in (await operator.get("/graph/masses")).json()] == ["rivers"]


async def test_a_proposal_goes_all_the_way_and_back(site: Site, url: str) -> None:
    curator = await site.client("curator")
    await curator.post("/graph/concepts", json=CONCEPTS)
    await curator.post("/graph/concepts", json={"ontology": "empty", "concepts": [{"label": "Dust"}]})
    await curator.post("/graph/annealing")
    await drain(site.engine)
    found = (await curator.get("/graph/proposals", params={"state": "pending"})).json()
    number = next(one["id"] for one in found if one["body"]["name"] == "empty")
    assert (await curator.post(f"/graph/proposals/{number}/execute")).status_code == 409
    assert (await curator.post(f"/graph/proposals/{number}/approve")).json()["decided_by"] == "curator"
    assert (await curator.post(f"/graph/proposals/{number}/reject")).status_code == 409
    assert (await curator.post(f"/graph/proposals/{number}/execute")).status_code == 201
    await drain(site.engine)
    done = (await curator.get(f"/graph/proposals/{number}")).json()
    assert (done["state"], done["ontology"]) == ("executed", None)
    assert len(dump(url)["ontologies"]) == 1
    assert (await curator.post(f"/graph/proposals/{number}/undo")).status_code == 201
    await drain(site.engine)
    assert (await curator.get(f"/graph/proposals/{number}")).json()["state"] == "undone"
    assert len(dump(url)["ontologies"]) == 2
    reader = await site.client("contributor")
    assert (await reader.post(f"/graph/proposals/{number}/approve")).status_code == 403


def test_the_command_line_backs_up_restores_and_decides(up: Up, url: str, tmp_path: Path) -> None:
    def run(*args: str, code: int = 0) -> str:
        done = kg(*args, home=up.home, env={"KAPPA_DATABASE_URL": url})
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    body = json.dumps(CONCEPTS).encode()
    with up.client() as client:
        assert client.post("/graph/concepts", content=body, headers={"Content-Type": "application/json"}).is_success
    before = dump(url)
    file, second = tmp_path / "graph.kappa", tmp_path / "again.kappa"
    run("backup", str(file))
    assert "is there already" in run("backup", str(file), code=2)
    run("backup", "make", str(file), "--force")
    assert json.loads(run("backup", "verify", str(file), "--json"))["rows"]["concepts"] == 2
    done = kg("backup", str(second), home=up.home, env={"KAPPA_SERVER": up.url})
    assert done.returncode == 0, done.stderr
    assert "rivers" in run("ontology", "list")
    assert "--yes" in run("ontology", "delete", "rivers", code=2)
    run("ontology", "delete", "rivers", "--yes")
    assert dump(url)["concepts"] == []
    assert "--yes" in run("restore", str(second), "--mode", "replace", code=2)
    assert "succeeded" in run("restore", str(second), "--mode", "replace", "--yes")
    assert dump(url) == before
    run("ontology", "rename", "rivers", "brooks")
    assert json.loads(run("ontology", "show", "brooks", "--json"))["concepts"] == 2
    run("ontology", "anneal")
    number = str(json.loads(run("proposal", "list", "--state", "pending", "--json"))[0]["id"])
    assert "dissolve brooks" in run("proposal", "show", number)
    run("proposal", "approve", number)
    run("proposal", "execute", number)
    assert dump(url)["ontologies"] == []
    run("proposal", "undo", number)
    assert len(dump(url)["concepts"]) == 2
    file.write_bytes(file.read_bytes()[:-1])
    assert "backup" in run("backup", "verify", str(file), code=1)
    assert "backup" in run("restore", str(file), "--mode", "merge", "--yes", code=1)
