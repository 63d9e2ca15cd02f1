-- name: hold
-- Every other lane that is enabled, for as long as this lease lasts. Nothing if another job holds one, or if it is lost.
WITH mine AS (
    SELECT j.id, j.lease_token, j.lane FROM kappa.jobs AS j
     WHERE j.id = %(job)s::bigint AND j.lease_token = %(token)s::bigint
       AND NOT EXISTS (SELECT FROM kappa.lane_holds AS h WHERE h.job_id <> j.id)
       FOR UPDATE
), held AS (
    INSERT INTO kappa.lane_holds AS h (lane, job_id, lease_token)
    SELECT l.name, m.id, m.lease_token FROM kappa.lanes AS l, mine AS m
     WHERE l.name <> m.lane AND (l.enabled OR EXISTS (SELECT FROM kappa.lane_holds AS o WHERE o.lane = l.name))
    ON CONFLICT (lane) DO UPDATE SET lease_token = excluded.lease_token
    RETURNING h.lane
)
UPDATE kappa.lanes AS l SET enabled = false, updated_at = now() FROM held AS h WHERE l.name = h.lane
RETURNING l.name, pg_notify('kappa_lane', l.name);

-- name: lock
-- Of two jobs that want to hold lanes one is the first.
SELECT pg_advisory_xact_lock(1262568291, 0);

-- name: held_by_another
SELECT h.job_id FROM kappa.lane_holds AS h WHERE h.job_id <> %(job)s::bigint LIMIT 1;

-- name: let_go
-- All that a job holds.
WITH gone AS (
    DELETE FROM kappa.lane_holds AS h WHERE h.job_id = %(job)s::bigint AND h.lease_token = %(token)s::bigint
    RETURNING h.lane
)
UPDATE kappa.lanes AS l SET enabled = true, updated_at = now() FROM gone AS g WHERE l.name = g.lane
RETURNING l.name, pg_notify('kappa_wake', l.name), pg_notify('kappa_lane', l.name);

-- name: free
-- What is held by leases that are gone.
WITH gone AS (
    DELETE FROM kappa.lane_holds AS h
     WHERE NOT EXISTS (SELECT FROM kappa.jobs AS j WHERE j.id = h.job_id AND j.lease_token = h.lease_token)
    RETURNING h.lane
)
UPDATE kappa.lanes AS l SET enabled = true, updated_at = now() FROM gone AS g WHERE l.name = g.lane
RETURNING l.name, pg_notify('kappa_wake', l.name), pg_notify('kappa_lane', l.name);

-- name: still_running
-- A parent that waits for its children does nothing, and its children may be among those that can't begin. What has no
-- live lease does nothing either: all that it could still write is refused.
WITH held AS (SELECT h.lane FROM kappa.lane_holds AS h WHERE h.job_id = %(job)s::bigint)
SELECT (SELECT count(*) FROM kappa.jobs AS j
         WHERE j.state = 'running' AND NOT j.waiting AND j.lease_until > now() AND j.lane = ANY (ARRAY(TABLE held)))
       + (SELECT count(*) FROM kappa.batch_leases AS b, unnest(b.ids)
           WHERE b.lease_until > now() AND b.lane = ANY (ARRAY(TABLE held)));
