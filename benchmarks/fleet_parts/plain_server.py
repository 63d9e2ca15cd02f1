"""The plain design, to compare with: `python -m benchmarks.fleet_parts.plain_server PORT LANE`.

The same calls on the same tables, as one would write them first: FastAPI, synchronous handlers in a pool of 200
threads, a psycopg pool, one statement for each request. `request_task` has a semaphore of five and an immediate `busy`,
as fishtest does it. Where the design leaves a choice it is made in its favour: tokens are kept for ever once they were
seen, claims count no slots and take no turns, no mutex lets only one of the five work, the semaphore comes before the
token is looked at, a request takes one thread and once, and who is refused waits as long as with Kappa.
"""

import contextlib
import hashlib
import json
import math
import os
import sys
import threading
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import uvicorn
from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse
from psycopg_pool import ConnectionPool

from kappa.engine.fleet import wire
from kappa.engine.fleet.refusals import RETRY_AFTER, spread

TOKENS = 200
SEMAPHORE = 5
CONNECTIONS = 20
REAP_EVERY = 15.0
KEEP_ALIVE = 75

FIND_TOKEN = "SELECT id FROM kappa.tokens WHERE hash = %s AND revoked_at IS NULL"
CLAIM = """
WITH before AS (
    SELECT j.id FROM kappa.fleet_tasks AS t JOIN kappa.jobs AS j ON j.id = t.job_id AND j.lease_token = t.token
     WHERE t.owner = %(owner)s AND t.request_id = %(request)s
), token AS MATERIALIZED (
    SELECT nextval('kappa.lease_tokens') AS token
), claimed AS (
    UPDATE kappa.jobs AS j
       SET state = 'running', lease_owner = %(owner)s, lease_token = (SELECT token FROM token),
           lease_until = now() + l.lease_ttl, claims = j.claims + 1
      FROM kappa.lanes AS l
     WHERE l.name = j.lane AND j.ctid = ANY (ARRAY(
               SELECT q.ctid FROM kappa.jobs AS q
                WHERE q.lane = %(lane)s AND q.state = 'queued' AND q.kind = ANY (%(kinds)s)
                  AND NOT EXISTS (SELECT FROM before)
                ORDER BY (-q.priority), q.id LIMIT %(count)s FOR UPDATE SKIP LOCKED))
    RETURNING j.id, j.lease_token, j.kind, j.lane, j.payload, j.attempt + 1, j.max_attempts,
              date_part('epoch', coalesce(j.timeout, l.stale_timeout)), date_part('epoch', l.lease_ttl), j.checkpoint
), noted AS (
    INSERT INTO kappa.fleet_tasks (job_id, token, owner, request_id)
    SELECT c.id, c.lease_token, %(owner)s, %(request)s FROM claimed AS c
)
SELECT * FROM claimed
UNION ALL
SELECT j.id, j.lease_token, j.kind, j.lane, j.payload, j.attempt + 1, j.max_attempts,
       date_part('epoch', coalesce(j.timeout, l.stale_timeout)), date_part('epoch', l.lease_ttl), j.checkpoint
  FROM before AS b JOIN kappa.jobs AS j ON j.id = b.id JOIN kappa.lanes AS l ON l.name = j.lane
"""
BEAT = """
UPDATE kappa.jobs AS j
   SET lease_until = now() + l.lease_ttl, attempt = j.attempt + (j.attempt_started_at IS NULL)::int,
       attempt_started_at = coalesce(j.attempt_started_at, now()), started_at = coalesce(j.started_at, now())
  FROM unnest(%(ids)s::bigint[], %(tokens)s::bigint[]) AS h (id, token), kappa.lanes AS l
 WHERE j.id = h.id AND j.lease_token = h.token AND j.lease_owner = %(owner)s AND l.name = j.lane
RETURNING j.id, j.cancel_reason
"""
UPDATE = """
UPDATE kappa.jobs AS j
   SET lease_until = now() + l.lease_ttl,
       attempt = j.attempt + (%(started)s AND j.attempt_started_at IS NULL)::int,
       attempt_started_at = CASE WHEN %(started)s THEN coalesce(j.attempt_started_at, now())
                                 ELSE j.attempt_started_at END,
       started_at = CASE WHEN %(started)s THEN coalesce(j.started_at, now()) ELSE j.started_at END,
       progress_done = coalesce(%(done)s, j.progress_done), progress_total = coalesce(%(total)s, j.progress_total),
       progress_message = coalesce(%(message)s, j.progress_message),
       checkpoint = coalesce(%(checkpoint)s::jsonb, j.checkpoint)
  FROM kappa.lanes AS l
 WHERE j.id = %(id)s AND j.lease_token = %(token)s AND j.lease_owner = %(owner)s AND l.name = j.lane
RETURNING j.cancel_reason
"""
SETTLE = """
WITH mine AS (
    SELECT j.id FROM kappa.jobs AS j WHERE j.id = %(id)s AND j.lease_token = %(token)s AND j.lease_owner = %(owner)s
), done AS (
    SELECT kappa.settle(ARRAY[id], ARRAY[%(token)s::bigint], ARRAY['succeeded'], ARRAY[%(result)s::text],
                        ARRAY[NULL::text], ARRAY[NULL::text], ARRAY[NULL::text], ARRAY[true]) FROM mine
), noted AS (
    UPDATE kappa.fleet_tasks SET settled_at = now(), state = 'succeeded'
     WHERE job_id = %(id)s AND token = %(token)s AND (SELECT count(*) FROM done) > 0
)
SELECT 'succeeded' FROM done
UNION ALL
SELECT state::text FROM kappa.fleet_tasks
 WHERE job_id = %(id)s AND token = %(token)s AND owner = %(owner)s AND settled_at IS NOT NULL
"""
REAP = """
UPDATE kappa.jobs
   SET state = 'queued', queued_at = now(), lease_owner = NULL, lease_token = NULL, lease_until = NULL,
       attempt_started_at = NULL
 WHERE state = 'running' AND lease_until <= now()
"""


