"""Cron: a job every minute, in the time zone of your choice, once in the whole cluster.

    python examples/cron.py             # run two of these at once: only one of them leads, and each minute fires once
    python examples/cron.py --now       # pretend that the minute is over, show what fires, and end

With the first form, wait for the next full minute; ctrl-C ends it.
"""

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kappa.engine import AsyncJobContext, Engine, Lane, Schedule
from kappa.engine.testing import drain, maintain
from kappa.pg.embedded import EmbeddedServer


def main() -> None:
    with EmbeddedServer(Path(".kappa-example"), say=print).hold("cron") as url:
        engine = Engine(url)
        engine.lane(Lane("clock", kinds=("tick",), max_slots=1))

        @engine.job("tick")
        async def tick(ctx: AsyncJobContext, payload: dict[str, str]) -> None:
            print(f"{datetime.now(UTC):%H:%M:%S} {payload['say']} (job {ctx.job_id})", flush=True)

        engine.install()
        with engine.client() as client:
            client.put_schedule(
                Schedule("every minute", "* * * * *", "tick", {"say": "another minute"}, timezone="Europe/Vienna")
            )
            if "--now" in sys.argv:
                asyncio.run(maintain(engine))  # the schedule learns its next due time
                asyncio.run(maintain(engine, later=timedelta(minutes=1)))  # which is now over
                asyncio.run(drain(engine))
                fired = client.schedules()[0]
                print(f"{fired.name!r} fired for {fired.last_at:%H:%M} as job {fired.last_job}")
                return
        print("waiting for the next full minute, ctrl-C ends")
        engine.run()


if __name__ == "__main__":
    main()
