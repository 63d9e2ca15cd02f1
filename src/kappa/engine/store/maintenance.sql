-- name: reap
-- Leases that ran out are cleared; the state stays running and the next claim adopts. What a batch holds is left to it, and
-- a spared lease to its owner, who could not renew it while another session had the row locked.
WITH orphaned AS (
    UPDATE kappa.jobs AS j
       SET lease_owner = NULL, lease_token = NULL, lease_until = NULL,
           lane = coalesce((SELECT k.lane FROM kappa.lane_kinds AS k WHERE k.kind = j.kind), j.lane)
     WHERE j.ctid = ANY (ARRAY(
               SELECT r.ctid FROM kappa.jobs AS r
                WHERE r.state = 'running' AND r.lease_token IS NOT NULL
                  AND r.lease_until <= coalesce(%(now)s::timestamptz, now())
                  AND r.id <> ALL (%(spared)s::bigint[])
                  AND NOT EXISTS (SELECT FROM kappa.batch_leases AS b WHERE b.token = r.lease_token AND r.id = ANY (b.ids))
                LIMIT %(limit)s::int FOR UPDATE OF r SKIP LOCKED))
       AND j.lease_until <= coalesce(%(now)s::timestamptz, now())
    RETURNING j.id, j.lane
), all_of_them AS (
    SELECT id, lane FROM orphaned
    UNION ALL
    SELECT id, lane FROM kappa.reap_batches(coalesce(%(now)s::timestamptz, now()), 100)
), told AS (
    SELECT pg_notify('kappa_wake', lane) FROM all_of_them GROUP BY lane
)
SELECT id, lane, (SELECT count(*) FROM told) FROM all_of_them;

-- name: over
-- Jobs whose leases have run out and were not cleared.
SELECT r.id FROM kappa.jobs AS r
 WHERE r.state = 'running' AND r.lease_token IS NOT NULL AND r.lease_until <= coalesce(%(now)s::timestamptz, now())
 ORDER BY r.id LIMIT %(limit)s::int;

-- name: next_lease_end
SELECT extract(epoch FROM least(
           (SELECT min(r.lease_until) FROM kappa.jobs AS r
             WHERE r.state = 'running' AND r.lease_token IS NOT NULL
               AND NOT EXISTS (SELECT FROM kappa.batch_leases AS b WHERE b.token = r.lease_token AND r.id = ANY (b.ids))),
           (SELECT min(b.lease_until) FROM kappa.batch_leases AS b),
           n.at + (SELECT min(l.lease_ttl) FROM kappa.lanes AS l)) - n.at)::double precision
  FROM (SELECT coalesce(%(now)s::timestamptz, now()) AS at) AS n;

-- name: bury
SELECT kappa.fleet_bury(%(limit)s::int);

-- name: end_lost_transactions
SELECT pid, ended FROM kappa.end_lost_transactions();

-- name: forget_fleet
WITH tasks AS (DELETE FROM kappa.fleet_tasks WHERE claimed_at < now() - interval '1 day'
                  AND NOT EXISTS (SELECT FROM kappa.jobs AS j WHERE j.id = job_id AND j.lease_token = token)),
     needs AS (DELETE FROM kappa.job_needs AS n WHERE NOT EXISTS (SELECT FROM kappa.all_jobs AS j WHERE j.id = n.job_id))
DELETE FROM kappa.fleet_workers WHERE seen_at < now() - interval '1 hour';

-- name: promote
WITH promoted AS (
    UPDATE kappa.jobs AS j
       SET state = 'queued', queued_at = run_at, run_at = NULL
     WHERE j.ctid = ANY (ARRAY(
               SELECT s.ctid FROM kappa.jobs AS s
                WHERE s.state = 'scheduled' AND s.run_at <= coalesce(%(now)s::timestamptz, now())
                ORDER BY s.run_at LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED))
    RETURNING j.id, j.lane
), told AS (
    SELECT pg_notify('kappa_wake', lane) FROM promoted GROUP BY lane
)
SELECT id, lane, (SELECT count(*) FROM told) FROM promoted;

-- name: next_due
SELECT extract(epoch FROM min(run_at) - coalesce(%(now)s::timestamptz, now()))::double precision
  FROM kappa.jobs WHERE state = 'scheduled';

