"""What people do to get documents into the graph: upload them, see what they will cost, submit them as jobs.

An upload is a file that was read once, so what can't be read is refused before anybody waits for it. It is kept for a
day, and for as long as a job needs it. What is submitted awaits approval, with its estimate, unless it is approved
along the way.
"""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from psycopg import AsyncConnection
from pydantic import ValidationError

from kappa.app.errors import Conflict, QuotaExceeded, Refused
from kappa.app.kinds import models
from kappa.app.kinds.ingestion import INGEST_IMAGE, INGESTION, Ingestion, kind_of
from kappa.app.permissions import Permission
from kappa.app.settings import Settings
from kappa.app.usecases import submission
from kappa.app.usecases.graph import KnowledgeGraph
from kappa.app.usecases.limits import LiveJobs, check_priority
from kappa.app.usecases.principal import Principal
from kappa.engine import AsyncClient, Job, JobState
from kappa.pg import queries
from kappa.pg.queries import Row

if TYPE_CHECKING:
    from kappa.graph import Graph
    from kappa.graph.ingest.intake import Taken
    from kappa.graph.ingest.reader_pool import ReaderPool
    from kappa.graph.store.uploads import Upload

sql = queries.beside(__file__)
LOCK_SUBMISSIONS = sql["lock_submissions"]

LIVE = tuple(state for state in JobState if not state.terminal)
PAGE = 500


@dataclass(frozen=True, slots=True)
class Estimate:
    """What an ingestion will come to. Pages that OCR has yet to read are guessed at; all the rest is counted."""

    documents: int
    chunks: int
    words: int
    tokens: int
    """What goes to the provider and comes back from it, about."""
    embeddings: int
    ocr_pages: int
    """Pages that OCR has to read, some seconds each."""
    price: Decimal | None
    """In US dollars; None where the price of the provider's model is not known. The local one costs nothing."""


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A file that can be submitted. The same file of the same name and person is the same upload."""

    key: UUID
    name: str
    sha256: str
    size: int
    media_type: str
    estimate: Estimate
    """With the provider that is used where none is named."""
    warnings: tuple[str, ...]
    """What its reader has to say, each in one line."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A file that was left out, because its content is in the ontology or on its way there."""

    upload: UUID
    name: str
    document: UUID | None
    """The document that has this content,"""
    job: int | None
    """or the job that is about to bring it."""

    def __str__(self) -> str:
        there = f"document {self.document}" if self.document is not None else f"job {self.job}"
        return f"{self.name} is there already: {there} has the same content"


@dataclass(frozen=True, slots=True)
class Submitted:
    """The job that brings the uploads into the graph. Several uploads are one job, with a child for each."""

    job: int
    state: JobState
    """`awaiting_approval`, or `queued`."""
    estimate: Estimate
    """Of all that was not left out."""
    duplicates: tuple[Duplicate, ...]
    """What was left out. If that is everything there is no job, but an `AlreadyThere`."""


class AlreadyThere(Conflict):
    """The same content is in the same ontology, or a job is about to bring it there."""

    def __init__(self, duplicates: Sequence[Duplicate]) -> None:
        more = f", and so are {len(duplicates) - 1} more" if len(duplicates) > 1 else ""
        super().__init__(f"{duplicates[0]}{more}; force it to read it again")
        self.duplicates = tuple(duplicates)


