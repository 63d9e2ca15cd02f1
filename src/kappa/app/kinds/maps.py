"""The kinds that draw: projection and polarity. Their results are artifacts, one for a question and a graph."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field, model_validator

from kappa.app.kinds.asked import Asked
from kappa.app.kinds.workshop import Workshop
from kappa.engine import Engine, JobContext, JobFailed, Schedule
from kappa.graph.config import MAX_HOPS, MOST_MAPPED
from kappa.graph.errors import BadQuestion, UnknownConcept, UnknownOntology, UnknownRelationType
from kappa.graph.model import Direction, Where
from kappa.graph.store import artifacts
from kappa.pg.ops import Op

if TYPE_CHECKING:
    from kappa.graph import Graph

REFUSED = (BadQuestion, UnknownConcept, UnknownOntology, UnknownRelationType)
EVERY = 10
"""Rounds between two words of progress."""


class Project(Asked):
    """Which map."""

    ontology: str | None = None
    model: str | None = None
    """Whose embeddings; those that most concepts have if not given."""
    way: Literal["tsne", "pca"] = "tsne"
    most: Annotated[int, Field(ge=1, le=20_000)] = 1_000
    """Concepts, the best connected."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    keep_days: Annotated[int, Field(ge=1, le=3650)] | None = None
    only_if_changed: bool = False
    """A graph without embeddings, or whose map is there, is nothing to do."""

    @model_validator(mode="after")
    def _not_too_many(self) -> "Project":
        if self.most > MOST_MAPPED[self.way]:
            raise ValueError(
                f"{self.most} concepts by {self.way} are too many: {MOST_MAPPED[self.way]} at most, "
                f"{MOST_MAPPED['pca']} by pca"
            )
        return self


class AskedPolarity(Asked):
    """Which axis; concepts by id, or by a label that only one has."""

    positive: Annotated[str, Field(min_length=1, max_length=1000)]
    negative: Annotated[str, Field(min_length=1, max_length=1000)]
    candidates: Annotated[list[str], Field(max_length=1000)] | None = None
    max_hops: Annotated[int, Field(ge=1, le=MAX_HOPS)] = 2
    direction: Direction = "both"
    relation_types: list[str] | None = None
    ontologies: list[str] | None = None
    min_confidence: Annotated[float, Field(ge=0, le=1)] = 0.0
    limit: Annotated[int, Field(ge=1, le=1000)] = 50


class Drawn(BaseModel):
    artifact: UUID | None = None
    """`kg artifact save` writes its picture."""
    skipped: str | None = None
    incomplete: list[str] = []
    """What the answer lacks, such as what the deadline left no time for: ask again."""


SCHEDULE = Schedule("projection", "57 3 * * *", "projection", {"only_if_changed": True, "keep_days": 30})


def declare(engine: Engine, shop: Workshop) -> None:
    def projection(ctx: JobContext, asked: Project | None) -> Drawn:
        return project(ctx, shop.graph, asked or Project())

    def polarity(ctx: JobContext, asked: AskedPolarity) -> Drawn:
        return place(ctx, shop.graph, asked)

    engine.job("projection", timeout=timedelta(minutes=30), idempotent=True, needs_database=True, needed=unmapped)(
        projection
    )
    engine.job("polarity", timeout=timedelta(minutes=10), idempotent=True, needs_database=True)(polarity)
    engine.schedule(SCHEDULE)


def unmapped(asked: Project | None) -> Op[bool] | None:
    """For `needed`: whether there would be a new map."""
    if asked is None or not asked.only_if_changed:
        return None
    about = {"way": asked.way, "most": asked.most, "seed": asked.seed}
    return artifacts.unmapped(asked.ontology, about if asked.model is None else {**about, "model": asked.model})


def project(ctx: JobContext, graph: "Graph", asked: Project) -> Drawn:
    """The best connected concepts on a plane, by their embeddings."""

    def step(done: float, total: float, what: str) -> None:
        ctx.raise_if_cancelled()
        if done % EVERY == 0 or done + 1 >= total:
            ctx.progress(done, total, what)

    keep = None if asked.keep_days is None else timedelta(days=asked.keep_days)
    try:
        return Drawn(
            artifact=graph.project(
                ontology=asked.ontology, model=asked.model, way=asked.way, most=asked.most, seed=asked.seed, keep=keep,
                step=step,
            )
        )  # fmt: skip
    except REFUSED as refused:
        if asked.only_if_changed:
            return Drawn(skipped=str(refused))
        raise JobFailed(str(refused), retry=False) from None


def place(ctx: JobContext, graph: "Graph", asked: AskedPolarity) -> Drawn:
    """Where concepts stand between two others."""
    ctx.progress(0, 2, "asking")
    try:
        plus, minus = (_concept(graph, name, asked.ontologies) for name in (asked.positive, asked.negative))
        chosen = None
        if asked.candidates is not None:
            chosen = [_concept(graph, name, asked.ontologies) for name in asked.candidates]
        found = graph.polarity(
            plus, minus, candidates=chosen, max_hops=asked.max_hops, direction=asked.direction,
            relation_types=asked.relation_types, where=Where(asked.ontologies, asked.min_confidence), limit=asked.limit,
        )  # fmt: skip
    except REFUSED as refused:
        raise JobFailed(str(refused), retry=False) from None
    ctx.raise_if_cancelled()
    ctx.progress(1, 2, "drawing")
    parameters: dict[str, Any] = {
        **asked.model_dump(), "positive": str(plus), "negative": str(minus),
        "candidates": None if chosen is None else sorted(map(str, chosen)),
    }  # fmt: skip
    missing = [f"{one.what}: {one.why}" for one in found.skipped]
    return Drawn(artifact=graph.keep_polarity(found, parameters), incomplete=missing)


def _concept(graph: "Graph", name: str, ontologies: list[str] | None) -> UUID:
    try:
        return UUID(name)
    except ValueError:
        found = [one for one in graph.concept_by_label(name) if ontologies is None or one.ontology in ontologies]
    if not found:
        raise UnknownConcept(f"there is no concept {name!r}")
    if len(found) > 1:
        raise BadQuestion(f"{name!r} is {len(found)} concepts: say which by its id")
    return found[0].id