-- name: expire
WITH done AS (
    DELETE FROM kappa.jobs
     WHERE ctid = ANY (ARRAY(
               SELECT u.ctid FROM kappa.jobs AS u
                WHERE u.state = 'awaiting_approval' AND u.expires_at <= coalesce(%(now)s::timestamptz, now())
                ORDER BY u.expires_at LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED))
    RETURNING *
), kept AS (
    INSERT INTO kappa.finished_jobs (
        id, lane, kind, state, priority, payload, created_at, submitted_by, dedup_key, parent_id, spawn_key, retry_of,
        estimate, timeout, max_attempts, attempt, finished_at, reason, keep_until)
    SELECT id, lane, kind, 'cancelled', priority, payload, created_at, submitted_by, dedup_key, parent_id, spawn_key,
           retry_of, estimate, timeout, max_attempts, attempt, now(), 'expired',
           now() + (SELECT keep_done FROM kappa.engine_settings)
      FROM done
)
SELECT id, CASE WHEN parent_id IS NOT NULL THEN pg_notify('kappa_job', 'child ' || parent_id) END FROM done;

-- name: keep_referred
-- What something still refers to is kept for another day: a child of a live parent and the parent of a live child, the
-- origin of a retry that lives or is kept, and what a schedule enqueued last. A retry that is over itself keeps nothing,
-- unless it is kept by its own retry: so this is asked again until nothing comes back.
UPDATE kappa.finished_jobs AS f
   SET keep_until = coalesce(%(now)s::timestamptz, now()) + interval '1 day'
 WHERE f.keep_until <= coalesce(%(now)s::timestamptz, now())
   AND (EXISTS (SELECT FROM kappa.jobs AS j WHERE j.id = f.parent_id)
        OR EXISTS (SELECT FROM kappa.jobs AS j WHERE j.parent_id = f.id)
        OR EXISTS (SELECT FROM kappa.jobs AS j WHERE j.retry_of = f.id)
        OR f.id IN (SELECT kappa.origins(coalesce(%(now)s::timestamptz, now())))
        OR EXISTS (SELECT FROM kappa.schedules AS s WHERE s.last_job = f.id))
RETURNING f.id;

-- name: past_partitions
SELECT c.relname
  FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
 WHERE i.inhparent = 'kappa.finished_jobs'::regclass AND c.relname ~ '^finished_jobs_[0-9]{8}$'
   AND to_date(right(c.relname, 8), 'YYYYMMDD') < (coalesce(%(now)s::timestamptz, now()) AT TIME ZONE 'UTC')::date
 ORDER BY c.relname;

-- name: make_partitions
-- As far ahead as the longest retention reaches.
SELECT kappa.make_partitions(
           (coalesce(%(now)s::timestamptz, now()) AT TIME ZONE 'UTC')::date,
           greatest(%(days)s::int, extract(epoch FROM greatest(keep_done, keep_failed))::bigint / 86400 + 2)::int)
  FROM kappa.engine_settings;

-- name: delete_expired
-- In the transaction that locked them and kept those of them that something refers to: whoever did so in the meantime
-- has committed by then. The time stands here again, because it tells the planner which days to leave alone.
DELETE FROM kappa.finished_jobs AS f
 WHERE f.keep_until <= coalesce(%(now)s::timestamptz, now()) AND f.id = ANY (%(ids)s::bigint[])
RETURNING f.id;

-- name: lock_expired
SELECT id FROM kappa.finished_jobs
 WHERE keep_until <= coalesce(%(now)s::timestamptz, now()) LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED;

-- name: forget_sleepers
-- Rows of processes that are gone only cost a needless NOTIFY; now and then all are dropped and the living come back.
WITH gone AS (DELETE FROM kappa.sleepers)
SELECT pg_notify('kappa_wake', '*');

-- name: forget_workers
DELETE FROM kappa.workers WHERE seen_at < now() - interval '5 minutes';

-- name: due_schedules
SELECT name, cron, timezone, kind, payload, priority, enabled, missed, next_at, last_at, last_job, failures, retry_at, error,
       coalesce(%(now)s::timestamptz, now()), since
  FROM kappa.schedules
 WHERE enabled AND (next_at IS NULL OR next_at <= coalesce(%(now)s::timestamptz, now()))
   AND (retry_at IS NULL OR retry_at <= coalesce(%(now)s::timestamptz, now()))
 ORDER BY name;

