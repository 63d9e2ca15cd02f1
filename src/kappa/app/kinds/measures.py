"""The kinds that measure the vocabulary: vocab_refresh, vocab_consolidate, epistemic_remeasurement.

Each ends at once, as `skipped`, where its schedule launched it and nothing has changed since it ran last with the same
parameters. Each writes in small transactions, so one that is cancelled leaves a graph that is whole, and the next run
goes on from there.
"""

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, Field

from kappa.app.kinds.workshop import Workshop
from kappa.engine import Engine, JobContext, Schedule
from kappa.graph.errors import MissingExtra

if TYPE_CHECKING:
    from kappa.graph import Graph

R = TypeVar("R", bound="Result")

MOST_MERGES = 65_535
"""There are no more types."""
NEAR = 0.80
"""How like each other types must be to be merged."""


class Periodic(BaseModel):
    """What a schedule may say."""

    only_if_changed: bool = False
    """End at once if the graph has not changed since the last run."""


class Result(BaseModel):
    skipped: str | None = None
    """Why there was nothing to do."""


class Refresh(Periodic):
    pass


class Refreshed(Result):
    types: int = 0
    embedded: int = 0
    """Types that had no embedding."""
    changed: int = 0
    categorised: int = 0
    """Types that had no category."""
    ambiguous: int = 0


class Consolidate(Periodic):
    target: Annotated[int, Field(ge=1, le=65_535)] = 40
    """So many active types are few enough."""
    near: Annotated[float, Field(ge=0.5, le=1)] = NEAR


class Consolidated(Result):
    active: int = 0
    """Types that are left."""
    merges: list[int] = []
    """Their numbers: each can be undone."""


class Remeasure(Periodic):
    sample: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Relations of each type."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1


class Remeasured(Result):
    types: int = 0
    changed: int = 0
    found: dict[str, int] = {}
    """How many types are so."""


SCHEDULES = (
    Schedule("vocab_refresh", "17 3 * * *", "vocab_refresh", {"only_if_changed": True}),
    Schedule("epistemic_remeasurement", "37 3 * * *", "epistemic_remeasurement", {"only_if_changed": True}),
    # It rewrites relations, so somebody has to want it.
    Schedule("vocab_consolidate", "17 4 * * 0", "vocab_consolidate", {"only_if_changed": True}, enabled=False),
)


def declare(engine: Engine, shop: Workshop) -> None:
    def vocab_refresh(ctx: JobContext, asked: Refresh | None) -> Refreshed:
        return refresh(ctx, shop, asked or Refresh())

    def vocab_consolidate(ctx: JobContext, asked: Consolidate | None) -> Consolidated:
        return consolidate(ctx, shop, asked or Consolidate())

    def epistemic_remeasurement(ctx: JobContext, asked: Remeasure | None) -> Remeasured:
        return remeasure(ctx, shop.graph, asked or Remeasure())

    engine.job("vocab_refresh", timeout=timedelta(minutes=30), idempotent=True, needs_database=True)(vocab_refresh)
    engine.job("vocab_consolidate", timeout=timedelta(hours=2), idempotent=True, approval=True, needs_database=True)(
        vocab_consolidate
    )
    engine.job("epistemic_remeasurement", timeout=timedelta(hours=1), idempotent=True, needs_database=True)(
        epistemic_remeasurement
    )
    for schedule in SCHEDULES:
        engine.schedule(schedule)


