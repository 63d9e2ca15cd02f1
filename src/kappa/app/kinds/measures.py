"""The kinds that measure the vocabulary: vocab_refresh, vocab_consolidate, epistemic_remeasurement.

Each writes in small transactions, so one that is cancelled leaves a graph that is whole, and the next run
goes on from there.
"""

from collections import Counter
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from kappa.app.kinds.periodic import Periodic, Result, if_changed, keep_run, last_run
from kappa.app.kinds.workshop import Workshop
from kappa.engine import Engine, JobContext, Schedule
from kappa.graph.errors import MissingExtra

if TYPE_CHECKING:
    from kappa.graph import Graph

MOST_MERGES = 65_535
"""There are no more types."""
NEAR = 0.80
"""How like each other types must be to be merged."""


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
    merges: list[int] = Field(default_factory=list[int])
    """Their numbers: each can be undone."""


class Remeasure(Periodic):
    sample: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Relations of each type."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1


class Remeasured(Result):
    types: int = 0
    changed: int = 0
    found: dict[str, int] = Field(default_factory=dict[str, int])
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

    engine.job(
        "vocab_refresh", timeout=timedelta(minutes=30), idempotent=True, needs_database=True,
        needed=partial(if_changed, "vocab_refresh"),
    )(vocab_refresh)  # fmt: skip
    engine.job(
        "vocab_consolidate", timeout=timedelta(hours=2), idempotent=True, approval=True, needs_database=True,
        needed=partial(if_changed, "vocab_consolidate"),
    )(vocab_consolidate)  # fmt: skip
    engine.job(
        "epistemic_remeasurement", timeout=timedelta(hours=1), idempotent=True, needs_database=True,
        needed=partial(if_changed, "epistemic_remeasurement"),
    )(epistemic_remeasurement)  # fmt: skip
    for schedule in SCHEDULES:
        engine.schedule(schedule)


def refresh(ctx: JobContext, shop: Workshop, asked: Refresh) -> Refreshed:
    """Embed what has no embedding, then score every type against the categories' seeds and the axis."""
    graph = shop.graph
    if (last := last_run(graph, ctx.kind, asked, Refreshed)) is not None:
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
    keep_run(graph, ctx.kind, asked, epoch, result)
    return result


def consolidate(ctx: JobContext, shop: Workshop, asked: Consolidate) -> Consolidated:
    """Merge the two types most alike, and again, until there are few enough or none are alike enough."""
    graph = shop.graph
    if (last := last_run(graph, ctx.kind, asked, Consolidated)) is not None:
        return last
    total = len(graph.active_types())
    if total > asked.target:
        try:
            graph.embed_types(shop.embedder)
        except MissingExtra as missing:
            # Those that have an embedding can still be compared.
            ctx.progress(0, None, str(missing))
    while True:
        # Once more after the last merge: only what finds nothing may say that there was nothing at this epoch.
        epoch, gone = graph.epoch(), set[str]()
        active = len(graph.active_types())
        ctx.progress(total - active, max(total - asked.target, 0), f"{active} types")
        for one, other, similarity in graph.alike_types(asked.near) if active > asked.target else ():
            ctx.raise_if_cancelled()
            if one in gone or other in gone:
                continue
            gone.add(graph.unite_types(one, other, by=f"job {ctx.job_id}", similarity=similarity).merged)
            active -= 1
            ctx.progress(total - active, max(total - asked.target, 0), f"{active} types")
            if active <= asked.target:
                break
        if not gone:
            break
    # From the record, which an attempt that died has written as well: it is this job's checkpoint.
    merges = [one.id for one in graph.merges(MOST_MERGES) if one.made_by == f"job {ctx.job_id}"]
    result = Consolidated(active=active, merges=sorted(merges))
    keep_run(graph, ctx.kind, asked, epoch, result)
    return result


def remeasure(ctx: JobContext, graph: "Graph", asked: Remeasure) -> Remeasured:
    """For each type, what the targets of a sample of its relations rest on."""
    if (last := last_run(graph, ctx.kind, asked, Remeasured)) is not None:
        return last
    # In Python's order of names, which is the same wherever the next attempt runs.
    types, known = sorted(graph.active_types(), key=lambda one: one[1]), graph.groundings()
    state: dict[str, Any] = ctx.last_checkpoint() or {"epoch": graph.epoch(), "after": "", "changed": 0, "found": {}}
    found = Counter[str](state["found"])
    for at, (number, name) in enumerate(types):
        if name <= state["after"]:
            continue
        ctx.raise_if_cancelled()
        status, changed = graph.remeasure_type(number, known, sample=asked.sample, seed=asked.seed)
        found[status] += 1
        state = {**state, "after": name, "changed": state["changed"] + changed, "found": dict(found)}
        ctx.checkpoint(state)
        ctx.progress(at + 1, len(types), f"{name}: {status}")
    result = Remeasured(types=len(types), changed=state["changed"], found=dict(sorted(found.items())))
    keep_run(graph, ctx.kind, asked, state["epoch"], result)
    return result
