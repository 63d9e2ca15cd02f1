"""Every kind: twice in a row changes nothing; cancelled in the middle, it leaves a whole graph."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import psycopg
import pytest

from kappa.app import kinds
from kappa.app.kinds import maps, measures
from kappa.app.settings import Settings
from kappa.engine import BadPayload, Engine, Job, JobContext, JobState
from kappa.engine.testing import Heard, drain, maintain, working
from kappa.engine.tools import ArtifactStore, artifacts_of
from kappa.graph import Graph, GraphConfig, NewConcept
from kappa.graph.backup import make
from kappa.graph.findings import NewArtifact
from kappa.graph.ingest import intake
from kappa.graph.store import proposals, uploads
from kappa.pg import Database
from kappa.pg.queries import Row
from tests.app.restoring import put_restore
from tests.app.shelf import Shelf
from tests.graph.dump import canonical, dump, whole
from tests.graph.ingest.made import picture
from tests.graph.libraries import write_beside, write_library
from tests.graph.test_merging import edges
from tests.graph.test_vocabulary import Made
from tests.graph.worlds import write
from tests.scripted import ScriptedExtractor, story

Session = psycopg.Connection[Row]

EVERY = ("vocab_refresh", "vocab_consolidate", "epistemic_remeasurement", "projection", "polarity")
PAYLOADS: dict[str, Any] = {
    "vocab_consolidate": {"target": 2}, "polarity": {"positive": "otter 0", "negative": "quartz 1"},
    "projection": {"way": "tsne"}, "artifact_cleanup": {"tool_artifacts_days": 30},
}  # fmt: skip


@pytest.fixture
def engine(url: str, home: Path) -> Iterator[Engine]:
    """With an embedder to which "uses", "employs" and "utilises" are alike, and all else is not."""
    settings = Settings(home=home, chunk_target=12, chunk_least=9, chunk_most=15, chunk_overlap=3)
    made = Engine(Database(url, bounds=settings.bounds))
    shop = kinds.declare(made, settings)
    same = np.array(Made().of("uses"))
    shop._embedder = Made(
        {"uses": same.tolist(), "employs": (same + 0.01).tolist(), "utilises": (same + 0.02).tolist()}
    )
    shop._extractors["local"] = ScriptedExtractor()
    made.install()
    yield made
    shop.close()


@pytest.fixture
def graph(url: str) -> Iterator[Graph]:
    """A world with synonyms, supports, contradictions and embeddings."""
    with Graph(url, GraphConfig(snapshot=False)).open(listen=False) as made:
        labels = [f"{name} {at}" for at in range(6) for name in ("otter", "quartz")]
        world = [(one, kind, other) for one in labels for kind, other in zip(
            ("USES", "EMPLOYS", "UTILISES", "SUPPORTS", "CONTRADICTS"), labels, strict=False)]  # fmt: skip
        ids = write(made, world)
        rng = np.random.default_rng(3)
        vectors = {ids[one]: (np.eye(8)[int("quartz" in one)] + 0.1 * rng.normal(size=8)).tolist() for one in labels}
        made.set_embeddings("m", vectors)
        yield made


async def run(engine: Engine, kind: str, payload: Any = None) -> Job:
    async with engine.async_client() as client:
        made = await client.enqueue(kind, payload, auto_approve="me")
        await drain(engine)
        return await client.show(made.id)


@dataclass
class Ground:
    """What a kind finds, and all that its second run must leave as it was."""

    engine: Engine
    graph: Graph
    connection: Session
    url: str
    home: Path

    def state(self) -> tuple[object, ...]:
        """Every row of the graph with the bytes of its artifacts, the epoch, and what is beside the graph."""
        # The last run's own account is other where it found nothing left to do; uploads are kept for another day.
        rows = canonical(self.connection, leave_out=frozenset({"measured", "uploads"}))
        beside = [
            self.connection.execute(f"SELECT * FROM kappa.{table} ORDER BY 1").fetchall()
            for table in ("tool_artifacts", "artifact_removals", "restore_files", "restore_pieces")
        ]
        beside.append(self.connection.execute("SELECT name, enabled, held_by FROM kappa.lanes ORDER BY 1").fetchall())
        store = ArtifactStore(artifacts_of(self.home))
        files = sorted((path.name, path.read_bytes()) for path in store.files())
        return rows, self.graph.epoch(), beside, files

    async def enqueue(self, kind: str) -> int:
        match kind.split():
            case ["restore", mode]:
                return put_restore(self.url, self.backup, mode)
            case ["proposal_execution", *undo]:
                payload = {"proposal": self.proposal, "undo": bool(undo)}
            case ["ingestion" | "ingest_image", *several]:
                one = {"uploads": self.uploads} if several else {"upload": self.uploads[0]}
                payload = {**one, "ontology": "tales"}
            case _:
                payload = PAYLOADS.get(kind)
        async with self.engine.async_client() as client:
            return (await client.enqueue(kind.split()[0], payload, auto_approve="me")).id

    async def run(self, kind: str) -> Job:
        made = await self.enqueue(kind)
        await drain(self.engine)
        async with self.engine.async_client() as client:
            return await client.show(made)

    def upload(self, data: bytes, name: str) -> str:
        taken = intake.take_in(data, name, "me")
        uploads.add(self.connection, taken.upload, data, intake.KEEP)
        return str(taken.upload.key)

    async def prepare(self, kind: str) -> None:
        """What there must be for the first run to do something."""
        match kind.split():
            case ["restore", *_]:
                write_library(self.graph)
                write_beside(self.url)
                with Database(self.url).connect() as taking:
                    self.backup = b"".join(make(taking))
                self.graph.delete_ontology("rivers")
                write(self.graph, [("Otters", "SWIM_IN", "Sea")], "seas")
            case ["ontology_annealing"]:
                write_library(self.graph)
                self.graph.add_concepts("brooks", [NewConcept(label) for label in ("Otters", "Fish", "Rivers", "Sea")])
            case ["proposal_execution", *undo]:
                await self.prepare("ontology_annealing")
                await run(self.engine, "ontology_annealing")
                found = next(one for one in proposals.find_all(self.connection) if one.kind == "merge")
                assert proposals.decide(self.connection, found.id, "approved", "ada")
                self.proposal = found.id
                if undo:
                    await self.run("proposal_execution")
                    assert proposals.ask_undo(self.connection, found.id, "ada")
            case ["source_embedding"]:
                write_library(self.graph)
            case ["ingestion", *several]:
                names = range(3 if several else 1)
                self.uploads = [self.upload(story(number, 12, shared=2).encode(), f"{number}.txt") for number in names]
            case ["ingest_image"]:
                self.uploads = [self.upload(picture(["Otter eats Fish.", "Fish needs Water."]), "otter.png")]
            case ["artifact_cleanup"]:
                shelf = Shelf(self.home, self.connection)
                shelf.put(b"old", days=40)
                shelf.put(b"new", days=3)
                shelf.put(b"stray", days=None)
                self.connection.execute(
                    "INSERT INTO kappa.restore_files (uploaded_by, uploaded_at) VALUES ('x', now() - interval '2 days')"
                )
                self.graph.keep_artifact(NewArtifact("map", 1, data=b"<svg/>", keep=timedelta(0)))
                self.graph.keep_artifact(NewArtifact("map", 2, data=b"<svg/>", keep=timedelta(days=1)))


AGAIN = (
    *EVERY, "ontology_annealing", "proposal_execution", "proposal_execution undo", "source_embedding",
    "artifact_cleanup", "restore replace", "restore keep_ids", "restore merge", "ingestion", "ingestion of several",
    "ingest_image",
)  # fmt: skip


@pytest.mark.parametrize("kind", AGAIN)
async def test_the_second_run_changes_nothing(
    engine: Engine, graph: Graph, connection: Session, url: str, home: Path, kind: str
) -> None:
    ground = Ground(engine, graph, connection, url, home)
    await ground.prepare(kind)
    nothing = ground.state()
    first = await ground.run(kind)
    assert first.state is JobState.SUCCEEDED, first
    once, content = ground.state(), dump(url)
    assert once != nothing
    second = await ground.run(kind)
    assert (second.state, second.id > first.id) == (JobState.SUCCEEDED, True)
    if kind.startswith("restore"):
        # It writes the rows anew, and says so by an epoch: their numbers may be others, what they say is not.
        assert dump(url) == content
        assert ground.state()[2:] == once[2:]
    else:
        assert ground.state() == once


def test_every_kind_is_run_twice_somewhere(engine: Engine) -> None:
    assert {kind.split()[0] for kind in AGAIN} == engine.registry.kinds - {"self_test"}, "which writes nothing"


class Interrupted:
    """Cancels the job that runs as soon as it has come so far."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
        self.left = after
        self.reached = asyncio.Event()
        loop = asyncio.get_running_loop()
        check = JobContext.raise_if_cancelled

        def counted(ctx: JobContext) -> None:
            self.left -= 1
            if self.left == 0:
                loop.call_soon_threadsafe(self.reached.set)
                while not ctx.cancelled:
                    pass
            check(ctx)

        monkeypatch.setattr(JobContext, "raise_if_cancelled", counted)


