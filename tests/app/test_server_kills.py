"""A whole server, API and lanes in one process, is killed with -9 in the middle of what people handed in.

Most kills are forced: the test holds a table, so that the server stops at a statement of its own, and there it dies.
Nobody commits for the dead: sessions that it leaves behind are ended before the table is let go. The time that would
pass until its leases ran out is spared by doing at once what the leader would do then.
"""

import random
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from kappa.app import wiring
from kappa.app.settings import Settings
from kappa.engine.testing import maintain
from kappa.pg import Database
from tests.app.conftest import Up
from tests.app.test_ingestion_kills import ANY_NUMBER, CHUNKS, finished_chunks
from tests.conftest import Server
from tests.ground import PATIENCE, eventually
from tests.scripted import ALLOWED, ASKED, PLACE, dump, story

OVER = {"succeeded", "failed", "timed_out", "cancelled"}
LINE = 17
"""Bytes of a line in the list of what the extractor was asked."""


def sorted_apart(text: str) -> str:
    """The same with names that no other story has anything like."""
    return text.replace("Thing", "Wolverine").replace("Matter", "Quicksand")


ROUNDS = (
    ("first", {"one.txt": story(1, 150)}),
    ("second", {"two.txt": story(2, 100), "three.txt": sorted_apart(story(3, 100))}),
    ("third", {"four.txt": story(4, 150)}),
)


