"""The graph over HTTP: what is written is found, by id and by label; what has no answer is a problem that says why."""

import asyncio
from typing import Any
from uuid import uuid4

import httpx2
import psycopg
import pytest

from tests.app import worlds
from tests.app.conftest import Site
from tests.ground import PATIENCE


async def ask(client: httpx2.AsyncClient, question: str, **body: Any) -> dict[str, Any]:
    """An answer, with what every answer has."""
    answered = await client.post(f"/query/{question}", json=body)
    assert answered.status_code == 200, answered.text
    answer = answered.json()
    assert (answer["complete"], answer["skipped"]) == (True, [])
    assert answer["served_by"] in ("snapshot", "sql")
    assert answer["as_of_epoch"] >= body.get("min_epoch", 0)
    return answer


async def refused(client: httpx2.AsyncClient, path: str, body: dict[str, Any], status: int, code: str) -> str:
    answered = await client.post(path, json=body)
    assert answered.headers["content-type"] == "application/problem+json", answered.text
    problem = answered.json()
    assert (answered.status_code, problem["code"]) == (status, code), answered.text
    return problem["detail"]


def labels(items: list[dict[str, Any]]) -> list[str]:
    return [item["concept"]["label"] for item in items]


async def test_what_a_body_lacks_is_said_without_a_word_of_the_library(operator: httpx2.AsyncClient) -> None:
    said = await refused(operator, "/query/enriched-path", {}, 422, "not_understood")
    assert said.startswith("body: start is missing: ")


async def test_neighbours_are_found_with_their_hops_and_cut_by_the_order(
    site: Site, operator: httpx2.AsyncClient
) -> None:
    ids, epoch = await worlds.populate(operator)
    one = await ask(operator, "neighbors", seeds=[ids["Otter"]], min_epoch=epoch)
    assert sorted(labels(one["items"])) == ["Fish", "River"]
    two = await ask(operator, "neighbors", seeds=["otter"], max_hops=2, order="hop", limit=3)
    assert ([item["hop"] for item in two["items"]], two["found"]) == ([1, 1, 2], 4)
    out = await ask(operator, "neighbors", seeds=["Fish"], direction="out")
    assert labels(out["items"]) == ["River"]
    eats = await ask(operator, "neighbors", seeds=["Fish"], relation_types=["EATS"])
    assert sorted(labels(eats["items"])) == ["Heron", "Otter"]
    sure = await ask(operator, "neighbors", seeds=["Fish"], where={"min_confidence": 0.95})
    assert sure["items"] == []


async def test_related_concepts_tell_the_way_to_them(site: Site, operator: httpx2.AsyncClient) -> None:
    _, epoch = await worlds.populate(operator)
    found = await ask(operator, "related", concept="Otter", min_epoch=epoch)
    ways = {item["concept"]["label"]: (item["hop"], item["types"]) for item in found["items"]}
    assert ways["River"] == (1, ["LIVES_IN"])
    assert ways["Sea"] == (2, ["LIVES_IN", "FLOWS_INTO"])


async def test_a_path_is_a_chain_of_concepts_and_their_relations(site: Site, operator: httpx2.AsyncClient) -> None:
    ids, epoch = await worlds.populate(operator)
    found = await ask(operator, "path", start="Otter", goal=ids["Whale"], count=2, min_epoch=epoch)
    first = found["items"][0]
    assert [concept["label"] for concept in first["concepts"]] == ["Otter", "River", "Sea", "Whale"]
    assert (first["hops"], [step[0]["type"] for step in first["relations"]]) == (
        *(3,),
        ["LIVES_IN", "FLOWS_INTO", "LIVES_IN"],
    )
    assert [path["hops"] for path in found["items"]] == [3, 4]
    none = await ask(operator, "path", start="Otter", goal="Whale", max_hops=2)
    assert none["items"] == []
    rich = await ask(operator, "enriched-path", start="Otter", goal="Sea", around_limit=1)
    assert set(rich["around"]) == {ids["Otter"], ids["River"], ids["Sea"]}
    assert all(len(near) == 1 for near in rich["around"].values())


