-- name: depths
SELECT lane, state, jobs FROM kappa.depths(%(limit)s::int);

-- name: orphans
SELECT count(*) FROM (
    SELECT 1 FROM kappa.lanes AS l
     CROSS JOIN LATERAL (SELECT 1 FROM kappa.jobs AS j WHERE j.lane = l.name AND j.state = 'running'
                            AND j.lease_token IS NULL ORDER BY j.lane, j.lease_token LIMIT %(limit)s::int) AS lost
     LIMIT %(limit)s::int) AS counted;

-- name: unoffered
WITH offered AS MATERIALIZED (
    SELECT DISTINCT k.kind FROM kappa.fleet_workers AS w CROSS JOIN LATERAL unnest(w.kinds) AS k (kind)
     WHERE w.seen_at > now() - %(gone_after)s::interval
)
SELECT l.name, j.kind, count(*)
  FROM kappa.lanes AS l
 CROSS JOIN LATERAL (SELECT q.kind FROM kappa.jobs AS q WHERE q.lane = l.name AND q.state = 'queued'
                      LIMIT %(limit)s::int) AS j
 WHERE l.executor = 'fleet' AND l.is_open AND NOT EXISTS (SELECT FROM offered AS o WHERE o.kind = j.kind)
 GROUP BY l.name, j.kind ORDER BY l.name, j.kind;

-- name: finished_so_far
-- As PostgreSQL counts rows that were written, to no day's beginning: only the difference of two looks means something.
SELECT coalesce(sum(pg_stat_get_tuples_inserted(inhrelid)), 0)::bigint
  FROM pg_inherits WHERE inhparent = 'kappa.finished_jobs'::regclass;

-- name: events
SELECT at, event, attempt, owner, detail FROM kappa.job_events WHERE job_id = %(id)s::bigint ORDER BY id LIMIT %(limit)s::int;

-- name: relatives
-- Children first to last, and the jobs that are retries of it.
SELECT * FROM (
    (SELECT id, kind, state::text, 'child' FROM kappa.all_jobs WHERE parent_id = %(id)s::bigint ORDER BY id
      LIMIT %(limit)s::int)
    UNION ALL
    (SELECT id, kind, state::text, 'retry' FROM kappa.jobs WHERE retry_of = %(id)s::bigint ORDER BY id LIMIT 20)
) AS relatives;

-- name: forget_events
WITH snoozes AS (DELETE FROM kappa.snoozes AS s WHERE NOT EXISTS (SELECT FROM kappa.all_jobs AS j WHERE j.id = s.job_id))
DELETE FROM kappa.job_events AS e WHERE NOT EXISTS (SELECT FROM kappa.all_jobs AS j WHERE j.id = e.job_id);

-- name: slots_used
SELECT l.name,
       (SELECT count(*) FROM kappa.jobs AS r
         WHERE r.lane = l.name AND r.state = 'running' AND NOT r.waiting)
       + kappa.in_batches(l.name)
  FROM kappa.lanes AS l;
