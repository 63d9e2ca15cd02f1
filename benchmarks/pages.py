"""Every page on a server that has seen much: `python -m benchmarks.pages [--quick] [--json FILE] [--home DIR]`.

A real `kg up` on an embedded server, asked over HTTP by somebody who is signed in, page after page in turns. With
`--home` the database is made there and stays, and the next run finds it made.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

import httpx2
import psycopg

from benchmarks import measures
from benchmarks.api import started
from benchmarks.databases import create_database
from benchmarks.graph_parts import data
from benchmarks.report import Report, console
from kappa.app import home, wiring
from kappa.app.settings import Settings
from kappa.pg import Database
from kappa.pg.embedded import EmbeddedServer

BAR = 150.0
"""Milliseconds: what is asked for is there before one begins to wait for it."""
SMALL = 0.05
HUB = 7920
"""A concept with very many relations; concept 1 has the most, and both are in the largest ontology."""
JOBS = (
    """INSERT INTO kappa.finished_jobs (id, lane, kind, state, priority, payload, created_at, submitted_by,
                                         max_attempts, attempt, started_at, finished_at, keep_until)
       SELECT n, 'tools', 'tool_run', CASE WHEN n %% 5000 = 0 THEN 'failed' ELSE 'succeeded' END::kappa.job_state, 0,
              '{"n": 1}', now() - (%(finished)s - n) * interval '1 second', 'somebody', 1, 1, now(), now(),
              now() + interval '1 day' + interval '28 days' * n / %(finished)s
         FROM generate_series(1, %(finished)s) AS n""",
    "UPDATE kappa.lanes SET enabled = false WHERE name = 'checks'",
    """INSERT INTO kappa.jobs (id, lane, kind, state, submitted_by)
       SELECT %(finished)s + n, 'checks', 'self_test', 'queued', 'somebody' FROM generate_series(1, %(queued)s) AS n""",
    """INSERT INTO kappa.jobs (id, lane, kind, state, expires_at)
       SELECT %(finished)s + %(queued)s + n, 'system', 'restore', 'awaiting_approval', now() + interval '1 day'
         FROM generate_series(1, 60) AS n""",
    "SELECT setval('kappa.jobs_id_seq', %(finished)s + %(queued)s + 1000)",
    "INSERT INTO kappa.tools (name, version, argv) VALUES ('count', '1', '{true}')",
    """INSERT INTO kappa.tool_runs (job_id, tool, version, status, requested_by, started_at, finished_at, exit_code)
       SELECT n, 'count', '1', 'succeeded', 'somebody', now(), now(), 0
         FROM generate_series(1, %(finished)s / 10) AS n""",
    """INSERT INTO kappa.audit (who, action, target)
       SELECT 'somebody', 'job.enqueue', n::text FROM generate_series(1, %(finished)s / 5) AS n""",
    "INSERT INTO kappa.users (name) SELECT 'user-' || n FROM generate_series(1, 500) AS n",
    "INSERT INTO kappa.user_roles SELECT id, 'contributor' FROM kappa.users WHERE name LIKE 'user-%%'",
)
GRAPH = (
    # Half of all in one ontology; words that many, some and few labels have.
    """UPDATE kappa_graph.concepts
          SET ontology_id = CASE WHEN id %% 2 = 1 OR id <= 20 THEN 1 ELSE ontology_id END,
              label = (ARRAY['cold', 'warm', 'deep', 'early', 'slow'])[1 + id %% 5] || ' '
                   || (ARRAY['river', 'light', 'stone', 'market', 'engine', 'garden'])[1 + id / 5 %% 6] || ' '
                   || id / 300 || ' ' || id %% 300""",
    """INSERT INTO kappa_graph.documents (key, ontology_id, name, content_hash, text)
       SELECT gen_random_uuid(), 1, 'report ' || n || '.md', sha256(n::text::bytea),
              repeat('Rivers carry stones. ', 1000)
         FROM generate_series(1, 2000) AS n""",
    """INSERT INTO kappa_graph.sources (key, document_id, ordinal, start_offset, end_offset, text)
       SELECT gen_random_uuid(), d.id, n, 2100 * n, 2100 * n + 2100, repeat('Rivers carry stones. ', 100)
         FROM kappa_graph.documents AS d, generate_series(0, 9) AS n""",
    """INSERT INTO kappa_graph.instances (concept_id, source_id, quote, start_offset, end_offset)
       SELECT 1 + n / 2, 1 + n * 7919 %% 20000, 'Rivers carry stones.', 2100 * ((n * 7919 %% 20000) %% 10),
              2100 * ((n * 7919 %% 20000) %% 10) + 20
         FROM generate_series(0, 2 * %(concepts)s::bigint - 1) AS n ON CONFLICT DO NOTHING""",
    "INSERT INTO kappa_graph.relation_sources SELECT id, 1 + id %% 20000 FROM kappa_graph.relations",
)  # fmt: skip


def fill(url: str, share: float) -> None:
    finished, queued, concepts = (int(n * share) for n in (1_000_000, 200_000, 200_000))
    counts = {"finished": finished, "queued": queued, "concepts": concepts}
    measures.fill(url, data.make(concepts, 10 * concepts))
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute("SELECT kappa.make_partitions(current_date, 32)")
        with connection.transaction():
            connection.execute("SET LOCAL session_replication_role = replica")
            for statement in (*JOBS, *GRAPH):
                connection.execute(statement.encode(), counts)
        connection.execute("VACUUM ANALYZE")


def pages(url: str) -> dict[str, str]:
    """Where each page is, by what it is called in the table."""
    with closing(psycopg.connect(url)) as connection:

        def one(query: bytes) -> str:
            row = connection.execute(query).fetchone()
            assert row is not None
            return str(row[0])

        newest = int(one(b"SELECT max(id) FROM kappa.finished_jobs"))
        hub, other, plain = (
            one(b"SELECT key FROM kappa_graph.concepts WHERE id = %d" % number) for number in (1, HUB, 4321)
        )
        document = one(b"SELECT key FROM kappa_graph.documents WHERE id = 7")
        largest = one(b"SELECT name FROM kappa_graph.ontologies WHERE id = 1").replace(" ", "+")
    return {
        "the first page": "/ui/",
        "jobs": "/ui/jobs", "jobs, behind half of all": f"/ui/jobs?before={newest // 2}",
        "jobs, queued": "/ui/jobs?state=queued", "jobs, awaiting approval": "/ui/jobs?state=awaiting_approval",
        "jobs, failed (1 in 5,000)": "/ui/jobs?state=failed", "jobs, of a kind that none has": "/ui/jobs?kind=backup",
        "jobs, of a submitter": "/ui/jobs?by=somebody",
        "jobs, of a submitter nobody knows": "/ui/jobs?by=nobody",
        "a job": f"/ui/jobs/{newest}", "lanes": "/ui/lanes", "a lane with the long queue": "/ui/lanes/checks",
        "graph": "/ui/graph", "graph: where to begin in half of all": f"/ui/graph?ontology={largest}",
        "search, a fifth of all matches": "/ui/graph?q=cold", "search, two words": "/ui/graph?q=cold+river",
        "search, a few match": "/ui/graph?q=river+77",
        "search, in one ontology": f"/ui/graph?q=cold&ontology={largest}",
        "search, nothing matches": "/ui/graph?q=xylophone", "suggestions": "/ui/graph/suggest?from=cold+riv",
        "a concept": f"/ui/graph/concepts/{plain}", "its drawing": f"/ui/graph/around.json?seed={plain}",
        "the best connected concept": f"/ui/graph/concepts/{hub}",
        "its drawing too": f"/ui/graph/around.json?seed={hub}",
        "a path with its surroundings": f"/ui/graph/path?from={plain}&to={other}",
        "that path's drawing": f"/ui/graph/path.json?from={plain}&to={other}",
        "polarity": f"/ui/graph/polarity?positive={plain}&negative={other}",
        "evidence in its document": f"/ui/graph/documents/{document}?start=2100&end=2120",
        "map": "/ui/graph/map", "vocabulary": "/ui/graph/vocabulary", "ontologies and proposals": "/ui/ontologies",
        "ingest": "/ui/ingest", "tools": "/ui/tools", "a tool": "/ui/tools/count", "a run": "/ui/runs/77",
        "fleet": "/ui/fleet", "people": "/ui/people", "a user": "/ui/people/user-7", "roles": "/ui/roles",
        "audit": "/ui/audit", "account": "/ui/account",
    }  # fmt: skip


def settled(client: httpx2.Client, kind: str) -> None:
    """A job of this kind, done: a map to look at, proposals to decide."""
    job = client.post("/jobs", json={"kind": kind, "payload": {}}).raise_for_status().json()["id"]
    while (state := client.get(f"/jobs/{job}").json()["state"]) in ("queued", "running", "scheduled"):
        time.sleep(0.2)
    assert state == "succeeded", f"{kind}: {state}"


def measure(report: Report, base: str, token: str, where: dict[str, str], times: int) -> None:
    with httpx2.Client(base_url=base, timeout=60, trust_env=False) as client:
        signed = client.post("/ui/sign-in", data={"token": token})
        assert signed.status_code == 303, signed.text
        taken: dict[str, list[float]] = {name: [] for name in where}
        # The first round is not counted: it is when plans are made and pages are read from the disk.
        for turn in range(times + 1):
            for name, path in where.items():
                begun = time.perf_counter()
                answer = client.get(path)
                took = 1000 * (time.perf_counter() - begun)
                assert answer.status_code == 200, f"{path}: {answer.status_code}"
                if turn:
                    taken[name].append(took)
    for name, found in taken.items():
        report.bar(name, report.figure(f"{name}, ms", statistics.median(found)), BAR, at_most=True)
        # On a machine that others use, the quickest says more of the page than of them.
        report.figure(f"{name}, ms, the quickest", min(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="a twentieth of all")
    parser.add_argument("--json", type=Path, help="write bars and figures here")
    parser.add_argument("--home", type=Path, help="make the database here, and leave it")
    parser.add_argument("--times", type=int, default=10, help="of each page (10)")
    arguments = parser.parse_args()
    report = Report("pages, medians in milliseconds")
    with ExitStack() as stack:
        place = arguments.home or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kappa-bench-")))
        place.mkdir(exist_ok=True, parents=True)
        # As root, the database runs as somebody else, who has to get there.
        place.chmod(0o755)
        server = EmbeddedServer(place / "database", say=console.print)
        stack.enter_context(server.hold("benchmarks.pages"))
        with closing(psycopg.connect(server.superuser_url(database="postgres"), autocommit=True)) as admin:
            made = admin.execute("SELECT FROM pg_database WHERE datname = 'pages'").rowcount
        url = server.url(database="pages", by_socket=True) if made else create_database(server, "pages")
        if not made:
            settings = Settings(home=place / "up")
            with closing(wiring.build_engine(settings, Database(url, bounds=settings.bounds))) as engine:
                wiring.install(engine)
            begun = time.perf_counter()
            fill(url, SMALL if arguments.quick else 1.0)
            console.print(f"  filled in {time.perf_counter() - begun:.0f} s")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("KAPPA_")}
        env = {
            **clean,
            "KAPPA_HOME": str(place / "up"),
            "KAPPA_DATABASE_URL": url,
            "KAPPA_PORT": "0",
            "KAPPA_GRACE": "1",
        }
        kg = [sys.executable, "-m", "kappa.app.cli.entry", "up"]
        process = stack.enter_context(started(kg, env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        while not (running := [one for one in home.running(place / "up") if one.pid == process.pid]):
            assert process.poll() is None, "kg up ended"
            time.sleep(0.05)
        token = home.token_file(place / "up").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        with httpx2.Client(base_url=running[0].url, headers=headers, timeout=60, trust_env=False) as client:
            if not made:
                for kind in ("projection", "ontology_annealing"):
                    settled(client, kind)
            while client.get("/graph/status").json()["snapshot"]["state"] != "ready":
                time.sleep(0.2)
        measure(report, running[0].url, token, pages(url), arguments.times)
    report.show()
    if arguments.json:
        report.write(arguments.json)


if __name__ == "__main__":
    main()
