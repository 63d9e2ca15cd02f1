"""What people and agents do with the vocabulary, and the artifacts that measuring leaves."""

from typing import TYPE_CHECKING, Any
from uuid import UUID

from kappa.app.errors import NotFound
from kappa.app.usecases import audit
from kappa.app.usecases.counted import Counted
from kappa.app.usecases.graph import KnowledgeGraph
from kappa.app.usecases.principal import Principal
from kappa.graph import Artifact, MeasuredType, Merge

if TYPE_CHECKING:
    from kappa.graph import Graph


class Curation:
    """The vocabulary and the artifacts of one graph."""

    def __init__(self, graph: KnowledgeGraph) -> None:
        self._graph = graph
        self._vocabulary = Counted(
            lambda: graph.read(lambda graph: graph.vocabulary()), lambda found: sum(one.relations for one in found)
        )

    async def vocabulary(self) -> list[MeasuredType]:
        """Every type; of a large graph, as it was a short while ago."""
        return await self._vocabulary.get()

    async def merges(self, limit: int) -> list[Merge]:
        return await self._graph.read(lambda graph: graph.merges(limit))

    async def merge(self, who: Principal, merged: str, survivor: str) -> Merge:
        """Every relation of the one becomes one of the other."""

        def act(graph: "Graph") -> Merge:
            with graph.transaction() as connection:
                audit.record_blocking(connection, who, "graph.merge_types", merged, survivor=survivor)
                return graph.merge_types(merged, survivor, by=who.name, connection=connection)

        made = await self._graph.write(act)
        self._vocabulary.forget()
        return made

    async def undo(self, who: Principal, number: int) -> Merge:
        def act(graph: "Graph") -> Merge:
            with graph.transaction() as connection:
                audit.record_blocking(connection, who, "graph.undo_merge", number)
                return graph.undo_merge(number, by=who.name, connection=connection)

        undone = await self._graph.write(act)
        self._vocabulary.forget()
        return undone

    async def artifacts(self, kind: str | None, ontology: str | None, limit: int) -> list[Artifact]:
        return await self._graph.read(lambda graph: graph.artifacts(kind, ontology, limit))

    async def artifact(self, artifact_id: UUID) -> Artifact:
        found = await self._graph.read(lambda graph: graph.artifact(artifact_id))
        if found is None:
            raise NotFound(f"there is no artifact {artifact_id}")
        return found

    async def content(self, artifact_id: UUID) -> Any:
        """Its JSON value."""
        if not (await self.artifact(artifact_id)).has_content:
            raise NotFound(f"artifact {artifact_id} has no content but its data")
        return await self._graph.read(lambda graph: graph.artifact_content(artifact_id))

    async def data(self, artifact_id: UUID) -> tuple[Artifact, bytes]:
        """Its bytes, such as a picture."""
        found = await self.artifact(artifact_id)
        data = await self._graph.read(lambda graph: graph.artifact_data(artifact_id))
        if data is None:
            raise NotFound(f"artifact {artifact_id} has no data but its content")
        return found, data
