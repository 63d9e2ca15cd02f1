"""Measures on the wire: grounding and its reasons, the vocabulary, artifacts."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from kappa.app.api.schemas import Body, Line
from kappa.graph.findings import Epistemic


class OfGraph(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class GroundingView(OfGraph):
    value: float = Field(description="−1 is against it, 1 is for it, 0 where nothing speaks either way")
    low: float = Field(description="Of the 95 % interval")
    high: float
    support: float = Field(description="What speaks for it, weighted")
    contradiction: float
    supports: int = Field(description="How many relations speak for it")
    contradictions: int


class ConfidenceView(OfGraph):
    value: float = Field(description="0 to 1: how much there is to judge by")
    relations: int
    types: int
    sources: int
    evidence: int


class ReasonView(OfGraph):
    id: UUID
    label: str = Field(description="Of the concept that the relation comes from")
    type: str
    confidence: float
    documents: int
    stance: float = Field(description="Of the type: 1 is for, −1 against")
    by: Literal["embedding", "words"] = Field(description="What the stance follows from")
    weight: float = Field(description="What it adds to support, or below 0 to contradiction")


class MeasuredView(OfGraph):
    grounding: GroundingView
    confidence: ConfidenceView


class ExplainedView(MeasuredView):
    reasons: list[ReasonView] = Field(description="The relations that count most")


class TypeView(OfGraph):
    name: str
    category: str
    active: bool
    merged_into: str | None
    relations: int
    stance: float
    stance_by: Literal["embedding", "words"]
    embedding_model: str | None
    scores: dict[str, float] | None = Field(description="Its likeness to each category")
    best: str | None
    ambiguous: bool
    epistemic: Epistemic | None = Field(description="What its targets rest on, by a sample")
    grounding: float | None
    sampled: int | None


class MergeTypes(Body):
    merged: Line = Field(examples=["EMPLOYS"], description="The type that goes")
    survivor: Line = Field(examples=["USES"], description="The type that stays")


class MergeView(OfGraph):
    id: int
    merged: str
    survivor: str
    similarity: float | None
    made_by: str
    made_at: datetime
    undone_by: str | None
    undone_at: datetime | None
    relations: int = Field(description="That were rewritten")
    united: int = Field(description="Of these, that were there in both types")


class KeptArtifact(OfGraph):
    id: UUID
    kind: str
    name: str
    ontology: str | None
    parameters: dict[str, Any]
    as_of_epoch: int
    media_type: str = Field(description="Of its data")
    has_content: bool
    size: int | None = Field(description="Bytes of its data; null if it has none")
    created_at: datetime
    expires_at: datetime | None
