"""The kinds `ingestion`, `ingest_image` and `source_embedding`: documents into the graph, vectors for what lacks them.

The plan of a document's chunks is in the graph, and so is what became of each: a job that is run again, on whatever
machine, goes on with the first chunk that is open. Who runs it is of no account; the graph comes out the same.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import psycopg
from pydantic import BaseModel, Field, model_validator

from kappa.app.kinds import models
from kappa.app.kinds.asked import Asked
from kappa.app.kinds.ingested import IngestionResult
from kappa.app.kinds.workshop import Workshop
from kappa.app.settings import BadSetting
from kappa.engine import Engine, JobContext, JobFailed, Snooze
from kappa.graph import BadWrite, MissingExtra
from kappa.graph.ingest.providers import Account, CallStopped, ModelExtractor, ProviderRefused, on_account
from kappa.pg import KappaError

if TYPE_CHECKING:
    from kappa.graph.ingest.pipeline import Ingested, Planned
    from kappa.graph.ingest.read.parts import See
    from kappa.graph.store.uploads import Upload

INGESTION = "ingestion"
INGEST_IMAGE = "ingest_image"
SOURCE_EMBEDDING = "source_embedding"

TIMEOUT = timedelta(hours=12)
ATTEMPTS = 5
LOOK_AT_CHILDREN = 0.5
NAMED_ERRORS = 20
"""How many of what went wrong are spelled out in a result."""
TO_BE_MENDED = (ProviderRefused, MissingExtra, BadSetting)
"""A key that is missing or wrong, an unknown model, a package that is not installed: not for another attempt."""


class Ingestion(Asked):
    """What to bring into which ontology: one upload, or several, each of which becomes a child job."""

    upload: UUID | None = None
    uploads: list[UUID] = Field(default_factory=list[UUID])
    ontology: Annotated[str, Field(min_length=1)]
    name: str | None = None
    """What the document is called; the upload's own name if nothing."""
    provider: str | None = None
    force: bool = False
    """Whether a content that the ontology has is read again."""

    @property
    def keys(self) -> list[UUID]:
        return self.uploads if self.upload is None else [self.upload]

    @model_validator(mode="after")
    def _one_or_several(self) -> "Ingestion":
        if (self.upload is None) == (not self.uploads):
            raise ValueError("either `upload` or `uploads` says what to ingest")
        return self


class SourceEmbedding(Asked):
    batch: Annotated[int, Field(ge=1, le=10_000)] = 128


class SourceEmbeddingResult(BaseModel):
    model: str
    concepts: int
    relation_types: int
    sources: int


def declare(engine: Engine, shop: Workshop) -> None:
    def ingest(ctx: JobContext, asked: Ingestion) -> IngestionResult | Snooze:
        from kappa.graph.ingest.extraction import ProviderDown

        try:
            if asked.uploads:
                return _many(ctx, shop, asked)
            with _paying(ctx) as account:
                result = _one(ctx, shop, asked)
            used = account.usage
            return result.model_copy(
                update={
                    "calls": used.calls, "tokens_in": used.tokens_in, "tokens_out": used.tokens_out, "cost": used.cost
                }
            )  # fmt: skip
        except ProviderDown as down:
            return Snooze(timedelta(seconds=max(down.retry_after, 0.1)))
        except (BadWrite, *TO_BE_MENDED) as fault:
            # Its document was deleted, or is being read anew by somebody else: not to be undone by another attempt.
            raise JobFailed(str(fault), retry=False) from fault

    def embed(ctx: JobContext, asked: SourceEmbedding | None) -> SourceEmbeddingResult | Snooze:
        from kappa.graph.ingest.extraction import ProviderDown

        try:
            with _paying(ctx):
                return _embed(ctx, shop, asked or SourceEmbedding())
        except ProviderDown as down:
            return Snooze(timedelta(seconds=max(down.retry_after, 0.1)))
        except TO_BE_MENDED as fault:
            raise JobFailed(str(fault), retry=False) from fault

    engine.job(INGESTION, timeout=TIMEOUT, max_attempts=ATTEMPTS, approval=True, needs_database=True)(ingest)
    engine.job(INGEST_IMAGE, timeout=TIMEOUT, max_attempts=ATTEMPTS, approval=True, needs_database=True)(ingest)
    engine.job(SOURCE_EMBEDDING, timeout=TIMEOUT, max_attempts=ATTEMPTS, needs_database=True)(embed)


