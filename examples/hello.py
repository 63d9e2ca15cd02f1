"""Hello: declare a handler, enqueue a job, run a worker.

    python examples/hello.py            # uses an embedded PostgreSQL in ./.kappa-example
    python examples/hello.py Ada Grace

Prints what became of the job of each name, in the order of the names, and ends. Run it again: the second run is
quicker, since the database is there already.
"""

import asyncio
import sys
from pathlib import Path

from kappa.engine import Engine, JobContext, JobState, Lane
from kappa.engine.testing import drain
from kappa.pg.embedded import EmbeddedServer


def main(names: list[str]) -> None:
    with EmbeddedServer(Path(".kappa-example"), say=print).hold("hello") as url:
        engine = Engine(url)
        engine.lane(Lane("greetings", kinds=("greet",), max_slots=2))

        @engine.job("greet", idempotent=True)
        def greet(ctx: JobContext, name: str) -> str:
            ctx.progress(1, 1, f"greeting {name}")
            return f"hello, {name} (attempt {ctx.attempt})"

        engine.install()  # the schema and the lane; safe to call at every start
        with engine.client() as client:
            jobs = [client.enqueue("greet", name) for name in names]
            asyncio.run(drain(engine))  # a program that stays would call engine.run()
            for job in jobs:
                done = client.show(job.id)
                print(f"job {done.id}: {done.state}: {done.result}")
                assert done.state is JobState.SUCCEEDED


if __name__ == "__main__":
    main(sys.argv[1:] or ["world"])