class House:
    """A database, and the server on it, which comes and goes."""

    def __init__(self, url: str, home: Path, seed: int = 0) -> None:
        self.url = url
        self.home = home
        home.mkdir()
        self.asked = home / "asked"
        self.asked.touch()
        self._allowed = home / "allowed"
        self.allow(ANY_NUMBER)
        self.kills = 0
        self.seen: list[tuple[int, set[str]]] = []
        """After each kill: how much had been asked by then, and what was committed."""
        self.chance = random.Random(seed)
        self.engine = wiring.build_engine(Settings(home=home), Database(url))
        self.watcher = psycopg.connect(url, autocommit=True)
        self.begin()

    def begin(self) -> None:
        self.up = Up(
            self.url, self.home,
            env={"KAPPA_HANDLERS": PLACE, "KAPPA_PROVIDER": "scripted", "KAPPA_EMBEDDER": "scripted",
                 "OPENBLAS_NUM_THREADS": "1", ASKED: str(self.asked), ALLOWED: str(self._allowed), **CHUNKS},
        )  # fmt: skip

    def allow(self, chunks: int) -> None:
        """The extractor answers so many, and the next when it may."""
        self._allowed.write_text(str(chunks))

    def kill(self) -> None:
        """The server is gone, and so is all that it had not committed; another one begins."""
        self.up.kill()
        self.kills += 1
        self._others("pg_terminate_backend(pid)")
        eventually(lambda: not self._others("pid"), what="the sessions of the dead are over")
        self.seen.append((len(self.names), finished_chunks(self.url)))

    async def again(self) -> None:
        await self.let_time_pass("reaper")
        self.begin()

    def _others(self, what: str) -> list[Any]:
        """What is to be done with, or known of, the server's sessions."""
        return self.watcher.execute(
            f"SELECT {what} FROM pg_stat_activity WHERE datname = current_database() "
            "AND backend_type = 'client backend' AND application_name <> 'the test' "
            "AND pid <> pg_backend_pid()".encode()
        ).fetchall()

    @contextmanager
    def holding(self, table: str) -> Generator[None]:
        """Nobody writes to a table meanwhile."""
        with psycopg.connect(self.url, application_name="the test") as holder:
            holder.execute(f"LOCK TABLE {table} IN SHARE MODE".encode())
            yield
            holder.rollback()

    def stopped_at(self, table: str) -> None:
        """Until a statement waits for the table, and not one of the leader's."""

        def waits() -> bool:
            row = self.watcher.execute(
                """SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
                    WHERE relation = %s::regclass AND NOT granted AND application_name NOT LIKE 'kappa leader%%'""",
                [table],
            ).fetchone()
            return row is not None and row[0] > 0

        eventually(waits, what=f"the server waits for {table}")

    async def let_time_pass(self, *services: str) -> None:
        await maintain(self.engine, later=timedelta(minutes=2), only=lambda name: name in services)

    @property
    def names(self) -> list[str]:
        return self.asked.read_text().split()

    def state(self, job: int) -> str:
        with self.up.client() as client:
            return client.get(f"/jobs/{job}").json()["state"]

    async def until(self, look: Callable[[], object], what: str) -> None:
        """Backoff takes no time here."""
        for _ in range(int(PATIENCE * 100)):
            await self.let_time_pass("promoter")
            if look():
                return
        raise AssertionError(f"never: {what}")

    def upload(self, files: dict[str, str]) -> list[str]:
        with self.up.client() as client:
            answers = [
                client.post("/ingest/uploads", params={"name": name}, content=text.encode())
                for name, text in files.items()
            ]
        assert [one.status_code for one in answers] == [201] * len(files), answers[0].text
        return [one.json()["key"] for one in answers]

    def submit(self, ontology: str, uploads: list[str]) -> int:
        with self.up.client() as client:
            body = {"ontology": ontology, "uploads": uploads, "auto_approve": True}
            answer = client.post("/ingest", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()["job"]

    async def finish(self, job: int) -> None:
        await self.until(lambda: self.state(job) in OVER, what=f"job {job} ends")
        assert self.state(job) == "succeeded", self.up.said

    def close(self) -> None:
        self.up.kill()
        self.watcher.close()


@contextmanager
def house(url: str, home: Path) -> Generator[House]:
    made = House(url, home, seed=20261116)
    try:
        yield made
    finally:
        made.close()


async def killed_at(at: House, table: str, ask: Callable[[], object] | None = None) -> None:
    """The server dies at a statement; who asked for something hears nothing of it."""
    with ThreadPoolExecutor(1) as person:
        with at.holding(table):
            at.allow(ANY_NUMBER)
            asking = person.submit(ask) if ask is not None else None
            at.stopped_at(table)
            at.kill()
        if asking is not None:
            with pytest.raises(httpx2.TransportError):
                asking.result()
    await at.again()


async def killed_in_the_middle(at: House, table: str) -> None:
    """The server dies at its next statement on a table, some chunks later."""
    goal = len(finished_chunks(at.url)) + at.chance.randint(1, 4)

    def reached() -> bool:
        at.allow(len(at.names) + 1)
        return len(finished_chunks(at.url)) >= goal

    await at.until(reached, what="some more chunks are committed")
    await killed_at(at, table)


async def killed_anywhere(at: House) -> None:
    """The server dies wherever it is when the extractor has been asked some times more."""
    goal = at.asked.stat().st_size + LINE * at.chance.randint(2, 6)

    def reached() -> bool:
        at.allow(len(at.names) + 1)
        return at.asked.stat().st_size >= goal

    await at.until(reached, what="some more is asked")
    at.kill()
    at.allow(ANY_NUMBER)
    await at.again()


@pytest.mark.timeout(400)
async def test_a_server_that_is_killed_again_and_again_leaves_no_trace(
    server: Server, template: str, home: Path
) -> None:
    urls = [server.create(template) for _ in range(2)]
    with house(urls[0], home) as quiet:
        for ontology, files in ROUNDS:
            await quiet.finish(quiet.submit(ontology, quiet.upload(files)))
        everything = len(quiet.names)
        assert everything == len(set(quiet.names)) == len(finished_chunks(urls[0]))

    with house(urls[1], home.with_name("disturbed")) as at:
        ontology, files = ROUNDS[0]
        await killed_at(at, "kappa_graph.uploads", ask=lambda: at.upload(files))
        with at.holding("kappa_graph.chunk_plan"):
            job = at.submit(ontology, at.upload(files))
            at.stopped_at("kappa_graph.chunk_plan")
            at.kill()
        assert at.names == [], "the plan was not there yet"
        await at.again()
        await killed_anywhere(at)
        await at.finish(job)

        ontology, files = ROUNDS[1]
        job = at.submit(ontology, at.upload(files))
        await killed_in_the_middle(at, "kappa_graph.relations")
        await killed_in_the_middle(at, "kappa_graph.epochs")
        await at.finish(job)

        ontology, files = ROUNDS[2]
        with at.holding("kappa.finished_jobs"):
            job = at.submit(ontology, at.upload(files))
            at.stopped_at("kappa.finished_jobs")
            at.kill()
        assert len(finished_chunks(at.url)) == everything, "all is done but to say so"
        asked = len(at.names)
        await at.again()
        await at.finish(job)
        assert len(at.names) == asked, "nothing was left to ask"

        for asked, done in at.seen:
            assert not done & set(at.names[asked:]), "a committed chunk was asked for again"
        assert at.kills == 6
        assert len(set(at.names)) == everything
    assert dump(urls[1]) == dump(urls[0])
    for url in urls:
        server.drop(url)
