"""Files are uploaded, submitted, approved and brought into the graph by jobs, as people and agents see it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from kappa.app import wiring
from kappa.app.errors import Forbidden, NotFound, Refused
from kappa.app.kinds import cleanup, models
from kappa.app.kinds.models import Provider
from kappa.app.permissions import ROLES
from kappa.app.services import Services, open_services
from kappa.app.settings import BadSetting, Settings
from kappa.app.usecases.ingest import AlreadyThere, Uploaded
from kappa.app.usecases.principal import Principal
from kappa.engine import Engine, Job, JobState, WorkerConfig
from kappa.engine.testing import drain, maintain, working
from kappa.graph import MissingExtra
from kappa.graph.ingest.extraction import BadExtraction, ProviderDown
from kappa.graph.ingest.intake import KEEP, Counted, take_in
from kappa.graph.ingest.providers import ProviderRefused
from kappa.graph.ingest.read import BrokenDocument, EmptyDocument, UnknownFormat
from kappa.graph.store import plans, uploads
from kappa.pg import Database
from tests.app.conftest import without_schedules
from tests.app.patience import becomes, blocked, told_to_stop
from tests.graph.ingest.made import hostile_pdf, picture, raw_docx
from tests.memory import children, forget_peak, peak
from tests.scripted import ScriptedEmbedder, ScriptedExtractor, dump, story

ANN = Principal(1, "ann", frozenset(map(str, ROLES["curator"])))
BOB = Principal(2, "bob", frozenset(map(str, ROLES["contributor"])))


@dataclass
class Floor:
    """Where jobs of a test run: an engine with scripted models, and the use cases before it."""

    engine: Engine
    services: Services
    extractor: ScriptedExtractor
    embedder: ScriptedEmbedder
    url: str
    files: Path

    async def upload(self, text: str | bytes, name: str = "story.txt", who: Principal = ANN) -> Uploaded:
        path = self.files / uuid4().hex
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        try:
            return await self.services.ingestions.upload(who, name, path)
        finally:
            path.unlink()

    async def run(self, job: int) -> Job:
        await drain(self.engine, WorkerConfig(lead=False))  # what sleeps goes on sleeping
        return await self.services.client.show(job)

    def chunks(self) -> list[str]:
        with psycopg.connect(self.url) as connection:
            rows = connection.execute("SELECT state FROM kappa_graph.chunk_plan ORDER BY document_id, ordinal")
            return [row[0] for row in rows]


@asynccontextmanager
async def opened(url: str, home: Path, **settings: object) -> AsyncIterator[Floor]:
    await asyncio.to_thread(home.mkdir, exist_ok=True)
    small = {"chunk_target": 12, "chunk_least": 9, "chunk_most": 15, "chunk_overlap": 3}
    chosen = Settings.model_validate({"home": home, "provider": "test", "embedder": "test", **small, **settings})
    extractor, embedder = ScriptedExtractor(), ScriptedEmbedder()
    async with AsyncExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setitem(models.PROVIDERS, "test", Provider(lambda _: extractor, lambda *_: None, ahead=0))
        patch.setitem(models.EMBEDDERS, "test", lambda _: embedder)
        engine = wiring.build_engine(chosen, Database(url, bounds=chosen.bounds))
        stack.callback(engine.close)
        without_schedules(url)
        engine.install()
        services = await stack.enter_async_context(open_services(chosen, engine))
        yield Floor(engine, services, extractor, embedder, url, home)


@pytest.fixture
async def floor(url: str, home: Path) -> AsyncIterator[Floor]:
    async with opened(url, home) as made:
        yield made


async def test_an_upload_is_read_counted_and_kept(floor: Floor) -> None:
    text = story(1, 24)
    first = await floor.upload(text)
    again = await floor.upload(text)
    assert again == first
    assert (first.name, first.size, first.media_type) == ("story.txt", len(text), "text/plain")
    assert first.estimate.chunks > 5
    assert first.estimate.words >= len(text.split())
    assert first.estimate.price is None, "nobody knows what the test's provider costs"
    assert first.estimate.embeddings > first.estimate.chunks
    other = await floor.upload(text, name="other.txt")
    assert other.key != first.key
    with psycopg.connect(floor.url) as connection:
        kept = connection.execute("SELECT bytes FROM kappa_graph.uploads WHERE key = %s", [first.key]).fetchone()
    assert kept == (text.encode(),)


@pytest.mark.parametrize(
    ("data", "name", "error"),
    [
        (b"", "empty.txt", EmptyDocument),
        (b"%PDF-1.7\nnothing", "broken.pdf", BrokenDocument),
        (b"\x7fELF\0\0\0\0", "program", UnknownFormat),
        (b"\x89PNG\r\n\x1a\nnothing", "broken.png", BrokenDocument),
    ],
)
async def test_what_cannot_be_read_is_refused_at_once(
    floor: Floor, data: bytes, name: str, error: type[Exception]
) -> None:
    with pytest.raises(error, match=name):
        await floor.upload(data, name)
    with psycopg.connect(floor.url) as connection:
        assert connection.execute("SELECT count(*) FROM kappa_graph.uploads").fetchone() == (0,)


async def test_a_submission_awaits_approval_with_its_estimate_and_then_becomes_a_graph(floor: Floor) -> None:
    uploaded = await floor.upload(story(1, 24))
    made = await floor.services.ingestions.submit(BOB_WITH_ALL, "tales", [uploaded.key])
    assert made.state is JobState.AWAITING_APPROVAL
    job = await floor.services.client.show(made.job)
    assert job.kind == "ingestion"
    assert job.estimate["chunks"] == uploaded.estimate.chunks == made.estimate.chunks
    assert job.submitted_by == "bob"
    await floor.services.jobs.approve(ANN, made.job)
    done = await floor.run(made.job)
    assert done.state is JobState.SUCCEEDED, done.error_summary
    assert done.result["chunks"] == uploaded.estimate.chunks
    assert done.result["failed_chunks"] == 0
    assert (done.progress_done, done.progress_total) == (uploaded.estimate.chunks, uploaded.estimate.chunks)
    assert done.progress_message == f"chunk {uploaded.estimate.chunks} of {uploaded.estimate.chunks}"
    found = await floor.services.graph.concept("Thing1x0", ["tales"], 5)
    assert "Thing1x0" in found[1][0].quote
    with psycopg.connect(floor.url) as connection:
        row = connection.execute("SELECT name, original FROM kappa_graph.documents").fetchone()
    assert row == ("story.txt", story(1, 24).encode())


BOB_WITH_ALL = Principal(2, "bob", BOB.permissions | {"jobs:manage"})


async def test_approving_along_the_way_needs_the_permission(floor: Floor) -> None:
    uploaded = await floor.upload(story(1, 4), who=BOB)
    with pytest.raises(Forbidden, match="jobs:approve"):
        await floor.services.ingestions.submit(BOB, "tales", [uploaded.key], auto_approve=True)
    made = await floor.services.ingestions.submit(BOB, "tales", [uploaded.key])
    assert made.state is JobState.AWAITING_APPROVAL


async def test_uploads_of_others_unknown_ones_and_unknown_providers_are_refused(floor: Floor) -> None:
    mine = await floor.upload(story(1, 4))
    submit = floor.services.ingestions.submit
    with pytest.raises(NotFound, match=str(mine.key)):
        await submit(BOB, "tales", [mine.key])
    with pytest.raises(NotFound):
        await submit(ANN, "tales", [UUID(int=7)])
    with pytest.raises(Refused, match="no provider 'oracle'"):
        await submit(ANN, "tales", [mine.key], provider="oracle")
    with pytest.raises(Refused, match="at least one upload"):
        await submit(ANN, "tales", [])
    with pytest.raises(Refused, match="needs a name"):
        await submit(ANN, " ", [mine.key])


async def test_the_same_content_is_refused_by_name_of_its_job_then_of_its_document_unless_forced(floor: Floor) -> None:
    submit = floor.services.ingestions.submit
    first = await floor.upload(story(1, 8))
    twin = await floor.upload(story(1, 8), name="twin.txt")
    made = await submit(ANN, "tales", [first.key], auto_approve=True)
    assert made.state is JobState.QUEUED
    with pytest.raises(AlreadyThere, match=f"twin.txt is there already: job {made.job} "):
        await submit(ANN, "tales", [twin.key])
    elsewhere = await submit(ANN, "myths", [twin.key])
    assert elsewhere.job != made.job
    done = await floor.run(made.job)
    document = done.result["document"]
    with pytest.raises(AlreadyThere, match=f"document {document}") as told:
        await submit(ANN, "tales", [twin.key])
    assert told.value.duplicates[0].document == UUID(document)
    asked = len(floor.extractor.asked)
    before = dump(floor.url)
    forced = await submit(ANN, "tales", [twin.key], auto_approve=True, force=True)
    assert (await floor.run(forced.job)).state is JobState.SUCCEEDED
    assert len(floor.extractor.asked) == asked + done.result["chunks"]
    assert len(dump(floor.url).splitlines()) == len(before.splitlines())


async def test_two_submissions_of_one_content_at_the_same_time_make_one_job(floor: Floor) -> None:
    uploads = [await floor.upload(story(1, 8), name=f"{number}.txt") for number in range(5)]
    outcomes = await asyncio.gather(
        *(floor.services.ingestions.submit(ANN, "tales", [one.key]) for one in uploads), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in outcomes) == ["AlreadyThere"] * 4 + ["Submitted"]


async def test_several_uploads_are_one_job_with_children_and_duplicates_are_left_out(floor: Floor) -> None:
    submit = floor.services.ingestions.submit
    first = await floor.upload(story(0, 8), name="0.txt")
    await floor.run((await submit(ANN, "tales", [first.key], auto_approve=True)).job)
    rest = [await floor.upload(story(number, 12), name=f"{number}.txt") for number in (1, 2, 3)]
    made = await submit(ANN, "tales", [first.key, *(one.key for one in rest)], auto_approve=True)
    assert [one.name for one in made.duplicates] == ["0.txt"]
    assert made.estimate.documents == 3
    assert made.estimate.chunks == sum(one.estimate.chunks for one in rest)
    done = await floor.run(made.job)
    assert done.state is JobState.SUCCEEDED, done.error_summary
    assert done.result["documents"] == 3
    assert done.result["chunks"] == made.estimate.chunks
    jobs = await floor.services.client.list_jobs(kinds=["ingestion"])
    children = [job for job in jobs if job.parent_id == made.job]
    assert len(children) == 3
    assert {job.state for job in children} == {JobState.SUCCEEDED}


async def test_the_job_of_several_tells_how_far_all_are_and_cancels_them_all(floor: Floor) -> None:
    gate, reached = threading.Event(), threading.Event()

    def hold(text: str) -> None:
        if "Thing2x1 " in text:
            reached.set()
            gate.wait(30)

    floor.extractor.before = hold
    files = [await floor.upload(story(number, 40), name=f"{number}.txt") for number in (1, 2, 3)]
    total = sum(one.estimate.chunks for one in files)
    made = await floor.services.ingestions.submit(ANN, "tales", [one.key for one in files], auto_approve=True)
    client = floor.services.client
    async with working(floor.engine) as worker:

        async def told() -> bool:
            job = await client.show(made.job)
            return (job.progress_message or "").startswith("document 2 of 3, chunk ") and job.progress_total == total

        await becomes(told, what="two of three are in, and the parent says so")
        await becomes(reached.is_set)
        child = next(job for job in await client.list_jobs(kinds=["ingestion"]) if job.state is not JobState.SUCCEEDED
                     and job.parent_id == made.job)  # fmt: skip
        assert await client.cancel(made.job) is JobState.RUNNING
        await told_to_stop(worker, child.id)
        gate.set()
        assert (await client.wait(made.job)).state is JobState.CANCELLED
        assert (await client.wait(child.id)).state is JobState.CANCELLED


async def test_a_passing_fault_of_the_database_does_not_end_the_progress_of_several(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def hold(text: str) -> None:
        gate.wait(30)

    floor.extractor.before = hold
    count, failed = plans.counts, threading.Event()

    def failing_once(*args: Any) -> dict[bytes, tuple[int, int]]:
        if not failed.is_set():
            failed.set()
            raise psycopg.OperationalError("the server is starting up")
        return count(*args)

    monkeypatch.setattr(plans, "counts", failing_once)
    files = [await floor.upload(story(number, 8), name=f"{number}.txt") for number in (1, 2)]
    made = await floor.services.ingestions.submit(ANN, "tales", [one.key for one in files], auto_approve=True)
    async with working(floor.engine):

        async def told() -> bool:
            return (await floor.services.client.show(made.job)).progress_message is not None

        try:
            await becomes(told, what="the parent says how far its children are")
            assert failed.is_set()
        finally:
            gate.set()
        assert (await floor.services.client.wait(made.job)).state is JobState.SUCCEEDED


async def test_one_broken_file_of_many_costs_only_itself(floor: Floor) -> None:
    good = await floor.upload(story(1, 8))
    bad = await floor.upload(picture([]), name="blank.png")
    submitted = await floor.services.ingestions.submit(ANN, "tales", [good.key, bad.key], auto_approve=True)
    done = await floor.run(submitted.job)
    assert done.state is JobState.SUCCEEDED
    assert done.result["documents"] == 1
    assert len(done.result["errors"]) == 1
    assert "blank.png" in done.result["errors"][0]
    assert "there is no text in it" in done.result["errors"][0]


async def test_a_document_that_wants_gigabytes_costs_itself_and_the_worker_no_memory(floor: Floor) -> None:
    good, other = await floor.upload(story(1, 8)), await floor.upload(story(2, 8), name="other.txt")
    bomb = handed_in(floor, hostile_pdf(6), "bomb.pdf")
    before = forget_peak()
    made = await floor.services.ingestions.submit(ANN, "tales", [good.key, bomb, other.key], auto_approve=True)
    done = await floor.run(made.job)
    assert peak() - before < 128
    assert done.state is JobState.SUCCEEDED
    assert done.result["documents"] == 2
    (error,) = done.result["errors"]
    assert "bomb.pdf: it needs more than 512 MB to read (KAPPA_READING_MEMORY_MB)" in error
    with psycopg.connect(floor.url) as connection:
        documents = connection.execute("SELECT count(*) FROM kappa_graph.documents").fetchone()
    assert documents == (2,), "nothing of it was written"


async def test_a_cancelled_job_ends_the_reader_of_its_document(url: str, home: Path) -> None:
    def readers() -> list[int]:
        return [one for child in set(children()) - others for one in children(child)]

    others = set(children())
    async with opened(url, home, reading_seconds=3600) as floor:
        slow = handed_in(floor, raw_docx("<w:p><w:r><w:t>a</w:t></w:r></w:p>" * 3_000_000), "slow.docx")
        made = await floor.services.ingestions.submit(ANN, "tales", [slow], auto_approve=True)
        async with working(floor.engine):
            await becomes(readers, what="the document is being read")
            await floor.services.client.cancel(made.job)
            assert (await floor.services.client.wait(made.job)).state is JobState.CANCELLED
            await becomes(lambda: not readers(), what="its reader is gone")
    assert set(children()) == others


def handed_in(floor: Floor, data: bytes, name: str) -> UUID:
    """An upload that nobody has looked at."""
    counted = Counted("application/pdf", 1, 1, 0, ())
    upload = take_in(data, name, ANN.name, counted=counted).upload
    with psycopg.connect(floor.url) as connection:
        uploads.add(connection, upload, data, KEEP)
    return upload.key


async def test_a_picture_is_read_by_its_job(floor: Floor) -> None:
    uploaded = await floor.upload(picture(["Otter eats Fish."]), name="otter.png")
    assert uploaded.media_type == "image/png"
    assert uploaded.estimate.ocr_pages == 1
    assert uploaded.warnings == ("1 page has no text: the job reads them, and the estimate guesses at them",)
    made = await floor.services.ingestions.submit(ANN, "tales", [uploaded.key], auto_approve=True)
    done = await floor.run(made.job)
    assert (done.kind, done.state) == ("ingest_image", JobState.SUCCEEDED), done.error_summary
    _, evidence = await floor.services.graph.concept("Otter", ["tales"], 1)
    assert evidence[0].quote == "Otter eats Fish."


async def test_a_cancelled_job_leaves_whole_chunks_and_the_next_one_goes_on_there(floor: Floor) -> None:
    uploaded = await floor.upload(story(1, 40))
    at, gate = threading.Event(), threading.Event()
    calls: list[str] = []

    def hold(text: str) -> None:
        calls.append(text)
        if len(calls) == 6:
            at.set()
            gate.wait(30)

    floor.extractor.before = hold
    submit = floor.services.ingestions.submit
    made = await submit(ANN, "tales", [uploaded.key], auto_approve=True)
    client = floor.services.client
    async with working(floor.engine) as worker:
        await becomes(at.is_set)
        await client.cancel(made.job)
        await told_to_stop(worker, made.job)
        gate.set()
        assert (await client.wait(made.job)).state is JobState.CANCELLED
    states = floor.chunks()
    done = states.count("done")
    assert 0 < done < len(states)
    assert states == ["done"] * done + ["pending"] * (len(states) - done)
    with psycopg.connect(floor.url) as connection:
        sources = connection.execute("SELECT count(*) FROM kappa_graph.sources").fetchone()
        whole = connection.execute("SELECT sum(instances) FROM kappa_graph.chunk_plan").fetchone()
        instances = connection.execute("SELECT count(*) FROM kappa_graph.instances").fetchone()
    assert sources == (done,)
    assert whole == instances
    again = await submit(ANN, "tales", [uploaded.key], auto_approve=True)
    finished = await floor.run(again.job)
    assert finished.state is JobState.SUCCEEDED
    assert floor.chunks() == ["done"] * len(states)
    committed = set(calls[:done])
    assert not committed & set(calls[6:]), "no committed chunk was asked for again"


async def test_a_provider_that_is_down_puts_the_job_to_sleep_not_to_an_end(floor: Floor) -> None:
    uploaded = await floor.upload(story(1, 24))
    down = [True]

    def maybe(text: str) -> None:
        if down[0] and len(floor.extractor.asked) > 2:
            raise ProviderDown("it does not answer", 60.0)

    floor.extractor.before = maybe
    made = await floor.services.ingestions.submit(ANN, "tales", [uploaded.key], auto_approve=True)
    asleep = await floor.run(made.job)
    assert asleep.state is JobState.SCHEDULED
    assert asleep.run_at is not None
    assert timedelta(seconds=40) < asleep.run_at - datetime.now(UTC) <= timedelta(seconds=60)
    assert floor.chunks().count("done") == 2
    down[0] = False
    await maintain(floor.engine, later=timedelta(minutes=2), only=lambda name: name == "promoter")
    done = await floor.run(made.job)
    assert done.state is JobState.SUCCEEDED
    assert done.max_attempts - done.attempt == 4, "sleeping uses up no attempt"


@pytest.mark.parametrize(
    "fault",
    [ProviderRefused("it does not accept the key (401)"), MissingExtra("pip install it"), BadSetting("no such model")],
)
async def test_what_somebody_has_to_mend_is_said_once_and_not_tried_again(floor: Floor, fault: Exception) -> None:
    def refuse(text: str) -> None:
        raise fault

    floor.extractor.before = refuse
    uploaded = await floor.upload(story(1, 24))
    made = await floor.services.ingestions.submit(ANN, "tales", [uploaded.key], auto_approve=True)
    done = await floor.run(made.job)
    assert (done.state, done.attempt, done.error_summary) == (JobState.FAILED, 1, str(fault))
    floor.embedder.embed = lambda texts: refuse("")
    floor.extractor.before = lambda text: None
    with psycopg.connect(floor.url) as connection:
        connection.execute("INSERT INTO kappa_graph.relation_types (name) VALUES ('X')")
    job = await floor.services.client.enqueue("source_embedding")
    done = await floor.run(job.id)
    assert (done.state, done.attempt, done.error_summary) == (JobState.FAILED, 1, str(fault))


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_a_provider_without_a_key_is_refused_before_there_is_a_job(
    floor: Floor, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    monkeypatch.delenv(f"{provider.upper()}_API_KEY", raising=False)
    uploaded = await floor.upload(story(1, 4))
    with pytest.raises(ProviderRefused, match=f"has no key: set KAPPA_{provider.upper()}_API_KEY"):
        await floor.services.ingestions.submit(ANN, "tales", [uploaded.key], provider=provider)
    assert await floor.services.client.list_jobs() == []


async def test_bad_output_is_counted_and_told_and_the_job_succeeds(floor: Floor) -> None:
    uploaded = await floor.upload(story(1, 24))

    def spoil(text: str) -> None:
        if "Thing1x5 " in text:
            raise BadExtraction("the answer is no JSON")

    floor.extractor.before = spoil
    made = await floor.services.ingestions.submit(ANN, "tales", [uploaded.key], auto_approve=True)
    done = await floor.run(made.job)
    assert done.state is JobState.SUCCEEDED
    assert done.result["failed_chunks"] == len(done.result["errors"]) >= 1
    assert all("the answer is no JSON" in error for error in done.result["errors"])
    floor.extractor.before = lambda text: None
    again = await floor.services.ingestions.submit(ANN, "tales", [uploaded.key], auto_approve=True)
    assert (await floor.run(again.job)).result["failed_chunks"] == 0


async def test_a_change_of_model_is_an_embedding_job(url: str, home: Path) -> None:
    async with opened(url, home) as floor:
        uploaded = await floor.upload(story(1, 24))
        made = await floor.services.ingestions.submit(ANN, "tales", [uploaded.key], auto_approve=True)
        concepts = (await floor.run(made.job)).result["concepts"]
    async with opened(url, home) as floor:
        floor.embedder.model = "others"
        uploaded = await floor.upload("Something causes Anything.", name="second.txt")
        made = await floor.services.ingestions.submit(ANN, "tales", [uploaded.key], auto_approve=True)
        assert (await floor.run(made.job)).result["of_other_models"] == concepts
        job = await floor.services.client.enqueue("source_embedding")
        done = await floor.run(job.id)
        assert done.state is JobState.SUCCEEDED, done.error_summary
        assert done.result["model"] == "others"
        assert done.result["concepts"] == concepts
        assert done.progress_done == done.progress_total
        again = await floor.services.client.enqueue("source_embedding")
        assert (await floor.run(again.id)).result["concepts"] == 0


async def clean_up(floor: Floor) -> int:
    made = await floor.services.client.enqueue("artifact_cleanup", {}, auto_approve="ada")
    done = await floor.run(made.id)
    assert done.state is JobState.SUCCEEDED, done.error_summary
    return done.result["uploads"]


def let_uploads_expire(floor: Floor) -> None:
    with psycopg.connect(floor.url) as connection:
        connection.execute("UPDATE kappa_graph.uploads SET expires_at = now() - interval '1 second'")


async def test_uploads_expire_unless_a_live_job_needs_them(floor: Floor) -> None:
    alone, one, other, idle = [await floor.upload(story(number, 4), f"{number}.txt") for number in range(4)]
    await floor.services.ingestions.submit(ANN, "tales", [alone.key])
    made = await floor.services.ingestions.submit(ANN, "tales", [one.key, other.key])
    assert await clean_up(floor) == 0, "their day is not over"
    let_uploads_expire(floor)
    assert await clean_up(floor) == 1
    with pytest.raises(NotFound):
        await floor.services.ingestions.submit(ANN, "myths", [idle.key])
    await floor.services.client.approve(made.job, "ann")
    done = await floor.run(made.job)
    assert (done.state, done.result["documents"]) == (JobState.SUCCEEDED, 2), done.error_summary
    let_uploads_expire(floor)
    assert await clean_up(floor) == 2, "those of the job that is over, not that of the one that awaits approval"


async def test_an_upload_that_is_submitted_while_it_is_cleaned_up_stays(floor: Floor) -> None:
    """The row is changed by who submits it, and not yet committed, when the cleaner comes to it."""
    uploaded = await floor.upload(story(1, 4))
    let_uploads_expire(floor)
    with psycopg.connect(floor.url) as submitting, psycopg.connect(floor.url, autocommit=True) as watcher:
        assert uploads.keep(submitting, [uploaded.key], timedelta(days=1))
        with psycopg.connect(floor.url, autocommit=True) as cleaner, ThreadPoolExecutor(1) as thread:
            cleaned = thread.submit(cleanup.forget_uploads, cleaner, 100)
            await blocked(watcher, 1)
            submitting.commit()
            assert cleaned.result() == 0
    assert (await floor.services.ingestions.submit(ANN, "tales", [uploaded.key])).job


async def test_a_job_whose_upload_is_gone_says_so(floor: Floor) -> None:
    payload = {"upload": str(UUID(int=9)), "ontology": "tales"}
    made = await floor.services.client.enqueue("ingestion", payload, auto_approve="ann")
    done = await floor.run(made.id)
    assert done.state is JobState.FAILED
    assert done.error_summary == f"upload {UUID(int=9)} is not there any more: upload the file again"


async def test_a_document_that_is_deleted_under_way_is_not_brought_back(floor: Floor) -> None:
    uploaded = await floor.upload(story(1, 24))

    def delete(text: str) -> None:
        if len(floor.extractor.asked) == 4:
            with psycopg.connect(floor.url) as connection:
                connection.execute("DELETE FROM kappa_graph.documents")

    floor.extractor.before = delete
    made = await floor.services.ingestions.submit(ANN, "tales", [uploaded.key], auto_approve=True)
    done = await floor.run(made.job)
    assert done.state is JobState.FAILED
    assert "was deleted meanwhile" in (done.error_summary or "")
    assert floor.chunks() == []


async def test_the_local_provider_costs_nothing(floor: Floor) -> None:
    uploaded = await floor.upload(story(1, 4))
    made = await floor.services.ingestions.submit(ANN, "tales", [uploaded.key], provider="local")
    assert made.estimate.price == Decimal(0)


async def test_the_models_are_put_away_with_the_engine(url: str, home: Path) -> None:
    async with opened(url, home) as floor:
        uploaded = await floor.upload(story(1, 4))
        made = await floor.services.ingestions.submit(ANN, "tales", [uploaded.key], auto_approve=True)
        await floor.run(made.job)
        assert not floor.embedder.closed
    assert floor.embedder.closed
