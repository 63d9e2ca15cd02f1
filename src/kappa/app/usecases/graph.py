"""The graph of one server, for people and agents.

A question blocks, so it has a thread: one of as many as the graph's pool has connections, less the two that are left
to others. People take turns in them, and one has no more than a share. Who finds none waits on the loop, until its
deadline. Who goes away is not worked for any longer. What is no question (writes, settings, status) has two threads
of its own.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from anyio.to_thread import run_sync

from kappa.app.errors import Ambiguous, NotFound, NotInstalled
from kappa.app.usecases import audit
from kappa.app.usecases.principal import Principal
from kappa.app.usecases.turns import CALLER, Turns
from kappa.graph import (
    Answer,
    BadWrite,
    Concept,
    Direction,
    GraphConfig,
    Instance,
    Measured,
    NewConcept,
    NewRelation,
    Ontology,
    Passage,
    RelationType,
    SnapshotStatus,
    VectorStatus,
    Where,
    Written,
)
from kappa.graph.errors import (
    BadQuestion,
    EpochNotReached,
    GraphBusy,
    QuestionStopped,
    UnknownConcept,
    UnknownOntology,
    UnknownRelationType,
)
from kappa.graph.identity import concept_key
from kappa.graph.query.gate import Gate
from kappa.pg import Database, Pool, PoolUse

if TYPE_CHECKING:
    from kappa.app.usecases.questions import Asking
    from kappa.graph import Graph
    from kappa.graph.query.budget import BudgetUse

log = logging.getLogger(__name__)

A = TypeVar("A", bound=Answer)
T = TypeVar("T")

Gone = Callable[[], Awaitable[object]]
"""Comes back when whoever asked has gone away."""
Observer = Callable[[str, str, float], None]
"""Told of every question: its name, how it ended, and in how many seconds."""

SPARED = 2
"""Connections of the pool that questions leave to others; the graph's budget does the same."""
OTHERS = 2

