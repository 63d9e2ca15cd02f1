"""The raw ceilings: what this server does when nothing but SQL is in the way.

- pgbench, 1 / 2 / 8 clients: many-row inserts, and claim + settle in batches.
- COPY of one Python connection.
- The raw batched SQL loop: psycopg 3 processes which claim and settle in batches, with no handler, no dispatch,
  no renewals. Its claim does not return the lease token (the claimer has just made it) and leaves payloads
  unparsed, for a ceiling must not be lowered by its own client: reading a UUID and a JSON a row costs more than
  all else the client does.

`separate` commits the claim and the settlement each by itself; `joined` sends the settlement of a batch and the
claim of the next as one pipeline, hence one round trip and one commit. Both keep what matters: a job is settled
after it was claimed in an earlier, committed transaction.

Everything is counted and bounded: a run works off exactly the jobs it put in and then looks whether they are all
in the history.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psycopg

HERE = Path(__file__).resolve().parent
CLAIM = (HERE / "claim.sql").read_bytes()
SETTLE = (HERE / "settle.sql").read_bytes()
TPS = re.compile(r"^tps = ([\d.]+) \(without initial connection time\)", re.MULTILINE)
PATIENCE = 300

Form = Literal["separate", "joined"]


def install(url: str) -> None:
    """Make the ceiling's tables, empty."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute((HERE / "ceiling.sql").read_bytes())


def pgbench_insert(binary: str, url: str, jobs: int, clients: int, batch: int = 1000) -> float:
    """Rows/s of many-row inserts, a commit a batch."""
    install(url)
    return _pgbench(binary, url, "insert_many.pgbench", max(1, jobs // batch // clients), clients, batch)


def pgbench_drain(binary: str, url: str, jobs: int, clients: int, batch: int) -> float:
    """Jobs/s of claim + settle, each a commit of its own, `batch` jobs a time."""
    rounds = max(1, jobs // batch // clients)
    jobs = rounds * batch * clients
    _prepare(url, jobs)
    rate = _pgbench(binary, url, "claim_settle.pgbench", rounds, clients, batch)
    _check(url, jobs)
    return rate


def insert_one(url: str, seconds: float) -> float:
    """Commits/s of one connection that inserts a small row into a table with nothing but a key, by libpq alone."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table if not exists bare (id bigserial primary key, n int)")
        connection.pgconn.prepare(b"one", b"insert into bare (n) values ($1) returning id")
        rows, began = 0, time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            connection.pgconn.exec_prepared(b"one", [b"1"])
            rows += 1
    return rows / passed


def copy_in(url: str, jobs: int, batch: int = 1000) -> float:
    """Rows/s of binary COPY over one connection, a commit a batch."""
    install(url)
    with psycopg.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        began = time.monotonic()
        for at in range(0, jobs, batch):
            with cursor.copy("copy hot (kind, payload) from stdin (format binary)") as copy:
                copy.set_types(["text", "jsonb"])
                for _ in range(min(batch, jobs - at)):
                    copy.write_row(("noop", '{"n": 1}'))
        return jobs / (time.monotonic() - began)


def loop(url: str, jobs: int, processes: int, batch: int = 500, form: Form = "separate") -> float:
    """Jobs/s of the raw batched SQL loop, all processes together, from the common start to the last commit."""
    _prepare(url, jobs)
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers.ceiling", url, str(batch), form],
            cwd=HERE.parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    try:
        for worker in workers:
            assert worker.stdout
            if worker.stdout.readline() != "ready\n":
                raise RuntimeError("a process of the raw loop did not start")
        began = time.monotonic_ns()
        for worker in workers:
            assert worker.stdin
            worker.stdin.write("start\n")
            worker.stdin.flush()
        answers = [json.loads(worker.communicate(timeout=PATIENCE)[0]) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    _check(url, jobs)
    return jobs / ((max(answer["finished"] for answer in answers) - began) / 1e9)


def _prepare(url: str, jobs: int) -> None:
    install(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("insert into hot (kind) select 'noop' from generate_series(1, %s)", (jobs,))
        connection.execute("vacuum (analyze)")
        with suppress(psycopg.errors.InsufficientPrivilege):
            connection.execute("checkpoint")


def _check(url: str, jobs: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        counts = connection.execute("select (select count(*) from hot), (select count(*) from history)").fetchone()
    if counts != (0, jobs):
        raise RuntimeError(f"of {jobs} jobs (live, history) are {counts}")


def _pgbench(binary: str, url: str, script: str, rounds: int, clients: int, batch: int) -> float:
    done = subprocess.run(
        [
            *(binary, "--no-vacuum", "--protocol=prepared", f"--file={HERE / script}", f"--define=batch={batch}"),
            *(f"--client={clients}", f"--jobs={min(clients, 2)}", f"--transactions={rounds}", url),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    found = TPS.search(done.stdout)
    if done.returncode or not found:
        raise RuntimeError(f"pgbench {script} failed:\n{done.stderr[-2000:]}")
    return float(found[1]) * batch


def _work(url: str, batch: int, form: Form) -> None:
    """One process of the raw loop."""
    with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
        cursor = connection.cursor(binary=True)
        nobody = uuid.uuid4()
        cursor.execute(SETTLE, {"ids": [0], "token": nobody})  # prepared before the clock runs
        cursor.execute(CLAIM, {"owner": "raw", "token": nobody, "batch": 0})
        print("ready", flush=True)
        sys.stdin.readline()
        token, ids = nobody, list[int]()
        while True:
            settle = {"ids": ids, "token": token}
            token = uuid.uuid4()
            claim = {"owner": "raw", "token": token, "batch": batch}
            if form == "joined":
                with connection.pipeline():
                    if ids:
                        connection.execute(SETTLE, settle)
                    rows = cursor.execute(CLAIM, claim).fetchall()
            else:
                if ids:
                    cursor.execute(SETTLE, settle)
                rows = cursor.execute(CLAIM, claim).fetchall()
            if not rows:
                break
            ids = [row[0] for row in rows]
    print(json.dumps({"finished": time.monotonic_ns()}))


if __name__ == "__main__":
    _url, _batch, _form = sys.argv[1:]
    _work(_url, int(_batch), "joined" if _form == "joined" else "separate")
