"""The graph on the wire: questions, answers, what is written. A concept is named by its id or its label."""

from typing import TYPE_CHECKING, Annotated, Literal, Self
from uuid import UUID

from pydantic import BaseModel, Field, StringConstraints, model_validator

from kappa.app.api.measure_schemas import ExplainedView, MeasuredView, OfGraph
from kappa.app.api.schemas import NO_NUL, Body, Line, Word
from kappa.graph.config import MAX_HOPS, MAX_LIMIT, MAX_PATH_HOPS, MAX_PATHS, MAX_SEEDS, TIMEOUT, WORKERS
from kappa.graph.model import Direction, NewConcept, Order, Where, Written

if TYPE_CHECKING:
    from kappa.app.usecases.graph import GraphNow, Link, LiveSettings, Walk

AT_ONCE = 10_000
"""Concepts or relations in one request."""
MAX_AROUND = 100
"""Neighbours of each concept on a path."""
LEAST_DEADLINE = 1.0

ConceptName = Annotated[Line, Field(description="A concept's id, or its label", examples=["Otter"])]
Share = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Hops = Annotated[int, Field(strict=True, ge=1, le=MAX_HOPS)]
PathHops = Annotated[int, Field(strict=True, ge=1, le=MAX_PATH_HOPS)]
Limit = Annotated[int, Field(strict=True, ge=1, le=MAX_LIMIT)]
Names = Annotated[list[Line], Field(min_length=1, max_length=500)]
Seeds = Annotated[list[ConceptName], Field(min_length=1, max_length=MAX_SEEDS)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Vector = Annotated[list[Number], Field(min_length=1, max_length=8192)]


class WhereBody(Body):
    """What may be walked through. Labels are looked for in these ontologies, if there are some."""

    ontologies: Names | None = None
    min_confidence: Share = Field(default=0.0, description="Of relations")
    categories: Names | None = Field(default=None, description="Of relation types")

    @property
    def value(self) -> Where:
        return Where(self.ontologies, self.min_confidence, self.categories)


class Question(Body):
    """What every question may say."""

    deadline: Annotated[float, Field(strict=True, ge=LEAST_DEADLINE, le=TIMEOUT[1], allow_inf_nan=False)] | None = (
        Field(default=None, description="Seconds for the whole of it; the server's time-out if not given")
    )
    min_epoch: Annotated[int, Field(strict=True, ge=0, lt=2**63)] | None = Field(
        default=None, description="The answer must have seen this epoch, as a write returned it"
    )
    where: WhereBody | None = None

    @property
    def passing(self) -> Where | None:
        return None if self.where is None else self.where.value


class WalkingQuestion(Question):
    direction: Direction = "both"
    relation_types: Names | None = Field(default=None, description="Only relations of these types")

    @property
    def walk(self) -> "Walk":
        from kappa.app.usecases.graph import Walk  # what asks brings the driver along; who only speaks HTTP has none

        return Walk(self.direction, self.relation_types, self.passing)


class AskNeighbors(WalkingQuestion):
    seeds: Seeds
    max_hops: Hops = 1
    order: Order = Field(default=Order.DEGREE, description="What stands first, and stays when the answer is cut")
    limit: Limit = 100


Measures = Annotated[
    bool, Field(strict=True, description="Say of the first hundred concepts how well they are founded")
]


class AskRelated(WalkingQuestion):
    concept: ConceptName
    max_hops: Hops = 2
    limit: Limit = 50
    measures: Measures = False


class AskSubgraph(WalkingQuestion):
    seeds: Seeds
    max_hops: Hops = 1
    limit: Limit = 100


class AskDiversity(WalkingQuestion):
    concept: ConceptName
    max_hops: Hops = 2
    limit: Limit = 200


class PathQuestion(WalkingQuestion):
    max_hops: PathHops = 6
    count: Annotated[int, Field(strict=True, ge=1, le=MAX_PATHS)] = Field(
        default=1, description="So many, the shortest"
    )
    measures: Measures = False


class AskPath(PathQuestion):
    start: ConceptName
    goal: ConceptName


class AskEnrichedPath(PathQuestion):
    start: ConceptName | None = Field(default=None, description="Required, unless `from_id` says it")
    goal: ConceptName | None = Field(default=None, description="Required, unless `to_id` says it")
    around_hops: Hops | None = Field(default=None, description="1 if neither this nor `depth` says it")
    around_limit: Annotated[int, Field(strict=True, ge=1, le=MAX_AROUND)] = 10
    from_id: ConceptName | None = Field(default=None, description="Another name of `start`")
    to_id: ConceptName | None = Field(default=None, description="Another name of `goal`")
    depth: Hops | None = Field(default=None, description="Another name of `around_hops`")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        for one, other in (("start", "from_id"), ("goal", "to_id"), ("around_hops", "depth")):
            first, second = getattr(self, one), getattr(self, other)
            if first is not None and second is not None and first != second:
                raise ValueError(
                    f"{one} is {first!r} and {other} is {second!r}, which means the same: send one of them"
                )
            if first is None and second is None and one != "around_hops":
                raise ValueError(f"{one} is missing: send {one}, or {other}, which means the same")
        return self

    @property
    def ends(self) -> tuple[str, str]:
        start, goal = self.start or self.from_id, self.goal or self.to_id
        assert start is not None
        assert goal is not None
        return start, goal

    @property
    def hops_around(self) -> int:
        return self.around_hops or self.depth or 1


class AskPolarity(WalkingQuestion):
    positive: ConceptName = Field(examples=["Hot"])
    negative: ConceptName = Field(examples=["Cold"])
    candidates: Seeds | None = Field(default=None, description="These; else what is within `max_hops` of the poles")
    max_hops: Hops = 2
    limit: Limit = 50


class AskSearch(Question):
    text: Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=NO_NUL)] | None = None
    vector: Vector | None = Field(default=None, description="An embedding of the model `model`")
    model: Line | None = None
    like: ConceptName | None = Field(default=None, description="Concepts like this one, by its embedding")
    limit: Limit = 20
    min_similarity: Annotated[float, Field(strict=True, ge=-1, le=1, allow_inf_nan=False)] = Field(
        default=0.0, description="With `vector` or `like`: nothing less similar counts as near"
    )
    measures: Measures = False


