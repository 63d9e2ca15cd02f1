"""The kinds `ontology_annealing` and `proposal_execution`.

The first writes proposals and changes nothing else. The second carries an approved one out, or undoes it, in one
transaction with the job's success; while an ingestion works on one of its ontologies, or is about to, it waits.
"""

from datetime import timedelta
from functools import partial
from typing import Annotated, Any

import psycopg
from psycopg import Connection
from pydantic import BaseModel, Field

from kappa.app.kinds.asked import Asked
from kappa.app.kinds.periodic import Periodic, Result, if_changed, keep_run, last_run, parameters_of
from kappa.app.kinds.workshop import Workshop
from kappa.engine import Engine, JobContext, JobFailed, Schedule, Snooze
from kappa.graph.annealing import executing, undoing
from kappa.graph.errors import BadProposal
from kappa.graph.store import proposals
from kappa.pg import Database, queries
from kappa.pg.queries import Row

sql = queries.beside(__file__)
LOCK_LANES = sql["lock_lanes"]
INGESTING = sql["ingesting"]

INGESTIONS = ("ingestion", "ingest_image")
WAITS = timedelta(seconds=30)

NIGHTLY = Schedule("ontology_annealing", "37 4 * * *", "ontology_annealing", {"only_if_changed": True})


class Anneal(Periodic):
    """From where on something is proposed; what is left out is as usual."""

    merge_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    split_concepts: Annotated[int, Field(ge=4)] = 20
    split_coherence: Annotated[float, Field(ge=-1, le=1)] = 0.5
    dissolve_concepts: Annotated[int, Field(ge=0)] = 2


class AnnealResult(Result):
    ontologies: int = 0
    proposed: int = 0
    """Proposals that are new."""
    known: int = 0
    """Those that were made before, whatever became of them."""


class Execute(Asked):
    proposal: Annotated[int, Field(ge=1)]
    undo: bool = False


class ExecuteResult(BaseModel):
    proposal: int
    state: str
    epoch: int | None = None
    """From which on it is done; None if it had been done before."""


def declare(engine: Engine, shop: Workshop) -> None:
    def ontology_annealing(ctx: JobContext, asked: Anneal | None) -> AnnealResult:
        return anneal(ctx, shop, asked or Anneal())

    def proposal_execution(ctx: JobContext, asked: Execute) -> ExecuteResult | Snooze:
        return execute(ctx, engine.database, asked)

    engine.job(
        "ontology_annealing", timeout=timedelta(hours=1), idempotent=True, needs_database=True,
        needed=partial(if_changed, "ontology_annealing"),
    )(ontology_annealing)  # fmt: skip
    engine.job("proposal_execution", timeout=timedelta(hours=1), idempotent=True, needs_database=True)(
        proposal_execution
    )
    engine.schedule(NIGHTLY)


def anneal(ctx: JobContext, shop: Workshop, asked: Anneal) -> AnnealResult:
    from kappa.graph.annealing.proposing import Thresholds
    from kappa.graph.annealing.proposing import anneal as write

    graph = shop.graph
    if (last := last_run(graph, ctx.kind, asked, AnnealResult)) is not None:
        return last

    def told(done: int, total: int, what: str) -> None:
        ctx.raise_if_cancelled()
        ctx.progress(done, total, what)

    epoch = graph.epoch()
    with graph.transaction() as connection:
        found = write(connection, Thresholds(**parameters_of(asked)), told)
        ctx.raise_if_cancelled()
    result = AnnealResult(ontologies=found.ontologies, proposed=found.proposed, known=found.known)
    keep_run(graph, ctx.kind, asked, epoch, result)
    return result


def execute(ctx: JobContext, database: Database, asked: Execute) -> ExecuteResult | Snooze:
    done: Any = undoing.undo if asked.undo else executing.execute
    over = "undone" if asked.undo else "executed"
    try:
        with ctx.transaction() as connection:
            proposal = proposals.find(connection, asked.proposal)
            if proposal is not None and proposal.state == over:
                # An attempt before this one did it, and was lost before it could say so; or somebody asked twice.
                return ExecuteResult(proposal=asked.proposal, state=over)
            busy = None if proposal is None else ingesting(connection, executing.names_of(connection, proposal))
            if busy is not None:
                ctx.progress(0, 1, f"waiting for job {busy}, which works on the ontology")
                return Snooze(WAITS)
            ctx.raise_if_cancelled()
            epoch = done(connection, asked.proposal)
        return ExecuteResult(proposal=asked.proposal, state=over, epoch=epoch)
    except BadProposal as error:
        _say(database, asked, str(error))
        raise JobFailed(str(error), retry=False) from error


def ingesting(connection: Connection[Row], names: list[str]) -> int | None:
    """A job that works on one of these ontologies, or is about to. If there is none, none begins until the commit."""
    connection.execute(LOCK_LANES.sql, {"kinds": list(INGESTIONS)})
    row = connection.execute(INGESTING.sql, {"kinds": list(INGESTIONS), "names": names}).fetchone()
    return row[0] if row else None


def _say(database: Database, asked: Execute, error: str) -> None:
    """With the proposal stands why it could not be done."""
    with database.connect() as connection:
        try:
            say = proposals.refuse_undo if asked.undo else proposals.mark_failed
            say(connection, asked.proposal, error)
        except psycopg.Error as failure:
            raise JobFailed(error, retry=False) from failure
