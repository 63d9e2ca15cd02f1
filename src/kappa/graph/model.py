"""The words of the graph: what is written, what is asked, what is answered.

A concept is known by its `id`, a UUID that follows from its ontology and label. Inside, and in arrays, it is a
`node`: the integer of its row. Confidence is kept in hundredths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal
from uuid import UUID

from kappa.graph.findings import Measured

Direction = Literal["out", "in", "both"]
ServedBy = Literal["snapshot", "sql"]
ProposalKind = Literal["merge", "split", "rename", "dissolve"]
ProposalState = Literal["pending", "approved", "rejected", "executed", "failed", "undone"]


class Order(StrEnum):
    """What stands first in an answer, and stays when it is cut. Degree: all relations of a concept, in and out."""

    DEGREE = "degree"
    """Highest degree first, then lowest node."""
    HOP = "hop"
    """Fewest hops first, then highest degree, then lowest node."""


@dataclass(frozen=True, slots=True)
class Ontology:
    """A named part of the graph."""

    id: UUID
    name: str
    description: str
    number: int
    """What its rows and the snapshot know it by."""


@dataclass(frozen=True, slots=True)
class NewConcept:
    """A concept to be written: made, or found by its label."""

    label: str
    description: str = ""
    search_terms: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class NewRelation:
    """A relation between two concepts that are in the graph, each by its id."""

    from_id: UUID
    to_id: UUID
    type: str
    confidence: float = 1.0
    category: str = ""
    provenance: str = ""


@dataclass(frozen=True, slots=True)
class NewInstance:
    """A quote that speaks of a concept; offsets are characters of the document's text."""

    label: str
    quote: str
    start: int


@dataclass(frozen=True, slots=True)
class NewLink:
    """A relation of a chunk, between concepts that it names by their labels, or others by id."""

    from_label: str | UUID
    to_label: str | UUID
    type: str
    confidence: float = 1.0
    category: str = ""


@dataclass(frozen=True, slots=True)
class NewDocument:
    """A document's text, as offsets count it, and its bytes as they came."""

    name: str
    text: str
    media_type: str = "text/plain"
    original: bytes | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one stretch of a document says. It is written whole or not at all."""

    document: UUID
    ordinal: int
    start: int
    end: int
    concepts: Sequence[NewConcept] = ()
    instances: Sequence[NewInstance] = ()
    relations: Sequence[NewLink] = ()
    matched: Mapping[str, UUID] = field(default_factory=dict[str, UUID])
    """Labels of this chunk that name concepts which are there already, under labels of their own."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a write came to, and the epoch from which on it is seen."""

    epoch: int
    ids: Mapping[str, UUID] = field(default_factory=dict[str, UUID])
    """The concepts of the write, by label."""
    concepts: int = 0
    """How many concepts are new, and so on."""
    instances: int = 0
    relations: int = 0


@dataclass(frozen=True, slots=True)
class ChunkCounts:
    """What a chunk came to."""

    concepts: int = 0
    """How many are new, and so on."""
    instances: int = 0
    relations: int = 0
    matched: int = 0
    """Labels that named a concept which was there under another one."""
    dropped: int = 0
    """What the provider said that could not be kept: quotes that don't stand in the text, relations of nothing."""

    def __add__(self, other: "ChunkCounts") -> "ChunkCounts":
        return ChunkCounts(
            self.concepts + other.concepts,
            self.instances + other.instances,
            self.relations + other.relations,
            self.matched + other.matched,
            self.dropped + other.dropped,
        )


@dataclass(frozen=True, slots=True)
class Document:
    """A document of the graph."""

    id: UUID
    ontology: str
    name: str
    media_type: str
    characters: int


@dataclass(frozen=True, slots=True)
class Passage:
    """A stretch of a document's text, and at which character it begins."""

    document: Document
    start: int
    text: str


@dataclass(frozen=True, slots=True)
class Instance:
    """An evidence quote, with where it stands."""

    quote: str
    document: UUID
    document_name: str
    ordinal: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Concept:
    """A concept as it is now."""

    id: UUID
    node: int
    label: str
    description: str
    ontology: str
    search_terms: tuple[str, ...] = ()
    measured: Measured | None = None
    """Where it was asked for."""


@dataclass(frozen=True, slots=True)
class RelationType:
    """A word of the vocabulary."""

    number: int
    name: str
    category: str
    active: bool
    merged_into: str | None


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation as it is now."""

    from_id: UUID
    to_id: UUID
    type: str
    confidence: float
    category: str


@dataclass(frozen=True, slots=True)
class Where:
    """What may be walked through. A concept that doesn't pass is neither found nor walked through; seeds pass."""

    ontologies: Sequence[str] | None = None
    min_confidence: float = 0.0
    """Of relations, in steps of a hundredth."""
    categories: Sequence[str] | None = None
    """Of relation types."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A part of a question that has no answer, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What is true of every answer."""

    as_of_epoch: int
    complete: bool
    skipped: tuple[Skipped, ...]
    served_by: ServedBy


