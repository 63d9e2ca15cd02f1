"""Whatever is killed, and whenever, the graph comes out byte for byte as if nothing had been.

A worker is forked off a process that has everything imported, so that fifty of them cost seconds, and is killed with
-9 where it happens to be: while it extracts, matches or commits. The time that would pass until its lease ran out is
spared by doing at once what the leader would do then.
"""

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from kappa.app import wiring
from kappa.app.settings import Settings
from kappa.engine import Engine, JobState
from kappa.engine.testing import maintain
from kappa.graph import Graph, GraphConfig
from kappa.graph.ingest import intake
from kappa.graph.store import uploads
from kappa.pg import Database, migrate
from tests.conftest import Server, started
from tests.ground import Script, eventually
from tests.scripted import ALLOWED, ASKED, PLACE, dump, name_of, story

NURSERY = """
    import asyncio, os, sys
    import kappa.graph.graph, kappa.graph.ingest.pipeline, kappa.graph.ingest.read, kappa.graph.ingest.intake
    from kappa.app import settings, wiring
    from kappa.engine import WorkerConfig, run_until_signal
    from kappa.pg import Database

    loaded = settings.load()
    url = loaded.database_url.get_secret_value()
    wiring.build_engine(loaded, Database(url, bounds=loaded.bounds))
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            engine = wiring.build_engine(loaded, Database(url, bounds=loaded.bounds))

            async def work():
                await run_until_signal(engine.worker(WorkerConfig(lead=False)))

            asyncio.run(work())
            engine.close()
            os._exit(0)
        print(child, flush=True)
        os.waitpid(child, 0)
        print("ended", flush=True)
"""

ANY_NUMBER = 1_000_000
CHUNKS = {"KAPPA_CHUNK_TARGET": "12", "KAPPA_CHUNK_LEAST": "9", "KAPPA_CHUNK_MOST": "15", "KAPPA_CHUNK_OVERLAP": "3"}


class Bed:
    """A database, a submitted document, and workers that come and go."""

    def __init__(self, url: str, home: Path, provider: str, chunks: dict[str, str]) -> None:
        self.url = url
        self.asked = home / "asked"
        self.asked.touch()
        self._allowed = home / "allowed"
        self.allow(ANY_NUMBER)
        environment = {
            "KAPPA_HOME": str(home), "KAPPA_DATABASE_URL": url, "KAPPA_HANDLERS": PLACE, "KAPPA_PROVIDER": provider,
            "KAPPA_EMBEDDER": provider, ASKED: str(self.asked), ALLOWED: str(self._allowed),
            "OPENBLAS_NUM_THREADS": "1", **chunks,
        }  # fmt: skip
        self.settings = Settings(home=home)
        self.engine: Engine = wiring.build_engine(self.settings, Database(url))
        self.nursery = Script(NURSERY, env=environment)
        self.worker: int | None = None
        assert self.nursery.line() == "ready"

    def allow(self, chunks: int) -> None:
        """The extractor answers so many, and the next when it may."""
        self._allowed.write_text(str(chunks))

    def keep_pace(self) -> None:
        """It is never far ahead of who looks at it."""
        self.allow(len(self.asked.read_text().split()) + 1)

    def submit(self, text: str) -> int:
        data = text.encode()
        taken = intake.take_in(data, "story.txt", "ann")
        with Graph(self.url, GraphConfig(snapshot=False)) as graph, graph.transaction() as connection:
            uploads.add(connection, taken.upload, data, intake.KEEP)
        with self.engine.client() as client:
            payload = {"upload": str(taken.upload.key), "ontology": "tales"}
            return client.enqueue("ingestion", payload, auto_approve="ann", max_attempts=1000).id

    def begin(self) -> None:
        self.nursery.tell("go")
        self.worker = int(self.nursery.line())

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self.worker is not None
        os.kill(self.worker, number)
        assert self.nursery.line() == "ended"
        self.worker = None

    async def let_time_pass(self, *services: str) -> None:
        with suppress(psycopg.OperationalError):  # a server that is away does nothing, whatever the time
            await maintain(self.engine, later=timedelta(minutes=2), only=lambda name: name in services)

    def finished(self) -> set[str]:
        return finished_chunks(self.url)

    def state(self, job: int) -> JobState:
        with self.engine.client() as client:
            return client.show(job).state

    def close(self) -> None:
        if self.worker is not None:
            with suppress(ProcessLookupError):
                os.kill(self.worker, signal.SIGKILL)
        self.nursery.kill()


@contextmanager
def bed(url: str, home: Path, provider: str = "scripted", chunks: dict[str, str] = CHUNKS) -> Iterator[Bed]:
    home.mkdir(exist_ok=True)
    made = Bed(url, home, provider, chunks)
    try:
        yield made
    finally:
        made.close()


