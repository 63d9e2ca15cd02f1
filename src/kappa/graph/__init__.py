"""The knowledge graph: concepts, evidence, relations and questions about them. Knows nothing of jobs.

with Graph("postgresql://…") as graph:
    ids = graph.add_concepts("zoology", [NewConcept("Otter"), NewConcept("River")]).ids
    graph.add_relations([NewRelation(ids["Otter"], ids["River"], "LIVES_IN", 0.9)])
    graph.neighbors([ids["Otter"]], max_hops=2)
"""

from typing import TYPE_CHECKING, Any

from kappa.graph.config import GraphConfig
from kappa.graph.errors import (
    BadQuestion,
    BadWrite,
    EpochNotReached,
    ForeignGraph,
    GraphBusy,
    GraphError,
    GraphFailed,
    MissingExtra,
    QuestionStopped,
    UnknownConcept,
    UnknownOntology,
    UnknownRelationType,
)
from kappa.graph.findings import (
    Artifact,
    Confidence,
    Grounding,
    Measured,
    MeasuredType,
    Merge,
    NewArtifact,
    Reason,
)
from kappa.graph.model import (
    Answer,
    Chunk,
    Concept,
    Direction,
    Diversity,
    Document,
    EnrichedPaths,
    Instance,
    Neighbor,
    Neighbors,
    NewConcept,
    NewDocument,
    NewInstance,
    NewLink,
    NewRelation,
    Ontology,
    Order,
    Path,
    Paths,
    Polarity,
    PolarityItem,
    Related,
    RelatedConcept,
    Relation,
    RelationType,
    SearchAnswer,
    SearchHit,
    Skipped,
    SnapshotStatus,
    Subgraph,
    VectorStatus,
    Where,
    Written,
)
from kappa.graph.schema import COMPONENT

if TYPE_CHECKING:
    from kappa.graph.graph import Graph
    from kappa.graph.query.age import AgeBackend, AgeProperties
    from kappa.graph.query.budget import Budget
    from kappa.graph.query.filters import Cancel

__all__ = [
    "COMPONENT",
    "AgeBackend",
    "AgeProperties",
    "Answer",
    "Artifact",
    "BadQuestion",
    "BadWrite",
    "Budget",
    "Cancel",
    "Chunk",
    "Concept",
    "Confidence",
    "Direction",
    "Diversity",
    "Document",
    "EnrichedPaths",
    "EpochNotReached",
    "ForeignGraph",
    "Graph",
    "GraphBusy",
    "GraphConfig",
    "GraphError",
    "GraphFailed",
    "Grounding",
    "Instance",
    "Measured",
    "MeasuredType",
    "Merge",
    "MissingExtra",
    "Neighbor",
    "Neighbors",
    "NewArtifact",
    "NewConcept",
    "NewDocument",
    "NewInstance",
    "NewLink",
    "NewRelation",
    "Ontology",
    "Order",
    "Path",
    "Paths",
    "Polarity",
    "PolarityItem",
    "QuestionStopped",
    "Reason",
    "Related",
    "RelatedConcept",
    "Relation",
    "RelationType",
    "SearchAnswer",
    "SearchHit",
    "Skipped",
    "SnapshotStatus",
    "Subgraph",
    "UnknownConcept",
    "UnknownOntology",
    "UnknownRelationType",
    "VectorStatus",
    "Where",
    "Written",
]


def __getattr__(name: str) -> Any:
    """What walks is imported when it is first named: a program that only migrates needs no numpy and waits for none."""
    if name == "Graph":
        from kappa.graph.graph import Graph

        return Graph
    if name in ("AgeBackend", "AgeProperties"):
        from kappa.graph.query import age

        return getattr(age, name)
    if name == "Budget":
        from kappa.graph.query.budget import Budget

        return Budget
    if name == "Cancel":
        from kappa.graph.query.filters import Cancel

        return Cancel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