-- name: lock_due_schedule
-- Nothing if it was edited or has fired since it was read, or if somebody edits it now.
SELECT coalesce(%(now)s::timestamptz, now()) FROM kappa.schedules
 WHERE name = %(name)s AND enabled AND since = %(since)s AND next_at IS NOT DISTINCT FROM %(next_at)s::timestamptz
   FOR UPDATE SKIP LOCKED;

-- name: next_schedule
SELECT extract(epoch FROM min(greatest(next_at, retry_at)) - coalesce(%(now)s::timestamptz, now()))::double precision
  FROM kappa.schedules WHERE enabled;

-- name: advance_schedule
UPDATE kappa.schedules
   SET next_at = %(next_at)s, last_at = coalesce(%(last_at)s::timestamptz, last_at),
       last_job = coalesce(%(last_job)s::bigint, last_job), failures = 0, retry_at = NULL, error = NULL
 WHERE name = %(name)s;

-- name: fail_schedule
UPDATE kappa.schedules
   SET failures = failures + 1, error = %(error)s,
       retry_at = coalesce(%(now)s::timestamptz, now()) + make_interval(secs => %(delay)s)
 WHERE name = %(name)s AND since = %(since)s;

-- name: put_schedule
-- The time that was next stays next if it still is one: it may be due at this moment. Who switches a schedule off can
-- still read why it failed.
INSERT INTO kappa.schedules (name, cron, timezone, kind, payload, priority, enabled, missed)
VALUES (%(name)s, %(cron)s, %(timezone)s, %(kind)s, %(payload)s::jsonb, %(priority)s, %(enabled)s, %(missed)s)
ON CONFLICT (name) DO UPDATE
   SET cron = EXCLUDED.cron, timezone = EXCLUDED.timezone, kind = EXCLUDED.kind, payload = EXCLUDED.payload,
       priority = EXCLUDED.priority, enabled = EXCLUDED.enabled, missed = EXCLUDED.missed,
       since = now(), retry_at = NULL,
       failures = CASE WHEN EXCLUDED.enabled THEN 0 ELSE schedules.failures END,
       error = CASE WHEN EXCLUDED.enabled THEN NULL ELSE schedules.error END,
       next_at = CASE WHEN (schedules.cron, schedules.timezone) = (EXCLUDED.cron, EXCLUDED.timezone)
                       AND schedules.enabled AND EXCLUDED.enabled THEN schedules.next_at END
RETURNING name, cron, timezone, kind, payload, priority, enabled, missed, next_at, last_at, last_job, failures, retry_at, error,
          since, pg_notify('kappa_due', '0');

-- name: declare_schedule
-- One that is there stays as people have left it.
INSERT INTO kappa.schedules (name, cron, timezone, kind, payload, priority, enabled, missed)
VALUES (%(name)s, %(cron)s, %(timezone)s, %(kind)s, %(payload)s::jsonb, %(priority)s, %(enabled)s, %(missed)s)
ON CONFLICT (name) DO NOTHING
RETURNING name, cron, timezone, kind, payload, priority, enabled, missed, next_at, last_at, last_job, failures, retry_at, error,
          since, pg_notify('kappa_due', '0');

-- name: set_next_at
UPDATE kappa.schedules SET next_at = %(next_at)s WHERE name = %(name)s;

-- name: lock_schedule
SELECT name, cron, timezone, kind, payload, priority, enabled, missed, next_at, last_at, last_job, failures, retry_at, error
  FROM kappa.schedules WHERE name = %(name)s FOR UPDATE;

-- name: read_schedule
SELECT name, cron, timezone, kind, payload, priority, enabled, missed, next_at, last_at, last_job, failures, retry_at, error
  FROM kappa.schedules WHERE name = %(name)s;

-- name: drop_schedule
DELETE FROM kappa.schedules WHERE name = %(name)s RETURNING name;

-- name: read_schedules
SELECT name, cron, timezone, kind, payload, priority, enabled, missed, next_at, last_at, last_job, failures, retry_at, error
  FROM kappa.schedules ORDER BY name;
