"""The graph explorer: search, a concept with its surroundings and evidence, paths, the axis between two poles."""

from typing import TYPE_CHECKING, Any
from uuid import UUID

from starlette.responses import JSONResponse, Response

from kappa.app.errors import Ambiguous, Refused
from kappa.app.permissions import Permission
from kappa.app.usecases.graph import Walk, as_id
from kappa.app.web import drawings
from kappa.app.web.pages import HEADERS, Pages, Visit
from kappa.app.web.rendering import unwrapped
from kappa.graph import Concept, EnrichedPaths, Relation, SearchAnswer, Where
from kappa.graph.errors import BadQuestion, GraphError, UnknownConcept

if TYPE_CHECKING:
    from kappa.app.usecases.questions import Asking

pages = Pages()

FOUND = 30
HUBS = 16
"""Concepts that an ontology is entered by."""
AROUND = 24
"""Neighbours that one step of growing brings, the best connected."""
ON_PATH = 6
EVIDENCE = 50
DEADLINE = 10.0
MARGIN = 1500
"""Characters of a document that are shown on either side of a quote."""
LONGEST = 20_000
ASKED_WRONG = (Ambiguous, BadQuestion, UnknownConcept)


@pages.get("/graph", Permission.GRAPH_READ)
async def graph(visit: Visit) -> Response:
    text = visit.asked("q")
    answer = await _search(visit, text, FOUND, measures=True) if text else None
    # Typing asks again and again: then only what is found is wanted.
    part = visit.request.headers.get("hx-request") == "true"
    if part:
        return visit.page("found.html", text=text, answer=answer)
    ontologies = await visit.services.graph.ontologies()
    # One alone need not be asked for.
    shown = visit.asked("ontology") or (ontologies[0].name if len(ontologies) == 1 else None)
    hubs = await visit.services.graph.hubs(shown, HUBS) if shown and not text else []
    return visit.page(
        "graph.html", text=text, answer=answer, ontologies=ontologies, shown=shown, hubs=hubs,
        measured=await visit.services.graph.measures([one.id for one in hubs]),
    )  # fmt: skip


@pages.get("/graph/suggest", Permission.GRAPH_READ)
async def suggest(visit: Visit) -> Response:
    """Labels for a field that names a concept, under whatever name the field has."""
    text = next((value for name, value in visit.request.query_params.items() if name != "ontology" and value), "")
    answer = await _search(visit, text, 8) if text.strip() else None
    return visit.page("options.html", answer=answer)


@pages.get("/graph/concepts/{concept}", Permission.GRAPH_READ)
async def concept(visit: Visit) -> Response:
    name = visit.request.path_params["concept"]
    services = visit.services
    found, evidence = await services.graph.concept(name, None, EVIDENCE)
    related = await services.graph.ask(
        "related", lambda asking: asking.related(str(found.id), Walk(), max_hops=1, limit=FOUND, measures=True),
        lambda answer: answer, deadline=DEADLINE,
    )  # fmt: skip
    return visit.page("concept.html", concept=found, evidence=evidence, related=related, like=await _like(visit, found))


@pages.get("/graph/around.json", Permission.GRAPH_READ)
async def around(visit: Visit) -> Response:
    """A concept, its neighbours and the relations among them and with what is drawn already."""
    seed = str(_id(visit.asked("seed")))
    drawn = [str(_id(one)) for one in visit.request.query_params.getlist("drawn")[:200]]

    def ask(asking: "Asking") -> Any:
        return asking.subgraph([seed], Walk(), max_hops=1, limit=AROUND)

    answer = await visit.services.graph.ask("subgraph", ask, lambda answer: answer, deadline=DEADLINE)
    nodes = [_node(one.concept, hop=one.hop, degree=one.degree) for one in answer.concepts]
    edges = [_edge(one) for one in answer.relations]
    if drawn:
        edges = await _among(visit, [*{str(node["id"]) for node in nodes} | set(drawn)])
    return _json({"nodes": nodes, "edges": edges, "found": answer.found, "complete": answer.complete})


@pages.get("/graph/path", Permission.GRAPH_READ)
async def path(visit: Visit) -> Response:
    start, goal = visit.asked("from"), visit.asked("to")
    answer, fault = None, ""
    if start and goal:
        try:
            answer = await _path(visit, start, goal)
        except ASKED_WRONG as error:
            fault = str(error)
    names = [await _label(visit, start), await _label(visit, goal)]
    on = _on(answer) if answer is not None else []
    return visit.page(
        "path.html", 422 if fault else 200, start=start, goal=goal, names=names, answer=answer, fault=fault, on=on,
        measured=await visit.services.graph.measures([one.id for one in on]),
    )  # fmt: skip


@pages.get("/graph/path.json", Permission.GRAPH_READ)
async def path_json(visit: Visit) -> Response:
    """The paths and their surroundings, to be drawn."""
    answer = await _path(visit, visit.asked("from") or "", visit.asked("to") or "")
    on = {one.id: one for one in _on(answer)}
    way: dict[UUID, float] = {}
    for path in answer.items:
        for step, one in enumerate(path.concepts):
            way.setdefault(one.id, step / max(1, len(path.concepts) - 1))
    nodes = [_node(one, on=True, way=round(way[one.id], 3)) for one in on.values()]
    near = {
        neighbor.concept.id: neighbor
        for neighbors in answer.around.values()
        for neighbor in neighbors
        if neighbor.concept.id not in on
    }
    nodes += [_node(one.concept, hop=1, degree=one.degree) for one in near.values()]
    edges = await _among(visit, [str(one) for one in [*on, *near]])
    steps = {
        (str(first.id), str(second.id))
        for path in answer.items
        for first, second in zip(path.concepts, path.concepts[1:], strict=False)
    }
    for edge in edges:
        edge["on"] = (edge["from"], edge["to"]) in steps or (edge["to"], edge["from"]) in steps
    return _json({"nodes": nodes, "edges": edges, "found": len(nodes), "complete": answer.complete})