@contextmanager
def _paying(ctx: JobContext) -> "Generator[Account]":
    """Calls of providers are written down for this job, and stop with it."""
    try:
        with on_account(lambda: ctx.cancelled) as account:
            yield account
    except CallStopped:
        ctx.raise_if_cancelled()
        raise


def kind_of(media_type: str) -> str:
    """The kind of job that brings a file of this type into the graph."""
    return INGEST_IMAGE if media_type.startswith("image/") else INGESTION


def _one(ctx: JobContext, shop: Workshop, asked: Ingestion) -> IngestionResult:
    assert asked.upload is not None
    upload = _uploads(shop, [asked.upload])[0]
    run = f"job {ctx.job_id}"
    planned = shop.pipeline.resume(asked.ontology, upload.sha256, run, force=asked.force)
    notes: tuple[str, ...] = ()
    if planned is None:
        planned, notes = _planned(ctx, shop, asked, upload, run)
    provider = models.provider(asked.provider or shop.settings.provider)

    def each(done: int, total: int) -> None:
        ctx.raise_if_cancelled()
        ctx.progress(done, total, f"chunk {done} of {total}")

    ingested = shop.pipeline.ingest(
        planned, shop.extractor(asked.provider), each=each, threads=ctx.threads, ahead=provider.ahead
    )
    return _result(ingested, shop.pipeline.of_other_models(planned), notes)


def _planned(
    ctx: JobContext, shop: Workshop, asked: Ingestion, upload: "Upload", run: str
) -> "tuple[Planned, tuple[str, ...]]":
    """Read the file, and store the document with its plan; what its reader has to say of it."""
    from kappa.graph import NewDocument
    from kappa.graph.ingest.read import ReadError
    from kappa.graph.store import uploads

    with shop.graph.transaction() as connection:
        data = uploads.read_bytes(connection, upload.key)
    if data is None:
        raise _expired(upload.key)

    def each(done: int, total: int) -> None:
        ctx.raise_if_cancelled()
        ctx.progress(0, upload.chunks, f"page {done} of {total} read")

    try:
        found = shop.readers.read(
            data, upload.name, on_part=each, see=_seeing(shop, asked, upload), ocr=upload.ocr_pages > 0,
            check=ctx.raise_if_cancelled,
        )  # fmt: skip
    except (ReadError, MissingExtra) as fault:
        raise JobFailed(str(fault), retry=False) from fault
    document = NewDocument(asked.name or upload.name, found.text, found.media_type, data)
    return shop.pipeline.plan(asked.ontology, document, run, rule=models.chunk_rule(shop.settings)), found.notes


def _seeing(shop: Workshop, asked: Ingestion, upload: "Upload") -> "See | None":
    """What reads a picture in place of OCR: the provider's model, if it has one for that."""
    if kind_of(upload.media_type) != INGEST_IMAGE:
        return None
    extractor = shop.extractor(asked.provider)
    return extractor.transcribe if isinstance(extractor, ModelExtractor) else None


def _uploads(shop: Workshop, keys: list[UUID]) -> "list[Upload]":
    from kappa.graph.ingest.intake import KEEP
    from kappa.graph.store import uploads

    with shop.graph.transaction() as connection:
        found = uploads.keep(connection, keys, KEEP)
    if missing := [key for key in keys if key not in found]:
        raise _expired(missing[0])
    return [found[key] for key in keys]


def _expired(upload: UUID) -> JobFailed:
    return JobFailed(f"upload {upload} is not there any more: upload the file again", retry=False)


