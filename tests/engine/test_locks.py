"""Advisory locks: each has a name and a number of its own, and nobody keeps a lane's while it does nothing."""

import re
from pathlib import Path

import psycopg

import kappa
from tests.engine.hands import Connection, put, take

LOCKS = r"advisory\w*\((\d+(?:, \d+)?)"
NAMED = re.compile(r"(lock|share)_|take_epoch|try_lead")


def definitions(connection: Connection) -> dict[str, str]:
    found = connection.execute("""
        SELECT p.proname, pg_get_functiondef(p.oid) FROM pg_proc AS p
         WHERE p.pronamespace IN ('kappa'::regnamespace, 'kappa_graph'::regnamespace) AND p.prokind = 'f'""")
    return dict(found.fetchall())


def test_only_functions_that_are_named_after_their_lock_know_its_number(connection: Connection) -> None:
    numbered = [name for name, text in definitions(connection).items() if re.search(LOCKS, text)]
    assert [name for name in numbered if not NAMED.match(name)] == []
    assert len(numbered) > 10
    files = [path for path in Path(kappa.__file__).parent.rglob("*.sql") if path.parent.name != "migrations"]
    assert [path.name for path in files if re.search(LOCKS, path.read_text())] == ["migrations.sql"]


def test_no_two_locks_have_the_same_number(connection: Connection) -> None:
    used: dict[str, set[str]] = {}
    for name, text in definitions(connection).items():
        for number in re.findall(LOCKS, text):
            used.setdefault(number.split(",")[0], set()).add(name.replace("share_", "lock_"))
    shared = {number: names for number, names in used.items() if len(names) > 1}
    assert shared == {"1262568295": {"lock_term", "try_lead"}}


def test_a_client_that_stops_in_the_middle_of_moving_a_kind_loses_its_session_and_not_everybody_their_lanes(
    url: str, connection: Connection
) -> None:
    made = put(connection)
    with psycopg.connect(url) as stopped:
        stopped.execute("UPDATE kappa.lanes SET kinds = kinds || '{moved}' WHERE name = 'tools'")
        connection.execute("SET lock_timeout = '60s'")
        assert [job.id for job in take(connection)] == [made]
        stopped.close()
    assert connection.execute("SELECT 1 FROM kappa.lane_kinds WHERE kind = 'moved'").fetchall() == []
