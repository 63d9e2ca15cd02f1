"""The knowledge graph: concepts, evidence, relations and questions about them. Knows nothing of jobs.

with Graph("postgresql://…") as graph:
    ids = graph.add_concepts("zoology", [NewConcept("Otter"), NewConcept("River")]).ids
    graph.add_relations([NewRelation(ids["Otter"], ids["River"], "LIVES_IN", 0.9)])
    graph.neighbors([ids["Otter"]], max_hops=2)
"""

from typing import TYPE_CHECKING

from kappa import late

if TYPE_CHECKING:
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
    from kappa.graph.graph import Graph
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
        Passage,
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
    from kappa.graph.query.age import AgeBackend, AgeProperties
    from kappa.graph.query.budget import Budget
    from kappa.graph.query.filters import Cancel
    from kappa.graph.schema import COMPONENT

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
    "Passage",
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

# What walks comes last: a program that only migrates needs no numpy and waits for none.
if not TYPE_CHECKING:
    __getattr__ = late.names(
        __name__,
        __all__,
        ("errors", "findings", "model", "config", "schema", "query.filters", "query.budget", "query.age", "graph"),
    )