async def cancel_at(engine: Engine, interrupted: Interrupted, job: int) -> None:
    """Cancel a job that is on its way as soon as it has come so far."""
    async with engine.async_client() as client, working(engine):
        heard = Heard(engine)
        async with asyncio.timeout(30):
            await interrupted.reached.wait()
        await client.cancel(job, "enough")
        await heard.until("settled", job=job)
        assert (await client.show(job)).state is JobState.CANCELLED


WHOLE = (
    ("restore replace", 1), ("restore replace", 4), ("restore keep_ids", 4), ("restore merge", 4),
    ("ontology_annealing", 1), ("proposal_execution", 1), ("proposal_execution undo", 1),
)  # fmt: skip
"""Kinds that are one transaction."""
BY_CHUNK = (("ingestion", 1), ("ingestion", 4), ("ingest_image", 1), ("ingest_image", 2))


@pytest.mark.parametrize(("kind", "after"), WHOLE)
async def test_what_is_one_transaction_leaves_nothing_when_it_is_cancelled(
    engine: Engine, graph: Graph, connection: Session, url: str, home: Path, monkeypatch: pytest.MonkeyPatch,
    kind: str, after: int,
) -> None:  # fmt: skip
    ground = Ground(engine, graph, connection, url, home)
    await ground.prepare(kind)
    before, files = ground.state(), connection.execute("SELECT id FROM kappa.restore_files").fetchall()
    job = await ground.enqueue(kind)
    with monkeypatch.context() as patched:
        await cancel_at(engine, Interrupted(engine, patched, after), job)
    connection.execute("DELETE FROM kappa.restore_files")
    assert files == []
    assert ground.state() == before
    assert (await ground.run(kind)).state is JobState.SUCCEEDED