class ConceptView(OfGraph):
    id: UUID
    label: str
    description: str
    ontology: str
    search_terms: list[str]
    measured: MeasuredView | None = Field(default=None, description="Where it was asked for")


class SkippedView(OfGraph):
    what: str
    why: str


class AnswerView(OfGraph):
    as_of_epoch: int = Field(description="What was committed up to there is in it, and nothing after")
    complete: bool
    skipped: list[SkippedView] = Field(description="What is missing, and why")
    served_by: Literal["snapshot", "sql"]


class NeighborView(OfGraph):
    concept: ConceptView
    hop: int
    degree: int = Field(description="All its relations, in and out")


class RelationView(OfGraph):
    from_id: UUID
    to_id: UUID
    type: str
    confidence: float
    category: str


class NeighborsView(AnswerView):
    items: list[NeighborView]
    found: int = Field(description="How many there are; `items` may have been cut")


class RelatedConceptView(NeighborView):
    types: list[str] = Field(description="The relation types on one shortest way to it")


class RelatedView(AnswerView):
    items: list[RelatedConceptView]
    found: int


class SubgraphView(AnswerView):
    concepts: list[NeighborView] = Field(description="The seeds at hop 0, then the others")
    relations: list[RelationView]
    found: int


class DiversityView(AnswerView):
    concepts: int
    embedded: int = Field(description="How many of them have an embedding of the model that most have")
    score: float | None = Field(description="The mean of 1 − cosine over all pairs; null below two embeddings")
    ontologies: int
    type_entropy: float = Field(description="Of the relation types around the concept itself, in bits")


class PathView(OfGraph):
    hops: int
    concepts: list[ConceptView]
    relations: list[list[RelationView]] = Field(description="All that are allowed between each two, in their order")


class PathsView(AnswerView):
    items: list[PathView]


class EnrichedPathsView(PathsView):
    around: dict[UUID, list[NeighborView]] = Field(description="The neighbourhood of each concept on the paths")


class PolarityItemView(OfGraph):
    concept: ConceptView
    position: float = Field(description="On the axis: 1 is the positive pole, −1 the negative one")
    direction: Literal["positive", "negative", "neutral"]
    distance: float = Field(description="From the axis")
    hop: int | None
    grounding: float | None


class PolarityView(AnswerView):
    positive: ConceptView
    negative: ConceptView
    model: str
    length: float = Field(description="Between the poles")
    items: list[PolarityItemView]
    without_embedding: int = Field(description="Candidates that have no embedding of the model")
    mean: float | None
    spread: float | None
    correlation: float | None = Field(description="Of positions with groundings; null where there are too few")


class SearchHitView(OfGraph):
    concept: ConceptView
    score: float
    similarity: float | None
    matched: list[str]


class SearchView(AnswerView):
    items: list[SearchHitView]
    model: str | None


class EvidenceView(OfGraph):
    quote: str
    document: UUID
    document_name: str
    ordinal: int
    start: int = Field(description="Characters of the document's text")
    end: int


class ConceptDetail(BaseModel):
    concept: ConceptView
    measured: ExplainedView = Field(description="How well it is founded, and why")
    evidence: list[EvidenceView]