@dataclass(frozen=True, slots=True)
class Neighbor:
    """A concept, and how many hops it is away from the nearest seed."""

    concept: Concept
    hop: int
    degree: int


@dataclass(frozen=True, slots=True)
class Neighbors(Answer):
    """Concepts around seeds, ordered and cut by the order that was asked for."""

    items: tuple[Neighbor, ...]
    found: int
    """How many there are; `items` may have been cut."""


@dataclass(frozen=True, slots=True)
class Path:
    """A walk without a concept twice. `relations[i]` are all that are allowed between `concepts[i]` and the next."""

    concepts: tuple[Concept, ...]
    relations: tuple[tuple[Relation, ...], ...]

    @property
    def hops(self) -> int:
        return len(self.relations)


@dataclass(frozen=True, slots=True)
class Paths(Answer):
    """The shortest paths: fewest hops first, then by their nodes in turn."""

    items: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class EnrichedPaths(Answer):
    """Paths, and around each concept on them its neighbourhood."""

    items: tuple[Path, ...]
    around: Mapping[UUID, tuple[Neighbor, ...]]


@dataclass(frozen=True, slots=True)
class Subgraph(Answer):
    """Concepts and the relations among them, for drawing."""

    concepts: tuple[Neighbor, ...]
    """The seeds at hop 0, then the others as in `neighbors`."""
    relations: tuple[Relation, ...]
    found: int


@dataclass(frozen=True, slots=True)
class RelatedConcept:
    """A concept and one shortest way to it: the lowest nodes, the lowest type between each two."""

    concept: Concept
    hop: int
    degree: int
    types: tuple[str, ...]
    """The relation types on the way from the seed."""


@dataclass(frozen=True, slots=True)
class Related(Answer):
    """Concepts related to one, nearest first."""

    items: tuple[RelatedConcept, ...]
    found: int


@dataclass(frozen=True, slots=True)
class Diversity(Answer):
    """How unlike each other the concepts around one are."""

    concepts: int
    embedded: int
    """How many of them have an embedding of the model that most have."""
    score: float | None
    """The mean of 1 − cosine over all pairs; None below two embeddings."""
    ontologies: int
    type_entropy: float
    """Of the relation types around the concept itself, in bits."""


Matched = Literal["label", "terms", "description", "vector"]


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A concept that was found, and by what."""

    concept: Concept
    score: float
    similarity: float | None
    """The cosine, in millionths; None where there was no vector to compare with."""
    matched: tuple[Matched, ...]


@dataclass(frozen=True, slots=True)
class SearchAnswer(Answer):
    """Concepts that were found: the highest score first, then the lowest node."""

    items: tuple[SearchHit, ...]
    model: str | None
    """The embedding model whose vectors were compared."""


@dataclass(frozen=True, slots=True)
class PolarityItem:
    """Where a concept stands between two poles."""

    concept: Concept
    position: float
    """Along the axis: 1 at the positive pole, -1 at the negative one, 0 in the middle; it may be beyond either."""
    direction: Literal["positive", "negative", "neutral"]
    """Neutral from -0.3 to 0.3."""
    distance: float
    """From the axis, in the same units."""
    hop: int | None
    """From the nearer pole; None for a candidate that was given."""
    grounding: float | None
    """None where there was no time to measure it."""


@dataclass(frozen=True, slots=True)
class Polarity(Answer):
    """Concepts along the axis between two: the most positive first, then the lowest node."""

    positive: Concept
    negative: Concept
    model: str
    length: float
    """Of the axis: how far the embeddings of the poles are from each other."""
    items: tuple[PolarityItem, ...]
    without_embedding: int
    """Candidates that have no embedding of this model."""
    mean: float | None
    """Of the positions; None if there are none."""
    spread: float | None
    """Their standard deviation."""
    correlation: float | None
    """Of the positions with the groundings, by Pearson; None below three concepts, or where either is all the same."""


@dataclass(frozen=True, slots=True)
class VectorStatus:
    """The embeddings of one model that this process keeps, for metrics."""

    model: str
    dimension: int
    state: Literal["reading", "ready", "too large"]
    epoch: int | None
    concepts: int
    bytes: int
    builds: int
    refreshes: int


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """The snapshot of this process, for metrics."""

    state: Literal["off", "absent", "ready", "too large"]
    kernel: Literal["c", "numpy"]
    epoch: int | None
    nodes: int
    edges: int
    bytes: int
    changed_edges: int
    """Edges of lists that were changed since the snapshot was built or compacted."""
    builds: int
    refreshes: int
    compactions: int
    last_refresh: float
    """Seconds that the last refresh took."""
