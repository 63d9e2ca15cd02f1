"""A document becomes a graph chunk by chunk: whole chunks, once each, in their order, whatever comes in between."""

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from kappa.graph import BadWrite, Graph, NewConcept, NewDocument
from kappa.graph.backup import Mode, make, restore
from kappa.graph.identity import content_hash
from kappa.graph.ingest.chunk import ChunkRule
from kappa.graph.ingest.extraction import BadExtraction, Extraction, FoundConcept, FoundRelation, ProviderDown
from kappa.graph.ingest.near import Shelf
from kappa.graph.ingest.pipeline import Ingested, Pipeline, Planned
from kappa.graph.ingest.reembed import reembed
from kappa.graph.model import ChunkCounts
from kappa.graph.store import plans
from kappa.pg import Database
from tests.ground import eventually
from tests.scripted import ScriptedEmbedder, ScriptedExtractor, dump, story

RULE = ChunkRule(target=12, least=9, most=15, overlap=3)
SHORT = story(1, 24)


class Stopped(Exception):
    """Whoever looks after the pipeline ended it."""


def pipeline(graph: Graph, embedder: ScriptedEmbedder | None = None) -> Pipeline:
    """As a process of its own would have it."""
    return Pipeline(graph.transaction, embedder or ScriptedEmbedder(), Shelf())


def plan(pipe: Pipeline, text: str = SHORT, *, name: str = "story.txt", run: str = "a", force: bool = False) -> Planned:
    return pipe.plan("tales", NewDocument(name, text, original=text.encode()), run, rule=RULE, force=force)


def ingest(graph: Graph, text: str = SHORT, *, name: str = "story.txt", extractor: Any = None) -> Ingested:
    pipe = pipeline(graph)
    return pipe.ingest(plan(pipe, text, name=name), extractor or ScriptedExtractor())


def states(graph: Graph) -> list[str]:
    with graph.transaction() as connection:
        rows = connection.execute("SELECT state FROM kappa_graph.chunk_plan ORDER BY document_id, ordinal")
        return [row[0] for row in rows]


def labels(graph: Graph) -> set[str]:
    with graph.transaction() as connection:
        return {row[0] for row in connection.execute("SELECT label FROM kappa_graph.concepts")}


def stop_at(chunk: int) -> Callable[[int, int], None]:
    def each(done: int, total: int) -> None:
        if done >= chunk:
            raise Stopped

    return each


def test_the_document_and_its_plan_are_there_before_the_first_chunk(graph: Graph) -> None:
    pipe = pipeline(graph)
    seen: list[list[str]] = []
    extractor = ScriptedExtractor(lambda text: seen.append(states(graph)))
    planned = plan(pipe)
    done = pipe.ingest(planned, extractor)
    assert len(planned.chunks) > 5
    assert seen[0] == ["pending"] * len(planned.chunks)
    assert seen[-1] == ["done"] * (len(planned.chunks) - 1) + ["pending"]
    assert done.chunks == len(planned.chunks)
    assert not done.failed
    assert states(graph) == ["done"] * done.chunks


def test_every_vector_says_its_model_and_dimension_and_every_quote_stands_where_it_says(graph: Graph) -> None:
    done = ingest(graph)
    with graph.transaction() as connection:
        for table in ("concepts", "relation_types", "sources"):
            kinds = connection.execute(
                f"SELECT embedding_model, dimension, count(*) FROM kappa_graph.{table} GROUP BY 1, 2".encode()
            ).fetchall()
            assert [kind[:2] for kind in kinds] == [("letters", 64)], table
        wrong = connection.execute(
            "SELECT count(*) FROM kappa_graph.instances AS i JOIN kappa_graph.sources AS s ON s.id = i.source_id "
            "JOIN kappa_graph.documents AS d ON d.id = s.document_id "
            "WHERE substr(d.text, i.start_offset + 1, i.end_offset - i.start_offset) <> i.quote"
        ).fetchone()
    assert wrong == (0,)
    assert done.counts.instances > done.chunks