REFUSED = (
    UnknownConcept, UnknownOntology, UnknownRelationType, BadQuestion, EpochNotReached, Ambiguous, NotInstalled,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Walk:
    """What may be walked through. A label is looked for in the ontologies of `where`, if it has some."""

    direction: Direction = "both"
    relation_types: Sequence[str] | None = None
    where: Where | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A relation to be written; each end by id, or by its label in the ontology that is written to."""

    start: str
    goal: str
    type: str
    confidence: float = 1.0
    category: str = ""
    provenance: str = ""


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """What questions may use now, and what of it stands in the database."""

    workers: int
    timeout: float
    stored_workers: int | None
    stored_timeout: float | None


@dataclass(frozen=True, slots=True)
class GraphNow:
    """The graph in this process at one instant."""

    snapshot: SnapshotStatus
    budget: "BudgetUse"
    waiting: int
    """Questions that wait for a thread, or for a worker."""
    vectors: tuple[VectorStatus, ...]


class KnowledgeGraph:
    """Questions, writes and settings of one graph; or of none, where numpy is not installed."""

    def __init__(
        self,
        graph: "Graph | None",
        pool: Pool | None,
        threads: int,
        share: int,
        observe: Observer,
        asking: "Callable[[Graph, float, int | None], Asking]",
    ) -> None:
        self._graph = graph
        self._asking = asking
        self._pool = pool
        self._observe = observe
        self._turns = Turns(threads, share)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="kappa graph question")
        self._others = ThreadPoolExecutor(OTHERS, thread_name_prefix="kappa graph other")
        # One at a time: rendering holds the interpreter, and the event loop waits for as many turns as threads want it.
        self._rendering = Gate(1)
        self._under_way: set[Asking] = set()

    # Asking

    async def ask(
        self,
        name: str,
        act: "Callable[[Asking], A]",
        render: Callable[[A], T],
        *,
        deadline: float | None = None,
        min_epoch: int | None = None,
        gone: Gone | None = None,
    ) -> T:
        """Ask, and make of the answer what is wanted of it, both in a thread."""

        def answered(asking: "Asking") -> tuple[bool, T]:
            answer = act(asking)
            with self._turn_to_render(asking.left):
                if asking.cancel.cancelled:
                    raise QuestionStopped("the question was cancelled")
                return answer.complete, render(answer)

        began, outcome = time.monotonic(), "failed"
        try:
            complete, made = await self._in_thread(answered, deadline, min_epoch, gone)
            outcome = "complete" if complete else "partial"
            return made
        except REFUSED:
            outcome = "refused"
            raise
        except GraphBusy:
            outcome = "busy"
            raise
        except (_LeftAlone, asyncio.CancelledError):
            outcome = "cancelled"
            raise
        except QuestionStopped:
            outcome = "stopped"
            raise
        finally:
            self._observe(name, outcome, time.monotonic() - began)

    async def _in_thread(
        self, act: "Callable[[Asking], T]", deadline: float | None, min_epoch: int | None, gone: Gone | None
    ) -> T:
        graph = self.here()
        seconds = graph.timeout if deadline is None else deadline
        asking = self._asking(graph, seconds, min_epoch)

        def run() -> T:
            asking.begin()
            return act(asking)

        caller = CALLER.get()
        name = caller.name if caller is not None else ""
        until = time.monotonic() + seconds
        leaving = None if gone is None else asyncio.ensure_future(gone())
        self._under_way.add(asking)
        try:
            place = self._turns.enter(name)
            try:
                await _first_of(place, leaving, seconds)
                if not place.done():
                    if leaving is not None and leaving.done():
                        raise _LeftAlone("nobody waits for the answer any more")
                    raise GraphBusy(f"no thread became free for a question within {seconds:g} s")
            except BaseException:
                self._turns.give_up(name, place)
                raise
            work = self._threads.submit(run)
        except BaseException:
            self._under_way.discard(asking)
            if leaving is not None:
                leaving.cancel()
            raise
        answer = asyncio.wrap_future(work)
        answer.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        answer.add_done_callback(lambda _: self._under_way.discard(asking))
        answer.add_done_callback(lambda _: self._turns.leave(name))
        try:
            await _first_of(answer, leaving, until - time.monotonic())
            if not answer.done():
                waited = work.cancel()
                if leaving is not None and leaving.done():
                    if not waited:
                        self._stop(asking)
                    raise _LeftAlone("nobody waits for the answer any more")
                if waited:
                    raise GraphBusy(f"no thread became free for a question within {seconds:g} s")
                await asyncio.wait([answer])  # it ends at its deadline by itself
            return answer.result()
        except asyncio.CancelledError:
            if not work.cancel():
                self._stop(asking)
            raise
        finally:
            if leaving is not None:
                leaving.cancel()

    def _stop(self, asking: "Asking") -> None:
        # It speaks to the database, which takes a while; nobody waits for that.
        asyncio.get_running_loop().run_in_executor(None, asking.cancel.cancel)

    async def concept(
        self, name: str, ontologies: Sequence[str] | None, evidence: int
    ) -> tuple[Concept, list[Instance]]:
        """A concept by id or label, measured, and so many quotes that speak of it."""
        return await self._in_thread(lambda asking: asking.shown(name, ontologies, evidence), None, None, None)

    async def passage(self, document: UUID, start: int, end: int) -> Passage:
        """A stretch of a document's text."""
        found = await self._in_thread(lambda _: self.here().passage(document, start, end), None, None, None)
        if found is None:
            raise NotFound(f"there is no document {document}")
        return found

    async def relation_types(self) -> list[RelationType]:
        return await self.read(lambda graph: graph.relation_types())

    async def ontologies(self) -> list[Ontology]:
        return await self.read(lambda graph: graph.ontologies())

    async def hubs(self, ontology: str, limit: int) -> list[Concept]:
        """An ontology's best connected concepts; none where there is no such ontology."""
        return await self.read(lambda graph: graph.hubs(ontology, limit))

    async def measures(self, ids: Sequence[UUID]) -> dict[UUID, Measured]:
        """How well the first hundred of these concepts are founded; without those that are no more."""
        return await self._in_thread(lambda asking: asking.measures(ids), None, None, None) if ids else {}

    async def render(self, render: Callable[[], T]) -> T:
        """A list of any length as text, in a thread like everything that has no bound."""

        def act(graph: "Graph") -> T:
            with self._turn_to_render(graph.timeout):
                return render()

        return await self.other(act)

    @contextmanager
    def _turn_to_render(self, seconds: float) -> Generator[None]:
        if not self._rendering.enter(seconds):
            raise QuestionStopped("the answer still waited to be written when the deadline passed")
        try:
            yield
        finally:
            self._rendering.leave()

    async def read(self, act: "Callable[[Graph], T]") -> T:
        """Something short that the graph is asked, in a thread of questions."""
        return await self._in_thread(lambda _: act(self.here()), None, None, None)

    async def write(self, act: "Callable[[Graph], T]") -> T:
        return await self.other(act)

    # Writing

    async def add_concepts(
        self, ontology: str, new: Sequence[NewConcept], model: str | None, vectors: Mapping[str, Sequence[float]]
    ) -> Written:
        """Concepts, and embeddings of some of them by label, which are those of a model."""

        def write(graph: "Graph") -> Written:
            written = graph.add_concepts(ontology, new)
            if model is None or not vectors:
                return written
            # A transaction of its own: the first one's last act was to take its epoch, and others wait from there on.
            graph.set_embeddings(model, {written.ids[label]: vector for label, vector in vectors.items()})
            return replace(written, epoch=graph.epoch())

        return await self.other(write)

    async def add_relations(self, ontology: str | None, links: Sequence[Link]) -> Written:
        return await self.other(lambda graph: _add_relations(graph, ontology, links))

    # Running

    async def settings(self) -> LiveSettings:
        return await self.other(_settings)

    async def edit_settings(self, who: Principal, changes: dict[str, float | None]) -> LiveSettings:
        """For every server, within a second. None leaves it to each server's own configuration."""

        def edit(graph: "Graph") -> LiveSettings:
            with graph.transaction() as connection:
                workers, timeout = graph.stored_settings(connection=connection)
                wanted = {"workers": workers, "timeout": timeout, **changes}
                number = wanted["workers"]
                graph.edit_settings(
                    workers=None if number is None else int(number), timeout=wanted["timeout"], connection=connection
                )
                audit.record_blocking(connection, who, "graph.settings", "graph", **changes)
            return _settings(graph)

        return await self.other(edit)

    async def epoch(self) -> int:
        """The latest epoch of the database."""
        return await self.other(lambda graph: graph.epoch())

    def now(self) -> GraphNow | None:
        """What this process knows; None where there is no graph."""
        if self._graph is None:
            return None
        snapshot = self._graph.status()
        assert snapshot is not None
        budget = self._graph.budget()
        unbegun = sum(not asking.begun for asking in list(self._under_way))
        return GraphNow(snapshot, budget, budget.waiting + unbegun, self._graph.vectors())

    def pools(self) -> tuple[PoolUse, ...]:
        return () if self._pool is None else (self._pool.use(),)

    async def other(self, act: "Callable[[Graph], T]") -> T:
        """What is no question, in one of the few threads for that."""
        return await asyncio.wrap_future(self._others.submit(act, self.here()))

    def here(self) -> "Graph":
        """The graph itself, for those who have threads of their own."""
        if self._graph is None:
            raise NotInstalled("this server has no graph: numpy is missing, the extra kappa[graph] brings it")
        return self._graph

    def close(self) -> None:
        """End what runs; blocks until it has ended."""
        for asking in list(self._under_way):
            asking.cancel.cancel()
        for threads in (self._threads, self._others):
            threads.shutdown(wait=False, cancel_futures=True)
        # Before anybody is waited for: who waits for a connection, of a database that is away, hears of it at once.
        if self._pool is not None:
            self._pool.close()
        for threads in (self._threads, self._others):
            threads.shutdown()
        if self._graph is not None:
            self._graph.close()


async def _first_of(wanted: "asyncio.Future[Any]", leaving: "asyncio.Future[object] | None", seconds: float) -> None:
    if not wanted.done():
        both = [wanted] if leaving is None else [wanted, leaving]
        await asyncio.wait(both, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)


class _LeftAlone(QuestionStopped):
    """Whoever asked went away."""


@asynccontextmanager
async def opened(
    database: Database, config: GraphConfig, observe: Observer, share: int
) -> AsyncGenerator[KnowledgeGraph]:
    """The graph, with its pool and its snapshot, for as long as the block lasts. `share`: one person's threads."""
    try:
        from kappa.app.usecases.questions import Asking
        from kappa.graph import Graph
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        log.warning("numpy is missing, so the graph can't be asked here; the extra kappa[graph] brings it")
        yield KnowledgeGraph(None, None, 1, 1, observe, _nobody)
        return
    pool = Pool(database.url, "graph", config.pool, behind_pooler=database.behind_pooler)
    await run_sync(pool.open)
    graph = Graph(database, config, pool=pool)
    made = KnowledgeGraph(graph, pool, max(1, config.pool.max_size - SPARED), share, observe, Asking)
    await run_sync(graph.open)
    try:
        yield made
    finally:
        await run_sync(made.close)


def _nobody(graph: "Graph", seconds: float, min_epoch: int | None) -> "Asking":
    raise NotInstalled("there is nobody to ask")


def _settings(graph: "Graph") -> LiveSettings:
    workers, timeout = graph.stored_settings()
    return LiveSettings(workers or graph.config.workers, timeout or graph.config.timeout, workers, timeout)


def _add_relations(graph: "Graph", ontology: str | None, links: Sequence[Link]) -> Written:
    key = None
    if ontology is not None:
        key = next((one.id for one in graph.ontologies() if one.name == ontology), None)
        if key is None:
            raise UnknownOntology(f"there is no ontology {ontology!r}")
    labels: dict[UUID, str] = {}

    def end(name: str) -> UUID:
        if (known := as_id(name)) is not None:
            return known
        if key is None:
            raise BadWrite(f"{name!r} is no id, and without `ontology` nobody knows whose label it is")
        made = concept_key(key, name)
        labels[made] = name
        return made

    new = [NewRelation(end(one.start), end(one.goal), one.type, one.confidence, one.category, one.provenance)
           for one in links]  # fmt: skip
    try:
        return graph.add_relations(new)
    except BadWrite as error:
        unknown = next((label for made, label in labels.items() if str(made) in str(error)), None)
        if unknown is None:
            raise
        raise BadWrite(f"there is no concept {unknown!r} in {ontology!r}") from None


def as_id(name: str) -> UUID | None:
    """What a name says, if it is an id and no label."""
    try:
        return UUID(name)
    except ValueError:
        return None