def _result(done: "Ingested", of_other_models: int, notes: tuple[str, ...]) -> IngestionResult:
    return IngestionResult(
        document=done.document,
        documents=1,
        chunks=done.chunks,
        failed_chunks=len(done.failed),
        concepts=done.counts.concepts,
        instances=done.counts.instances,
        relations=done.counts.relations,
        matched=done.counts.matched,
        dropped=done.counts.dropped,
        of_other_models=of_other_models,
        errors=[*notes, *(f"chunk {one.ordinal + 1}: {one.error}" for one in done.failed)][:NAMED_ERRORS],
    )


def _many(ctx: JobContext, shop: Workshop, asked: Ingestion) -> IngestionResult:
    """A child for each upload. What can't be ingested costs itself; the job fails only if that is everything."""
    files = _uploads(shop, asked.uploads)
    keys: list[str] = []
    for file in files:
        ctx.raise_if_cancelled()
        child = Ingestion(upload=file.key, ontology=asked.ontology, provider=asked.provider, force=asked.force)
        keys.append(ctx.spawn(kind_of(file.media_type), child, key=str(file.key)))
    errors: list[str] = []
    results: list[IngestionResult] = []
    with _watching(ctx, shop, asked.ontology, files), suppress(JobFailed):
        ctx.gather(*keys)
    ctx.raise_if_cancelled()  # or else its children would only seem to have failed
    for file, key in zip(files, keys, strict=True):
        try:
            results.append(IngestionResult.model_validate(ctx.gather(key)[0]))
        except JobFailed as failed:
            errors.append(f"{file.name}: {failed}")
    if not results:
        raise JobFailed(f"none of {len(files)} documents could be ingested; {errors[0]}", retry=False)
    ctx.progress(sum(one.chunks for one in results), message=f"{len(results)} of {len(files)} documents")
    errors += [error for one in results for error in one.errors]
    return IngestionResult(
        documents=len(results),
        chunks=sum(one.chunks for one in results),
        failed_chunks=sum(one.failed_chunks for one in results),
        concepts=sum(one.concepts for one in results),
        instances=sum(one.instances for one in results),
        relations=sum(one.relations for one in results),
        matched=sum(one.matched for one in results),
        dropped=sum(one.dropped for one in results),
        of_other_models=max(one.of_other_models for one in results),
        calls=sum(one.calls for one in results),
        tokens_in=sum(one.tokens_in for one in results),
        tokens_out=sum(one.tokens_out for one in results),
        cost=sum((one.cost for one in results), Decimal(0)),
        errors=errors[:NAMED_ERRORS],
    )


@contextmanager
def _watching(ctx: JobContext, shop: Workshop, ontology: str, files: "list[Upload]") -> Generator[None]:
    """Says how far the children are, all together, while the handler waits for them."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_AT_CHILDREN):
            # Nobody to tell, or nobody to ask, for now: the children go on all the same.
            with suppress(KappaError, psycopg.Error, RuntimeError):
                _tell(ctx, shop, ontology, files)

    watcher = threading.Thread(target=watch, name=f"kappa ingestion {ctx.job_id}", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _tell(ctx: JobContext, shop: Workshop, ontology: str, files: "list[Upload]") -> None:
    from kappa.graph.store import plans

    with shop.graph.transaction() as connection:
        counts = plans.counts(connection, ontology, [file.sha256 for file in files])
    total = sum(counts.get(file.sha256, (file.chunks, 0))[0] for file in files)
    done = sum(counts.get(file.sha256, (0, 0))[1] for file in files)
    ended = sum(chunks == over for chunks, over in counts.values())
    ctx.progress(done, total, f"document {ended} of {len(files)}, chunk {done} of {total}")


def _embed(ctx: JobContext, shop: Workshop, asked: SourceEmbedding) -> SourceEmbeddingResult:
    from kappa.graph.ingest.reembed import reembed

    def each(done: int, total: int) -> None:
        ctx.raise_if_cancelled()
        ctx.progress(done, total, f"{done} of {total} embedded with {shop.embedder.model}")

    done = reembed(shop.graph.transaction, shop.embedder, each=each, batch=asked.batch)
    return SourceEmbeddingResult(
        model=done.model, concepts=done.concepts, relation_types=done.relation_types, sources=done.sources
    )
