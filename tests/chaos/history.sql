-- Installed by these tests alone: what was written, by whom, in which transaction. The order of `seq` is that of the
-- writes; the order in which others could see them comes from the commit times of their transactions.

-- name: install
CREATE TABLE chaos_history (
    seq           bigserial   PRIMARY KEY,
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    begun         timestamptz NOT NULL DEFAULT now(),
    xid           xid8        NOT NULL DEFAULT pg_current_xact_id(),
    backend       int         NOT NULL DEFAULT pg_backend_pid(),
    backend_start timestamptz,
    app           text        NOT NULL DEFAULT current_setting('application_name'),
    writer        text        DEFAULT nullif(current_setting('chaos.owner', true), ''),
    leads         boolean,
    passed        bigint[],
    op            text        NOT NULL,
    job           bigint      NOT NULL,
    lane          text        NOT NULL,
    kind          text        NOT NULL,
    old           jsonb,
    new           jsonb
);

CREATE TABLE chaos_batches (
    seq           bigint      PRIMARY KEY DEFAULT nextval('chaos_history_seq_seq'),
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    begun         timestamptz NOT NULL DEFAULT now(),
    xid           xid8        NOT NULL DEFAULT pg_current_xact_id(),
    backend       int         NOT NULL DEFAULT pg_backend_pid(),
    backend_start timestamptz,
    app           text        NOT NULL DEFAULT current_setting('application_name'),
    writer        text        DEFAULT nullif(current_setting('chaos.owner', true), ''),
    leads         boolean,
    passed        bigint[],
    op            text        NOT NULL,
    token         bigint      NOT NULL,
    lane          text        NOT NULL,
    owner         text        NOT NULL,
    until         timestamptz NOT NULL,
    old           bigint[],
    new           bigint[]
);

CREATE TABLE chaos_lanes (
    seq       bigserial   PRIMARY KEY,
    xid       xid8        NOT NULL DEFAULT pg_current_xact_id(),
    name      text        NOT NULL,
    max_slots int         NOT NULL,
    enabled   boolean     NOT NULL
);

CREATE TABLE chaos_switches (
    seq     bigserial PRIMARY KEY,
    xid     xid8      NOT NULL DEFAULT pg_current_xact_id(),
    app     text      NOT NULL DEFAULT current_setting('application_name'),
    lane    text      NOT NULL,
    enabled boolean   NOT NULL
);

CREATE TABLE chaos_holds (
    seq  bigserial PRIMARY KEY,
    xid  xid8      NOT NULL DEFAULT pg_current_xact_id(),
    lane text      NOT NULL,
    held boolean   NOT NULL
);

CREATE TABLE chaos_terms (
    seq   bigserial PRIMARY KEY,
    xid   xid8      NOT NULL DEFAULT pg_current_xact_id(),
    owner text      NOT NULL
);

CREATE TABLE chaos_schedules (
    seq     bigserial   PRIMARY KEY,
    begun   timestamptz NOT NULL DEFAULT now(),
    xid     xid8        NOT NULL DEFAULT pg_current_xact_id(),
    name    text        NOT NULL,
    was     timestamptz,
    last_at timestamptz,
    next_at timestamptz,
    job     bigint
);

CREATE TABLE chaos_effects (
    seq     bigserial   PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    job     bigint      NOT NULL,
    attempt int         NOT NULL,
    sort    text        NOT NULL
);

CREATE TABLE chaos_orders (key text PRIMARY KEY);

-- Read by the trigger only for what the leader writes, so its cost stays out of the ordinary ways.
CREATE FUNCTION chaos_leads() RETURNS boolean LANGUAGE sql AS $$
    SELECT EXISTS (SELECT FROM kappa.leadership WHERE pid = pg_backend_pid())
$$;

CREATE FUNCTION chaos_live(j kappa.jobs) RETURNS jsonb LANGUAGE sql AS $$
    SELECT jsonb_build_object(
        'state', j.state, 'token', j.lease_token, 'owner', j.lease_owner, 'until', j.lease_until, 'attempt', j.attempt,
        'max_attempts', j.max_attempts, 'started', j.attempt_started_at IS NOT NULL, 'waiting', j.waiting,
        'run_at', j.run_at)
