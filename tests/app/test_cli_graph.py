"""`kg search`, `kg related`, `kg path`, `kg polarity` and `kg concept` against a running server."""

import re
from collections.abc import Iterator

import pytest

from kappa.graph import Chunk, Graph, NewConcept, NewDocument, NewInstance
from tests.app import worlds
from tests.app.conftest import Up
from tests.app.person import Person, hired, served
from tests.conftest import Server
from tests.ground import eventually

TEXT = "Otters sleep afloat."


@pytest.fixture(scope="module")
def shared(server: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with served(server, template, tmp_path_factory) as up:
        with Graph(up.env["KAPPA_DATABASE_URL"]) as graph, up.client() as client:
            client.post("/graph/concepts", json=worlds.concepts()).raise_for_status()
            client.post("/graph/relations", json=worlds.relations()).raise_for_status()
            ship = {"ontology": "ships", "concepts": [{"label": "Heron"}]}
            client.post("/graph/concepts", json=ship).raise_for_status()
            document, _ = graph.add_document("zoology", NewDocument("animals.txt", TEXT))
            quote = NewInstance("Otter", "Otters sleep", 0)
            chunk = Chunk(document, 0, 0, len(TEXT), [NewConcept("Otter")], [quote])
            epoch = graph.write_chunk(chunk).epoch
            eventually(lambda: (client.get("/graph/status").json()["snapshot"]["epoch"] or 0) >= epoch)
        yield up


@pytest.fixture
def kg(shared: Up) -> Person:
    return Person(shared.home)


def test_what_is_around_a_concept_is_a_tree_by_distance(kg: Person) -> None:
    done = kg("related", "otter")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    drawn = [line.rstrip() for line in done.stdout.splitlines()]
    assert drawn[:2] == ["Otter  zoology", "├── 1 hop"]
    assert "│   ├── LIVES_IN  River  zoology  3" in drawn
    assert "│   └── EATS  Fish  zoology  3" in drawn
    assert "    ├── LIVES_IN → FLOWS_INTO  Sea  zoology  2" in drawn
    assert "\x1b" not in done.stdout
    found = kg.says("related", "Otter", "--hops", 1, "--type", "EATS", "--direction", "out", "--limit", 5)
    assert [item["concept"]["label"] for item in found["items"]] == ["Fish"]
    few = kg("related", "Otter", "--limit", 1)
    assert few.stderr.strip() == "1 of 4: --limit shows more"


def test_a_path_is_a_chain_whose_arrows_point_as_its_relations_do(kg: Person) -> None:
    done = kg("path", "Otter", "Whale")
    assert done.stdout.strip() == (
        "Otter ── LIVES_IN ─→ River ── FLOWS_INTO ─→ Sea ←─ LIVES_IN ── Whale"
    )  # fmt: skip
    assert len(kg("path", "Otter", "Whale", "--count", 2).stdout.splitlines()) == 2
    rich = kg("path", "Otter", "Sea", "--around", 1).stdout.splitlines()
    assert rich[0].startswith("Otter ── LIVES_IN")
    assert [line.strip("├└─│ ").split("  ")[0] for line in rich[1:]][::2] == ["Otter", "River", "Sea"]
    none = kg("path", "Otter", "Whale", "--hops", 2)
    assert (none.returncode, none.stdout.strip(), none.stderr.strip()) == (1, "", "no path of at most 2 hops")
    found = kg.says("path", "Otter", "Whale")
    assert found["items"][0]["hops"] == 3
    assert "around" in kg.says("path", "Otter", "Whale", "--around", 2)


def test_polarity_is_an_axis(kg: Person) -> None:
    done = kg("polarity", "River", "Sea", "--hops", 3)
    head, *rows, facts = done.stdout.splitlines()
    assert re.search(r"Sea +←  → +River", head)
    drawn = {line.split()[0]: re.search("├(.*)┤", line) for line in rows}
    assert list(drawn) == ["Otter", "Fish", "Krill", "Whale"]
    places = [found[1].index("●") for found in drawn.values() if found is not None]
    assert places == sorted(places, reverse=True)
    assert places[0] > 30
    assert places[-1] < 5
    assert facts.startswith("mean ")
    assert facts.endswith("by waters; 1 more have no embedding")
    found = kg.says("polarity", "River", "Sea", "--candidate", "Krill", "--candidate", "Fish")
    assert [item["concept"]["label"] for item in found["items"]] == ["Fish", "Krill"]


def test_search_is_a_table_with_the_best_first(kg: Person) -> None:
    done = kg("search", "playful swimmer")
    row = done.stdout.splitlines()[1]
    assert re.match(r"\d\.\d\d +Otter +zoology +\S+ +a playful swimmer +[0-9a-f-]{36}", row), row
    assert kg.says("search", "Lutra", "--ontology", "zoology")["items"][0]["concept"]["label"] == "Otter"
    nothing = kg("search", "zebra")
    assert (nothing.stdout, nothing.stderr.strip()) == ("", "no concept like that")


def test_search_finds_what_a_concept_is_like_and_nothing_that_is_less_similar(kg: Person) -> None:
    near = {hit["concept"]["label"]: hit["similarity"] for hit in kg.says("search", "--like", "River")["items"]}
    assert len(set(near.values())) > 1
    least = sorted(near.values())[-1]
    closer = kg.says("search", "--like", "River", "--min-similarity", least)["items"]
    assert [hit["similarity"] for hit in closer] == [one for one in near.values() if one >= least]
    assert len(closer) < len(near)
    both = kg.says("search", "playful", "--like", "River", "--min-similarity", 1)["items"]
    assert [hit["matched"] for hit in both] == [["description"]]


def test_a_similarity_to_nothing_is_refused(kg: Person) -> None:
    assert "--like" in kg.refused(2, "search", "playful", "--min-similarity", 0.5)
    assert "a search needs a TEXT, or --like" in kg.refused(2, "search")


def test_a_concept_is_shown_with_what_is_next_to_it_and_who_says_so(kg: Person) -> None:
    shown = kg("concept", "show", "Otter").stdout
    assert "a playful swimmer" in shown
    assert "Lutra, sea dog" in shown
    assert "LIVES_IN  River" in shown
    assert re.search(r"“Otters sleep” +animals.txt +0–12", shown)
    detail = kg.says("concept", "show", "Otter", "--evidence", 0)
    assert (detail["concept"]["ontology"], detail["evidence"]) == ("zoology", [])
    assert kg.says("concept", "show", detail["concept"]["id"])["evidence"][0]["quote"] == "Otters sleep"


def test_a_label_that_several_concepts_have_is_one_line_with_their_ids(kg: Person) -> None:
    for command in (("related", "Heron"), ("path", "Heron", "Sea"), ("concept", "show", "heron")):
        said = kg.refused(1, *command)
        assert re.search(r"is 2 concepts: [0-9a-f-]{36} \(zoology\), [0-9a-f-]{36} \(ships\); say which", said), said
    assert kg.says("related", "Heron", "--ontology", "zoology")["found"] > 0
    assert "Heron  ships" in kg("related", "Heron", "--ontology", "ships").stdout
    ship = kg.says("concept", "show", "Heron", "--ontology", "ships")["concept"]["id"]
    assert kg.says("related", ship)["items"] == []


def test_what_makes_no_sense_is_one_line(kg: Person) -> None:
    assert kg.refused(1, "related", "Yeti") == "there is no concept 'Yeti'"
    assert kg.refused(1, "path", "Otter", "Otter") == "a path needs two concepts"
    assert kg.refused(1, "related", "Otter", "--type", "HUGS") == "there is no relation type 'HUGS'"
    assert kg("related", "Otter", "--hops", 21).returncode == 2
    assert kg("related", "Otter", "--direction", "up").returncode == 2
    assert kg("related", "Otter", "--deadline", "3m").returncode == 2


def test_a_terminal_gets_colours_and_nothing_of_a_label_moves_its_cursor(shared: Up, kg: Person) -> None:
    with shared.client() as client:
        nasty = {"ontology": "nasty", "concepts": [{"label": "\x1b[2Jboo [red]x[/red]"}, {"label": "calm"}]}
        client.post("/graph/concepts", json=nasty).raise_for_status()
        link = {"from": "calm", "to": "\x1b[2Jboo [red]x[/red]", "type": "\x07RINGS"}
        client.post("/graph/relations", json={"ontology": "nasty", "relations": [link]}).raise_for_status()
    code, seen = kg.on_terminal("related", "calm")
    assert code == 0, seen
    assert "\x1b[2J" not in seen
    assert "\x07" not in seen
    assert "boo [red]x[/red]" in seen
    code, seen = kg.on_terminal("polarity", "River", "Sea", "--hops", "3")
    assert code == 0, seen
    assert "●" in seen
    assert "\x1b[" in seen


def test_asking_needs_the_permission_to_read_the_graph(shared: Up) -> None:
    reader = hired(shared, "rita", "read_only")
    assert reader.says("search", "playful")["items"]
    with shared.client() as client:
        client.put("/roles/jobs-only", json={"permissions": ["jobs:view", "account:use"]}).raise_for_status()
    stranger = hired(shared, "joe", "jobs-only")
    assert stranger.refused(4, "related", "Otter") == "joe lacks the permission graph:read"
