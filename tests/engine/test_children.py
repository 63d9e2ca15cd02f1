"""The child processes of a worker, where a time-out meets the hand-over of a child from one job to the next."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import cast

import pytest

from kappa.engine import Client, Engine, Executor, JobContext
from kappa.engine.context import Office, Running
from kappa.engine.runners.process import ChildDied, Children
from kappa.engine.store import jobs
from kappa.pg.ops import run
from tests.engine.hands import Connection
from tests.engine.site import Site, place
from tests.engine.work import LANE
from tests.ground import PATIENCE


class Gated:
    """The lock of `Children`, after which one thread stays where it is until the test lets it go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.held_up: threading.Thread | None = None
        self.came = threading.Event()
        self.go_on = threading.Event()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
        if threading.current_thread() is self.held_up:
            self.came.set()
            self.go_on.wait(PATIENCE)


class Hands:
    """Attempts of claimed jobs, each in a child behind a thread, as a worker has them."""

    def __init__(self, engine: Engine, connection: Connection, url: str) -> None:
        self._engine = engine
        self._connection = connection
        self._threads = ThreadPoolExecutor()
        self._loop = asyncio.new_event_loop()
        self.children = Children(url, 1)

    def claim(self) -> Running:
        (claimed,) = run(self._connection, jobs.claim(LANE, "me", 1))
        return Running(claimed, self._engine.registry.get(claimed.kind), LANE)

    def begin(self, running: Running) -> "Future[object]":
        context = JobContext(running, cast("Office", None), self._loop)  # these handlers ask for nothing
        return self._threads.submit(self.children.call, running, context)

    def close(self) -> None:
        self.children.close()
        self._threads.shutdown()
        self._loop.close()


@pytest.fixture
def hands(engine: Engine, connection: Connection, url: str) -> Iterator[Hands]:
    place(engine, Executor.PROCESS, "hold", "overrun", "ask_badly")
    made = Hands(engine, connection, url)
    yield made
    made.close()


def test_a_kill_that_comes_late_does_not_hit_the_job_that_has_the_child_by_then(
    client: Client, site: Site, hands: Hands
) -> None:
    gate = Gated()
    hands.children._lock = gate  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    site.shut(1)
    site.shut(2)
    client.enqueue("hold", site.task(gate=1, text="first"))
    first = hands.claim()
    first_ends = hands.begin(first)
    site.until_said("began first 1")
    gate.held_up = killer = threading.Thread(target=hands.children.kill, args=[first], daemon=True)
    killer.start()
    assert gate.came.wait(PATIENCE)
    site.open(1)
    first_ends.exception(PATIENCE)  # its child is free for the next
    client.enqueue("hold", site.task(gate=2, text="second"))
    second_ends = hands.begin(hands.claim())
    site.until_said("began second 1")
    gate.go_on.set()
    killer.join(PATIENCE)
    site.open(2)
    assert second_ends.result(PATIENCE) == "second 1"
    with pytest.raises(ChildDied):
        first_ends.result()


def test_a_job_whose_time_is_up_before_it_has_a_child_does_not_go_on_in_one_that_was_idle(
    client: Client, site: Site, hands: Hands
) -> None:
    client.enqueue("hold", site.task(text="first"))
    assert hands.begin(hands.claim()).result(PATIENCE) == "first 1"
    client.enqueue("overrun", site.task(text="deaf"))
    late = hands.claim()
    late.stopped = True
    hands.children.kill(late)  # there is no child to kill yet
    with pytest.raises(ChildDied):
        hands.begin(late).result(PATIENCE)
    assert site.said == ["began first 1"]


def test_a_child_whose_conversation_broke_off_gets_no_other_job(client: Client, site: Site, hands: Hands) -> None:
    client.enqueue("ask_badly")
    with pytest.raises(ValueError, match="no number"):
        hands.begin(hands.claim()).result(PATIENCE)
    client.enqueue("hold", site.task(text="next"))
    assert hands.begin(hands.claim()).result(PATIENCE) == "next 1"
