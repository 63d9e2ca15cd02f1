"""What measuring the graph comes to: how well a concept is founded, what a type is worth, artifacts that keep it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID


@dataclass(frozen=True, slots=True)
class NewArtifact:
    """A result to be kept. The same kind, ontology, parameters and epoch are the same artifact."""

    kind: str
    as_of_epoch: int
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """JSON values only."""
    name: str = ""
    ontology: str | None = None
    """Of which it goes when that goes; None for the whole graph."""
    content: Any = None
    """A JSON value."""
    data: bytes | None = None
    """Such as a picture of the content."""
    media_type: str = "application/json"
    """Of `data`, or of `content` where there is nothing else."""
    keep: timedelta | None = None
    """How long; None is for good."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A result that is kept, without what is in it."""

    id: UUID
    kind: str
    name: str
    ontology: str | None
    parameters: Mapping[str, Any]
    as_of_epoch: int
    media_type: str
    has_content: bool
    size: int | None
    """Bytes of its data; None if it has none."""
    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Grounding:
    """Whether what comes in speaks for a concept or against it; docs/measures.md has the formula."""

    value: float
    """From -1 to 1; 0 where nothing speaks either way."""
    low: float
    high: float
    """In between it would be with 95 in 100, were the relations a sample of all that could be said."""
    support: float
    """Relations that speak for it, each by its confidence, its documents and the stance of its type."""
    contradiction: float
    supports: int
    """How many relations these are."""
    contradictions: int


@dataclass(frozen=True, slots=True)
class Confidence:
    """How much there is to judge a concept by."""

    value: float
    """From 0 to below 1: each of the counts counts less, the more there is of it."""
    relations: int
    types: int
    """Of its relations, in and out."""
    sources: int
    evidence: int


@dataclass(frozen=True, slots=True)
class Reason:
    """A relation that speaks for a concept, or against it."""

    id: UUID
    label: str
    """Of the concept that it comes from."""
    type: str
    confidence: float
    documents: int
    """That say so."""
    stance: float
    """Of the type: 1 is for, -1 against."""
    by: Literal["embedding", "words"]
    """What the stance follows from."""
    weight: float
    """What it adds to support, or below 0 to contradiction."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A concept's measures, with the strongest of their reasons where these were asked for."""

    grounding: Grounding
    confidence: Confidence
    reasons: tuple[Reason, ...] = ()


Epistemic = Literal["well", "mixed", "weak", "poorly", "contradicted", "insufficient"]


@dataclass(frozen=True, slots=True)
class MeasuredType:
    """A word of the vocabulary with what is known of it."""

    name: str
    category: str
    active: bool
    merged_into: str | None
    relations: int
    stance: float
    stance_by: Literal["embedding", "words"]
    embedding_model: str | None
    scores: Mapping[str, float] | None
    """Its likeness to each category; None before the first vocab_refresh."""
    best: str | None
    ambiguous: bool
    epistemic: Epistemic | None
    grounding: float | None
    """The mean of its sampled targets'."""
    sampled: int | None


@dataclass(frozen=True, slots=True)
class Merge:
    """One type merged into another."""

    id: int
    merged: str
    survivor: str
    similarity: float | None
    made_by: str
    made_at: datetime
    undone_by: str | None
    undone_at: datetime | None
    relations: int
    """That were rewritten."""
    united: int
    """Of these, that were there in both types."""