class Refused(Exception):
    """What the answer says instead."""

    def __init__(self, status: int, code: wire.Refusal) -> None:
        self.status = status
        self.code = code
        self.retry_after = spread(RETRY_AFTER.get(code))


def build(url: str, lane: str) -> FastAPI:
    pool = ConnectionPool(
        url, min_size=CONNECTIONS, max_size=CONNECTIONS, kwargs={"autocommit": True}, open=False, timeout=60
    )
    semaphore = threading.Semaphore(SEMAPHORE)
    known: dict[bytes, int] = {}
    stop = threading.Event()

    def reap() -> None:
        while not stop.wait(REAP_EVERY):
            with pool.connection() as connection:
                connection.execute(REAP)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        current_default_thread_limiter().total_tokens = TOKENS
        pool.open(wait=True)
        threading.Thread(target=reap, daemon=True).start()
        yield
        stop.set()
        pool.close()

    app = FastAPI(lifespan=lifespan)

    @app.exception_handler(Refused)
    async def refuse(_: Request, refused: Refused) -> JSONResponse:
        headers = {} if refused.retry_after is None else {"Retry-After": f"{math.ceil(refused.retry_after)}"}
        said = {"title": refused.code, "status": refused.status, "code": refused.code}
        return JSONResponse(said, refused.status, headers, "application/problem+json")

    def who(authorization: str) -> int:
        hashed = hashlib.sha256(authorization.removeprefix("Bearer ").encode()).digest()
        if (found := known.get(hashed)) is None:
            with pool.connection() as connection:
                row = connection.execute(FIND_TOKEN, [hashed]).fetchone()
            if row is None:
                raise Refused(401, wire.Refusal.NOT_AUTHENTICATED)
            found = known[hashed] = row[0]
        return found

    Token = Annotated[str, Header(alias="authorization")]  # noqa: N806

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/fleet/v1/hello")
    def hello(said: wire.Hello, bearer: Token) -> wire.Welcome:
        who(bearer)
        return wire.Welcome(
            server="plain", kinds=said.kinds, beat_seconds=20, lease_seconds=60, wait_seconds=0, max_body=2**20
        )

    @app.post("/fleet/v1/request_task")
    def request_task(said: wire.RequestTask, bearer: Token) -> wire.Tasks:
        if not semaphore.acquire(blocking=False):
            raise Refused(503, wire.Refusal.BUSY)
        try:
            token = who(bearer)
            with pool.connection() as connection:
                rows = connection.execute(
                    CLAIM,
                    {
                        "owner": _owner(token, said.worker), "request": said.request_id, "kinds": said.kinds,
                        "lane": lane, "count": said.count,
                    },
                ).fetchall()  # fmt: skip
        finally:
            semaphore.release()
        return wire.Tasks(tasks=[_task(row) for row in rows], retry_after=None if rows else 1.0)

    @app.post("/fleet/v1/beat")
    def beat(said: wire.Beat, bearer: Token) -> wire.Beaten:
        token = who(bearer)
        ids = [held.task for held in said.tasks]
        tokens = [held.token for held in said.tasks]
        with pool.connection() as connection:
            params = {"ids": ids, "tokens": tokens, "owner": _owner(token, said.worker)}
            renewed = dict(connection.execute(BEAT, params).fetchall())
        lost = [wire.Notice(task=one, verdict=wire.Verdict.LOST) for one in ids if one not in renewed]
        cancelled = [
            wire.Notice(task=one, verdict=wire.Verdict.CANCEL, reason=reason)
            for one, reason in renewed.items()
            if reason
        ]
        return wire.Beaten(beat_seconds=20, notices=lost + cancelled)

    @app.post("/fleet/v1/update_task")
    def update_task(said: wire.UpdateTask, bearer: Token) -> wire.Updated:
        token = who(bearer)
        checkpoint = None if said.checkpoint is None else json.dumps(said.checkpoint)
        with pool.connection() as connection:
            row = connection.execute(
                UPDATE,
                {
                    "id": said.task, "token": said.token, "owner": _owner(token, said.worker), "started": said.started,
                    "done": said.done, "total": said.total, "message": said.message, "checkpoint": checkpoint,
                },
            ).fetchone()  # fmt: skip
        if row is None:
            raise Refused(409, wire.Refusal.LOST)
        return wire.Updated(cancel=row[0])

    @app.post("/fleet/v1/complete_task")
    def complete_task(said: wire.CompleteTask, bearer: Token) -> wire.Settled:
        token = who(bearer)
        with pool.connection() as connection:
            row = connection.execute(
                SETTLE,
                {
                    "id": said.task, "token": said.token, "owner": _owner(token, said.worker),
                    "result": json.dumps(said.result),
                },
            ).fetchone()  # fmt: skip
        if row is None:
            raise Refused(409, wire.Refusal.LOST)
        return wire.Settled(state=row[0])

    return app


def _owner(token: int, worker: str) -> str:
    return f"fleet:{token}:{worker}"


def _task(row: tuple[Any, ...]) -> wire.Task:
    task, token, kind, lane, payload, attempt, most, seconds_left, lease, checkpoint = row
    return wire.Task(
        task=task, token=token, kind=kind, lane=lane, payload=payload, attempt=attempt, max_attempts=most,
        seconds_left=seconds_left, lease_seconds=lease, checkpoint=checkpoint,
    )  # fmt: skip


def main() -> None:
    port, lane = int(sys.argv[1]), sys.argv[2]
    uvicorn.run(
        build(os.environ["KAPPA_DATABASE_URL"], lane),
        port=port,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE,
        backlog=2048,
    )


if __name__ == "__main__":
    main()
