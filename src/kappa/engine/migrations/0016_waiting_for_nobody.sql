-- A worker's writes serve many jobs at once. Any client may have one job's row locked for as long as it likes
-- (SELECT … FOR UPDATE, a cancel in a long transaction), and the other jobs must not wait for that client.
--
-- A renewal skips locked rows and says so. The other batches give up after lock_timeout; the worker then sets the locked
-- jobs aside and writes the rest.

-- Skipped rows are told apart from lost leases: `renewed` is false while somebody else has the job's row, or its batch's,
-- locked. The caller still owns those leases and tries again soon.
DROP FUNCTION kappa.renew;
CREATE FUNCTION kappa.renew(
    ids bigint[], tokens bigint[]
) RETURNS TABLE (job bigint, cancel text, renewed boolean) LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    free_batches bigint[];
    free_jobs bigint[];
BEGIN
    free_batches := ARRAY(SELECT b.token FROM kappa.batch_leases AS b
                           WHERE b.token = ANY (ARRAY(SELECT DISTINCT unnest(renew.tokens))) AND b.ids && renew.ids
                           ORDER BY b.token FOR UPDATE SKIP LOCKED);
    free_jobs := ARRAY(SELECT j.id
                         FROM unnest(renew.ids, renew.tokens) AS held (id, token) JOIN kappa.jobs AS j ON j.id = held.id
                        WHERE j.lease_token = held.token OR (held.token = ANY (free_batches) AND j.state::text = 'queued')
                          FOR UPDATE OF j SKIP LOCKED);
    IF free_batches <> '{}' THEN
        PERFORM kappa.write_down(array_agg(held.id), array_agg(held.token))
           FROM unnest(renew.ids, renew.tokens) AS held (id, token)
          WHERE held.token = ANY (free_batches) AND held.id = ANY (free_jobs);
        -- What is left in a batch is locked by somebody else. Its lease is the batch's.
        UPDATE kappa.batch_leases AS b SET lease_until = now() + l.lease_ttl
          FROM kappa.lanes AS l WHERE b.token = ANY (free_batches) AND l.name = b.lane;
    END IF;
    RETURN QUERY
    UPDATE kappa.jobs AS j
       SET lease_until = now() + l.lease_ttl
      FROM unnest(renew.ids, renew.tokens) AS held (id, token), kappa.lanes AS l
     WHERE j.id = held.id AND j.lease_token = held.token AND l.name = j.lane AND held.id = ANY (free_jobs)
    RETURNING j.id, j.cancel_reason, true;
    RETURN QUERY
    SELECT held.id, j.cancel_reason, false
      FROM unnest(renew.ids, renew.tokens) AS held (id, token) JOIN kappa.jobs AS j ON j.id = held.id
     WHERE held.id <> ALL (free_jobs)
       AND (j.lease_token = held.token
            OR EXISTS (SELECT FROM kappa.batch_leases AS b WHERE b.token = held.token AND held.id = ANY (b.ids)));
END $$;

-- A start is counted once per lease, however often it is reported: a worker that lost the reply reports it again. Only
-- the holder of the token can have set attempt_started_at since the claim.
CREATE OR REPLACE FUNCTION kappa.mark_started(
    ids bigint[], tokens bigint[], ages double precision[] DEFAULT NULL
) RETURNS SETOF bigint LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan SET lock_timeout = '200ms'
AS $$
#variable_conflict use_column
BEGIN
    PERFORM kappa.write_down(mark_started.ids, mark_started.tokens);
    RETURN QUERY
    UPDATE kappa.jobs AS j
       SET attempt = j.attempt + (j.attempt_started_at IS NULL)::int,
           attempt_started_at = coalesce(j.attempt_started_at, now() - make_interval(secs => coalesce(s.age, 0))),
           started_at = coalesce(j.started_at, now() - make_interval(secs => coalesce(s.age, 0)))
      FROM unnest(mark_started.ids, mark_started.tokens, mark_started.ages) AS s (id, token, age)
     WHERE j.id = s.id AND j.lease_token = s.token
    RETURNING j.id;
END $$;

ALTER FUNCTION kappa.write_down SET lock_timeout = '200ms';
ALTER FUNCTION kappa.progress SET lock_timeout = '200ms';
ALTER FUNCTION kappa.settle_succeeded SET lock_timeout = '200ms';
ALTER FUNCTION kappa.settle SET lock_timeout = '200ms';
ALTER FUNCTION kappa.put_back SET lock_timeout = '200ms';

-- Locked jobs keep their leases, which then run out.
CREATE OR REPLACE FUNCTION kappa.release(
    ids bigint[], tokens bigint[]
) RETURNS SETOF bigint LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    free_batches bigint[];
    free_jobs bigint[];
BEGIN
    free_batches := ARRAY(SELECT b.token FROM kappa.batch_leases AS b
                           WHERE b.token = ANY (ARRAY(SELECT DISTINCT unnest(release.tokens))) AND b.ids && release.ids
                           ORDER BY b.token FOR UPDATE SKIP LOCKED);
    free_jobs := ARRAY(SELECT j.id
                         FROM unnest(release.ids, release.tokens) AS held (id, token)
                         JOIN kappa.jobs AS j ON j.id = held.id
                        WHERE j.lease_token = held.token OR (held.token = ANY (free_batches) AND j.state::text = 'queued')
                          FOR UPDATE OF j SKIP LOCKED);
    PERFORM kappa.write_down(array_agg(held.id), array_agg(held.token))
       FROM unnest(release.ids, release.tokens) AS held (id, token)
      WHERE held.token = ANY (free_batches) AND held.id = ANY (free_jobs);
    RETURN QUERY
    WITH freed AS (
        UPDATE kappa.jobs AS j
           SET lease_owner = NULL, lease_token = NULL, lease_until = NULL,
               lane = coalesce((SELECT k.lane FROM kappa.lane_kinds AS k WHERE k.kind = j.kind), j.lane)
          FROM unnest(release.ids, release.tokens) AS held (id, token)
         WHERE j.id = held.id AND j.lease_token = held.token AND held.id = ANY (free_jobs)
        RETURNING j.id, j.lane
    ), told AS (
        SELECT pg_notify('kappa_wake', lane) FROM freed GROUP BY lane
    )
    SELECT id FROM freed WHERE (SELECT count(*) FROM told) >= 0;
END $$;

-- A parent whose children have ended takes a slot again, if one is free: true if it has one, false if the lane is full,
-- NULL if the lease is lost. The lane's lock is held for this one statement. The row is locked before the lane, so that
-- whoever has the row locked keeps no claim of the lane waiting.
CREATE FUNCTION kappa.reacquire_slot(job bigint, token bigint) RETURNS boolean LANGUAGE plpgsql
  SET lock_timeout = '200ms'
AS $$
DECLARE
    lane_name text;
BEGIN
    SELECT j.lane INTO lane_name FROM kappa.jobs AS j
     WHERE j.id = job AND j.lease_token = token AND j.state = 'running' FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    PERFORM pg_advisory_xact_lock(1262568289, hashtext(lane_name));
    UPDATE kappa.jobs AS j SET waiting = false
     WHERE j.id = job
       AND (NOT j.waiting
            OR (SELECT count(*) FROM kappa.jobs AS r WHERE r.lane = lane_name AND r.state = 'running' AND NOT r.waiting)
               + kappa.in_batches(lane_name)
               < (SELECT l.max_slots FROM kappa.lanes AS l WHERE l.name = lane_name));
    RETURN FOUND;
END $$;
