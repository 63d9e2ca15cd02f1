"""Measures through the front doors: over HTTP, for agents, and by `kg`."""

import asyncio
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from uuid import UUID

import httpx2
import psycopg
import pytest

from kappa.app.usecases.questions import Asking
from kappa.engine.testing import drain
from kappa.graph import QuestionStopped
from tests.app import worlds
from tests.app.conftest import Site, Up
from tests.app.person import kg
from tests.ground import PATIENCE

SAID = {"ontology": "zoology", "relations": [
    {"from": "Otter", "to": "Fish", "type": "SUPPORTS"},
    {"from": "Heron", "to": "Fish", "type": "SUPPORTS", "confidence": 0.5},
    {"from": "Whale", "to": "Fish", "type": "CONTRADICTS", "confidence": 0.2},
]}  # fmt: skip


async def populate(site: Site, client: httpx2.AsyncClient) -> dict[str, str]:
    ids, _ = await worlds.populate(client)
    said = (await client.post("/graph/relations", json=SAID)).raise_for_status()
    await worlds.in_memory(site, said.json()["epoch"])
    return ids


async def test_a_concept_says_how_well_it_is_founded_and_why(site: Site, operator: httpx2.AsyncClient) -> None:
    ids = await populate(site, operator)
    reader = await site.client("read_only")
    found = (await reader.get("/graph/concepts/Fish")).raise_for_status().json()["measured"]
    assert (found["grounding"]["supports"], found["grounding"]["contradictions"]) == (2, 1)
    assert abs(found["grounding"]["value"] - 1.3 / (1.7 + 1.96**2)) < 1e-9
    assert found["grounding"]["low"] < found["grounding"]["value"] < found["grounding"]["high"]
    assert [(one["label"], one["type"], one["weight"], one["by"]) for one in found["reasons"]] == [
        ("Otter", "SUPPORTS", 1.0, "words"), ("Heron", "SUPPORTS", 0.5, "words"),
        ("Whale", "CONTRADICTS", -0.2, "words"),
    ]  # fmt: skip
    assert found["reasons"][0]["id"] == ids["Otter"]
    assert found["confidence"]["relations"] == 6
    for question, body in (("related", {"concept": "River"}), ("search", {"text": "Fish"})):
        for asked in (True, False):
            answer = (
                (await reader.post(f"/query/{question}", json={**body, "measures": asked})).raise_for_status().json()
            )
            fish = next(item["concept"] for item in answer["items"] if item["concept"]["label"] == "Fish")
            assert (fish["measured"] is not None) == asked
            if asked:
                assert fish["measured"]["grounding"] == found["grounding"]
    ends = {"start": "Otter", "goal": "Fish", "relation_types": ["SUPPORTS"]}
    for question in ("path", "enriched-path"):
        for asked in (True, False):
            answer = await reader.post(f"/query/{question}", json={**ends, "measures": asked})
            last = answer.raise_for_status().json()["items"][0]["concepts"][-1]
            assert (last["measured"] or {}).get("grounding") == (found["grounding"] if asked else None)
    axis = (await reader.post("/query/polarity", json=worlds.QUESTIONS["polarity"])).raise_for_status().json()
    grounded = {item["concept"]["label"]: item["grounding"] for item in axis["items"]}
    assert grounded["Fish"] == found["grounding"]["value"]
    assert -1 <= axis["correlation"] <= 1


async def test_measures_that_are_not_there_by_the_deadline_are_left_out_and_said(
    site: Site, operator: httpx2.AsyncClient, url: str
) -> None:
    ids = await populate(site, operator)
    ends = {"start": "Otter", "goal": "Fish", "relation_types": ["SUPPORTS"]}
    questions = {"search": {"text": "Fish"}, "related": {"concept": "River"}, "path": ends, "enriched-path": ends}
    with psycopg.connect(url) as other:
        other.execute("LOCK kappa_graph.relation_types IN ACCESS EXCLUSIVE MODE")
        for question, body in questions.items():
            asked = operator.post(f"/query/{question}", json={**body, "measures": True, "deadline": 1.5})
            answer = (await asyncio.wait_for(asked, PATIENCE)).raise_for_status().json()
            assert (answer["complete"], bool(answer["items"])) == (False, True)
            assert "the measures" in [one["what"] for one in answer["skipped"]]
        with pytest.raises(QuestionStopped, match="still measured when the deadline passed"):
            asking = Asking(site.services.graph.here(), 0.5)
            await asyncio.wait_for(asyncio.to_thread(asking.shown, ids["Fish"], None, 5), PATIENCE)