@pages.get("/graph/polarity", Permission.GRAPH_READ)
async def polarity(visit: Visit) -> Response:
    positive, negative = visit.asked("positive"), visit.asked("negative")
    answer, fault = None, ""
    if positive and negative:

        def ask(asking: "Asking") -> Any:
            return asking.polarity(positive, negative, Walk(), candidates=None, max_hops=2, limit=40)

        try:
            answer = await visit.services.graph.ask("polarity", ask, lambda answer: answer, deadline=DEADLINE)
        except ASKED_WRONG as error:
            fault = str(error)
    marks = [(one.concept.label, one.position) for one in answer.items] if answer else []
    axes = drawings.axis(marks), drawings.axis(marks, drawings.PHONE_WIDTH)
    names = [await _label(visit, positive), await _label(visit, negative)]
    return visit.page("polarity.html", 422 if fault else 200, names=names, answer=answer, fault=fault, axes=axes)


@pages.get("/graph/documents/{document}", Permission.GRAPH_READ)
async def document(visit: Visit) -> Response:
    """A document's text around a quote, which is marked."""
    start, end = visit.asked_number("start") or 0, visit.asked_number("end") or 0
    first = max(0, start - MARGIN) if (given := visit.asked_number("first")) is None else given
    last = end + MARGIN if (given := visit.asked_number("last")) is None else given
    last = min(last, first + LONGEST)
    passage = await visit.services.graph.passage(_id(visit.request.path_params["document"]), first, last)
    here = [min(max(0, place - passage.start), len(passage.text)) for place in (start, end)]
    text = unwrapped(passage.text)
    parts = (text[: here[0]], text[here[0] : here[1]], text[here[1] :])
    return visit.page(
        "document.html", document=passage.document, parts=parts, first=passage.start,
        last=passage.start + len(passage.text), margin=MARGIN, back=visit.asked("concept"),
    )  # fmt: skip


async def _search(visit: Visit, text: str, limit: int, *, measures: bool = False) -> SearchAnswer:
    ontology = visit.asked("ontology")
    where = Where(ontologies=[ontology]) if ontology else None

    def ask(asking: "Asking") -> SearchAnswer:
        return asking.search(
            text, where, vector=None, model=None, like=None, limit=limit, min_similarity=0.0, measures=measures
        )

    return await visit.services.graph.ask("search", ask, lambda answer: answer, deadline=DEADLINE)


async def _like(visit: Visit, found: Concept) -> SearchAnswer | None:
    """Concepts whose embeddings point the same way; None where this one has none."""

    def ask(asking: "Asking") -> SearchAnswer:
        return asking.search(
            None, None, vector=None, model=None, like=str(found.id), limit=8, min_similarity=0.3, measures=True
        )  # fmt: skip

    try:
        return await visit.services.graph.ask("search", ask, lambda answer: answer, deadline=DEADLINE)
    except GraphError:
        return None


async def _label(visit: Visit, name: str | None) -> str:
    """What a field shows for a concept that an address names."""
    if name is None or as_id(name) is None:
        return name or ""
    try:
        return (await visit.services.graph.concept(name, None, 0))[0].label
    except UnknownConcept:
        return name


async def _path(visit: Visit, start: str, goal: str) -> EnrichedPaths:
    def ask(asking: "Asking") -> EnrichedPaths:
        return asking.enriched_path(start, goal, Walk(), max_hops=6, count=3, around_hops=1, around_limit=ON_PATH)

    return await visit.services.graph.ask("enriched_path", ask, lambda answer: answer, deadline=DEADLINE)


def _on(answer: EnrichedPaths) -> list[Concept]:
    """The concepts that the paths lead over, each once."""
    return list({one.id: one for path in answer.items for one in path.concepts}.values())


async def _among(visit: Visit, seeds: list[str]) -> list[dict[str, Any]]:
    """The relations among these concepts alone."""

    def ask(asking: "Asking") -> Any:
        return asking.subgraph(seeds, Walk(), max_hops=1, limit=1)

    answer = await visit.services.graph.ask("subgraph", ask, lambda answer: answer, deadline=DEADLINE)
    wanted = set(seeds)
    return [_edge(one) for one in answer.relations if str(one.from_id) in wanted and str(one.to_id) in wanted]


def _node(one: Concept, **facts: Any) -> dict[str, Any]:
    return {"id": str(one.id), "label": one.label, "ontology": one.ontology, **facts}


def _edge(one: Relation) -> dict[str, Any]:
    return {"from": str(one.from_id), "to": str(one.to_id), "type": one.type, "confidence": round(one.confidence, 2)}


def _json(value: Any) -> JSONResponse:
    return JSONResponse(value, headers=HEADERS)


def _id(text: str | None) -> UUID:
    found = as_id(text or "")
    if found is None:
        raise Refused(f"{text!r} is no id")
    return found