class RelationTypeView(OfGraph):
    name: str
    category: str
    active: bool
    merged_into: str | None


class OntologyView(OfGraph):
    id: UUID
    name: str
    description: str


class ConceptBody(Body):
    label: Line
    description: Word = ""
    search_terms: list[Line] = Field(default_factory=list[str], max_length=100)
    embedding: Vector | None = Field(default=None, description="Of the model `embedding_model`")


class AddConcepts(Body):
    ontology: Line = Field(examples=["zoology"], description="Made if there is none")
    concepts: list[ConceptBody] = Field(min_length=1, max_length=AT_ONCE, examples=[[{"label": "Otter"}]])
    embedding_model: Line | None = Field(default=None, description="Without it embeddings are not kept")

    @property
    def vectors(self) -> dict[str, list[float]]:
        return {one.label: one.embedding for one in self.concepts if one.embedding is not None}

    @property
    def value(self) -> list[NewConcept]:
        return [NewConcept(one.label, one.description, one.search_terms) for one in self.concepts]


class RelationBody(Body):
    start: Line = Field(alias="from", description="A concept's id, or its label in `ontology`")
    goal: Line = Field(alias="to")
    type: Line = Field(examples=["LIVES_IN"])
    confidence: Share = 1.0
    category: Line | Literal[""] = Field(default="", description="Of the type, if it is a new one")
    provenance: Word = ""


class AddRelations(Body):
    ontology: Line | None = Field(default=None, description="Whose labels they are; ids need none")
    relations: list[RelationBody] = Field(min_length=1, max_length=AT_ONCE)

    @property
    def value(self) -> "list[Link]":
        from kappa.app.usecases.graph import Link

        return [Link(**dict(one)) for one in self.relations]


class WrittenView(BaseModel):
    epoch: int = Field(description="Questions with this `min_epoch` see it")
    ids: dict[str, UUID] = Field(description="The concepts that were named, by label")
    concepts: int = Field(description="How many are new")
    relations: int

    @classmethod
    def of(cls, written: Written) -> "WrittenView":
        return cls(
            epoch=written.epoch, ids=dict(written.ids), concepts=written.concepts, relations=written.relations
        )  # fmt: skip


class SnapshotView(OfGraph):
    state: Literal["off", "absent", "ready", "too large"]
    kernel: Literal["c", "numpy"]
    epoch: int | None
    nodes: int
    edges: int
    bytes: int
    builds: int
    refreshes: int
    compactions: int
    last_refresh: float = Field(description="Seconds")


class VectorsView(OfGraph):
    model: str
    state: Literal["reading", "ready", "too large"]
    epoch: int | None
    concepts: int
    bytes: int


class BudgetView(OfGraph):
    workers: int
    busy: int
    lanes: int = Field(description="For questions that found no worker free")
    lanes_busy: int


class GraphStatus(BaseModel):
    epoch: int = Field(description="The database's")
    snapshot: SnapshotView = Field(description="Of the server that answers")
    vectors: list[VectorsView] = Field(description="Embeddings in its memory, by model")
    budget: BudgetView
    waiting: int = Field(description="Questions that wait for their turn")
    settings: "GraphSettings"

    @classmethod
    def of(cls, epoch: int, now: "GraphNow", settings: "LiveSettings") -> "GraphStatus":
        return cls(
            epoch=epoch, snapshot=SnapshotView.model_validate(now.snapshot),
            vectors=[VectorsView.model_validate(one) for one in now.vectors],
            budget=BudgetView.model_validate(now.budget), waiting=now.waiting,
            settings=GraphSettings.of(settings),
        )  # fmt: skip


class GraphSettings(BaseModel):
    workers: int = Field(description="What counts on this server")
    timeout: float
    stored_workers: int | None = Field(description="What stands in the database, for every server")
    stored_timeout: float | None

    @classmethod
    def of(cls, settings: "LiveSettings") -> "GraphSettings":
        return cls(
            workers=settings.workers, timeout=settings.timeout, stored_workers=settings.stored_workers,
            stored_timeout=settings.stored_timeout,
        )  # fmt: skip


class EditGraphSettings(Body):
    """What is left out stays; null leaves it to each server's own configuration."""

    workers: Annotated[int, Field(strict=True, ge=WORKERS[0], le=WORKERS[-1])] | None = None
    timeout: Annotated[float, Field(strict=True, ge=TIMEOUT[0], le=TIMEOUT[1], allow_inf_nan=False)] | None = Field(
        default=None, description="Seconds"
    )

    def changes(self) -> dict[str, float | None]:
        return {name: getattr(self, name) for name in self.model_fields_set}
