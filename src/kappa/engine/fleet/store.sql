-- name: claim
SELECT * FROM kappa.fleet_claim(%(owners)s::text[], %(requests)s::text[], %(counts)s::int[],
                                %(cores)s::double precision[], %(memory)s::int[], %(labels)s::text[],
                                %(kinds)s::text[]);

-- name: beat
SELECT * FROM kappa.fleet_beat(%(ids)s::bigint[], %(tokens)s::bigint[], %(owners)s::text[]);

-- name: update
SELECT * FROM kappa.fleet_update(%(ids)s::bigint[], %(tokens)s::bigint[], %(owners)s::text[], %(started)s::boolean[],
                                 %(done)s::double precision[], %(total)s::double precision[], %(messages)s::text[],
                                 %(checkpoints)s::text[], %(stale_timeouts)s::double precision[]);

-- name: settle
-- Where a lane was full its slot is worth a wake-up: whoever waits for it was told nothing when its jobs came. A lane's
-- `bound` is never less than what runs there, and the next claim makes it exact.
WITH ended AS MATERIALIZED (
    SELECT * FROM kappa.fleet_settle(%(ids)s::bigint[], %(tokens)s::bigint[], %(owners)s::text[], %(outcomes)s::text[],
                                     %(results)s::text[], %(summaries)s::text[], %(details)s::text[],
                                     %(afters)s::double precision[])
), told AS (
    SELECT pg_notify('kappa_wake', f.lane) FROM kappa.fleet_lanes AS f JOIN kappa.lanes AS l ON l.name = f.lane
     WHERE f.lane IN (SELECT e.lane FROM ended AS e) AND f.bound >= l.max_slots
       AND EXISTS (SELECT FROM kappa.sleepers AS s WHERE s.lane = f.lane)
)
SELECT * FROM ended WHERE (SELECT count(*) FROM told) >= 0;

-- name: lanes
SELECT name, kinds, poll_interval_ms, date_part('epoch', lease_ttl) FROM kappa.lanes
 WHERE executor = 'fleet' AND enabled ORDER BY name;

-- name: register
SELECT * FROM kappa.fleet_register(%(machines)s::jsonb, %(gone_after)s::interval);

-- name: seen
-- One that was gone must be admitted again: another may have its place.
UPDATE kappa.fleet_workers AS w SET seen_at = now()
  FROM unnest(%(owners)s::text[]) AS s (owner)
 WHERE w.owner = s.owner AND w.seen_at > now() - %(gone_after)s::interval
RETURNING w.owner;

-- name: workers
SELECT w.worker, w.pass, w.kinds, w.cores, w.memory_mb, w.labels, w.slots, w.version, w.started_at, w.seen_at,
       coalesce(r.running, 0)
  FROM kappa.fleet_workers AS w
  LEFT JOIN (SELECT lease_owner, count(*) AS running FROM kappa.jobs
              WHERE state = 'running' AND lease_owner LIKE 'fleet:%%' GROUP BY lease_owner) AS r
    ON r.lease_owner = w.owner
 WHERE w.seen_at > now() - %(gone_after)s::interval AND w.worker > %(after)s::text
 ORDER BY w.worker, w.pass
 LIMIT %(limit)s;

-- name: count_workers
SELECT count(*) FROM kappa.fleet_workers WHERE seen_at > now() - %(gone_after)s::interval;

-- name: held_run
-- The tool run of a task that is this owner's, and the attempt's number.
SELECT r.id, j.attempt + (j.attempt_started_at IS NULL)::int, coalesce((t.limits->>'output_mb')::int, NULL)
  FROM kappa.jobs AS j
  JOIN kappa.tool_runs AS r ON r.job_id = j.id
  JOIN kappa.tools AS t ON t.name = r.tool AND t.version = r.version
 WHERE j.id = %(id)s AND j.lease_token = %(token)s AND j.lease_owner = %(owner)s AND j.state = 'running';

-- name: hold_run
-- For a transaction of several statements on a connection that many need: it waits for nobody's locks for long, and a server
-- that stops in the middle loses its session.
SELECT r.id, set_config('lock_timeout', '1s', true), set_config('idle_in_transaction_session_timeout', '5s', true)
  FROM kappa.jobs AS j JOIN kappa.tool_runs AS r ON r.job_id = j.id
 WHERE j.id = %(id)s AND j.lease_token = %(token)s AND j.lease_owner = %(owner)s AND j.state = 'running'
   FOR UPDATE OF j NOWAIT;

-- name: runs_of
SELECT r.job_id, r.id, r.inputs, t.name, t.version, t.image, t.argv, t.limits,
       extract(epoch FROM t.timeout)::double precision,
       ARRAY(SELECT i.name FROM kappa.tool_inputs AS i WHERE i.run_id = r.id ORDER BY i.name)
  FROM kappa.tool_runs AS r JOIN kappa.tools AS t ON t.name = r.tool AND t.version = r.version
 WHERE r.job_id = ANY (%(ids)s::bigint[]);

-- name: read_input
SELECT octet_length(content), substring(content FROM %(at)s::int + 1 FOR %(most)s::int)
  FROM kappa.tool_inputs WHERE run_id = %(run_id)s AND name = %(name)s;