async def test_an_enriched_path_has_other_names_for_its_ends_and_its_depth(
    site: Site, operator: httpx2.AsyncClient
) -> None:
    ids, epoch = await worlds.populate(operator)
    ends = {"from_id": ids["Otter"], "to_id": ids["Sea"]}
    whole = await ask(operator, "enriched-path", start="Otter", goal="Sea", around_hops=2, min_epoch=epoch)
    assert await ask(operator, "enriched-path", **ends, depth=2) == whole
    assert await ask(operator, "enriched-path", **ends, start=ids["Otter"], around_hops=2, depth=2) == whole
    assert await ask(operator, "enriched-path", **ends) == await ask(operator, "enriched-path", **ends, depth=1)
    for body, named in (
        ({**ends, "start": ids["River"]}, ("start", "from_id", ids["River"])),
        ({**ends, "goal": ids["River"]}, ("goal", "to_id", ids["River"])),
        ({**ends, "around_hops": 1, "depth": 2}, ("around_hops is 1", "depth is 2")),
        ({"to_id": ids["Sea"]}, ("start is missing", "from_id")),
    ):
        refused = await operator.post("/query/enriched-path", json=body)
        assert refused.status_code == 422, refused.text
        assert all(word in refused.text for word in named), refused.text
    described = (await operator.get("/openapi.json")).json()["components"]["schemas"]["AskEnrichedPath"]
    assert {"from_id", "to_id", "depth", "start", "goal", "around_hops"} <= set(described["properties"])
    assert not {"start", "goal"} & set(described.get("required", ()))


async def test_a_subgraph_can_be_drawn(site: Site, operator: httpx2.AsyncClient) -> None:
    ids, epoch = await worlds.populate(operator)
    drawn = await ask(operator, "subgraph", seeds=["Otter"], min_epoch=epoch)
    assert [concept["hop"] for concept in drawn["concepts"]] == [0, 1, 1]
    ends = {(one["from_id"], one["type"], one["to_id"]) for one in drawn["relations"]}
    assert ends == {
        (ids[a], kind, ids[b]) for a, kind, b in worlds.ANIMALS if {a, b} <= {"Otter", "River", "Fish"}
    }  # fmt: skip
    alike = await ask(operator, "diversity", concept="Otter")
    assert (alike["concepts"], alike["embedded"]) == (4, 3)
    assert 0 < alike["score"] < 2


async def test_search_finds_by_words_by_a_vector_and_by_likeness(site: Site, operator: httpx2.AsyncClient) -> None:
    ids, epoch = await worlds.populate(operator)
    words = await ask(operator, "search", text="playful", min_epoch=epoch)
    assert labels(words["items"]) == ["Otter"]
    assert words["items"][0]["similarity"] is None
    near = await ask(operator, "search", vector=[-1.0, 0.05], model="waters", limit=2)
    assert (labels(near["items"]), near["model"]) == (["Sea", "Whale"], "waters")
    alike = await ask(operator, "search", like=ids["River"], limit=1)
    assert labels(alike["items"]) == ["Otter"]
    nowhere = await ask(operator, "search", text="zebra")
    assert nowhere["items"] == []


async def test_polarity_puts_concepts_on_the_axis_between_two(site: Site, operator: httpx2.AsyncClient) -> None:
    _, epoch = await worlds.populate(operator)
    found = await ask(operator, "polarity", positive="River", negative="Sea", max_hops=3, min_epoch=epoch)
    assert labels(found["items"]) == ["Otter", "Fish", "Krill", "Whale"]
    assert [item["direction"] for item in found["items"]] == ["positive", "neutral", "negative", "negative"]
    assert found["items"][0]["position"] == pytest.approx(0.8, abs=0.05)
    assert (found["model"], found["without_embedding"]) == ("waters", 1)
    few = await ask(operator, "polarity", positive="River", negative="Sea", candidates=["Whale"])
    assert labels(few["items"]) == ["Whale"]


async def test_a_concept_is_shown_by_its_id_and_by_its_label(site: Site, operator: httpx2.AsyncClient) -> None:
    ids, _ = await worlds.populate(operator)
    for name in (ids["Otter"], "Otter", "  OTTER "):
        shown = await operator.get(f"/graph/concepts/{name}")
        assert shown.json()["concept"]["description"] == "a playful swimmer", shown.text
        assert shown.json()["evidence"] == []
    for name in ("Yeti", str(uuid4())):
        assert (await operator.get(f"/graph/concepts/{name}")).json()["code"] == "unknown_concept"
    odd = {"ontology": "odd names", "concepts": [{"label": "a/b ? #1"}, {"label": "'; DROP TABLE x; --"}]}
    await operator.post("/graph/concepts", json=odd)
    for label in ("a%2Fb%20%3F%20%231", "'; DROP TABLE x; --"):
        assert (await operator.get(f"/graph/concepts/{label}")).status_code == 200


