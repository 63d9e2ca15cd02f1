"""Many questions at once, and those who go away: nobody waits for ever, nothing is exhausted, nothing runs on."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from kappa.app.usecases.questions import Asking
from kappa.graph import Answer
from kappa.graph.errors import GraphBusy
from tests.app import worlds
from tests.app.conftest import Site, Up
from tests.app.patience import becomes, waiting
from tests.graph.worlds import fill
from tests.ground import PATIENCE, eventually

CROWD = 100
NOTHING = Answer(0, True, (), "snapshot")


class Held:
    """Questions that go on until they are let go, and the order in which they began."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.free = threading.Event()

    def question(self, number: int) -> Callable[[Asking], Answer]:
        def act(asking: Asking) -> Answer:
            self.began.append(number)
            assert self.free.wait(PATIENCE)
            return NOTHING

        return act


async def ask(site: Site, act: Callable[[Asking], Answer], **how: Any) -> bool:
    return await site.services.graph.ask("neighbors", act, lambda answer: answer.complete, **how)


async def test_questions_begin_in_the_order_in_which_they_came(site: Site) -> None:
    held, threads = Held(), site.services.settings.pool_graph - 2
    asked = [asyncio.create_task(ask(site, held.question(number))) for number in range(CROWD)]
    await becomes(lambda: len(held.began) == threads)
    now = site.services.graph.now()
    assert now is not None
    assert now.waiting == CROWD - threads
    held.free.set()
    assert all(await asyncio.gather(*asked))
    # Threads that begin at one instant may write themselves down in any order; a later question overtakes by no more.
    assert all(abs(place - number) < threads for place, number in enumerate(held.began))


async def test_who_finds_no_thread_in_time_is_told_and_leaves_the_queue(site: Site) -> None:
    held, threads = Held(), site.services.settings.pool_graph - 2
    asked = [asyncio.create_task(ask(site, held.question(number))) for number in range(threads)]
    await becomes(lambda: len(held.began) == threads)
    with pytest.raises(GraphBusy):
        await ask(site, held.question(-1), deadline=0.2)
    held.free.set()
    assert all(await asyncio.gather(*asked))
    assert -1 not in held.began


async def test_who_goes_away_before_its_turn_takes_no_thread(site: Site) -> None:
    held, threads = Held(), site.services.settings.pool_graph - 2
    asked = [asyncio.create_task(ask(site, held.question(number))) for number in range(threads)]
    await becomes(lambda: len(held.began) == threads)
    left = asyncio.Event()
    going = asyncio.create_task(ask(site, held.question(-1), gone=left.wait))
    dropped = asyncio.create_task(ask(site, held.question(-2)))
    await becomes(lambda: (now := site.services.graph.now()) is not None and now.waiting == 2)
    left.set()
    dropped.cancel()
    ended = await asyncio.gather(going, dropped, return_exceptions=True)
    assert [type(one).__name__ for one in ended] == ["_LeftAlone", "CancelledError"]
    held.free.set()
    await asyncio.gather(*asked)
    assert not {-1, -2} & set(held.began)


async def test_a_question_hears_that_its_asker_has_gone(site: Site) -> None:
    begun, heard, left = threading.Event(), threading.Event(), asyncio.Event()

    def act(asking: Asking) -> Answer:
        asking.cancel.watch(act, heard.set)
        begun.set()
        heard.wait(PATIENCE)
        return NOTHING

    going = asyncio.create_task(ask(site, act, gone=left.wait))
    await becomes(begun.is_set)
    left.set()
    await asyncio.gather(going, return_exceptions=True)
    await becomes(heard.is_set)


def test_a_client_that_hangs_up_leaves_nothing_running(up: Up, url: str, connection: psycopg.Connection[Any]) -> None:
    with up.client() as client:
        made = client.post("/graph/concepts", json=worlds.concepts()).raise_for_status().json()
        # What follows the change reads the same table.
        eventually(lambda: client.get("/graph/status").json()["snapshot"]["epoch"] == made["epoch"])
    with psycopg.connect(url) as holder:
        holder.execute("LOCK TABLE kappa_graph.concepts")
        with up.client() as client, pytest.raises(httpx2.ReadTimeout):
            body = {"seeds": [made["ids"]["Otter"]], "deadline": 120}
            client.post("/query/neighbors", json=body, timeout=4)  # by then it has begun
        eventually(lambda: waiting(connection) == 0, what="the statement ends although the lock is held")
    page = _metrics(up)
    assert 'kappa_graph_questions_total{outcome="cancelled",question="neighbors"} 1.0' in page


