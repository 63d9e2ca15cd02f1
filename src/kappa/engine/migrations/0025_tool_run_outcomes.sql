-- A job writes nothing to the row of its tool run. Any client may have that row locked for as long as it likes, and a claim,
-- a beat or a promotion that waited for it would keep every other job waiting. So a run reads what its job says while the job
-- lives, and how the job ended is a row of its own: it outlives the job, and writing it waits for nobody.
CREATE TABLE kappa.tool_run_outcomes (
    job_id        bigint          PRIMARY KEY,
    status        kappa.job_state NOT NULL CHECK (status IN ('succeeded', 'failed', 'timed_out', 'cancelled')),
    started_at    timestamptz,
    finished_at   timestamptz     NOT NULL,
    attempt       int             NOT NULL,
    reason        text,
    error_summary text
);

-- First, for its lock: every job that was written with the former functions is committed.
DROP TRIGGER jobs_mirror ON kappa.jobs;
DROP FUNCTION kappa.mirror_live();

CREATE OR REPLACE FUNCTION kappa.mirror_finished() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO kappa.tool_run_outcomes AS o (job_id, status, started_at, finished_at, attempt, reason, error_summary)
    SELECT NEW.id, NEW.state, NEW.started_at, NEW.finished_at, NEW.attempt, NEW.reason,
           CASE WHEN NEW.state <> 'succeeded' THEN NEW.error_summary END
     WHERE EXISTS (SELECT FROM kappa.tool_runs AS r WHERE r.job_id = NEW.id)
    ON CONFLICT (job_id) DO UPDATE
       SET status = EXCLUDED.status, started_at = EXCLUDED.started_at, finished_at = EXCLUDED.finished_at,
           attempt = EXCLUDED.attempt, reason = EXCLUDED.reason, error_summary = EXCLUDED.error_summary;
    RETURN NULL;
END $$;

-- Runs that ended before this migration say so in their own rows.
CREATE VIEW kappa.all_tool_runs AS
SELECT r.id, r.job_id, r.tool, r.version, s.status, r.requested_by, r.requested_at, s.available_at, s.started_at,
       s.finished_at, s.attempt, r.inputs, r.outputs, r.exit_code, s.reason, s.error_summary
  FROM kappa.tool_runs AS r
  LEFT JOIN kappa.jobs AS j ON j.id = r.job_id
  LEFT JOIN kappa.tool_run_outcomes AS o ON o.job_id = r.job_id
 CROSS JOIN LATERAL (
     SELECT kappa.tool_run_status(j.state) AS status, j.run_at AS available_at, j.started_at,
            NULL::timestamptz AS finished_at, j.attempt, NULL::text AS reason, j.error_summary
      WHERE j.id IS NOT NULL
     UNION ALL
     SELECT o.status, NULL, o.started_at, o.finished_at, o.attempt, o.reason, o.error_summary
      WHERE j.id IS NULL AND o.job_id IS NOT NULL
     UNION ALL
     SELECT r.status, r.available_at, r.started_at, r.finished_at, r.attempt, r.reason, r.error_summary
      WHERE j.id IS NULL AND o.job_id IS NULL
 ) AS s;

COMMENT ON VIEW kappa.all_tool_runs IS 'Every tool run with what its job says, or said at its end.';
COMMENT ON COLUMN kappa.tool_runs.status IS 'As the run was made, or ended before there was tool_run_outcomes; see all_tool_runs.';

-- How long an attempt may report no progress, where its kind says so; else the lane does.
ALTER TABLE kappa.jobs ADD COLUMN stale_timeout interval CHECK (stale_timeout > '0');

-- Tools may be silent. They have time-outs.
UPDATE kappa.jobs AS j SET stale_timeout = '100 years' FROM kappa.tool_runs AS r WHERE r.job_id = j.id;

-- As before, but a renewal writes the start only where there is none, and a kind's own stale_timeout counts before the lane's.
CREATE OR REPLACE FUNCTION kappa.fleet_beat(
    ids bigint[], tokens bigint[], owners text[]
) RETURNS TABLE (place int, verdict text, reason text) LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    free_jobs bigint[];
    renewed int[];
    over int[];
    cancelled int[];
    reasons text[];
    stale int[];
    silences text[];
