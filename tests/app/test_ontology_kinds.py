"""Annealing and the execution of proposals as jobs; no change while an ingestion works on the ontology."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from kappa.app.kinds import ontologies
from kappa.engine import Client, Engine, Job, JobState, WorkerConfig
from kappa.engine.store import jobs
from kappa.engine.testing import working
from kappa.graph import Budget, Graph, GraphConfig, NewConcept
from kappa.graph.store import proposals
from kappa.pg.ops import run
from kappa.pg.queries import Row
from tests.app.restoring import DoomedWorker
from tests.graph.dump import dump
from tests.graph.libraries import write_library
from tests.ground import PATIENCE

Session = psycopg.Connection[Row]
LABELS = ["Otters", "Fish", "Rivers", "Sea"]


@pytest.fixture
def graph(url: str, engine: Engine) -> Iterator[Graph]:
    with Graph(url, GraphConfig(), budget=Budget()) as opened:
        write_library(opened)
        opened.add_concepts("brooks", [NewConcept(label) for label in LABELS])
        yield opened


def work(engine: Engine) -> None:
    """Until the lane has nothing to do. What other lanes have is of no matter here."""

    async def lane() -> None:
        busy = [JobState.QUEUED, JobState.RUNNING]
        async with working(engine, WorkerConfig(lanes=("maintenance",), lead=False)), engine.async_client() as client:
            while await client.list_jobs(lane="maintenance", states=busy):
                await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(lane(), PATIENCE))


def anneal(engine: Engine, client: Client) -> Job:
    job = client.enqueue("ontology_annealing").id
    work(engine)
    return client.show(job)


def approved(engine: Engine, client: Client, connection: Session) -> int:
    anneal(engine, client)
    found = [one for one in proposals.find_all(connection) if one.kind == "merge"]
    assert proposals.decide(connection, found[0].id, "approved", "ada")
    return found[0].id


def execute(engine: Engine, client: Client, number: int, **more: bool) -> Job:
    job = client.enqueue("proposal_execution", {"proposal": number, **more}).id
    work(engine)
    return client.show(job)


def test_annealing_twice_proposes_once(engine: Engine, client: Client, graph: Graph, url: str) -> None:
    first = anneal(engine, client)
    assert first.state is JobState.SUCCEEDED, first.error_summary
    assert first.result["proposed"] == 1
    before = dump(url)
    again = anneal(engine, client)
    assert (again.result["proposed"], again.result["known"]) == (0, 1)
    nightly = client.enqueue("ontology_annealing", {"only_if_changed": True}).id
    work(engine)
    assert client.show(nightly).result["skipped"]
    assert dump(url) == before


def test_a_proposal_is_executed_once_and_undone_once(
    engine: Engine, client: Client, graph: Graph, connection: Session, url: str
) -> None:
    number = approved(engine, client, connection)
    before = dump(url)
    done = execute(engine, client, number)
    assert done.state is JobState.SUCCEEDED, done.error_summary
    after = dump(url)
    assert len(after["ontologies"]) == 2
    again = execute(engine, client, number)
    assert (again.state, again.result["epoch"]) == (JobState.SUCCEEDED, None)
    assert dump(url) == after
    refused = execute(engine, client, number, undo=True)
    assert (refused.state, refused.attempt) == (JobState.FAILED, 1)
    assert "nobody has asked" in (refused.error_summary or "")
    assert proposals.ask_undo(connection, number, "ada")
    for _ in range(2):
        assert execute(engine, client, number, undo=True).state is JobState.SUCCEEDED
    found = dump(url)
    assert {name: found[name] for name in found if name != "proposals"} == {
        name: before[name] for name in before if name != "proposals"
    }


def test_one_that_nobody_approved_is_not_executed(
    engine: Engine, client: Client, graph: Graph, connection: Session, url: str
) -> None:
    anneal(engine, client)
    number = proposals.find_all(connection)[0].id
    before = dump(url)
    done = execute(engine, client, number)
    assert (done.state, done.error_summary) == (JobState.FAILED, f"proposal {number} is pending, not approved")
    assert dump(url) == before


def test_one_that_can_not_be_executed_says_why(
    engine: Engine, client: Client, graph: Graph, connection: Session
) -> None:
    number = approved(engine, client, connection)
    graph.delete_ontology("brooks")
    assert execute(engine, client, number).state is JobState.FAILED
    found = proposals.find(connection, number)
    assert found is not None
    assert (found.state, found.error) == ("failed", "the ontology 'brooks' is not there any more")


@pytest.mark.parametrize("state", ["queued", "running"])
def test_it_waits_while_an_ingestion_works_on_the_ontology(
    engine: Engine, client: Client, graph: Graph, connection: Session, url: str, state: str
) -> None:
    number = approved(engine, client, connection)
    before = dump(url)
    row = connection.execute(
        "INSERT INTO kappa.jobs (lane, kind, state, payload, lease_owner, lease_token, lease_until) "
        "SELECT 'interactive', 'ingestion', %(state)s::kappa.job_state, '{\"ontology\": \"rivers\"}', x, y, z "
        "  FROM (VALUES ('me', 1, now() + interval '1 hour'), (NULL, NULL, NULL)) AS v (x, y, z) "
        " WHERE (x IS NULL) = (%(state)s <> 'running') RETURNING id",
        {"state": state},
    ).fetchone()
    assert row is not None
    waits = execute(engine, client, number)
    assert waits.state is JobState.SCHEDULED
    assert waits.progress_message == f"waiting for job {row[0]}, which works on the ontology"
    assert dump(url) == before
    connection.execute("DELETE FROM kappa.jobs")
    assert execute(engine, client, number).state is JobState.SUCCEEDED


def test_it_waits_for_an_ingestion_into_an_ontology_that_was_renamed_since(
    engine: Engine, client: Client, graph: Graph, connection: Session, url: str
) -> None:
    number = approved(engine, client, connection)
    found = proposals.find(connection, number)
    assert found is not None
    graph.rename_ontology(found.body["into"], "renamed")
    before = dump(url)
    connection.execute(
        "INSERT INTO kappa.jobs (lane, kind, state, payload) "
        "VALUES ('interactive', 'ingestion', 'queued', '{\"ontology\": \"renamed\"}')"
    )
    assert execute(engine, client, number).state is JobState.SCHEDULED
    assert dump(url) == before
    connection.execute("DELETE FROM kappa.jobs")
    assert execute(engine, client, number).state is JobState.SUCCEEDED


def test_no_ingestion_is_claimed_between_the_look_and_the_commit(
    engine: Engine, client: Client, graph: Graph, connection: Session, url: str
) -> None:
    """The rival is a real claim of the lane: it waits for the lock under which the look was made."""
    claimed: list[int] = []

    def claim() -> None:
        with psycopg.connect(url, autocommit=True) as rival:
            claimed.extend(job.id for job in run(rival, jobs.claim("interactive", "rival", 1)))

    with psycopg.connect(url) as executing:
        assert ontologies.ingesting(executing, ["rivers"]) is None
        connection.execute(
            "INSERT INTO kappa.jobs (lane, kind, state, payload) "
            "VALUES ('interactive', 'ingestion', 'queued', '{\"ontology\": \"rivers\"}')"
        )
        rival = threading.Thread(target=claim)
        rival.start()
        while connection.execute(
            "SELECT count(*) FROM pg_locks JOIN pg_database AS d ON d.oid = database "
            "WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"
        ).fetchone() == (0,):
            assert not claimed
        assert claimed == []
        executing.commit()
    rival.join()
    assert len(claimed) == 1
    with psycopg.connect(url) as later:
        assert ontologies.ingesting(later, ["rivers"]) == claimed[0]
        assert ontologies.ingesting(later, ["seas"]) is None


def test_a_killed_execution_is_whole_or_nothing(
    engine: Engine, client: Client, graph: Graph, connection: Session, url: str, home: Path
) -> None:
    number = approved(engine, client, connection)
    before = dump(url)
    for at in (2, 6, 12, 18):
        job = client.enqueue("proposal_execution", {"proposal": number}).id
        with DoomedWorker(url, home, "maintenance") as worker:
            assert worker.work(at) is None
        assert dump(url) == before
        connection.execute("DELETE FROM kappa.jobs WHERE id = %s", [job])
    assert execute(engine, client, number).state is JobState.SUCCEEDED
