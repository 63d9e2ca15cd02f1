"""Kinds that measure the graph on a schedule: one that would find it as its last run left it has nothing to do.

The leader asks, and makes no job; a run that was launched all the same asks once more, and ends as `skipped`.
"""

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from kappa.app.kinds.asked import Asked
from kappa.graph.store import vocabulary
from kappa.pg.ops import Op

if TYPE_CHECKING:
    from kappa.graph import Graph

R = TypeVar("R", bound="Result")


class Periodic(Asked):
    """What a schedule may say."""

    only_if_changed: bool = False
    """Do nothing if the graph has not changed since the last run with the same parameters."""


class Result(BaseModel):
    skipped: str | None = None
    """Why there was nothing to do."""


def parameters_of(asked: Periodic) -> dict[str, Any]:
    return asked.model_dump(exclude={"only_if_changed"})


def if_changed(kind: str, asked: Periodic | None) -> Op[bool] | None:
    """For `needed`: whether there is anything new; None where nobody wants to know."""
    if asked is None or not asked.only_if_changed:
        return None
    return vocabulary.changed(kind, parameters_of(asked))


def last_run(graph: "Graph", kind: str, asked: Periodic, result: type[R]) -> R | None:
    """What the last run found, if that is all there is to find and nobody insists."""
    if not asked.only_if_changed:
        return None
    last = graph.last_measured(kind)
    if last is None or last.parameters != parameters_of(asked) or last.epoch != graph.epoch():
        return None
    return result.model_validate({**last.result, "skipped": f"nothing has changed since epoch {last.epoch}"})


def keep_run(graph: "Graph", kind: str, asked: Periodic, epoch: int, result: Result) -> None:
    graph.set_measured(kind, parameters_of(asked), epoch, result.model_dump(mode="json", exclude={"skipped"}))