class Ingestions:
    """Documents of one server, on their way into its graph."""

    def __init__(self, client: AsyncClient, graph: KnowledgeGraph, settings: Settings, live: LiveJobs) -> None:
        self._client = client
        self._live_jobs = live
        self._graph = graph
        self._settings = settings
        # A file waits here for its reader, which takes seconds: never many at once, and never in the threads of others.
        self._threads = ThreadPoolExecutor(settings.reading_processes, thread_name_prefix="kappa intake")
        self._readers: ReaderPool | None = None
        self._opening = threading.Lock()

    async def upload(self, who: Principal, name: str, path: Path) -> Uploaded:
        """Keep a file for submission. It is read, but for what needs OCR; the file itself may go afterwards.

        Raises a `ReadError` (unknown format, broken, encrypted, empty, too large), a `MissingExtra`, a `QuotaExceeded`
        or a `ReaderUnavailable`.
        """
        graph = self._graph.here()
        most = None if who.may(Permission.JOBS_MANAGE) else self._settings.max_kept_uploads
        if not name.strip():
            raise Refused("a file needs a name")

        gone = threading.Event()

        def check() -> None:
            if gone.is_set():
                raise CancelledError

        def take() -> "Taken":
            from kappa.graph.ingest import intake
            from kappa.graph.store import uploads

            check()
            intake.check_size(path.stat().st_size, name)
            if most is not None:
                with graph.transaction() as connection:
                    _check_room(who, uploads.kept_bytes(connection, who.name, None), 1, most)
            data = path.read_bytes()
            counted = self._pool().count(data, name, rule=models.chunk_rule(self._settings), check=check)
            taken = intake.take_in(data, name, who.name, counted=counted)
            with graph.transaction() as connection:
                if most is not None:
                    _check_room(who, uploads.kept_bytes(connection, who.name, taken.upload.key), len(data), most)
                uploads.add(connection, taken.upload, data, intake.KEEP)
            return taken

        try:
            taken = await asyncio.wrap_future(self._threads.submit(take))
        finally:
            gone.set()  # whoever is cancelled here leaves no reader behind
        upload = taken.upload
        return Uploaded(
            upload.key, upload.name, upload.sha256.hex(), upload.size, upload.media_type,
            self._estimate([upload], None), taken.warnings,
        )  # fmt: skip

    async def submit(
        self,
        who: Principal,
        ontology: str,
        uploads: Sequence[UUID],
        *,
        provider: str | None = None,
        auto_approve: bool = False,
        force: bool = False,
        priority: int = 0,
    ) -> Submitted:
        """A job that brings uploads into an ontology, which is made if there is none of that name.

        Content that is there, or on its way, is left out unless `force` has it read again; what comes twice in one
        submission is read once; what an earlier job left unfinished (cancelled, failed chunks) goes on where that one
        stopped. `provider` extracts: `local`, or another that is configured. `auto_approve` needs the permission
        `jobs:approve`.

        Raises `AlreadyThere`, `NotFound` (an upload that expired, or is somebody else's), `Refused`, `Forbidden`,
        `ProviderRefused` (it has no key here), `MissingExtra`.
        """
        submission.require_permissions(who, INGESTION)
        if auto_approve:
            who.require(Permission.JOBS_APPROVE)
        check_priority(who, priority)
        if not ontology.strip():
            raise Refused("an ontology needs a name")
        if not uploads:
            raise Refused("nothing was submitted: name at least one upload")
        if provider is not None and provider not in models.PROVIDERS:
            known = ", ".join(sorted(models.PROVIDERS))
            raise Refused(f"there is no provider {provider!r} (there are: {known})")
        # Before anybody waits for a job that can't begin. Importing an SDK takes a moment.
        await asyncio.to_thread(models.check, self._settings, provider or self._settings.provider)
        files = await self._find(who, uploads)
        async with self._live_jobs.one_more(who), self._client.transaction() as connection:
            # Who submits the same at the same time waits here, and then finds this job.
            await connection.execute(LOCK_SUBMISSIONS.sql, {"ontology": ontology})
            duplicates = [] if force else await self._duplicates(connection, ontology, files)
            left_out = {one.upload for one in duplicates}
            wanted = [file for file in files if file.key not in left_out]
            if not wanted:
                raise AlreadyThere(duplicates)
            first = {file.sha256: file for file in reversed(wanted)}
            twins = [file for file in wanted if first[file.sha256] is not file]
            wanted = [file for file in wanted if first[file.sha256] is file]
            estimate = self._estimate(wanted, provider)
            asked = Ingestion(
                upload=wanted[0].key if len(wanted) == 1 else None,
                uploads=[] if len(wanted) == 1 else [file.key for file in wanted],
                ontology=ontology,
                provider=provider,
                force=force,
            )
            made = await self._client.enqueue(
                kind_of(wanted[0].media_type) if len(wanted) == 1 else INGESTION,
                asked,
                priority=priority,
                auto_approve=who.name if auto_approve else None,
                submitted_by=who.name,
                estimate=asdict(estimate),
                connection=connection,
            )
        job = await self._client.show(made.id)
        duplicates += [Duplicate(file.key, file.name, None, made.id) for file in twins]
        return Submitted(made.id, job.state, estimate, tuple(duplicates))

    def close(self) -> None:
        with self._opening:
            if self._readers is not None:
                self._readers.close()
        self._threads.shutdown(cancel_futures=True)

    def _pool(self) -> "ReaderPool":
        with self._opening:
            if self._readers is None:
                self._readers = models.open_readers(self._settings)
            return self._readers

    async def _find(self, who: Principal, keys: Sequence[UUID]) -> "list[Upload]":
        """The uploads, each once, kept for another while."""

        def keep(graph: "Graph") -> "dict[UUID, Upload]":
            from kappa.graph.ingest.intake import KEEP
            from kappa.graph.store import uploads

            with graph.transaction() as connection:
                return uploads.keep(connection, keys, KEEP)

        found = await self._graph.other(keep)
        submission.require_uploads(who, keys, {key: upload.owner for key, upload in found.items()})
        return [found[key] for key in dict.fromkeys(keys)]

    async def _duplicates(
        self, connection: AsyncConnection[Row], ontology: str, files: "list[Upload]"
    ) -> list[Duplicate]:
        live = await self._live(connection)
        under_way = {key: job for job, asked in live if asked.ontology == ontology for key in asked.keys}

        def look(graph: "Graph") -> "tuple[dict[bytes, int], dict[bytes, tuple[UUID, int]]]":
            from kappa.graph.store import plans, uploads

            with graph.transaction() as connection:
                coming = {one.sha256: under_way[key] for key, one in uploads.find(connection, [*under_way]).items()}
                return coming, plans.in_ontology(connection, ontology, [file.sha256 for file in files])

        coming, there = await self._graph.other(look)
        found: list[Duplicate] = []
        for file in files:
            document, unfinished = there.get(file.sha256, (None, 0))
            if file.sha256 in coming:
                found.append(Duplicate(file.key, file.name, None, coming[file.sha256]))
            elif document is not None and not unfinished:
                found.append(Duplicate(file.key, file.name, document, None))
        return found

    async def _live(self, connection: AsyncConnection[Row]) -> list[tuple[int, Ingestion]]:
        """All jobs that bring documents and are not over, the newest first: a parent comes after its children."""
        found: list[Job] = []
        while page := await self._client.list_jobs(
            states=LIVE, kinds=(INGESTION, INGEST_IMAGE), before=found[-1].id if found else None, limit=PAGE,
            connection=connection,
        ):  # fmt: skip
            found += page
        return [(job.id, asked) for job in found if (asked := _asked(job)) is not None]

    def _estimate(self, files: "list[Upload]", provider: str | None) -> Estimate:
        from kappa.graph.ingest import intake

        chosen = models.provider(provider or self._settings.provider)
        made = intake.estimate(
            files, lambda tokens_in, tokens_out: chosen.price(self._settings, tokens_in, tokens_out), sees=chosen.sees
        )
        return Estimate(
            made.documents, made.chunks, made.words, made.tokens_in + made.tokens_out, made.embeddings,
            made.ocr_pages, made.price,
        )  # fmt: skip


def _check_room(who: Principal, kept: int, size: int, most: int) -> None:
    if kept + size > most:
        raise QuotaExceeded(
            f"{who.name} has uploaded {kept:,} bytes that are kept, and {most:,} are allowed: "
            "an upload goes a day after it was last needed; try again then, or have KAPPA_MAX_KEPT_UPLOADS raised"
        )


def _asked(job: Job) -> Ingestion | None:
    """What a job was asked to do; None if that is of another version, and nobody knows."""
    try:
        return Ingestion.model_validate(job.payload)
    except ValidationError:
        return None