def _metrics(up: Up) -> str:
    with up.client() as client:
        return client.get("/metrics").raise_for_status().text


class Meanwhile:
    """Asks for the server's health, and puts jobs in, for as long as others ask the graph."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client
        self.health: list[float] = []
        self.in_use: list[float] = []
        self.jobs: list[int] = []
        self.over = False

    async def run(self) -> None:
        while not self.over:
            began = time.monotonic()
            assert (await self._client.get("/healthz")).status_code == 200
            self.health.append(time.monotonic() - began)
            status = (await self._client.get("/admin/workers/status")).raise_for_status().json()
            (pool,) = [one for one in status["pools"] if one["name"] == "graph"]
            self.in_use.append(pool["in_use"])
            made = await self._client.post("/jobs", json={"kind": "self_test", "payload": {"steps": 1}})
            self.jobs.append(made.raise_for_status().json()["id"])

    async def jobs_done(self) -> bool:
        states = [(await self._client.get(f"/jobs/{job}")).json()["state"] for job in self.jobs]
        return set(states) == {"succeeded"}


@pytest.mark.parametrize("memory", ["0", "1024"], ids=["sql", "snapshot"])
async def test_a_hundred_questions_at_once_are_answered_while_health_and_jobs_go_on(
    start_up: Callable[..., Up], url: str, connection: psycopg.Connection[Any], memory: str
) -> None:
    fill(url, 5_000, 50_000, hub=1_000)
    ids = [str(row[0]) for row in connection.execute("SELECT key FROM kappa_graph.concepts ORDER BY id LIMIT 20")]
    up = start_up(env={"KAPPA_GRAPH_SNAPSHOT_MB": memory})
    headers = {"Authorization": f"Bearer {up.token}"}
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=up.url, headers=headers, timeout=100, limits=limits) as client:
        answered: list[int] = []

        async def question(number: int) -> None:
            body = {"seeds": [ids[number % len(ids)]], "max_hops": 2 + number % 2, "limit": 20, "deadline": 60}
            answer = await client.post("/query/neighbors", json=body)
            assert answer.status_code == 200, answer.text
            assert answer.json()["complete"], answer.text
            answered.append(number)

        async def one_after_the_other(begin: int) -> None:
            """A question, and the next as soon as it is answered, until all that came first have been."""
            number = begin
            while number < 20 * CROWD and (number < CROWD or len(set(range(CROWD)) & set(answered)) < CROWD):
                await question(number)
                number += CROWD

        meanwhile = Meanwhile(client)
        beside = asyncio.create_task(meanwhile.run())
        await asyncio.gather(*(one_after_the_other(number) for number in range(CROWD)))
        meanwhile.over = True
        await beside
        await becomes(meanwhile.jobs_done, what="the jobs that were put in meanwhile are done")
        page = (await client.get("/metrics")).raise_for_status().text
    first = [place for place, number in enumerate(answered) if number < CROWD]
    assert max(first) < 2 * CROWD, "one that came first waited behind those that came after it"
    assert meanwhile.in_use
    assert max(meanwhile.in_use) <= 20
    assert max(meanwhile.health) < PATIENCE / 2, meanwhile.health
    assert 'outcome="busy"' not in page
    assert 'outcome="failed"' not in page
    assert up.stop() == 0
    assert "Traceback" not in up.said


def test_without_numpy_the_graph_says_so_and_the_rest_works(start_up: Callable[..., Up], tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError(\"No module named 'numpy'\", name='numpy')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    up = start_up(env={"PYTHONPATH": path})
    with up.client() as client:
        for method, place, body in (
            ("POST", "/query/neighbors", {"seeds": ["Otter"]}),
            ("POST", "/graph/concepts", worlds.concepts()),
            ("GET", "/graph/concepts/Otter", None),
            ("GET", "/graph/status", None),
            ("PATCH", "/admin/graph/settings", {"workers": 3}),
        ):
            refused = client.request(method, place, json=body)
            problem = refused.json()
            assert (refused.status_code, problem["code"]) == (501, "not_installed")
            assert "kappa[graph]" in problem["detail"]
        assert client.get("/readyz").status_code == 200
        job = client.post("/jobs", json={"kind": "self_test", "payload": {"steps": 1}}).json()["id"]
        eventually(lambda: client.get(f"/jobs/{job}").json()["state"] == "succeeded")
        assert "kappa_graph_snapshot" not in client.get("/metrics").raise_for_status().text
    assert "numpy is missing" in up.said
    assert up.stop() == 0