$$;

-- Orphans that whoever claims in this lane could have adopted: a stale owner may still have a lock on one.
CREATE FUNCTION chaos_adoptable(wanted text) RETURNS bigint[] LANGUAGE sql AS $$
    SELECT array_agg(id) FROM (
        SELECT id FROM kappa.jobs
         WHERE lane = wanted AND state = 'running' AND lease_token IS NULL FOR UPDATE SKIP LOCKED) AS orphan
$$;

CREATE FUNCTION chaos_note() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    leader boolean := current_setting('application_name') = 'kappa leader';
    row record;
BEGIN
    row := CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
    INSERT INTO chaos_history (op, job, lane, kind, old, new, passed, leads, backend_start)
    VALUES (
        TG_OP, row.id, row.lane, row.kind,
        CASE WHEN TG_OP <> 'INSERT' THEN chaos_live(OLD) END, CASE WHEN TG_OP <> 'DELETE' THEN chaos_live(NEW) END,
        CASE WHEN TG_OP = 'UPDATE' AND row.state = 'running' AND OLD.state = 'queued' THEN chaos_adoptable(row.lane) END,
        CASE WHEN leader THEN chaos_leads() END,
        CASE WHEN leader THEN (SELECT backend_start FROM pg_stat_get_activity(pg_backend_pid())) END);
    RETURN NULL;
END $$;

CREATE FUNCTION chaos_note_batch() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    leader boolean := current_setting('application_name') = 'kappa leader';
    row record;
BEGIN
    row := CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
    INSERT INTO chaos_batches (op, token, lane, owner, until, old, new, passed, leads, backend_start)
    VALUES (
        TG_OP, row.token, row.lane, row.owner, row.lease_until,
        CASE WHEN TG_OP <> 'INSERT' THEN OLD.ids END, CASE WHEN TG_OP <> 'DELETE' THEN NEW.ids END,
        CASE WHEN TG_OP = 'INSERT' THEN chaos_adoptable(row.lane) END,
        CASE WHEN leader THEN chaos_leads() END,
        CASE WHEN leader THEN (SELECT backend_start FROM pg_stat_get_activity(pg_backend_pid())) END);
    RETURN NULL;
END $$;

CREATE FUNCTION chaos_note_end() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    row record;
BEGIN
    row := CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
    INSERT INTO chaos_history (op, job, lane, kind, new)
    VALUES (CASE TG_OP WHEN 'INSERT' THEN 'END' ELSE 'TAMPER' END, row.id, row.lane, row.kind,
            jsonb_build_object('state', row.state, 'attempt', row.attempt, 'max_attempts', row.max_attempts));
    RETURN NULL;
END $$;

CREATE FUNCTION chaos_note_lane() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_lanes (name, max_slots, enabled) VALUES (NEW.name, NEW.max_slots, NEW.enabled);
    RETURN NULL;
END $$;

-- Also where the lane is off already: it is an operator's word.
CREATE FUNCTION chaos_note_switch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_switches (lane, enabled) VALUES (NEW.name, NEW.enabled);
    RETURN NULL;
END $$;

CREATE FUNCTION chaos_note_hold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_holds (lane, held) VALUES (NEW.name, NEW.held_by IS NOT NULL);
    RETURN NULL;
END $$;

CREATE FUNCTION chaos_note_term() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_terms (owner) VALUES (NEW.owner);
    RETURN NULL;
END $$;

CREATE FUNCTION chaos_note_schedule() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_schedules (name, was, last_at, next_at, job)
    VALUES (NEW.name, OLD.next_at, CASE WHEN NEW.last_at IS DISTINCT FROM OLD.last_at THEN NEW.last_at END,
            NEW.next_at, CASE WHEN NEW.last_job IS DISTINCT FROM OLD.last_job THEN NEW.last_job END);
    RETURN NULL;