async def test_a_label_of_several_concepts_names_them_all(site: Site, operator: httpx2.AsyncClient) -> None:
    ids, epoch = await worlds.populate(operator)
    ship = await operator.post("/graph/concepts", json={"ontology": "ships", "concepts": [{"label": "Otter"}]})
    other = ship.json()["ids"]["Otter"]
    said = await refused(operator, "/query/related", {"concept": "Otter"}, 409, "ambiguous")
    assert said.startswith("'Otter' is 2 concepts: ")
    assert f"{ids['Otter']} (zoology)" in said
    assert f"{other} (ships)" in said
    found = await ask(operator, "related", concept="Otter", where={"ontologies": ["zoology"]}, min_epoch=epoch)
    assert len(found["items"]) == 4
    shown = await operator.get("/graph/concepts/Otter", params={"ontology": "ships"})
    assert shown.json()["concept"]["id"] == other


async def test_writing_again_writes_nothing_new(site: Site, operator: httpx2.AsyncClient) -> None:
    first = (await operator.post("/graph/concepts", json=worlds.concepts())).json()
    again = (await operator.post("/graph/concepts", json=worlds.concepts())).json()
    assert (first["concepts"], again["concepts"], first["ids"]) == (7, 0, again["ids"])
    linked = (await operator.post("/graph/relations", json=worlds.relations())).json()
    assert (linked["relations"], linked["epoch"] > first["epoch"]) == (7, True)
    types = (await operator.get("/graph/relation-types")).json()
    assert {one["name"] for one in types} == {"LIVES_IN", "EATS", "FLOWS_INTO"}
    assert [one["name"] for one in (await operator.get("/graph/ontologies")).json()] == ["zoology"]


async def test_a_write_that_contradicts_itself_writes_nothing(site: Site, operator: httpx2.AsyncClient) -> None:
    await worlds.populate(operator)
    fish = {"from": "Otter", "to": "Fish", "type": "CATCHES"}
    for ontology, end, code, words in (
        ("zoology", "Yeti", "bad_write", "there is no concept 'Yeti' in 'zoology'"),
        ("botany", "Fish", "unknown_ontology", "there is no ontology 'botany'"),
        (None, "Fish", "bad_write", "'Otter' is no id, and without `ontology` nobody knows whose label it is"),
    ):
        body = {"ontology": ontology, "relations": [fish, {**fish, "to": end}]}
        assert await refused(operator, "/graph/relations", body, 422, code) == words
    stranger = {"relations": [{"from": str(uuid4()), "to": str(uuid4()), "type": "KNOWS"}]}
    assert "is not in the graph" in await refused(operator, "/graph/relations", stranger, 422, "bad_write")
    types = (await operator.get("/graph/relation-types")).json()
    assert "CATCHES" not in {one["name"] for one in types}


@pytest.mark.parametrize(
    ("question", "body", "status", "code"),
    [
        ("neighbors", {"seeds": [str(uuid4())]}, 404, "unknown_concept"),
        ("related", {"concept": "Yeti"}, 404, "unknown_concept"),
        ("path", {"start": "Otter", "goal": "Otter"}, 422, "bad_question"),
        ("search", {}, 422, "bad_question"),
        ("search", {"text": "playful", "min_similarity": 0.5}, 422, "bad_question"),
        ("polarity", {"positive": "Heron", "negative": "Sea"}, 422, "bad_question"),
        ("path", {"start": "Otter", "goal": "Sea", "max_hops": 11}, 422, "not_understood"),
        ("neighbors", {"seeds": []}, 422, "not_understood"),
        ("neighbors", {"seeds": ["Otter"], "max_hops": 21}, 422, "not_understood"),
        ("neighbors", {"seeds": ["Otter"], "limit": 10_001}, 422, "not_understood"),
        ("neighbors", {"seeds": ["Otter"], "deadline": 121}, 422, "not_understood"),
        ("neighbors", {"seeds": ["Otter"], "surprise": 1}, 422, "not_understood"),
        ("neighbors", {"seeds": ["Otter"], "relation_types": ["HUGS"]}, 422, "unknown_relation_type"),
        ("neighbors", {"seeds": ["Otter"], "where": {"ontologies": ["botany"]}}, 422, "unknown_ontology"),
        ("neighbors", {"seeds": ["Otter"], "min_epoch": 2**62}, 409, "epoch_not_reached"),
    ],
)
async def test_a_question_that_has_no_answer_is_a_problem(
    site: Site, operator: httpx2.AsyncClient, question: str, body: dict[str, Any], status: int, code: str
) -> None:
    await worlds.populate(operator)
    await refused(operator, f"/query/{question}", body, status, code)


