"""Large answers don't keep the interpreter from the event loop: one thread at a time writes them, in small pieces."""

import asyncio
import json
import threading
from uuid import UUID, uuid5

import pytest
from pydantic import BaseModel

from kappa.app.api import graph_schemas as views
from kappa.app.api.json_pieces import ROWS, pieces, render, render_list
from kappa.app.usecases.questions import Asking
from kappa.graph import Answer, QuestionStopped
from kappa.graph import model as graph
from kappa.graph.findings import Confidence, Grounding, Measured
from tests.app.conftest import Site
from tests.app.patience import becomes
from tests.ground import PATIENCE

NOTHING = Answer(0, True, (), "snapshot")
CROWD = 40
MEASURED = Measured(Grounding(0.5, 0.1, 0.9, 3.0, 1.0, 3, 1), Confidence(0.3, 4, 2, 2, 5))


def concept(number: int, measured: Measured | None = None) -> graph.Concept:
    key = uuid5(UUID(int=0), str(number))
    return graph.Concept(key, number, f'"{number}" é\n', "it is \\ so", "part", ("one", "two"), measured)


def neighbors(count: int) -> tuple[graph.Neighbor, ...]:
    return tuple(graph.Neighbor(concept(n, MEASURED if n % 3 else None), n, 7) for n in range(count))


def relation(number: int) -> graph.Relation:
    return graph.Relation(UUID(int=number), UUID(int=number + 1), "LIVES_IN", 0.9, "")


def answers(count: int) -> list[tuple[type[BaseModel], object]]:
    """One of each kind, with so many rows."""
    head = (7, False, (graph.Skipped("what is beyond", "the deadline passed"),), "snapshot")
    row, chain = concept(1), tuple(concept(n) for n in range(5))
    path = graph.Path(chain, tuple((relation(n), relation(n)) for n in range(4)))
    around = {one.id: neighbors(count) for one in chain}
    hit = graph.SearchHit(row, 0.25, None, ("label", "vector"))
    item = graph.PolarityItem(row, 1 / 3, "positive", 0.1, None, None)
    some = tuple(graph.RelatedConcept(one.concept, one.hop, 3, ("A", "B")) for one in neighbors(count))
    return [
        (views.NeighborsView, graph.Neighbors(*head, neighbors(count), count)),
        (views.RelatedView, graph.Related(*head, some, count)),
        (views.SubgraphView, graph.Subgraph(*head, neighbors(count), tuple(map(relation, range(count))), count)),
        (views.PathsView, graph.Paths(*head, (path,) * count)),
        (views.EnrichedPathsView, graph.EnrichedPaths(*head, (path,) * min(count, 3), around if count else {})),
        (views.SearchView, graph.SearchAnswer(*head, (hit,) * count, None)),
        (views.PolarityView, graph.Polarity(*head, row, row, "m", 1.5, (item,) * count, 2, None, 0.25, None)),
        (views.DiversityView, graph.Diversity(*head, count, 2, None, 3, 0.5)),
    ]


@pytest.mark.parametrize("count", [0, 1, ROWS, 2 * ROWS + 1])
def test_pieces_together_are_what_the_view_writes(count: int) -> None:
    for view, answer in answers(count):
        assert render(view, answer).decode() == view.model_validate(answer).model_dump_json(), view
    types = [graph.RelationType(n, f"TYPE_{n}", "", True, None) for n in range(count)]
    whole = [views.RelationTypeView.model_validate(one).model_dump(mode="json") for one in types]
    assert json.loads(render_list(views.RelationTypeView, types)) == whole


def test_no_piece_has_more_rows_than_its_bound() -> None:
    for view, answer in answers(5 * ROWS + 3):
        for piece in pieces(view, answer):
            rows = max(piece.count(b'"label":'), piece.count(b'"from_id":'))
            assert rows <= ROWS, (view, rows)


async def test_answers_are_written_by_one_thread_at_a_time(site: Site) -> None:
    """Whatever threads there are, the loop waits for one of them when it wants the interpreter back."""
    asked, writing, most, free = 0, 0, 0, threading.Event()
    lock = threading.Lock()

    def act(_: Asking) -> Answer:
        nonlocal asked
        with lock:
            asked += 1
        return NOTHING

    def write(_: Answer) -> None:
        nonlocal writing, most
        with lock:
            writing += 1
            most = max(most, writing)
        assert free.wait(PATIENCE)
        with lock:
            writing -= 1

    crowd = [asyncio.create_task(site.services.graph.ask("neighbors", act, write)) for _ in range(CROWD)]
    threads = site.services.settings.pool_graph - 2
    await becomes(lambda: asked == threads, what="every thread has an answer to write")
    free.set()
    await asyncio.gather(*crowd)
    assert most == 1


async def test_nobody_waits_beyond_the_deadline_for_a_turn_to_write(site: Site) -> None:
    busy, free = threading.Event(), threading.Event()

    def hold(_: Answer) -> None:
        busy.set()
        assert free.wait(2 * PATIENCE)

    graph = site.services.graph
    graph.here()._desk.timeout = 1.0  # of lists, which say none
    holder = asyncio.create_task(graph.ask("neighbors", lambda _: NOTHING, hold))
    await becomes(busy.is_set)
    try:
        for late in (graph.ask("neighbors", lambda _: NOTHING, repr, deadline=1.0), graph.render(lambda: "a list")):
            with pytest.raises(QuestionStopped, match="still waited to be written when the deadline passed"):
                await asyncio.wait_for(late, PATIENCE)
    finally:
        free.set()
    await holder
    assert await graph.render(lambda: "a list") == "a list"


async def test_an_answer_that_nobody_waits_for_is_not_written(site: Site) -> None:
    asked, written = list[Asking](), list[Answer]()
    busy, free, left = threading.Event(), threading.Event(), asyncio.Event()

    def hold(_: Answer) -> None:
        busy.set()
        assert free.wait(PATIENCE)

    def act(asking: Asking) -> Answer:
        asked.append(asking)
        return NOTHING

    holder = asyncio.create_task(site.services.graph.ask("neighbors", lambda _: NOTHING, hold))
    await becomes(busy.is_set)
    going = asyncio.create_task(site.services.graph.ask("neighbors", act, written.append, gone=left.wait))
    await becomes(lambda: bool(asked))
    left.set()
    await asyncio.gather(going, return_exceptions=True)
    await becomes(lambda: asked[0].cancel.cancelled)
    free.set()
    await holder
    await becomes(lambda: not site.services.graph._under_way)
    assert not written
