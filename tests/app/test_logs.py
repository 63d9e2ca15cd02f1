"""A server's log: lines for people or for programs, with the job they are about, without secrets."""

import asyncio
import io
import json
import logging
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest

from kappa.app import logs
from kappa.app.settings import LogFormat, LogLevel
from kappa.engine import AsyncJobContext, Engine, JobContext, Lane, WorkerConfig, current_facts
from kappa.engine.testing import Heard, drain, working
from tests.app.conftest import Site, Up
from tests.app.patience import begun
from tests.leases import lose_lease

FOLLOWER = WorkerConfig(lead=False, grace=timedelta(seconds=5))
log = logging.getLogger("somebody.elses")


class Lines:
    """What was logged since this began."""

    def __init__(self, form: LogFormat = LogFormat.JSON, level: LogLevel = LogLevel.INFO) -> None:
        self._stream = io.StringIO()
        self._writing = logs.writing(form, level, self._stream)

    def __enter__(self) -> Self:
        self._writing.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._writing.__exit__(None, None, None)

    @property
    def text(self) -> list[str]:
        return self._stream.getvalue().splitlines()

    @property
    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text]

    def of(self, logger: str) -> list[dict[str, Any]]:
        return [line for line in self.all if line["logger"] == logger]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Levels of libraries stay as a server sets them; not so in a process with other tests."""
    levels = {name: logging.getLogger(name).level for name in logs.QUIET}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def test_a_line_of_json_has_time_level_logger_message_and_facts() -> None:
    with Lines() as lines:
        log.warning("%d of %s", 3, "four", extra={"lane": "here", "odd": {1, 2}.__class__, "none": float("nan")})
    (line,) = lines.all
    when = datetime.fromisoformat(line.pop("time"))
    assert when.tzinfo is not None
    assert line == {
        "level": "warning", "logger": "somebody.elses", "message": "3 of four", "lane": "here",
        "odd": "<class 'set'>", "none": "nan",
    }  # fmt: skip


def test_an_error_has_its_traceback_in_the_same_line() -> None:
    with Lines() as lines:
        try:
            raise ValueError("it broke\nin two")
        except ValueError:
            log.exception("no luck")
    (line,) = lines.all
    assert line["error"].startswith("Traceback (most recent call last)")
    assert line["error"].endswith("ValueError: it broke\nin two")


def test_a_fact_cant_pose_as_the_line_itself() -> None:
    with Lines() as lines:
        log.info("true", extra={"level": "critical", "logger": "kappa", "time": "never"})
    assert {name: lines.all[0][name] for name in ("level", "logger")} == {"level": "info", "logger": "somebody.elses"}
    assert lines.all[0]["time"] != "never"


def test_a_line_of_text_is_one_line_whatever_is_in_it() -> None:
    with Lines(LogFormat.TEXT) as lines:
        log.info("GET /x\n2026-01-01 critical: all is lost\x1b[2J", extra={"path": "/x\r\ny"})
    (line,) = lines.text
    assert line.endswith(r"info    somebody.elses: GET /x\n2026-01-01 critical: all is lost\x1b[2J path=/x\r\ny")


def test_only_what_is_grave_enough_is_logged_and_libraries_keep_their_everyday_news() -> None:
    with Lines(level=LogLevel.WARNING) as lines:
        log.info("no")
        log.warning("yes")
    assert [line["message"] for line in lines.all] == ["yes"]
    with Lines(level=LogLevel.INFO) as lines:
        logging.getLogger("uvicorn.error").info("no")
        logging.getLogger("httpx2").info("no")
        log.info("yes")
    assert [line["message"] for line in lines.all] == ["yes"]


TOKEN = "kappa_" + "Ab-_5" * 8 + "xyz"


@pytest.mark.parametrize("form", LogFormat)
@pytest.mark.parametrize(
    "text",
    [
        f"refused {TOKEN}.",
        f"Authorization: Bearer {TOKEN}",
        "authorization: bearer hunter2swordfish",
        "can't reach postgresql://kappa:hunter2swordfish@db.example/kappa",
        "host=db password=hunter2swordfish dbname=kappa",
        "{'password': 'hunter2swordfish', 'user': 'x'}",
    ],
)
def test_what_looks_like_a_secret_is_not_logged(form: LogFormat, text: str) -> None:
    with Lines(form) as lines:
        log.error(text, extra={"said": text, "held": [text]})
        try:
            raise RuntimeError(text)
        except RuntimeError:
            log.exception("%s", text)
    whole = "\n".join(lines.text)
    assert "hunter2" not in whole
    assert TOKEN not in whole
    assert "…" in whole or "\\u2026" in whole


def test_a_reader_who_stops_reading_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LINES_AHEAD", 5)
    reads = threading.Event()

    class Stuck(io.StringIO):
        def write(self, text: str) -> int:
            reads.wait(30)
            return super().write(text)

    stream = Stuck()
    with logs.writing(LogFormat.JSON, LogLevel.INFO, stream):
        for number in range(50):
            log.info("line %d", number)
        reads.set()
    *lines, last = stream.getvalue().splitlines()
    assert json.loads(lines[0])["message"] == "line 0"
    assert 5 <= len(lines) <= 6
    assert last == f"{50 - len(lines)} lines of the log were dropped: nobody read them"


# Jobs


@pytest.fixture
def engine(site: Site) -> Engine:
    """Handlers that log, on the loop and in threads, and beside themselves."""

    @site.engine.job("on_loop")
    async def on_loop(ctx: AsyncJobContext) -> None:
        log.info("on the loop %d", ctx.job_id)

    @site.engine.job("waits")
    async def waits(ctx: AsyncJobContext) -> None:
        async def beside() -> None:
            await asyncio.sleep(0)
            log.info("in a task %d", ctx.job_id)

        await asyncio.sleep(0)
        await asyncio.gather(beside(), beside())
        await asyncio.wrap_future(ctx.threads.submit(log.info, "beside %d", ctx.job_id))

    @site.engine.job("leaves")
    async def leaves(ctx: AsyncJobContext) -> None:
        async def later() -> None:
            await asyncio.sleep(0)
            log.info("later %d", ctx.job_id)

        left.append(asyncio.create_task(later()))

    left: list[asyncio.Task[None]] = []

    @site.engine.job("in_thread")
    def in_thread(ctx: JobContext) -> None:
        log.info("in a thread %d", ctx.job_id)
        ctx.threads.submit(log.info, "beside %d", ctx.job_id).result()

    kinds = ("on_loop", "waits", "leaves", "in_thread")
    site.engine.lane(Lane("here", kinds=kinds, max_slots=8))
    site.engine.install()
    return site.engine


@pytest.mark.parametrize("kind", ["on_loop", "waits", "leaves", "in_thread"])
async def test_what_a_handler_logs_carries_its_job_and_no_others(site: Site, engine: Engine, kind: str) -> None:
    jobs = [(await site.services.client.enqueue(kind)).id for _ in range(10)]
    with Lines() as lines:
        await drain(engine, FOLLOWER)
        assert current_facts() == {}
    said = lines.of("somebody.elses")
    assert {line["job"] for line in said} == set(jobs)
    for line in said:
        assert line["message"].endswith(f" {line['job']}"), line
        assert (line["kind"], line["lane"], line["attempt"]) == (kind, "here", 1)


async def test_a_line_outside_of_jobs_has_no_job(site: Site, engine: Engine) -> None:
    await site.services.client.enqueue("in_thread")
    with Lines() as lines:
        await drain(engine, FOLLOWER)
        log.info("after")
        await asyncio.to_thread(log.info, "after")
    assert [line.keys() & {"job", "lane"} for line in lines.all if line["message"] == "after"] == [set(), set()]


async def test_what_the_engine_says_of_a_job_has_its_facts(site: Site) -> None:
    go_on = threading.Event()

    @site.engine.job("held", idempotent=True)
    def held(ctx: JobContext) -> None:
        go_on.wait(30)

    site.engine.lane(Lane("slow", kinds=("held",), max_slots=1, lease_ttl=timedelta(seconds=1)))
    site.engine.install()
    job = (await site.services.client.enqueue("held")).id
    heard = Heard(site.engine)
    with Lines() as lines:
        async with working(site.engine, FOLLOWER):
            await begun(site.services.client, job)
            await lose_lease(site.engine, job)
            await heard.until("lease_lost", job=job)
            go_on.set()
    line = next(line for line in lines.of("kappa.engine.desk") if "lease is lost" in line["message"])
    assert {name: line[name] for name in ("job", "attempt", "lane", "kind", "level")} == {
        "job": job, "attempt": 1, "lane": "slow", "kind": "held", "level": "warning",
    }  # fmt: skip


IN_CHILD = """
    import asyncio, logging, sys
    from functools import partial
    from kappa.app import logs
    from kappa.app.settings import LogFormat, LogLevel
    from kappa.engine import Engine, Executor, Lane, WorkerConfig
    from kappa.engine.testing import drain
    from tests.app.test_logs import told

    async def main():
        engine = Engine(sys.argv[1])
        engine.lane(Lane("children", kinds=("told",), max_slots=1, executor=Executor.PROCESS))
        engine.job("told")(told)
        engine.install()
        with engine.client() as client:
            client.enqueue("told")
        await drain(engine, WorkerConfig(lead=False, child_set_up=partial(logs.set_up, LogFormat.JSON, LogLevel.INFO)))

    if __name__ == "__main__":
        asyncio.run(main())
"""


def told(ctx: JobContext) -> None:
    log.info("from a child")


def test_what_a_handler_logs_in_a_process_of_its_own_carries_its_job_too(url: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(IN_CHILD))
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, program, url],
        cwd=root,
        env={"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert (line["message"], line["kind"], line["lane"], line["attempt"]) == ("from a child", "told", "children", 1)
    assert isinstance(line["job"], int)


# A server


def test_a_server_logs_json_where_it_is_told_to(start_up: Callable[..., Up]) -> None:
    up = start_up(env={"KAPPA_LOG_FORMAT": "json"})
    with up.client() as client:
        client.get("/me?secret=hunter2", headers={"X-Request-Id": "mine"}).raise_for_status()
    assert up.stop() == 0
    lines = [json.loads(line) for line in up.said.splitlines() if line.startswith("{")]
    (access,) = [line for line in lines if line.get("request_id") == "mine"]
    facts = {name: access[name] for name in ("logger", "level", "method", "path", "status")}
    assert facts == {"logger": "kappa.access", "level": "info", "method": "GET", "path": "/me", "status": 200}
    assert access["ms"] > 0
    assert any(line["message"].startswith("told to stop: ") for line in lines)
    assert up.token not in up.said
    assert "hunter2" not in up.said