def refresh(ctx: JobContext, shop: Workshop, asked: Refresh) -> Refreshed:
    """Embed what has no embedding, then score every type against the categories' seeds and the axis."""
    graph = shop.graph
    if (last := _last(graph, ctx.kind, {}, asked, Refreshed)) is not None:
        return last
    if not graph.active_types():
        return Refreshed(skipped="there are no relation types")
    ctx.progress(0, 2, "embedding types")
    try:
        embedder = shop.embedder
    except MissingExtra as missing:
        if not asked.only_if_changed:
            raise
        return Refreshed(skipped=str(missing))
    embedded = graph.embed_types(embedder)
    ctx.raise_if_cancelled()
    ctx.progress(1, 2, "scoring types")
    epoch = graph.epoch()
    result = Refreshed.model_validate({"embedded": embedded, **graph.score_types(embedder.model)})
    ctx.progress(2, 2, f"{result.types} types, {result.ambiguous} ambiguous")
    _keep(graph, ctx.kind, {}, epoch, result)
    return result


def consolidate(ctx: JobContext, shop: Workshop, asked: Consolidate) -> Consolidated:
    """Merge the two types most alike, and again, until there are few enough or none are alike enough."""
    graph = shop.graph
    parameters = asked.model_dump(exclude={"only_if_changed"})
    if (last := _last(graph, ctx.kind, parameters, asked, Consolidated)) is not None:
        return last
    total = len(graph.active_types())
    if total > asked.target:
        try:
            graph.embed_types(shop.embedder)
        except MissingExtra as missing:
            # Those that have an embedding can still be compared.
            ctx.progress(0, None, str(missing))
    while True:
        ctx.raise_if_cancelled()
        epoch = graph.epoch()
        active = len(graph.active_types())
        ctx.progress(total - active, max(total - asked.target, 0), f"{active} types")
        pair = graph.nearest_types(asked.near) if active > asked.target else None
        if pair is None:
            break
        merged, survivor, similarity = pair
        graph.merge_types(merged, survivor, by=f"job {ctx.job_id}", similarity=similarity)
    # From the record, which an attempt that died has written as well: it is this job's checkpoint.
    merges = [one.id for one in graph.merges(MOST_MERGES) if one.made_by == f"job {ctx.job_id}"]
    result = Consolidated(active=active, merges=sorted(merges))
    _keep(graph, ctx.kind, parameters, epoch, result)
    return result


def remeasure(ctx: JobContext, graph: "Graph", asked: Remeasure) -> Remeasured:
    """For each type, what the targets of a sample of its relations rest on."""
    parameters = asked.model_dump(exclude={"only_if_changed"})
    if (last := _last(graph, ctx.kind, parameters, asked, Remeasured)) is not None:
        return last
    # In Python's order of names, which is the same wherever the next attempt runs.
    types = sorted(graph.active_types(), key=lambda one: one[1])
    state: dict[str, Any] = ctx.last_checkpoint() or {"epoch": graph.epoch(), "after": "", "changed": 0, "found": {}}
    found = Counter[str](state["found"])
    for at, (number, name) in enumerate(types):
        if name <= state["after"]:
            continue
        ctx.raise_if_cancelled()
        status, changed = graph.remeasure_type(number, sample=asked.sample, seed=asked.seed)
        found[status] += 1
        state = {**state, "after": name, "changed": state["changed"] + changed, "found": dict(found)}
        ctx.checkpoint(state)
        ctx.progress(at + 1, len(types), f"{name}: {status}")
    result = Remeasured(types=len(types), changed=state["changed"], found=dict(sorted(found.items())))
    _keep(graph, ctx.kind, parameters, state["epoch"], result)
    return result


def _last(graph: "Graph", kind: str, parameters: Mapping[str, Any], asked: Periodic, result: type[R]) -> R | None:
    """What the last run found, if that is all there is to find and nobody insists."""
    if not asked.only_if_changed:
        return None
    last = graph.last_measured(kind)
    if last is None or last.parameters != parameters or last.epoch != graph.epoch():
        return None
    return result.model_validate({**last.result, "skipped": f"nothing has changed since epoch {last.epoch}"})


def _keep(graph: "Graph", kind: str, parameters: Mapping[str, Any], epoch: int, result: Result) -> None:
    graph.set_measured(kind, parameters, epoch, result.model_dump(mode="json", exclude={"skipped"}))
