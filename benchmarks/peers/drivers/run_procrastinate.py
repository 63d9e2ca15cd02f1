"""Procrastinate, driven as its documentation says to: async tasks, batch_defer, a concurrent worker."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time

import psycopg
import uvloop
from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
from protocol import Tally, attend, crowd, pulse, say

tally = Tally()


def make_app(connector: PsycopgConnector | SyncPsycopgConnector) -> App:
    app = App(connector=connector)

    @app.task(name="noop", pass_context=False)
    async def noop() -> None:
        tally.started()

    return app


def one(url: str, seconds: float) -> None:
    with make_app(SyncPsycopgConnector(conninfo=url, min_size=1, max_size=1)).open() as app:
        task = app.tasks["noop"]
        task.defer()
        jobs, began = 0, time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            task.defer()
            jobs += 1
    say(jobs=jobs, seconds=passed)


async def many_callers(url: str, seconds: float, callers: int, connections: int) -> None:
    connector = PsycopgConnector(conninfo=url, min_size=connections, max_size=connections)
    async with make_app(connector).open_async() as app:
        await crowd(app.tasks["noop"].defer_async, seconds, callers)


def batch(url: str, jobs: int, size: int) -> None:
    with make_app(SyncPsycopgConnector(conninfo=url, min_size=1, max_size=1)).open() as app:
        task = app.tasks["noop"]
        began = time.monotonic()
        for at in range(0, jobs, size):
            task.batch_defer(*[{}] * min(size, jobs - at))
        say(jobs=jobs, seconds=time.monotonic() - began)


async def work(url: str, options: dict[str, int | str]) -> None:
    concurrency = int(options["concurrency"])
    connector = PsycopgConnector(conninfo=url, min_size=1, max_size=int(options["pool"]))
    async with make_app(connector).open_async() as app:

        async def run(count: Tally, stop: asyncio.Event) -> None:
            global tally
            tally = count
            worker = asyncio.create_task(
                app.run_worker_async(
                    concurrency=concurrency,
                    delete_jobs=str(options["delete_jobs"]),
                    install_signal_handlers=False,
                )
            )
            await stop.wait()
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)

        await attend(run)


def main() -> None:
    logging.disable(logging.WARNING)  # it warns of an app in the main module, which is meant here
    command, url, *rest = sys.argv[1:]
    match command:
        case "install":
            with make_app(SyncPsycopgConnector(conninfo=url)).open() as app:
                app.schema_manager.apply_schema()
        case "one":
            one(url, float(rest[0]))
        case "crowd":
            uvloop.run(many_callers(url, float(rest[0]), int(rest[1]), int(rest[2])))
        case "batch":
            batch(url, int(rest[0]), int(rest[1]))
        case "pulse":
            connection = psycopg.connect(url, autocommit=True)
            with make_app(SyncPsycopgConnector(conninfo=url)).open() as app:
                pulse(connection, app.tasks["noop"].configure(connection=connection).defer)
        case "work":
            uvloop.run(work(url, json.loads(rest[0])))
        case _:
            sys.exit(f"unknown command {command}")


main()
