"""Test-only patches that take a safeguard away, so that the checker can prove that it would see it missing."""

import re

from tests.chaos.history import Connection

FENCED = ("mark_started", "renew", "settle_succeeded", "settle", "put_back", "release", "progress")


def without_fencing(connection: Connection) -> None:
    """Whoever knows a running job's id may write to it, whatever its token."""
    for name in FENCED:
        _replace(connection, name, r"j\.lease_token = \w+\.token\b", "j.lease_token IS NOT NULL")


def adopt_last(connection: Connection) -> None:
    """Orphans are adopted only when nothing is queued."""
    queued = "SELECT FROM kappa.jobs AS q WHERE q.lane = lane_name AND q.state = 'queued'"
    orphan = "o.lease_token IS NULL"
    # Not where they are counted: each still has its slot.
    adopted = re.escape(orphan) + r"(?!\) AS o)"
    _replace(connection, "claim", adopted, f"{orphan} AND NOT EXISTS ({queued})")


def claim_what_batches_hold(connection: Connection) -> None:
    """A claim doesn't leave out what a batch holds."""
    _replace(connection, "claim", r"\s+AND q\.id NOT IN \(SELECT unnest\(lane_row\.held\)\)", "")


def settle_what_left_its_batch(connection: Connection) -> None:
    """Whoever had a queued job in a batch once may settle it, whether it is still there or not."""
    for name in ("settle_succeeded", "settle", "put_back"):
        pair = r"\(j\.state = 'queued' AND .*?AS h \(id, token\)\)\)"
        _replace(connection, name, f"(?s){pair}", "j.state = 'queued'")


def renew_waits_for_rows(connection: Connection) -> None:
    """A renewal waits for a row that somebody has locked."""
    _replace(connection, "renew", "FOR UPDATE OF j SKIP LOCKED", "FOR UPDATE OF j")


def start_only_once(connection: Connection) -> None:
    """A start that was written is refused to whoever says it again, be it the one who wrote it."""
    own = r"AND j\.lease_token = s\.token\b"
    _replace(connection, "mark_started", own, "AND j.lease_token = s.token AND j.attempt_started_at IS NULL")


def believe_a_silent_leader(connection: Connection) -> None:
    """A leader lives as long as its session, whatever its heartbeat says."""
    _replace(connection, "leader_lives", r"AND l\.heartbeat_at BETWEEN [^)]*\) - l\.ttl AND [^)]*\) \+ l\.ttl", "")


def enable_after_hold(connection: Connection) -> None:
    """The end of a hold switches its lane on, whoever switched it off."""
    connection.execute("""
        CREATE FUNCTION chaos_enable() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            UPDATE kappa.lanes SET enabled = true WHERE name = NEW.name AND NOT enabled;
            RETURN NULL;
        END $$;
        CREATE TRIGGER chaos_enable AFTER UPDATE OF held_by ON kappa.lanes
            FOR EACH ROW WHEN (OLD.held_by IS NOT NULL AND NEW.held_by IS NULL) EXECUTE FUNCTION chaos_enable();
    """)


def _replace(connection: Connection, function: str, pattern: str, text: str) -> None:
    row = connection.execute("SELECT pg_get_functiondef(%s::regproc)", [f"kappa.{function}"]).fetchone()
    assert row is not None
    changed, times = re.subn(pattern, text, row[0])
    assert times, f"kappa.{function} has no {pattern}"
    connection.execute(changed.encode())
