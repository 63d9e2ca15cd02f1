"""Who may have a job of which kind made. A kind of Kappa's own that is not in this table fails a test.

What is declared here holds for every way to a job from outside: enqueueing, retrying, approving, scheduling, running a
schedule now. Children that a handler spawns are the handler's own doing and are not asked about.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kappa.app.kinds import ingestion
from kappa.app.permissions import Permission


@dataclass(frozen=True, slots=True)
class Access:
    """What it takes to have a job of a kind made."""

    permissions: frozenset[Permission]
    made_by: str | None = None
    """The requests that make its jobs, if nothing else may: a payload alone would lack what they write or check."""
    uploads: Callable[[Any], Sequence[UUID]] | None = None
    """The uploads that a payload names."""
    audited: bool = False
    """Whether the audit log says who enqueued one."""


def _access(*permissions: Permission, **more: Any) -> Access:
    return Access(frozenset(permissions), **more)


def _uploads(payload: Any) -> list[UUID]:
    return ingestion.Ingestion.model_validate(payload).keys


OWN_KIND = _access(Permission.JOBS_ENQUEUE)
"""Of kinds that programs bring."""

ACCESS: Mapping[str, Access] = {
    "self_test": _access(Permission.JOBS_ENQUEUE),
    "projection": _access(Permission.JOBS_ENQUEUE, Permission.GRAPH_READ),
    "polarity": _access(Permission.JOBS_ENQUEUE, Permission.GRAPH_READ),
    ingestion.INGESTION: _access(Permission.GRAPH_INGEST, uploads=_uploads),
    ingestion.INGEST_IMAGE: _access(Permission.GRAPH_INGEST, uploads=_uploads),
    ingestion.SOURCE_EMBEDDING: _access(Permission.GRAPH_CURATE, audited=True),
    "vocab_refresh": _access(Permission.GRAPH_CURATE, audited=True),
    "vocab_consolidate": _access(Permission.GRAPH_CURATE, audited=True),
    "epistemic_remeasurement": _access(Permission.GRAPH_CURATE, audited=True),
    "ontology_annealing": _access(Permission.GRAPH_CURATE, audited=True),
    "proposal_execution": _access(
        Permission.GRAPH_CURATE,
        made_by="`POST /graph/proposals/{proposal_id}/execute` or `POST /graph/proposals/{proposal_id}/undo`",
    ),
    "artifact_cleanup": _access(Permission.GRAPH_MANAGE, Permission.TOOLS_MANAGE, audited=True),
    "restore": _access(Permission.GRAPH_MANAGE, made_by="`POST /restore`"),
    "tool_run": _access(Permission.TOOLS_RUN, made_by="`POST /tools/{name}/runs`"),
}


def access_to(kind: str) -> Access:
    return ACCESS.get(kind, OWN_KIND)
