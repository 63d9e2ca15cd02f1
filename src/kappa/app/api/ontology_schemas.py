"""Ontologies and proposals over the wire."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from kappa.app.api.schemas import Body, Line
from kappa.graph.model import ProposalKind, ProposalState


class OntologyDetail(BaseModel):
    """An ontology, and how much is in it."""

    model_config = ConfigDict(from_attributes=True)

    name: str
    description: str
    documents: int
    concepts: int
    evidence: int
    relations: int


class RenameOntology(Body):
    name: Line = Field(description="Its new name; ids stay")


class ProposalView(BaseModel):
    """A change of ontologies that somebody should think about."""

    model_config = ConfigDict(from_attributes=True)

    id: int
    kind: ProposalKind
    state: ProposalState
    ontology: str | None = Field(description="By its name now; null once it is gone")
    body: dict[str, Any] = Field(description="What is to be done")
    scores: dict[str, Any] = Field(description="Why: figures and examples")
    created_at: datetime
    decided_by: str | None
    decided_at: datetime | None
    executed_at: datetime | None
    undone_at: datetime | None
    error: str | None = Field(description="Why it could not be carried out, or undone")
