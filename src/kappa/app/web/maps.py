"""Maps of the graph, and the words that it is told in."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from starlette.responses import Response

from kappa.app.errors import Refused
from kappa.app.permissions import Permission
from kappa.app.usecases.graph import as_id
from kappa.app.web.pages import Pages, Visit
from kappa.graph.measures import pictures

pages = Pages()

KEPT = 20
NAMED = 8
"""Concepts of a cluster that are named beside the map; a hundred of all have their grounding shown."""


@dataclass(frozen=True, slots=True)
class Named:
    """A concept as a map has it: what it was called when the map was drawn."""

    id: UUID
    label: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster of a map, in its colour there."""

    name: str
    size: int
    colour: str
    concepts: list[Named]


@pages.get("/graph/map", Permission.GRAPH_READ)
async def show(visit: Visit) -> Response:
    """The newest map, of all or of one ontology, or the one that is asked for."""
    kept = await visit.services.curation.artifacts("projection", visit.asked("ontology"), KEPT)
    chosen = kept[0] if kept else None
    if (asked := visit.asked("id")) is not None:
        if (key := as_id(asked)) is None:
            raise Refused(f"{asked!r} is no id")
        chosen = await visit.services.curation.artifact(key)
    content: Any = await visit.services.curation.content(chosen.id) if chosen is not None else None
    ontologies = await visit.services.graph.ontologies()
    clusters = _clusters(content) if content is not None else []
    measured = await visit.services.graph.measures([one.id for each in clusters for one in each.concepts])
    return visit.page(
        "map.html", kept=kept, chosen=chosen, content=content, ontologies=ontologies, clusters=clusters,
        measured=measured,
    )  # fmt: skip


def _clusters(content: Any) -> list[Cluster]:
    found = [Cluster(one["name"], one["size"], pictures.colour(at), []) for at, one in enumerate(content["clusters"])]
    for one in content["concepts"]:
        at: int = one["cluster"]
        named = found[at].concepts
        if len(named) < NAMED:
            named.append(Named(UUID(one["id"]), one["label"]))
    return found


@pages.post("/graph/map", Permission.JOBS_ENQUEUE)
async def draw(visit: Visit) -> Response:
    """Ask for a new one."""
    asked = {"ontology": visit.word("ontology") or None, "way": visit.word("way") or "tsne", "keep_days": 30}
    made = await visit.services.jobs.enqueue(visit.who, "projection", asked)
    return visit.to_job(made.id, "/ui/graph/map")


@pages.get("/graph/vocabulary", Permission.GRAPH_READ)
async def vocabulary(visit: Visit) -> Response:
    """Relation types, with what is known of them, and the merges that made them fewer."""
    return visit.page(
        "vocabulary.html", types=await visit.services.curation.vocabulary(),
        merges=await visit.services.curation.merges(KEPT),
    )  # fmt: skip