def finished_chunks(url: str) -> set[str]:
    """The chunks that are committed, by what the extractor calls them."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT substr(d.text, p.start_offset + 1, p.end_offset - p.start_offset) "
            "FROM kappa_graph.chunk_plan AS p JOIN kappa_graph.documents AS d ON d.id = p.document_id "
            "WHERE p.state = 'done'"
        )
        return {name_of(row[0]) for row in rows}


async def undisturbed(url: str, home: Path, text: str, **kwargs: Any) -> bytes:
    with bed(url, home, **kwargs) as quiet:
        job = quiet.submit(text)
        quiet.begin()
        eventually(lambda: quiet.state(job).terminal, what="the undisturbed run ends")
        assert quiet.state(job) is JobState.SUCCEEDED
        quiet.end(signal.SIGTERM)
        names = quiet.asked.read_text().split()
        assert len(names) == len(set(names))
    return dump(url)


async def disturbed(spot: Bed, job: int, kills: int, seed: int, strike: Callable[[int], None]) -> int:
    """Let the job run to its end, with so many strikes on the way; how many there were."""
    chance = random.Random(seed)
    struck = 0
    known: set[str] = set()
    committed: list[tuple[int, set[str]]] = []
    spot.keep_pace()
    spot.begin()
    while not spot.state(job).terminal:
        before = spot.asked.stat().st_size
        # Somewhere in the next few chunks: as soon as one of them was asked for, or was committed.
        by_asking, steps = chance.random() < 0.5, chance.randint(1, 3)
        goal = len(known) + steps

        async def there(
            goal: int = goal, before: int = before, by_asking: bool = by_asking, steps: int = steps
        ) -> bool:
            await spot.let_time_pass("promoter")
            spot.keep_pace()
            if spot.state(job).terminal:
                return True
            if by_asking:
                return spot.asked.stat().st_size >= before + 17 * steps
            return len(spot.finished()) >= goal

        while not await there():
            pass
        if struck == kills:
            continue
        strike(struck)
        struck += 1
        if spot.worker is None:
            known = spot.finished()
            committed.append((len(spot.asked.read_text().split()), known))
            await spot.let_time_pass("reaper")
            spot.begin()
    names = spot.asked.read_text().split()
    assert spot.state(job) is JobState.SUCCEEDED
    assert len(set(names)) == len(spot.finished())
    for asked_by_then, done in committed:
        assert not done & set(names[asked_by_then:]), "a committed chunk was asked for again"
    assert committed[-1][1]
    return struck


@pytest.mark.timeout(400)
async def test_fifty_kills_leave_no_trace(tmp_path_factory: pytest.TempPathFactory, home: Path) -> None:
    """Forty of the worker, ten of PostgreSQL with every process it has."""
    text = story(1, 600)
    with started(tmp_path_factory) as server:
        urls = [_database(server) for _ in range(2)]
        quiet = await undisturbed(urls[0], home, text)
        server.admin.close()
        with bed(urls[1], home.with_name("disturbed")) as spot:
            job = spot.submit(text)

            def strike(number: int) -> None:
                if number % 5 == 4:
                    _kill_server(server)
                    if number % 10 == 9:
                        return  # the worker lives on, and finds its own way back
                spot.end()

            struck = await disturbed(spot, job, 50, 20261116, strike)
            assert struck == 50, "the text is long enough for all of them"
            spot.end(signal.SIGTERM)
        assert dump(urls[1]) == quiet
        server.admin = server.connect()


@pytest.mark.timeout(400)
async def test_the_local_models_give_the_same_after_kills(server: Server, template: str, home: Path) -> None:
    text = "\n\n".join(
        f"A lease token of group {number} prevents stale writes. Each worker renews its lease every {number + 2} "
        "seconds. An expired lease causes adoption. The reaper clears expired leases, and workers adopt orphans."
        for number in range(40)
    )
    chunks = {"KAPPA_CHUNK_TARGET": "120", "KAPPA_CHUNK_LEAST": "90", "KAPPA_CHUNK_MOST": "150",
              "KAPPA_CHUNK_OVERLAP": "20"}  # fmt: skip
    urls = [server.create(template) for _ in range(2)]
    quiet = await undisturbed(urls[0], home, text, provider="local", chunks=chunks)
    with bed(urls[1], home.with_name("disturbed"), "local", chunks) as spot:
        job = spot.submit(text)
        spot.begin()
        for kill in range(3):
            eventually(lambda goal=2 * kill + 1: len(spot.finished()) >= goal)
            spot.end()
            await spot.let_time_pass("reaper")
            spot.begin()
            eventually(lambda: spot.state(job) is not JobState.RUNNING)
            await spot.let_time_pass("promoter")
        eventually(lambda: spot.state(job).terminal, within=60)
        assert spot.state(job) is JobState.SUCCEEDED
        spot.end(signal.SIGTERM)
    assert len(quiet) > 10_000
    assert dump(urls[1]) == quiet
    for url in urls:
        server.drop(url)


def _database(server: Server) -> str:
    url = server.create()
    with psycopg.connect(url, autocommit=True) as connection:
        migrate(connection, wiring.COMPONENTS)
    return url


def _kill_server(server: Server) -> None:
    pid = server.embedded.status().pid
    assert pid is not None
    postmaster = psutil.Process(pid)
    doomed = [postmaster, *postmaster.children(recursive=True)]
    for process in doomed:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(doomed, timeout=30)
    server.embedded.start()
