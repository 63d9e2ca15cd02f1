-- Jobs of several callers in one statement and one commit: their ids, in the order of the arrays. All of them or none: a
-- kind that has no lane is an error, and its caller is told by a call of its own.
CREATE FUNCTION kappa.enqueue_together(
    kinds text[], payloads jsonb[], priorities smallint[], submitters text[], timeouts interval[], max_attempts int[]
) RETURNS bigint[] LANGUAGE plpgsql
  SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    -- As in home_of: held before the next statement reads the kinds' lanes.
    kinds_stay text := pg_advisory_xact_lock_shared(1262568290, 0);
    made bigint[];
    homes text[];
BEGIN
    WITH put_in AS (
        INSERT INTO kappa.jobs (lane, kind, state, priority, payload, submitted_by, timeout, max_attempts)
        SELECT k.lane, k.kind, 'queued', n.priority, n.payload, n.submitter, n.timeout, n.attempts
          FROM unnest(enqueue_together.kinds, enqueue_together.payloads, enqueue_together.priorities,
                      enqueue_together.submitters, enqueue_together.timeouts, enqueue_together.max_attempts)
               WITH ORDINALITY AS n (kind, payload, priority, submitter, timeout, attempts, place)
          JOIN kappa.lane_kinds AS k ON k.kind = n.kind
         ORDER BY n.place
        RETURNING id, lane
    )
    SELECT array_agg(p.id ORDER BY p.id), array_agg(DISTINCT p.lane) INTO made, homes FROM put_in AS p;
    IF cardinality(made) IS DISTINCT FROM cardinality(kinds) THEN
        RAISE EXCEPTION 'a kind is in no lane' USING ERRCODE = 'foreign_key_violation';
    END IF;
    PERFORM pg_notify('kappa_wake', s.lane) FROM (SELECT DISTINCT lane FROM kappa.sleepers WHERE lane = ANY (homes)) AS s;
    RETURN made;
END $$;
