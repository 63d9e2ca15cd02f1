"""A worker in a process of its own that kills itself, by SIGKILL, at a statement of its handler."""

import json

import psycopg
from psycopg.types.json import Jsonb

from tests.ground import Script, eventually

WORKER = """
    import asyncio, json, os, random, signal, sys, threading, time
    import psycopg
    from kappa.app import wiring
    from kappa.app.settings import Settings
    from kappa.engine import JobState, WorkerConfig
    from kappa.pg import Database

    url, home, lane = sys.argv[1:4]
    LIVE = [JobState.QUEUED, JobState.RUNNING, JobState.SCHEDULED]
    engine = wiring.build_engine(Settings(home=home), Database(url))
    print("ready", flush=True)
    at, delay = json.loads(sys.stdin.readline())
    counted = 0
    execute = psycopg.Cursor.execute

    def kill():
        time.sleep(delay)
        os.kill(os.getpid(), signal.SIGKILL)

    def counting(self, *args, **kwargs):
        global counted
        counted += 1
        if counted == at:
            threading.Thread(target=kill).start()
        return execute(self, *args, **kwargs)

    psycopg.Cursor.execute = counting

    async def work():
        worker = engine.worker(WorkerConfig(lanes=(lane,), lead=False))
        running = asyncio.create_task(worker.run())
        async with engine.async_client() as client:
            while await client.list_jobs(lane=lane, states=LIVE):
                await asyncio.sleep(0.01)
        worker.stop()
        await running

    asyncio.run(work())
    print(json.dumps(counted), flush=True)
"""


BUSY = """
SELECT pid FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend' AND state <> 'idle' AND pid <> pg_backend_pid()
"""


class DoomedWorker(Script):
    """Works until no job of its lane is left, or until the statement at which it kills itself."""

    def __init__(self, url: str, home: object, lane: str = "system") -> None:
        super().__init__(WORKER, url, home, lane)
        self._url = url

    def work(self, at: int = 0, delay: float = 0.0) -> int | None:
        """How many statements its handlers made; None if it was killed."""
        if self.process.stdout is None or self.line() != "ready":
            raise AssertionError("it did not begin")
        self.tell(json.dumps([at, delay]))
        said, complaint = self.process.communicate(timeout=30)
        if self.process.returncode == -9:
            # What it was at is over when its sessions are.
            with psycopg.connect(self._url, autocommit=True) as connection:
                eventually(lambda: connection.execute(BUSY).fetchall() == [], what="nobody is left at work")
            return None
        assert self.process.returncode == 0, complaint
        return int(said)


def put_restore(url: str, content: bytes, mode: str = "replace", piece: int = 700) -> int:
    """A job that restores this, as the API would make it."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "INSERT INTO kappa.restore_files (uploaded_by) VALUES ('test') RETURNING id"
        ).fetchone()
        assert row is not None
        for position, start in enumerate(range(0, len(content), piece)):
            connection.execute(
                "INSERT INTO kappa.restore_pieces VALUES (%s, %s, %s)",
                [row[0], position, content[start : start + piece]],
            )
        job = connection.execute(
            "SELECT kappa.enqueue('restore', %s, 0::smallint, 'test', NULL, NULL, NULL, NULL, NULL, NULL, false, NULL, "
            "NULL, NULL, 1000, true)",
            [Jsonb({"file": row[0], "mode": mode})],
        ).fetchone()
        assert job is not None
        connection.execute("UPDATE kappa.restore_files SET job_id = %s WHERE id = %s", [job[0], row[0]])
        return job[0]