@pytest.mark.parametrize(("kind", "after"), BY_CHUNK)
async def test_a_cancelled_ingestion_leaves_whole_chunks_and_the_next_one_goes_on_there(
    engine: Engine, graph: Graph, connection: Session, url: str, home: Path, monkeypatch: pytest.MonkeyPatch,
    kind: str, after: int,
) -> None:  # fmt: skip
    ground = Ground(engine, graph, connection, url, home)
    await ground.prepare(kind)
    job = await ground.enqueue(kind)
    with monkeypatch.context() as patched:
        await cancel_at(engine, Interrupted(engine, patched, after), job)
    states = "SELECT state, count(*) FROM kappa_graph.chunk_plan GROUP BY 1"
    counts = dict(connection.execute(states).fetchall())
    done = connection.execute("SELECT count(*) FROM kappa_graph.sources").fetchone()
    assert done == (counts.get("done", 0),)
    assert counts.get("failed", 0) == 0
    whole(url)
    assert (await ground.run(kind)).state is JobState.SUCCEEDED
    assert [state for state, _ in connection.execute(states)] == ["done"]
    whole(url)


def test_every_kind_is_cancelled_somewhere(engine: Engine) -> None:
    here = {kind.split()[0] for kind, _ in (*WHOLE, *BY_CHUNK)} | {*EVERY, "source_embedding"}
    elsewhere = {"artifact_cleanup", "self_test"}  # test_cleanup.py; writes nothing
    assert here | elsewhere == engine.registry.kinds
    assert not here & elsewhere