BEGIN
    free_jobs := ARRAY(SELECT j.id
                         FROM unnest(ids, tokens, owners) AS h (id, token, owner)
                         JOIN kappa.jobs AS j ON j.id = h.id AND j.lease_token = h.token AND j.lease_owner = h.owner
                          FOR UPDATE OF j SKIP LOCKED);
    UPDATE kappa.jobs AS j
       SET attempt = j.attempt + 1, attempt_started_at = now(), started_at = coalesce(j.started_at, now())
      FROM unnest(free_jobs) AS f (id)
     WHERE j.id = f.id AND j.attempt_started_at IS NULL;
    WITH alive AS (
        UPDATE kappa.jobs AS j
           SET lease_until = now() + l.lease_ttl
          FROM unnest(ids, tokens, owners) WITH ORDINALITY AS h (id, token, owner, place), kappa.lanes AS l
         WHERE j.id = h.id AND j.lease_token = h.token AND j.lease_owner = h.owner AND l.name = j.lane
           AND h.id = ANY (free_jobs)
        RETURNING h.place::int AS place, j.cancel_reason,
                  coalesce(now() > j.attempt_started_at + j.timeout, false) AS is_over,
                  now() > greatest(j.attempt_started_at, j.progress_at) + coalesce(j.stale_timeout, l.stale_timeout) AS is_stale,
                  'no progress for ' || date_part('epoch', coalesce(j.stale_timeout, l.stale_timeout)) || ' s' AS silence
    )
    SELECT array_agg(a.place), array_agg(a.place) FILTER (WHERE a.is_over),
           array_agg(a.place) FILTER (WHERE a.cancel_reason IS NOT NULL AND NOT a.is_over),
           array_agg(a.cancel_reason) FILTER (WHERE a.cancel_reason IS NOT NULL AND NOT a.is_over),
           array_agg(a.place) FILTER (WHERE a.is_stale AND NOT a.is_over),
           array_agg(a.silence) FILTER (WHERE a.is_stale AND NOT a.is_over)
      INTO renewed, over, cancelled, reasons, stale, silences FROM alive AS a;
    -- What can't be settled now, for somebody's lock, is left to the next beat: this one is for all workers.
    IF stale IS NOT NULL THEN BEGIN
        PERFORM kappa.fleet_settle(
            ARRAY(SELECT ids[s] FROM unnest(stale) AS s), ARRAY(SELECT tokens[s] FROM unnest(stale) AS s),
            ARRAY(SELECT owners[s] FROM unnest(stale) AS s), array_fill('stale'::text, ARRAY[cardinality(stale)]),
            array_fill(NULL::text, ARRAY[cardinality(stale)]), silences,
            array_fill(NULL::text, ARRAY[cardinality(stale)]),
            array_fill(NULL::double precision, ARRAY[cardinality(stale)]));
        RETURN QUERY SELECT s, 'lost'::text, NULL::text FROM unnest(stale) AS s;
    EXCEPTION WHEN lock_not_available THEN NULL;
    END; END IF;
    IF over IS NOT NULL THEN BEGIN
        PERFORM kappa.fleet_settle(
            ARRAY(SELECT ids[o] FROM unnest(over) AS o), ARRAY(SELECT tokens[o] FROM unnest(over) AS o),
            ARRAY(SELECT owners[o] FROM unnest(over) AS o), array_fill('timed_out'::text, ARRAY[cardinality(over)]),
            array_fill(NULL::text, ARRAY[cardinality(over)]),
            array_fill('the time-out was reached'::text, ARRAY[cardinality(over)]),
            array_fill(NULL::text, ARRAY[cardinality(over)]),
            array_fill(NULL::double precision, ARRAY[cardinality(over)]));
        RETURN QUERY SELECT o, 'timed_out'::text, NULL::text FROM unnest(over) AS o;
    EXCEPTION WHEN lock_not_available THEN NULL;
    END; END IF;
    IF cancelled IS NOT NULL THEN
        RETURN QUERY SELECT c.place, 'cancel'::text, c.reason FROM unnest(cancelled, reasons) AS c (place, reason);
    END IF;
    IF cardinality(renewed) IS DISTINCT FROM cardinality(ids) THEN
        RETURN QUERY
        SELECT missing.place, CASE WHEN j.id IS NULL THEN 'lost' ELSE 'locked' END, NULL::text
          FROM generate_series(1, cardinality(ids)) AS missing (place)
          LEFT JOIN kappa.jobs AS j ON j.id = ids[missing.place] AND j.lease_token = tokens[missing.place]
                                   AND j.lease_owner = owners[missing.place]
         WHERE missing.place <> ALL (coalesce(renewed, '{}'));
    END IF;
