"""What people do to get documents into the graph: upload them, see what they will cost, submit them as jobs.

An upload is a file that was read once, so what can't be read is refused before anybody waits for it. It is kept for a
day, and for as long as a job needs it. What is submitted awaits approval, with its estimate, unless it is approved
along the way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from uuid import UUID

from kappa.app.errors import Conflict
from kappa.app.usecases.principal import Principal
from kappa.engine import JobState


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

    async def upload(self, who: Principal, name: str, path: Path) -> Uploaded:
        """Keep a file for submission. It is read here, but for what needs OCR; the file itself may go afterwards.

        Raises a `ReadError` (unknown format, broken, encrypted, empty, too large) or a `MissingExtra`.
        """
        raise NotImplementedError

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

        Content that is there, or on its way, is left out unless `force` has it read again; what an earlier job left
        unfinished (cancelled, failed chunks) goes on where that one stopped. `provider` extracts: `local`, or another
        that is configured. `auto_approve` needs the permission `jobs:approve`.

        Raises `AlreadyThere`, `NotFound` (an upload that expired, or is somebody else's), `Refused`, `Forbidden`.
        """
        raise NotImplementedError