END $$;

CREATE TRIGGER chaos_note AFTER INSERT OR UPDATE OR DELETE ON kappa.jobs
    FOR EACH ROW EXECUTE FUNCTION chaos_note();
CREATE TRIGGER chaos_note_batch AFTER INSERT OR UPDATE OR DELETE ON kappa.batch_leases
    FOR EACH ROW EXECUTE FUNCTION chaos_note_batch();
CREATE TRIGGER chaos_note_end AFTER INSERT OR UPDATE OR DELETE ON kappa.finished_jobs
    FOR EACH ROW EXECUTE FUNCTION chaos_note_end();
CREATE TRIGGER chaos_note_lane AFTER INSERT OR UPDATE ON kappa.lanes
    FOR EACH ROW EXECUTE FUNCTION chaos_note_lane();
CREATE TRIGGER chaos_note_switch AFTER UPDATE OF enabled ON kappa.lanes
    FOR EACH ROW EXECUTE FUNCTION chaos_note_switch();
CREATE TRIGGER chaos_note_hold AFTER UPDATE OF held_by ON kappa.lanes
    FOR EACH ROW WHEN (OLD.held_by IS DISTINCT FROM NEW.held_by) EXECUTE FUNCTION chaos_note_hold();
CREATE TRIGGER chaos_note_term AFTER UPDATE ON kappa.leadership
    FOR EACH ROW WHEN (OLD.term <> NEW.term) EXECUTE FUNCTION chaos_note_term();
CREATE TRIGGER chaos_note_schedule AFTER UPDATE ON kappa.schedules
    FOR EACH ROW WHEN ((OLD.next_at, OLD.last_at) IS DISTINCT FROM (NEW.next_at, NEW.last_at)) EXECUTE FUNCTION chaos_note_schedule();
INSERT INTO chaos_lanes (name, max_slots, enabled) SELECT name, max_slots, enabled FROM kappa.lanes;

-- name: read_history
SELECT seq, at, begun, pg_xact_commit_timestamp(xid::xid), xid::text::bigint, backend, backend_start, app, writer, leads,
       op, job, lane, kind, old, new, passed
  FROM chaos_history ORDER BY seq;

-- name: read_batches
SELECT seq, at, begun, pg_xact_commit_timestamp(xid::xid), xid::text::bigint, op, token, lane, owner, until, old, new, app,
       writer, leads, backend, backend_start, passed
  FROM chaos_batches ORDER BY seq;

-- name: read_lanes
SELECT pg_xact_commit_timestamp(xid::xid), name, max_slots, enabled FROM chaos_lanes ORDER BY seq;

-- name: read_switches
-- An operator's: whatever else writes it should not.
SELECT pg_xact_commit_timestamp(xid::xid), lane, enabled FROM chaos_switches WHERE app = 'chaos harness' ORDER BY seq;

-- name: read_holds
SELECT pg_xact_commit_timestamp(xid::xid), lane, held FROM chaos_holds ORDER BY seq;

-- name: read_terms
SELECT pg_xact_commit_timestamp(xid::xid), owner FROM chaos_terms ORDER BY seq;

-- name: read_schedules
SELECT s.begun, s.name, s.was, s.last_at, s.next_at, s.job, k.cron
  FROM chaos_schedules AS s JOIN kappa.schedules AS k USING (name) ORDER BY s.seq;

-- name: read_effects
SELECT job, attempt, sort FROM chaos_effects ORDER BY seq;

-- name: read_orders
SELECT key FROM chaos_orders;

-- name: read_ended
SELECT id, kind, state::text, attempt, max_attempts, payload ->> 'key', parent_id, spawn_key, submitted_by, dedup_key,
       payload ->> 'effects', concat_ws(E'\n', error_summary, error_detail)
  FROM kappa.finished_jobs ORDER BY id;

-- name: read_left_batches
SELECT token, ids FROM kappa.batch_leases ORDER BY token;

-- name: read_left
SELECT id, state::text, payload ->> 'key' FROM kappa.jobs ORDER BY id;
