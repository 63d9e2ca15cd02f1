-- name: hold
-- Every other lane, for as long as this lease lasts. Nothing if another job holds one, or if the lease is lost.
WITH mine AS (
    SELECT j.id, j.lease_token, j.lane FROM kappa.jobs AS j
     WHERE j.id = %(job)s::bigint AND j.lease_token = %(token)s::bigint
       AND NOT EXISTS (SELECT FROM kappa.lanes AS h WHERE h.held_by <> j.id)
       FOR UPDATE
), held AS (
    UPDATE kappa.lanes AS l SET held_by = m.id, hold_token = m.lease_token, updated_at = now()
      FROM mine AS m WHERE l.name <> m.lane
    RETURNING l.name, pg_notify('kappa_lane', l.name)
)
SELECT EXISTS (SELECT FROM mine), ARRAY(SELECT held.name FROM held ORDER BY held.name);

-- name: lock
-- Of two jobs that want to hold lanes one is the first.
SELECT kappa.lock_holds();

-- name: held_by_another
SELECT l.held_by FROM kappa.lanes AS l WHERE l.held_by <> %(job)s::bigint LIMIT 1;

-- name: let_go
-- All that a job holds.
UPDATE kappa.lanes AS l SET held_by = NULL, hold_token = NULL, updated_at = now()
 WHERE l.held_by = %(job)s::bigint AND l.hold_token = %(token)s::bigint
RETURNING l.name, pg_notify('kappa_wake', l.name), pg_notify('kappa_lane', l.name);

-- name: free
-- What is held by leases that are gone.
UPDATE kappa.lanes AS l SET held_by = NULL, hold_token = NULL, updated_at = now()
 WHERE l.name = ANY (ARRAY(
           SELECT f.name FROM kappa.lanes AS f
            WHERE f.held_by IS NOT NULL
              AND NOT EXISTS (SELECT FROM kappa.jobs AS j WHERE j.id = f.held_by AND j.lease_token = f.hold_token)
              FOR UPDATE SKIP LOCKED))
RETURNING l.name, pg_notify('kappa_wake', l.name), pg_notify('kappa_lane', l.name);

-- name: still_running
-- A parent that waits for its children does nothing, and its children may be among those that can't begin. What has no
-- live lease does nothing either: all that it could still write is refused.
WITH held AS (SELECT l.name FROM kappa.lanes AS l WHERE l.held_by = %(job)s::bigint)
SELECT (SELECT count(*) FROM kappa.jobs AS j
         WHERE j.state = 'running' AND NOT j.waiting AND j.lease_until > now() AND j.lane = ANY (ARRAY(TABLE held)))
       + (SELECT count(*) FROM kappa.batch_leases AS b, unnest(b.ids)
           WHERE b.lease_until > now() AND b.lane = ANY (ARRAY(TABLE held)));
