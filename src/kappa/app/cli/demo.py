"""`kg demo`: everything that works, once, on a server of its own."""

import asyncio
from contextlib import closing

from rich.progress import Progress

from kappa.app import settings, wiring
from kappa.app.cli import show
from kappa.app.lanes import LanesInThread
from kappa.app.usecases import doctor
from kappa.engine import Engine, Job, JobState, WorkerConfig
from kappa.pg import KappaError

STEPS = 20


class DemoFailed(KappaError):
    """What the demo shows didn't work."""


def demo() -> None:
    """Start an embedded server of its own, migrate, look around, run a job to its end, and stop.

    Example: kg demo
    """
    own = settings.load()
    # The demo never touches what people keep: it has a home below theirs.
    own = own.model_copy(update={"home": own.home / "demo", "database_url": None, "database_direct_url": None})
    with wiring.open_database(own, "kg demo", show.say) as database:
        engine = wiring.build_engine(own, database)
        wiring.install(engine)
        show.out.print("the embedded server runs, and the schema is up to date\n")
        show.findings(doctor.examine(own, show.say))
        show.out.print()
        with closing(engine):
            job = _run_job(engine)
    if job.state is not JobState.SUCCEEDED:
        raise DemoFailed(f"the demo's job {job.id} ended as {job.state}: {job.error_summary}")
    show.line(f"job {job.id} was enqueued, claimed under a lease, run and settled: {job.state}, {job.result}")
    show.line(f"the server was stopped; its data stays in {own.home.expanduser()}")
    show.line(
        "next: `kg up` starts the server for good, with its API; `kg job enqueue self_test --watch` gives it a job"
    )


def _run_job(engine: Engine) -> Job:
    lanes = LanesInThread(engine, WorkerConfig())
    lanes.start()
    try:
        with engine.client() as client, Progress(console=show.err, transient=True) as bars:
            made = client.enqueue("self_test", {"steps": STEPS, "seconds": 2})
            bar = bars.add_task(f"job {made.id}", total=STEPS)
            job = client.show(made.id)
            for job in client.watch(made.id):
                bars.update(bar, completed=job.progress_done or 0, description=f"job {job.id}: {job.state}")
            return job
    finally:
        lanes.stop()
        asyncio.run(lanes.ended())
