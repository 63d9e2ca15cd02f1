"""Documents on their way into the graph, on the wire."""

from decimal import Decimal
from typing import Annotated, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from kappa.app.api.schemas import NO_NUL, Body, Line, Priority
from kappa.engine import JobState

UPLOADS = "/ingest/uploads"
"""The one route whose bodies have a limit of their own."""
AT_ONCE = 10_000
"""Uploads in one submission."""
UNNAMED = "text"
"""What a text is called that came without a name."""

Text = Annotated[str, StringConstraints(min_length=1, pattern=NO_NUL)]


class OfIngestion(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class EstimateView(OfIngestion):
    documents: int
    chunks: int
    words: int
    tokens: int = Field(description="To the provider and back, about")
    embeddings: int
    ocr_pages: int = Field(description="Pages that OCR has to read, some seconds each")
    price: Decimal | None = Field(description="US dollars; null where the price of the model is not known")


class UploadedView(OfIngestion):
    key: UUID = Field(description="What `POST /ingest` takes")
    name: str
    sha256: str
    size: int
    media_type: str
    estimate: EstimateView
    warnings: list[str]


class DuplicateView(OfIngestion):
    upload: UUID
    name: str
    document: UUID | None = Field(default=None, description="The document that has this content")
    job: int | None = Field(default=None, description="Or the job that is about to bring it")


class Submit(Body):
    """Either uploads, or one small text."""

    ontology: Line = Field(examples=["sleep"], description="Made if there is none")
    uploads: list[UUID] | None = Field(default=None, min_length=1, max_length=AT_ONCE, description="Keys of uploads")
    text: Text | None = Field(default=None, description="In place of uploads; as large as a body may be")
    name: Line | None = Field(default=None, description="What the text is called", examples=["notes.md"])
    provider: Line | None = Field(default=None, description="Who extracts; the server's own choice if not given")
    auto_approve: bool = Field(default=False, strict=True, description="Approve it at once; needs `jobs:approve`")
    force: bool = Field(default=False, strict=True, description="Read again what is there already")
    priority: Priority = 0

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.uploads is None) == (self.text is None):
            raise ValueError("either uploads or text")
        if self.name is not None and self.text is None:
            raise ValueError("name is that of a text: uploads have theirs")
        return self


class SubmittedView(OfIngestion):
    job: int
    state: JobState = Field(description="`awaiting_approval`; or `queued`, and further if it was quick")
    estimate: EstimateView = Field(description="Of all that was not left out")
    duplicates: list[DuplicateView] = Field(description="What was left out: its content is there, or on its way")