async def test_settings_are_changed_live_and_written_down(site: Site, operator: httpx2.AsyncClient) -> None:
    path = "/admin/graph/settings"
    assert (await operator.get(path)).json() == {
        "workers": 8, "timeout": 30, "stored_workers": None, "stored_timeout": None
    }  # fmt: skip
    assert (await operator.patch(path, json={"workers": 3})).json()["workers"] == 3
    both = (await operator.patch(path, json={"timeout": 7.5})).json()
    assert (both["workers"], both["timeout"]) == (3, 7.5)
    assert (await operator.patch(path, json={"workers": None})).json()["stored_workers"] is None
    for wrong in ({"workers": 0}, {"workers": 33}, {"timeout": 4}, {"timeout": 121}, {"workers": "2"}):
        assert (await operator.patch(path, json=wrong)).status_code == 422
    entries = (await operator.get("/audit")).json()["items"]
    assert [one["detail"] for one in entries if one["action"] == "graph.settings"] == [
        {"workers": None}, {"timeout": 7.5}, {"workers": 3},
    ]  # fmt: skip


async def test_the_status_tells_of_the_snapshot_and_the_budget(site: Site, operator: httpx2.AsyncClient) -> None:
    _, epoch = await worlds.populate(operator)
    graph = site.services.graph.here()
    assert await asyncio.to_thread(graph.wait_for, epoch, PATIENCE)
    now = (await operator.get("/graph/status")).json()
    assert (now["epoch"], now["snapshot"]["epoch"], now["snapshot"]["state"]) == (epoch, epoch, "ready")
    assert (now["snapshot"]["nodes"], now["snapshot"]["edges"]) == (7, 7)
    assert (now["budget"]["workers"], now["budget"]["busy"], now["waiting"]) == (8, 0, 0)


async def test_the_status_tells_the_settings_that_count_now_whoever_changed_them(
    site: Site, operator: httpx2.AsyncClient, connection: psycopg.Connection[Any]
) -> None:
    async def told() -> tuple[dict[str, Any], int]:
        now = (await operator.get("/graph/status")).json()
        return now["settings"], now["budget"]["workers"]

    own = {"workers": 8, "timeout": 30, "stored_workers": None, "stored_timeout": None}
    assert await told() == (own, 8)
    # Another server, of which this one doesn't hear.
    connection.execute("UPDATE kappa_graph.graph_settings SET workers = 3, timeout = '7.5 s'")
    assert await told() == ({"workers": 3, "timeout": 7.5, "stored_workers": 3, "stored_timeout": 7.5}, 3)
    assert site.services.graph.here().timeout == 7.5
    connection.execute("UPDATE kappa_graph.graph_settings SET workers = NULL, timeout = NULL")
    assert await told() == (own, 8)


async def test_a_database_that_refuses_a_question_is_a_problem_with_a_time_to_come_back(
    site: Site, operator: httpx2.AsyncClient, connection: psycopg.Connection[Any]
) -> None:
    await worlds.populate(operator)
    connection.execute("ALTER TABLE kappa_graph.concepts RENAME TO hidden")
    answered = await operator.post("/query/neighbors", json={"seeds": [str(uuid4())]})
    assert (answered.status_code, answered.json()["code"]) == (503, "graph_failed")
    assert "relation" not in answered.json()["detail"]
    assert answered.headers["retry-after"] == "1"


@pytest.mark.parametrize("by", ["id", "label"])
async def test_a_deadline_that_passes_before_anything_was_found_is_said(
    site: Site, operator: httpx2.AsyncClient, url: str, by: str
) -> None:
    ids, _ = await worlds.populate(operator)
    with psycopg.connect(url) as holder:
        holder.execute("LOCK TABLE kappa_graph.concepts")
        concept = ids["Otter"] if by == "id" else "Otter"
        answered = await operator.post("/query/related", json={"concept": concept, "deadline": 3})
    assert (answered.status_code, answered.json()["code"]) == (504, "question_stopped")


async def test_many_large_answers_are_written_beside_the_loop(site: Site, operator: httpx2.AsyncClient) -> None:
    leaves = [{"label": f"leaf {number}"} for number in range(5000)]
    await operator.post("/graph/concepts", json={"ontology": "tree", "concepts": [*leaves, {"label": "trunk"}]})
    grown = [{"from": "trunk", "to": leaf["label"], "type": "HAS"} for leaf in leaves]
    epoch = (await operator.post("/graph/relations", json={"ontology": "tree", "relations": grown})).json()["epoch"]
    body = {"seeds": ["trunk"], "limit": 10_000, "min_epoch": epoch}
    answers = await asyncio.gather(*(ask(operator, "neighbors", **body) for _ in range(4)))
    assert [len(answer["items"]) for answer in answers] == [5000] * 4