async def test_types_are_merged_and_undone_by_those_who_may(site: Site, operator: httpx2.AsyncClient) -> None:
    await populate(site, operator)
    body = {"merged": "FLOWS_INTO", "survivor": "LIVES_IN"}
    for role in ("read_only", "contributor"):
        assert (await (await site.client(role)).post("/graph/vocabulary/merges", json=body)).status_code == 403
    curator = await site.client("curator")
    done = await curator.post("/graph/vocabulary/merges", json=body)
    assert done.status_code == 201
    made = done.json()
    assert (made["relations"], made["united"], made["made_by"]) == (1, 0, "curator")
    types = {one["name"]: one for one in (await operator.get("/graph/vocabulary")).json()}
    assert (types["FLOWS_INTO"]["merged_into"], types["LIVES_IN"]["relations"]) == ("LIVES_IN", 4)
    assert (types["SUPPORTS"]["stance"], types["SUPPORTS"]["stance_by"]) == (1.0, "words")
    assert (await operator.post("/graph/vocabulary/merges", json=body)).json()["code"] == "bad_write"
    undone = await operator.post(f"/graph/vocabulary/merges/{made['id']}/undo")
    assert undone.json()["undone_by"] == "platform_admin"
    assert (await operator.post(f"/graph/vocabulary/merges/{made['id']}/undo")).status_code == 422
    assert [one["id"] for one in (await operator.get("/graph/vocabulary/merges")).json()] == [made["id"]]
    audited = [entry["action"] for entry in (await operator.get("/audit")).json()["items"]]
    assert audited[:2] == ["graph.undo_merge", "graph.merge_types"]


async def test_an_artifact_is_listed_shown_and_drawn(site: Site, operator: httpx2.AsyncClient) -> None:
    await populate(site, operator)
    job = (await operator.post("/jobs", json={"kind": "projection", "payload": {"way": "pca"}})).json()
    await drain(site.engine)
    result = (await operator.get(f"/jobs/{job['id']}")).json()["result"]
    (found,) = (await operator.get("/artifacts", params={"kind": "projection"})).json()
    assert found["id"] == result["artifact"]
    assert (await operator.get("/artifacts", params={"kind": "polarity"})).json() == []
    assert (await operator.get(f"/artifacts/{found['id']}")).json() == found
    content = (await operator.get(f"/artifacts/{found['id']}/content")).json()
    assert {one["label"] for one in content["concepts"]} == set(worlds.WATERS)
    picture = await operator.get(f"/artifacts/{found['id']}/data")
    assert picture.headers["content-type"] == "image/svg+xml"
    assert "sandbox" in picture.headers["content-security-policy"]
    assert ET.fromstring(picture.content).tag.endswith("svg")
    for path in ("", "/content", "/data"):
        assert (await operator.get(f"/artifacts/{UUID(int=1)}{path}")).status_code == 404


def test_kg_shows_measures_merges_and_maps(up: Up, tmp_path: Path) -> None:
    with up.client() as client:
        client.post("/graph/concepts", json=worlds.concepts()).raise_for_status()
        client.post("/graph/relations", json=worlds.relations()).raise_for_status()
        client.post("/graph/relations", json=SAID).raise_for_status()

    def said(*args: str, code: int = 0) -> str:
        done = kg(*args, home=up.home, env={"KAPPA_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"})
        assert done.returncode == code, done.stderr
        return done.stdout

    shown = said("concept", "show", "Fish")
    for part in ("grounding", "+0.23", "2 for it (1.5), 1 against (0.2)", "confidence", "Otter", "+1.00 by words"):
        assert part in shown, shown
    assert "Fish  zoology" in said("related", "River")
    assert "+0.23" in said("related", "River")
    assert "+0.23" in said("search", "Fish")
    assert "Fish  +0.23" in said("path", "Otter", "Fish")
    assert "grounding" in said("polarity", "River", "Sea")
    merge = json.loads(said("vocab", "merge", "FLOWS_INTO", "LIVES_IN", "--json"))
    assert "→ LIVES_IN" in said("vocab", "list", "--merged")
    assert "FLOWS_INTO" in said("vocab", "merges")
    assert "of its own again" in said("vocab", "undo", str(merge["id"]))
    assert "SUPPORTS" in said("vocab", "list")
    picture = tmp_path / "map.svg"
    said("projection", "--way", "pca", "--to", str(picture))
    assert ET.fromstring(picture.read_bytes()).tag.endswith("svg")
    axis = tmp_path / "axis.svg"
    said("polarity", "River", "Sea", "--save", str(axis))
    assert b"Krill" in axis.read_bytes()
    found = json.loads(said("artifact", "list", "--json"))
    assert {one["kind"] for one in found} == {"projection", "polarity"}
    assert "projection" in said("artifact", "list")
    assert "as_of_epoch" in said("artifact", "show", found[0]["id"])
    assert json.loads(said("artifact", "show", found[0]["id"], "--content"))["model"] == "waters"
    assert said("artifact", "save", found[0]["id"], "--to", "-").startswith("<?xml")
    assert "insufficient" in said("vocab", "remeasure") + said("vocab", "list")
    assert "was created" in said("vocab", "consolidate")
    said("projection", "--ontology", "nowhere", code=1)
