"""Ontologies and the proposals about them, for people. While an ingestion works on an ontology, it stays as it is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from psycopg import Connection

from kappa.app.errors import Conflict, NotFound
from kappa.app.kinds.ontologies import ingesting
from kappa.app.usecases import audit, submission
from kappa.app.usecases.counted import Counted
from kappa.app.usecases.graph import KnowledgeGraph
from kappa.app.usecases.principal import Principal
from kappa.engine import AsyncClient, Enqueued
from kappa.graph.model import ProposalState
from kappa.graph.store import ontologies, proposals
from kappa.graph.store.proposals import Proposal
from kappa.pg import queries
from kappa.pg.queries import Row

if TYPE_CHECKING:
    from kappa.graph import Graph

sql = queries.beside(__file__)
MASSES = sql["masses"]
ALL_MASSES = sql["all_masses"]

EXECUTION = "proposal_execution"


@dataclass(frozen=True, slots=True)
class OntologyNow:
    """An ontology, and how much is in it."""

    name: str
    description: str
    documents: int
    concepts: int
    evidence: int
    relations: int


class Ontologies:
    """Those of one graph."""

    def __init__(self, client: AsyncClient, graph: KnowledgeGraph) -> None:
        self._client = client
        self._graph = graph
        self._all = Counted(
            lambda: graph.other(_all_masses), lambda found: sum(one.relations + one.evidence for one in found)
        )

    async def all(self) -> list[OntologyNow]:
        """Every one that is there now; how much is in each may be what it was a short while ago."""
        names = {(one.name, one.description) for one in await self._graph.ontologies()}
        return await self._all.get(lambda known: {(one.name, one.description) for one in known} == names)

    async def show(self, name: str) -> OntologyNow:
        found = await self._graph.other(lambda graph: _mass(graph, name))
        if found is None:
            raise NotFound(f"there is no ontology {name!r}")
        return found

    async def rename(self, who: Principal, name: str, new_name: str) -> OntologyNow:
        """Its concepts keep their ids."""

        def act(connection: Connection[Row]) -> None:
            if name != new_name and ontologies.find(connection, new_name) is not None:
                raise Conflict(f"there is an ontology {new_name!r} already")
            if not ontologies.rename(connection, name, new_name):
                raise NotFound(f"there is no ontology {name!r}")
            audit.record_blocking(connection, who, "ontology.rename", name, new_name=new_name)

        await self._change([name, new_name], act)
        return await self.show(new_name)

    async def delete(self, who: Principal, name: str) -> None:
        """With its documents and concepts, and all that hangs on them."""

        def act(connection: Connection[Row]) -> None:
            if not ontologies.delete(connection, name):
                raise NotFound(f"there is no ontology {name!r}")
            audit.record_blocking(connection, who, "ontology.delete", name)

        await self._change([name], act)

    async def anneal(self, who: Principal) -> Enqueued:
        """A job that looks at all ontologies and writes proposals."""
        key = f"{submission.RESERVED}ontology_annealing"
        return await submission.enqueue(self._client, who, "ontology_annealing", dedup_key=key)

    async def proposals(self, state: ProposalState | None, limit: int) -> list[Proposal]:
        """The newest first."""

        def read(graph: "Graph") -> list[Proposal]:
            with graph.transaction() as connection:
                return proposals.find_all(connection, state=state, limit=limit)

        return await self._graph.other(read)

    async def proposal(self, number: int) -> Proposal:
        def read(graph: "Graph") -> Proposal | None:
            with graph.transaction() as connection:
                return proposals.find(connection, number)

        found = await self._graph.other(read)
        if found is None:
            raise NotFound(f"there is no proposal {number}")
        return found

    async def decide(self, who: Principal, number: int, state: Literal["approved", "rejected"]) -> Proposal:
        def act(connection: Connection[Row]) -> None:
            if not proposals.decide(connection, number, state, who.name):
                _refuse(connection, number, state)
            action = "proposal.approve" if state == "approved" else "proposal.reject"
            audit.record_blocking(connection, who, action, number)

        await self._write(act)
        return await self.proposal(number)

    async def execute(self, who: Principal, number: int) -> Enqueued:
        """The job that carries an approved proposal out."""
        submission.require_permissions(who, EXECUTION)

        def act(connection: Connection[Row]) -> None:
            if proposals.lock(connection, number) != "approved":
                _refuse(connection, number, "executed")
            audit.record_blocking(connection, who, "proposal.execute", number)

        await self._write(act)
        return await self._enqueue(who, number, undo=False)

    async def undo(self, who: Principal, number: int) -> Enqueued:
        """The job that undoes what was done."""
        submission.require_permissions(who, EXECUTION)

        def act(connection: Connection[Row]) -> None:
            if not proposals.ask_undo(connection, number, who.name):
                _refuse(connection, number, "undone")
            audit.record_blocking(connection, who, "proposal.undo", number)

        await self._write(act)
        return await self._enqueue(who, number, undo=True)

    async def _enqueue(self, who: Principal, number: int, *, undo: bool) -> Enqueued:
        payload = {"proposal": number, "undo": undo}
        key = f"{submission.RESERVED}proposal {number}"
        return await self._client.enqueue(EXECUTION, payload, submitted_by=who.name, dedup_key=key)

    async def _change(self, names: list[str], act: Callable[[Connection[Row]], None]) -> None:
        def guarded(connection: Connection[Row]) -> None:
            if (busy := ingesting(connection, names)) is not None:
                raise Conflict(f"job {busy} works on the ontology: wait for it, or cancel it")
            act(connection)

        await self._write(guarded)

    async def _write(self, act: Callable[[Connection[Row]], None]) -> None:
        def write(graph: "Graph") -> None:
            with graph.transaction() as connection:
                act(connection)

        await self._graph.other(write)


def _all_masses(graph: "Graph") -> list[OntologyNow]:
    with graph.transaction() as connection:
        return [OntologyNow(*row) for row in connection.execute(ALL_MASSES.sql)]


def _mass(graph: "Graph", name: str) -> OntologyNow | None:
    with graph.transaction() as connection:
        row = connection.execute(MASSES.sql, {"name": name}).fetchone()
        return OntologyNow(*row) if row else None


def _refuse(connection: Connection[Row], number: int, wanted: str) -> None:
    found = proposals.find(connection, number)
    if found is None:
        raise NotFound(f"there is no proposal {number}")
    raise Conflict(f"proposal {number} is {found.state} and can't be {wanted}")
