-- name: read_lanes
SELECT name, kinds, max_slots, poll_interval_ms, lease_ttl, stale_timeout, enabled, executor, held_by
  FROM kappa.lanes ORDER BY name;

-- name: lock_lanes
SELECT name FROM kappa.lanes ORDER BY name FOR UPDATE;

-- name: look
-- Every lane's row and whether there is something to claim, in one statement for a whole process.
SELECT l.name, l.kinds, l.max_slots, l.poll_interval_ms, l.lease_ttl, l.stale_timeout, l.enabled, l.executor, l.held_by,
       -- Not EXISTS: it drops the order, and then the planner reads the table for a first row that comes at its end.
       coalesce(l.is_open AND (SELECT true FROM kappa.jobs AS q WHERE q.lane = l.name AND q.state = 'queued'
                                ORDER BY (-q.priority), q.id LIMIT 1), false)
       OR coalesce((SELECT true FROM kappa.jobs AS o
                     WHERE o.lane = l.name AND o.state = 'running' AND o.lease_token IS NULL
                     ORDER BY o.lane, o.lease_token LIMIT 1), false)
  FROM kappa.lanes AS l
 WHERE l.name = ANY (%(names)s::text[]);

-- name: declare_lane
INSERT INTO kappa.lanes (name, kinds, max_slots, poll_interval_ms, lease_ttl, stale_timeout, enabled, executor)
VALUES (%(name)s, %(kinds)s, %(max_slots)s, %(poll_interval_ms)s, %(lease_ttl)s, %(stale_timeout)s, %(enabled)s,
        %(executor)s)
ON CONFLICT (name) DO UPDATE
   SET kinds = (SELECT array_agg(DISTINCT k) FROM unnest(lanes.kinds || EXCLUDED.kinds) AS k)
 WHERE NOT lanes.kinds @> EXCLUDED.kinds
RETURNING pg_notify('kappa_lane', name);

-- name: edit_lane
UPDATE kappa.lanes
   SET kinds = coalesce(%(kinds)s::text[], kinds),
       max_slots = coalesce(%(max_slots)s::int, max_slots),
       poll_interval_ms = coalesce(%(poll_interval_ms)s::int, poll_interval_ms),
       lease_ttl = coalesce(%(lease_ttl)s::interval, lease_ttl),
       stale_timeout = coalesce(%(stale_timeout)s::interval, stale_timeout),
       enabled = coalesce(%(enabled)s::boolean, enabled),
       executor = coalesce(%(executor)s::text, executor),
       updated_at = now()
 WHERE name = %(name)s
RETURNING name, kinds, max_slots, poll_interval_ms, lease_ttl, stale_timeout, enabled, executor, held_by,
          pg_notify('kappa_wake', name), pg_notify('kappa_lane', name),
          -- Programs that start, and holds, wait for the row: a client that stops before its commit loses its session.
          set_config('idle_in_transaction_session_timeout', '5s', true);

-- name: check_kinds
SELECT kappa.check_kinds();

-- name: fall_asleep
INSERT INTO kappa.sleepers (lane, owner) VALUES (%(lane)s, %(owner)s) ON CONFLICT DO NOTHING;

-- name: wake_up
DELETE FROM kappa.sleepers WHERE lane = %(lane)s AND owner = %(owner)s;

-- name: leave
WITH gone AS (DELETE FROM kappa.workers WHERE owner = %(owner)s)
DELETE FROM kappa.sleepers WHERE owner = %(owner)s;

-- name: sign_of_life
INSERT INTO kappa.workers (owner, host, pid, lanes)
VALUES (%(owner)s, %(host)s, %(pid)s, %(lanes)s)
ON CONFLICT (owner) DO UPDATE SET lanes = EXCLUDED.lanes, seen_at = now();

-- name: read_workers
WITH leader AS MATERIALIZED (SELECT l.owner FROM kappa.leadership AS l WHERE kappa.leader_lives())
SELECT w.owner, w.host, w.pid, w.lanes, EXISTS (SELECT FROM leader WHERE leader.owner = w.owner), w.started_at, w.seen_at, coalesce(r.running, 0)
  FROM kappa.workers AS w
  LEFT JOIN (SELECT owner, sum(jobs)::bigint AS running
               FROM (SELECT lease_owner AS owner, count(*) AS jobs FROM kappa.jobs WHERE state = 'running' GROUP BY lease_owner
                     UNION ALL
                     SELECT owner, cardinality(ids) FROM kappa.batch_leases) AS held
              GROUP BY owner) AS r
    ON r.owner = w.owner
 WHERE w.seen_at > now() - interval '1 minute'
 ORDER BY w.started_at, w.owner;