@pytest.mark.parametrize(
    ("kind", "after"), [*((kind, 1) for kind in EVERY), ("vocab_consolidate", 2), ("epistemic_remeasurement", 3),
                        ("projection", 200)],
)  # fmt: skip
async def test_a_cancel_in_the_middle_leaves_a_graph_that_is_whole(
    engine: Engine, graph: Graph, connection: Session, monkeypatch: pytest.MonkeyPatch, kind: str, after: int
) -> None:
    before = edges(connection)
    with monkeypatch.context() as patched:
        async with engine.async_client() as client:
            made = await client.enqueue(kind, PAYLOADS.get(kind), auto_approve="me")
        await cancel_at(engine, Interrupted(engine, patched, after), made.id)
    _is_whole(connection, before)
    assert graph.artifacts() == []
    # The next run does the rest, and comes to what one that was never cancelled comes to.
    assert (await run(engine, kind, PAYLOADS.get(kind))).state is JobState.SUCCEEDED
    _is_whole(connection, before)


async def test_a_cancel_of_an_embedding_leaves_what_is_done_and_the_next_run_does_the_rest(
    engine: Engine, graph: Graph, connection: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = "SELECT embedding_model, count(*) FROM kappa_graph.concepts GROUP BY 1 ORDER BY 1"
    before, every = dict(connection.execute(models).fetchall()), edges(connection)
    with monkeypatch.context() as patched:
        async with engine.async_client() as client:
            made = await client.enqueue("source_embedding", {"batch": 2})
        await cancel_at(engine, Interrupted(engine, patched, 3), made.id)
    halfway = dict(connection.execute(models).fetchall())
    assert halfway.keys() == {"m", Made().model}
    assert sum(halfway.values()) == before["m"]
    assert (await run(engine, "source_embedding")).state is JobState.SUCCEEDED
    assert dict(connection.execute(models).fetchall()) == {Made().model: before["m"]}
    assert edges(connection) == every


def _is_whole(connection: Session, before: dict[Any, Any]) -> None:
    """Every edge is there, under its type or the one that it was merged into, which is a live one."""
    leads = dict(connection.execute(
        "SELECT t.name, coalesce(m.name, t.name) FROM kappa_graph.relation_types AS t"
        " LEFT JOIN kappa_graph.relation_types AS m ON m.id = t.merged_into").fetchall())  # fmt: skip
    assert set(edges(connection)) == {(head, leads[kind], tail) for head, kind, tail in before}
    bad = "SELECT FROM kappa_graph.relations AS r JOIN kappa_graph.relation_types AS t ON t.id = r.type_id"
    assert connection.execute(f"{bad} WHERE NOT t.active").fetchone() is None


async def test_synonyms_are_merged_down_to_the_target_and_every_merge_can_be_undone(
    engine: Engine, graph: Graph, connection: Session
) -> None:
    await run(engine, "vocab_refresh")
    before = canonical(connection, leave_out=frozenset({"measured"}))
    done = await run(engine, "vocab_consolidate", {"target": 4})
    assert done.result["active"] == 4
    assert len(done.result["merges"]) == 1
    done = await run(engine, "vocab_consolidate", {"target": 1})
    # SUPPORTS and CONTRADICTS are not alike, however few are wanted.
    assert {one.name for one in graph.vocabulary() if one.active} == {"SUPPORTS", "CONTRADICTS"} | {
        one.survivor for one in graph.merges()
    }
    assert [one.made_by for one in graph.merges()] == [f"job {done.id}", f"job {done.id - 1}"]
    for one in graph.merges():
        graph.undo_merge(one.id)
    assert canonical(connection, leave_out=frozenset({"measured"})) == before


async def test_a_merging_job_awaits_approval(engine: Engine, graph: Graph) -> None:
    async with engine.async_client() as client:
        made = await client.enqueue("vocab_consolidate", {"target": 1})
        assert (await client.show(made.id)).state is JobState.AWAITING_APPROVAL


async def test_every_kind_refuses_a_field_that_it_does_not_know(engine: Engine, graph: Graph) -> None:
    needed: dict[str, dict[str, Any]] = {
        "polarity": {"positive": "a", "negative": "b"}, "ingestion": {"ontology": "a", "upload": str(UUID(int=0))},
        "proposal_execution": {"proposal": 1}, "restore": {"file": 1, "mode": "merge"}, "tool_run": {"run_id": 1},
    }  # fmt: skip
    needed["ingest_image"] = needed["ingestion"]
    async with engine.async_client() as client:
        for kind in engine.registry.kinds:
            with pytest.raises(BadPayload, match="mistyped"):
                await client.enqueue(kind, {**needed.get(kind, {}), "mistyped": 1})


async def test_a_launched_run_skips_what_has_not_changed(engine: Engine, graph: Graph) -> None:
    asked = {"only_if_changed": True}
    for kind in ("vocab_refresh", "epistemic_remeasurement"):
        results = [(await run(engine, kind, asked)).result for _ in range(3)]
        assert results[0]["skipped"] is None
        assert "nothing has changed" in results[2]["skipped"]
        assert {name: results[2][name] for name in ("types",)} == {"types": 5}
    write(graph, [("otter 0", "GREETS", "otter 1")])
    again = await run(engine, "epistemic_remeasurement", asked)
    assert (again.result["skipped"], again.result["types"]) == (None, 6)
    other = await run(engine, "epistemic_remeasurement", {**asked, "sample": 7})
    assert other.result["skipped"] is None


async def test_a_graph_without_anything_is_nothing_to_do_for_a_schedule(engine: Engine) -> None:
    for kind in ("vocab_refresh", "epistemic_remeasurement", "projection"):
        done = await run(engine, kind, {"only_if_changed": True})
        assert done.state is JobState.SUCCEEDED, done
    failed = await run(engine, "projection")
    assert (failed.state, failed.attempt) == (JobState.FAILED, 1)
    assert "nothing to map" in (failed.error_summary or "")


async def test_schedules_are_made_once_and_stay_as_people_leave_them(engine: Engine, graph: Graph) -> None:
    async with engine.async_client() as client:
        found = {one.name: one for one in await client.schedules()}
        wanted = {one.name: one for one in (*measures.SCHEDULES, maps.SCHEDULE)}
        assert {name: (found[name].kind, found[name].enabled) for name in wanted} == {
            name: (one.kind, one.enabled) for name, one in wanted.items()
        }
        await client.drop_schedule("projection")
        await client.put_schedule(measures.Schedule("vocab_refresh", "0 0 1 1 *", "vocab_refresh", enabled=False))
        engine.install()
        found = {one.name: one for one in await client.schedules()}
        assert found["vocab_refresh"].enabled is False
        await maintain(engine, only=lambda name: name == "cron")
        await maintain(engine, later=timedelta(days=1, minutes=1), only=lambda name: name == "cron")
        jobs = await client.list_jobs()
        due = {"epistemic_remeasurement", "projection", "ontology_annealing", "artifact_cleanup"}
        assert {one.kind for one in jobs} == due


async def test_schedules_make_no_job_when_there_is_nothing_to_do(
    engine: Engine, graph: Graph, connection: Session
) -> None:
    nightly = {"vocab_refresh", "epistemic_remeasurement", "projection", "ontology_annealing"}

    async def made(days: int) -> set[str]:
        """The kinds that are launched by the end of a day."""
        before = connection.execute("SELECT coalesce(max(last_job), 0) FROM kappa.schedules").fetchone()
        assert before is not None
        # Of the first look not a minute later: something may be due in it.
        later = timedelta(days=days, minutes=1 if days else 0)
        await maintain(engine, later=later, only=lambda name: name == "cron")
        async with engine.async_client() as client:
            launched = {one.kind for one in await client.list_jobs() if one.id > before[0]}
        await drain(engine)
        return launched

    hourly = await made(0)  # due only if the seventh minute of an hour has just begun
    assert hourly <= {"artifact_cleanup"}
    assert hourly | await made(1) == {*nightly, "artifact_cleanup"}
    await made(2)  # of what the first refresh did to the vocabulary
    assert await made(3) == set()
    write(graph, [("otter 0", "GREETS", "otter 1")])
    assert await made(4) == nightly
    graph.keep_artifact(NewArtifact("map", 1, data=b"<svg/>", keep=timedelta(0)))
    assert "artifact_cleanup" in await made(6)


async def test_an_empty_graph_launches_only_what_looks_at_files(engine: Engine) -> None:
    async with engine.async_client() as client:
        for days in (0, 1, 2):
            await maintain(engine, later=timedelta(days=days, minutes=1), only=lambda name: name == "cron")
            await drain(engine)
        assert [job.kind for job in await client.list_jobs()] == ["artifact_cleanup"]


async def test_a_polarity_is_kept_with_its_picture(engine: Engine, graph: Graph) -> None:
    done = await run(engine, "polarity", {"positive": "otter 0", "negative": "quartz 1", "limit": 5})
    key = UUID(done.result["artifact"])
    content = graph.artifact_content(key)
    asked = graph.polarity(graph.concept_by_label("otter 0")[0].id, graph.concept_by_label("quartz 1")[0].id, limit=5)
    assert [item["concept"]["label"] for item in content["items"]] == [item.concept.label for item in asked.items]
    assert content["correlation"] == asked.correlation
    picture = graph.artifact_data(key)
    assert picture is not None
    assert b"otter 0" in picture
    for wrong, why in (({"positive": "nobody"}, "no concept 'nobody'"), ({"positive": "quartz 1"}, "one and the same")):
        failed = await run(engine, "polarity", {"positive": "otter 0", "negative": "quartz 1", **wrong})
        assert why in (failed.error_summary or "")
        assert failed.attempt == 1


async def test_a_job_knows_names_that_were_committed_after_an_earlier_one(engine: Engine, graph: Graph) -> None:
    asked = {"positive": "otter 0", "negative": "quartz 1", "ontologies": ["world"], "relation_types": ["USES"]}
    assert (await run(engine, "polarity", asked)).state is JobState.SUCCEEDED
    write(graph, [("pearl", "FORMS_IN", "oyster")], "sea")
    later = {**asked, "ontologies": ["world", "sea"], "relation_types": ["FORMS_IN"]}
    done = await run(engine, "polarity", later)
    assert done.state is JobState.SUCCEEDED, done.error_summary


async def test_a_map_of_more_than_its_way_can_take_is_refused_at_once(engine: Engine, graph: Graph) -> None:
    async with engine.async_client() as client:
        with pytest.raises(BadPayload, match="5000 concepts by tsne are too many: 2000 at most, 20000 by pca"):
            await client.enqueue("projection", {"most": 5000})
        assert await client.list_jobs() == []
    assert (await run(engine, "projection", {"most": 5000, "way": "pca"})).state is JobState.SUCCEEDED


async def test_no_two_schedules_are_due_at_one_time(engine: Engine) -> None:
    async with engine.async_client() as client:
        times = [one.cron for one in await client.schedules()]
    assert len(set(times)) == len(times) > 4


async def test_a_map_that_is_there_is_not_drawn_again(engine: Engine, graph: Graph) -> None:
    first = await run(engine, "projection", {"way": "pca", "keep_days": 3})
    (kept,) = graph.artifacts("projection")
    assert str(kept.id) == first.result["artifact"]
    assert kept.expires_at is not None
    assert kept.expires_at - kept.created_at == timedelta(days=3)
    graph.keep_artifact(NewArtifact("other", 1, content=1))
    assert (await run(engine, "projection", {"way": "pca"})).result == first.result