@pytest.mark.parametrize("mode", list(Mode))
def test_a_backup_of_a_half_ingested_document_is_restored_as_one(graph: Graph, url: str, mode: Mode) -> None:
    undisturbed, wanted = ingest(graph), labels(graph)

    def taken() -> bytes:
        with Database(url).connect() as connection:
            return b"".join(make(connection))

    def open_chunks() -> int:
        digest = content_hash(SHORT.encode())
        with graph.transaction() as connection:
            return plans.in_ontology(connection, "tales", [digest])[digest][1]

    def start_over() -> None:
        graph.delete_ontology("tales")
        with graph.transaction() as connection:
            connection.execute("DELETE FROM kappa_graph.relation_types")

    def bad(text: str) -> None:
        if "Thing1x2 " in text:
            raise BadExtraction("no JSON")

    start_over()
    pipe = pipeline(graph)
    with pytest.raises(Stopped):
        pipe.ingest(plan(pipe), ScriptedExtractor(bad), each=stop_at(4))
    half, left = taken(), open_chunks()
    assert "failed" in states(graph)
    start_over()
    with psycopg.connect(url) as connection:
        restore(connection, [half], mode)
    assert open_chunks() == left > undisturbed.chunks - 4
    pipe, extractor = pipeline(graph), ScriptedExtractor()
    # A job of the same number, on a server that has its own: what failed is tried again all the same.
    planned = pipe.resume("tales", content_hash(SHORT.encode()), "a")
    assert planned is not None
    assert not pipe.ingest(planned, extractor).failed
    assert len(extractor.asked) == left
    assert open_chunks() == 0
    assert labels(graph) == wanted


def test_a_document_without_a_plan_is_whole_where_its_sources_reach_its_end(graph: Graph) -> None:
    pipe = pipeline(graph)
    with pytest.raises(Stopped):
        pipe.ingest(plan(pipe), ScriptedExtractor(), each=stop_at(3))
    digest = content_hash(SHORT.encode())

    def unfinished() -> bool:
        with graph.transaction() as connection:
            connection.execute("DELETE FROM kappa_graph.chunk_plan")
            return plans.in_ontology(connection, "tales", [digest])[digest][1] > 0

    assert unfinished()
    pipe.ingest(plan(pipe), ScriptedExtractor())
    assert not unfinished()


def test_a_second_run_asks_nothing_and_changes_nothing(graph: Graph, url: str) -> None:
    ingest(graph)
    before, epoch = dump(url), graph.epoch()
    extractor = ScriptedExtractor()
    pipe = pipeline(graph)
    planned = pipe.resume("tales", content_hash(SHORT.encode()), "b")
    assert planned is not None
    again = pipe.ingest(planned, extractor)
    assert extractor.asked == []
    assert dump(url) == before
    assert graph.epoch() == epoch
    assert again.counts.concepts > 0, "the result is the document's, whoever brought it"


@pytest.mark.parametrize("threads", [False, True])
def test_broken_off_at_any_chunk_it_comes_out_the_same(graph: Graph, url: str, threads: bool) -> None:
    ingest(graph)
    undisturbed = dump(url)
    total = len(states(graph))
    for broken_off in range(1, total):
        graph.delete_ontology("tales")
        with graph.transaction() as connection:
            connection.execute("DELETE FROM kappa_graph.relation_types")
        asked: list[str] = []
        with ThreadPoolExecutor(2) as pool:
            for each in (stop_at(broken_off), lambda done, total: None):
                extractor = ScriptedExtractor()
                pipe = pipeline(graph)
                planned = plan(pipe)
                done_before = {planned.text[one.start : one.end] for one in planned.chunks if one.state == "done"}
                try:
                    pipe.ingest(planned, extractor, each=each, threads=pool if threads else None, ahead=2)
                except Stopped:
                    assert states(graph) == ["done"] * broken_off + ["pending"] * (total - broken_off)
                assert not done_before & set(extractor.asked)
                asked += extractor.asked
        assert dump(url) == undisturbed, f"broken off after chunk {broken_off}"
        if not threads:
            assert len(asked) == total


def test_bad_output_costs_its_chunk_and_another_run_tries_it_again(graph: Graph, url: str) -> None:
    ingest(graph)
    undisturbed = dump(url)
    graph.delete_ontology("tales")
    with graph.transaction() as connection:
        connection.execute("DELETE FROM kappa_graph.relation_types")
    pipe = pipeline(graph)
    planned = plan(pipe)
    bad = planned.text[planned.chunks[2].start : planned.chunks[2].end]

    def refuse(text: str) -> None:
        if text == bad:
            raise BadExtraction("the answer is cut off\nat the 17th token")

    done = pipe.ingest(planned, ScriptedExtractor(refuse))
    assert [(one.ordinal, one.error) for one in done.failed] == [(2, "the answer is cut off at the 17th token")]
    assert states(graph).count("failed") == 1
    same_run = ScriptedExtractor()
    pipe.ingest(plan(pipe), same_run)
    assert same_run.asked == [], "in one run a chunk that failed has failed"
    other_run = ScriptedExtractor()
    again = pipe.ingest(plan(pipe, run="b"), other_run)
    assert other_run.asked == [bad]
    assert not again.failed
    # Its concepts may have got their descriptions from other chunks by then: only what is there is compared.
    assert dump(url).count(b"\n") == undisturbed.count(b"\n")


