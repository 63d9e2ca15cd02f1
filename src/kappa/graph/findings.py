"""What measuring the graph comes to: artifacts, which keep it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
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