END $$;

-- `stale_timeouts` are what the workers' kinds say, in seconds; a server that doesn't know of them gives none.
DROP FUNCTION kappa.fleet_update;
CREATE FUNCTION kappa.fleet_update(
    ids bigint[], tokens bigint[], owners text[], started boolean[], done double precision[], total double precision[],
    messages text[], checkpoints text[], stale_timeouts double precision[] DEFAULT NULL
) RETURNS TABLE (place int, cancel text) LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan SET lock_timeout = '200ms'
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    UPDATE kappa.jobs AS j
       SET lease_until = now() + l.lease_ttl, progress_at = now(),
           attempt = j.attempt + (u.started AND j.attempt_started_at IS NULL)::int,
           attempt_started_at = CASE WHEN u.started THEN coalesce(j.attempt_started_at, now())
                                     ELSE j.attempt_started_at END,
           started_at = CASE WHEN u.started THEN coalesce(j.started_at, now()) ELSE j.started_at END,
           progress_done = coalesce(u.done, j.progress_done), progress_total = coalesce(u.total, j.progress_total),
           progress_message = coalesce(u.message, j.progress_message),
           checkpoint = coalesce(u.checkpoint::jsonb, j.checkpoint),
           stale_timeout = coalesce(make_interval(secs => u.stale_timeout), j.stale_timeout)
      FROM unnest(ids, tokens, owners, started, done, total, messages, checkpoints,
                  stale_timeouts) WITH ORDINALITY
               AS u (id, token, owner, started, done, total, message, checkpoint, stale_timeout, place), kappa.lanes AS l
     WHERE j.id = u.id AND j.lease_token = u.token AND j.lease_owner = u.owner AND l.name = j.lane
    RETURNING u.place::int, j.cancel_reason;
END $$;

-- What a run says of itself while it runs does need its row, also a log, for its foreign key. It gives up soon, and the
-- caller tries again: the connection serves others. Both are guarded by the lease.
CREATE FUNCTION kappa.put_tool_log(
    run bigint, attempt int, stream text, "position" int, content bytea, job bigint, token bigint
) RETURNS void LANGUAGE sql SET lock_timeout = '200ms'
BEGIN ATOMIC
    INSERT INTO kappa.tool_logs (run_id, attempt, stream, position, content)
    SELECT put_tool_log.run, put_tool_log.attempt, put_tool_log.stream, put_tool_log."position", put_tool_log.content
      FROM kappa.jobs AS j
     WHERE j.id = put_tool_log.job AND j.lease_token = put_tool_log.token AND j.state = 'running'
    ON CONFLICT DO NOTHING;
END;

CREATE FUNCTION kappa.note_tool_exit(run bigint, code int, job bigint, token bigint) RETURNS void LANGUAGE sql
  SET lock_timeout = '200ms'
BEGIN ATOMIC
    UPDATE kappa.tool_runs AS r SET exit_code = note_tool_exit.code
     WHERE r.id = note_tool_exit.run
       AND EXISTS (SELECT FROM kappa.jobs AS j
                    WHERE j.id = note_tool_exit.job AND j.lease_token = note_tool_exit.token AND j.state = 'running');
END;