def test_a_provider_that_is_down_ends_the_run_and_keeps_what_is_done(graph: Graph) -> None:
    pipe = pipeline(graph)
    planned = plan(pipe)
    answered = {planned.text[one.start : one.end] for one in planned.chunks[:3]}

    def down(text: str) -> None:
        if text not in answered:
            raise ProviderDown("no answer", 17.0)

    with ThreadPoolExecutor(2) as pool, pytest.raises(ProviderDown, match="no answer") as told:
        pipe.ingest(planned, ScriptedExtractor(down), threads=pool)
    assert told.value.retry_after == 17.0
    assert states(graph).count("done") == 3


def test_labels_that_mean_one_thing_become_one_concept_with_both_names(graph: Graph) -> None:
    ingest(graph, "Turbine-blade causes Noise. Turbine-blades cause Wear. Turbine-blade requires Oil.")
    assert labels(graph) == {"Turbine-blade", "Noise", "Wear", "Oil"}
    (blade,) = graph.concept_by_label("Turbine-blade")
    assert "Turbine-blades" in blade.search_terms
    assert {one.name for one in graph.relation_types()} == {"CAUSES", "REQUIRES"}, "CAUSE has the stem of CAUSES"
    again = ingest(graph, "Turbine-blades require Grease.", name="second.txt")
    assert "Turbine-blades" not in labels(graph)
    assert again.counts.matched == 1


def test_a_concept_that_was_written_by_hand_is_used(graph: Graph) -> None:
    made = graph.add_concepts("tales", [NewConcept("Thing1x0", "by hand")]).ids["Thing1x0"]
    ingest(graph)
    found = graph.concept(made)
    assert found is not None
    assert found.description == "by hand"
    assert graph.evidence(made)


def test_what_turns_out_to_be_of_one_concept_with_itself_is_dropped(graph: Graph) -> None:
    class Odd:
        name = "odd"

        def extract(self, text: str, context: Any = None) -> Extraction:
            found = (FoundConcept("Turbine-blade"), FoundConcept("Turbine-blades"))
            return Extraction(found, (), (FoundRelation("Turbine-blade", "Turbine-blades", "CAUSES", 0.9),))

    done = ingest(graph, "Of turbine blades.", extractor=Odd())
    assert (done.counts.relations, done.counts.dropped, done.counts.matched) == (0, 1, 1)


def test_vectors_of_another_model_are_never_compared(graph: Graph) -> None:
    ingest(graph, "Turbine-blade causes Noise.")
    other = ScriptedEmbedder("others")
    pipe = pipeline(graph, other)
    planned = plan(pipe, "Turbine-blades cause Noise.", name="second.txt")
    assert pipe.of_other_models(planned) == 2
    pipe.ingest(planned, ScriptedExtractor())
    assert {"Turbine-blade", "Turbine-blades"} <= labels(graph)
    with graph.transaction() as connection:
        models = dict(connection.execute("SELECT label, embedding_model FROM kappa_graph.concepts").fetchall())
    assert models == {"Turbine-blade": "letters", "Turbine-blades": "others", "Noise": "others"}


def test_reembedding_gives_all_a_vector_of_the_new_model_and_goes_on_where_it_stopped(graph: Graph) -> None:
    ingest(graph)
    graph.add_concepts("tales", [NewConcept("Bare")])
    other = ScriptedEmbedder("others")
    with pytest.raises(Stopped):
        reembed(graph.transaction, other, each=stop_at(10), batch=5)
    first = len(other.embedded)
    assert first == 10
    done = reembed(graph.transaction, other, batch=5)
    assert done.concepts + done.relation_types + done.sources == len(other.embedded) - first
    assert len(set(other.embedded)) == len(other.embedded), "nothing is embedded twice"
    with graph.transaction() as connection:
        kinds = connection.execute(
            "SELECT embedding_model FROM kappa_graph.concepts UNION SELECT embedding_model FROM kappa_graph.sources "
            "UNION SELECT embedding_model FROM kappa_graph.relation_types"
        ).fetchall()
        assert kinds == [("others",)]
        connection.execute("UPDATE kappa_graph.sources SET text = upper(text) WHERE ordinal = 1")
    again = reembed(graph.transaction, other)
    assert (again.concepts, again.relation_types, again.sources) == (0, 0, 1)


