-- The claim of a lane that was just woken, as short as it can be: whoever enqueued waits for it, and a backend that rested
-- pays for every plan that it takes up again. Where there is more to it than what is queued, orphans or a batch's lease,
-- it is the other one's.
CREATE FUNCTION kappa.claim_at_rest(
    lane_name text, claimer text, capacity int, known_kinds text[]
) RETURNS TABLE (
    id bigint, kind text, payload text, attempt int, max_attempts int, claims int, token bigint,
    adopted boolean, started boolean, seconds_left double precision, cancel_reason text, priority smallint,
    token_floor bigint, parent_id bigint, waited double precision, light boolean
) LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    lane_row record;
    new_token bigint;
    got int;
BEGIN
    PERFORM pg_advisory_xact_lock(1262568289, hashtext(lane_name));
    SELECT l.lease_ttl, date_part('epoch', l.stale_timeout) AS usual, r.orphans = 0 AND r.batches = 0 AS at_rest, r.lowest,
           CASE WHEN l.enabled AND l.executor <> 'fleet' THEN greatest(0, l.max_slots - r.busy) END AS free
      INTO lane_row
      FROM kappa.lanes AS l,
           (SELECT count(*) FILTER (WHERE NOT r.waiting) AS busy, count(*) - count(r.lease_token) AS orphans,
                   min(r.lease_token) AS lowest, (SELECT count(*) FROM kappa.batch_leases AS b WHERE b.lane = lane_name) AS batches
              FROM kappa.jobs AS r WHERE r.lane = lane_name AND r.state = 'running') AS r
     WHERE l.name = lane_name;
    IF NOT lane_row.at_rest THEN
        RETURN QUERY
        SELECT * FROM kappa.claim(lane_name, claimer, capacity, known_kinds, NULL, -32769, 0, 0, NULL, NULL);
    END IF;
    IF lane_row.free IS NULL OR NOT lane_row.at_rest THEN
        RETURN;
    END IF;
    new_token := nextval('kappa.lease_tokens');
    RETURN QUERY
    UPDATE kappa.jobs AS j
       SET state = 'running', lease_owner = claimer, lease_token = new_token,
           lease_until = now() + lane_row.lease_ttl, claims = j.claims + 1
     WHERE j.ctid = ANY (ARRAY(
               SELECT q.ctid FROM kappa.jobs AS q
                WHERE q.lane = lane_name AND q.state = 'queued' AND q.kind = ANY (known_kinds)
                ORDER BY (-q.priority), q.id
                LIMIT least(capacity, lane_row.free)
                FOR UPDATE SKIP LOCKED))
    RETURNING j.id, j.kind, j.payload::text, j.attempt, j.max_attempts, j.claims, j.lease_token, false, false,
              coalesce(date_part('epoch', j.timeout), lane_row.usual),
              j.cancel_reason, j.priority, least(lane_row.lowest, new_token), j.parent_id,
              date_part('epoch', now() - coalesce(j.queued_at, j.created_at)), false;
    GET DIAGNOSTICS got = ROW_COUNT;
    IF got = lane_row.free THEN
        id := 0;  -- as in claim: the lane has no slot left
        RETURN NEXT;
    END IF;
END $$;