def test_reembedded_concepts_are_matched_again(graph: Graph) -> None:
    ingest(graph, "Turbine-blade causes Noise.")
    other = ScriptedEmbedder("others")
    pipe = pipeline(graph, other)
    pipe.ingest(plan(pipe, "Nothing causes Silence.", name="0.txt"), ScriptedExtractor())
    reembed(graph.transaction, other)
    pipe.ingest(plan(pipe, "Turbine-blades cause Noise.", name="second.txt"), ScriptedExtractor())
    assert "Turbine-blades" not in labels(graph)


def test_a_forced_run_asks_for_all_chunks_once_more(graph: Graph) -> None:
    ingest(graph)
    pipe, extractor = pipeline(graph), ScriptedExtractor()
    planned = plan(pipe, run="b", force=True)
    with pytest.raises(Stopped):
        pipe.ingest(planned, extractor, each=stop_at(3))
    pipe.ingest(plan(pipe, run="b", force=True), extractor)
    assert len(extractor.asked) == len(set(extractor.asked)) == len(planned.chunks)


def test_a_document_that_is_deleted_under_way_ends_the_run_with_a_clear_word(graph: Graph) -> None:
    pipe = pipeline(graph)
    planned = plan(pipe)

    def delete(done: int, total: int) -> None:
        if done == 2:
            graph.delete_document(planned.document)

    with pytest.raises(BadWrite, match="was deleted meanwhile"):
        pipe.ingest(planned, ScriptedExtractor(), each=delete)


def test_two_at_once_give_what_one_after_the_other_gives(graph: Graph, url: str) -> None:
    """No order effects in these stories: what they share, they share word for word."""
    texts = [story(number, 16, shared=8) for number in range(4)]
    counts = [ingest(graph, text, name=f"{number}.txt").counts for number, text in enumerate(texts)]
    one_by_one = _without_order(dump(url))
    assert sum("Common" in line for line in one_by_one) > 50, "what they contend for is compared"
    for _ in range(3):
        graph.delete_ontology("tales")
        with graph.transaction() as connection:
            connection.execute("DELETE FROM kappa_graph.relation_types")
        with ThreadPoolExecutor(4) as pool:
            at_once = list(pool.map(lambda pair: ingest(graph, pair[1], name=f"{pair[0]}.txt"), enumerate(texts)))
        assert _without_order(dump(url)) == one_by_one
        assert sum((one.counts for one in at_once), ChunkCounts()) == sum(counts, ChunkCounts())


def _without_order(dumped: bytes) -> list[str]:
    """Which chunk was first to say something shared: its description, its count of what is new, its provenance."""
    said = re.sub(r"'seen in [^']*'", "description", dumped.decode())
    said = re.sub(r"'source [0-9a-f-]{36}'", "provenance", said)
    # New concepts, instances, new relations, matched labels.
    said = re.sub(r"'scripted', \d+, (\d+), \d+, \d+,", r"'scripted', new, \1, new, matched,", said)
    return said.splitlines()


def test_two_that_bring_one_concept_under_two_labels_at_once_make_one(graph: Graph, url: str) -> None:
    pipes = [pipeline(graph), pipeline(graph)]
    plans = [
        plan(pipes[0], "Turbine-blade causes Noise.", name="one.txt"),
        plan(pipes[1], "Turbine-blades cause Noise.", name="other.txt"),
    ]
    with psycopg.connect(url, autocommit=True) as watcher, psycopg.connect(url) as holder:
        holder.execute("SELECT pg_advisory_xact_lock(440631781, id) FROM kappa_graph.ontologies")
        threads = [
            threading.Thread(target=pipe.ingest, args=(planned, ScriptedExtractor()))
            for pipe, planned in zip(pipes, plans, strict=True)
        ]
        for thread in threads:
            thread.start()

        def both_wait() -> bool:
            row = watcher.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"
            ).fetchone()
            return row == (2,)

        eventually(both_wait, what="both have extracted and wait for the ontology")
        holder.rollback()
        for thread in threads:
            thread.join()
    assert len(labels(graph)) == 2
    assert len(graph.relation_types()) == 1


def test_two_runs_of_one_document_at_once_write_each_chunk_once(graph: Graph, url: str) -> None:
    ingest(graph)
    undisturbed = dump(url)
    graph.delete_ontology("tales")
    with graph.transaction() as connection:
        connection.execute("DELETE FROM kappa_graph.relation_types")
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: ingest(graph), range(3)))
    assert dump(url) == undisturbed
