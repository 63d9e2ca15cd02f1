-- What workers write, each one statement for a whole batch, guarded by id and token. Only running jobs have a token, by
-- the constraint jobs_lease, so the token is the state's guard as well.
--
-- They are functions for the planner's sake: it takes the join of a few hundred ids with a queue's table for a hash join
-- over all of it, or for one that begins with the running jobs, of which there were none when it last counted. Either
-- costs ten times as much. Inside, it knows of no way but the primary key, on every connection and behind every pooler.

CREATE FUNCTION kappa.tell_parent(job bigint, parent bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('kappa_job', 'child ' || parent);
    RETURN job;
END $$;

CREATE FUNCTION kappa.mark_started(
    ids bigint[], tokens bigint[]
) RETURNS SETOF bigint LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    UPDATE kappa.jobs AS j
       SET attempt = j.attempt + 1, attempt_started_at = now(), started_at = coalesce(j.started_at, now())
      FROM unnest(mark_started.ids, mark_started.tokens) AS s (id, token)
     WHERE j.id = s.id AND j.lease_token = s.token AND j.attempt_started_at IS NULL
    RETURNING j.id;
END $$;

-- Every job of an owner at once. What doesn't come back is lost.
CREATE FUNCTION kappa.renew(
    ids bigint[], tokens bigint[]
) RETURNS TABLE (job bigint, cancel text) LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    UPDATE kappa.jobs AS j
       SET lease_until = now() + l.lease_ttl
      FROM unnest(renew.ids, renew.tokens) AS held (id, token), kappa.lanes AS l
     WHERE j.id = held.id AND j.lease_token = held.token AND l.name = j.lane
    RETURNING j.id, j.cancel_reason;
END $$;

-- The quickest way out, for jobs that have nothing to say. It gives back what was no longer the caller's.
CREATE FUNCTION kappa.settle_succeeded(
    ids bigint[], tokens bigint[]
) RETURNS SETOF bigint LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    written bigint[];
BEGIN
    WITH done AS (
        DELETE FROM kappa.jobs AS j
         USING unnest(settle_succeeded.ids, settle_succeeded.tokens) AS d (id, token)
         WHERE j.id = d.id AND j.lease_token = d.token
        RETURNING j.*
    ), kept AS (
        INSERT INTO kappa.finished_jobs (
            id, lane, kind, state, priority, payload, created_at, submitted_by, dedup_key, parent_id, spawn_key, retry_of,
            estimate, approved_by, approved_at, timeout, max_attempts, attempt, started_at, finished_at,
            progress_done, progress_total, progress_message, checkpoint, error_summary, error_detail, keep_until)
        SELECT id, lane, kind, 'succeeded', priority, payload, created_at, submitted_by, dedup_key, parent_id, spawn_key,
               retry_of, estimate, approved_by, approved_at, timeout, max_attempts,
               attempt + (attempt_started_at IS NULL)::int, coalesce(started_at, now()), now(),
               progress_done, progress_total, progress_message, checkpoint, error_summary, error_detail,
               now() + (SELECT keep_done FROM kappa.engine_settings)
          FROM done
        RETURNING id, parent_id
    )
    SELECT array_agg(CASE WHEN parent_id IS NULL THEN id ELSE kappa.tell_parent(id, parent_id) END)
      INTO written FROM kept;
    IF cardinality(written) IS DISTINCT FROM cardinality(ids) THEN
        RETURN QUERY SELECT unnest(ids) EXCEPT SELECT unnest(written);
    END IF;
END $$;

-- Done jobs out, their slots to new ones, in one round trip and one commit. What was no longer the caller's comes back
-- first, as rows without a kind. The lane's lock comes before its counts: the statements after it see all that earlier
-- claimers of the lane committed.
CREATE FUNCTION kappa.claim(
    lane_name text, claimer text, capacity int, known_kinds text[],
    floor_rank int, floor_id bigint, floor_token bigint, done_ids bigint[], done_tokens bigint[]
) RETURNS TABLE (
    id bigint, kind text, payload text, attempt int, max_attempts int, claims int, token bigint,
    adopted boolean, started boolean, seconds_left double precision, cancel_reason text, priority smallint,
    token_floor bigint, parent_id bigint, waited double precision
) LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    lane_row kappa.lanes;
    new_token bigint;
    busy int;
    lowest bigint;
    taken int := 0;
    usual double precision;
BEGIN
    IF done_ids IS NOT NULL THEN
        RETURN QUERY
        SELECT lost, NULL::text, NULL::text, 0, 0, 0, 0::bigint, false, false, 0::double precision, NULL::text,
               0::smallint, NULL::bigint, NULL::bigint, 0::double precision
          FROM kappa.settle_succeeded(done_ids, done_tokens) AS lost;
    END IF;
    PERFORM pg_advisory_xact_lock(1262568289, hashtext(lane_name));
    SELECT * INTO lane_row FROM kappa.lanes AS l WHERE l.name = lane_name;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    usual := date_part('epoch', lane_row.stale_timeout);
    new_token := nextval('kappa.lease_tokens');

    PERFORM FROM kappa.jobs AS r
      WHERE r.lane = lane_name AND r.state = 'running' AND r.lease_token IS NULL LIMIT 1;
    IF FOUND THEN
        RETURN QUERY
        UPDATE kappa.jobs AS j
           SET lease_owner = claimer, lease_token = new_token, lease_until = now() + lane_row.lease_ttl,
               claims = j.claims + 1
         WHERE j.ctid = ANY (ARRAY(
                   SELECT o.ctid FROM kappa.jobs AS o
                    WHERE o.lane = lane_name AND o.state = 'running' AND o.lease_token IS NULL
                      AND (known_kinds IS NULL OR o.kind = ANY (known_kinds))
                    LIMIT capacity FOR UPDATE SKIP LOCKED))
        RETURNING j.id, j.kind, j.payload::text, j.attempt, j.max_attempts, j.claims, j.lease_token, true,
                  j.attempt_started_at IS NOT NULL,
                  coalesce(date_part('epoch', j.timeout), usual)
                      - date_part('epoch', now() - coalesce(j.attempt_started_at, now())),
                  j.cancel_reason, j.priority, NULL::bigint, j.parent_id, 0::double precision;
        GET DIAGNOSTICS taken = ROW_COUNT;
        IF taken >= capacity THEN
            RETURN;
        END IF;
    END IF;
    IF NOT lane_row.enabled OR lane_row.executor = 'fleet' THEN
        RETURN;
    END IF;

    -- A parent that waits takes no slot now and one later: the floor must not rise above its token.
    -- Orphans take slots too, and are counted in the same statement: a lease that is cleared between two of them would
    -- be seen by neither.
    SELECT count(*) FILTER (WHERE NOT r.waiting)
           + (SELECT count(*) FROM kappa.jobs AS o
               WHERE o.lane = lane_name AND o.state = 'running' AND o.lease_token IS NULL AND NOT o.waiting),
           min(r.lease_token)
      INTO busy, lowest FROM kappa.jobs AS r
     WHERE r.lane = lane_name AND r.state = 'running' AND r.lease_token >= floor_token;

    RETURN QUERY
    UPDATE kappa.jobs AS j
       SET state = 'running', lease_owner = claimer, lease_token = new_token,
           lease_until = now() + lane_row.lease_ttl, claims = j.claims + 1
     WHERE j.ctid = ANY (ARRAY(
               SELECT q.ctid FROM kappa.jobs AS q
                WHERE q.lane = lane_name AND q.state = 'queued' AND ((-q.priority), q.id) > (floor_rank, floor_id)
                  AND (known_kinds IS NULL OR q.kind = ANY (known_kinds))
                ORDER BY (-q.priority), q.id
                LIMIT greatest(0, least(capacity - taken, lane_row.max_slots - busy))
                FOR UPDATE SKIP LOCKED))
    RETURNING j.id, j.kind, j.payload::text, j.attempt, j.max_attempts, j.claims, j.lease_token, false, false,
              coalesce(date_part('epoch', j.timeout), usual),
              j.cancel_reason, j.priority, least(lowest, new_token), j.parent_id,
              date_part('epoch', now() - coalesce(j.queued_at, j.created_at));
END $$;

CREATE FUNCTION kappa.settle(
    ids bigint[], tokens bigint[], states text[], results text[], reasons text[], summaries text[], details text[], started boolean[]
) RETURNS SETOF bigint LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH outcome AS (
        SELECT * FROM unnest(settle.ids, settle.tokens, settle.states, settle.results,
                             settle.reasons, settle.summaries, settle.details, settle.started)
                   AS o (id, token, new_state, new_result, new_reason, summary, detail, really_started)
    ), done AS (
        DELETE FROM kappa.jobs AS j
         USING outcome AS o
         WHERE j.id = o.id AND j.lease_token = o.token
        RETURNING j.*, o.new_state, o.new_result, o.new_reason, o.summary, o.detail, o.really_started
    ), kept AS (
        INSERT INTO kappa.finished_jobs (
            id, lane, kind, state, priority, payload, created_at, submitted_by, dedup_key, parent_id, spawn_key, retry_of,
            estimate, approved_by, approved_at, timeout, max_attempts, attempt, started_at, finished_at, reason, result,
            progress_done, progress_total, progress_message, checkpoint, error_summary, error_detail, keep_until)
        SELECT id, lane, kind, new_state::kappa.job_state, priority, payload, created_at, submitted_by, dedup_key,
               parent_id, spawn_key, retry_of, estimate, approved_by, approved_at, timeout, max_attempts,
               attempt + (really_started AND attempt_started_at IS NULL)::int,
               CASE WHEN really_started THEN coalesce(started_at, now()) ELSE started_at END,
               now(), CASE WHEN new_state = 'cancelled' THEN coalesce(cancel_reason, new_reason) ELSE new_reason END,
               new_result::jsonb,
               progress_done, progress_total, progress_message, checkpoint,
               coalesce(summary, error_summary), coalesce(detail, error_detail),
               now() + CASE WHEN new_state IN ('succeeded', 'cancelled') THEN s.keep_done ELSE s.keep_failed END
          FROM done, kappa.engine_settings AS s
    )
    SELECT CASE WHEN parent_id IS NULL THEN id ELSE kappa.tell_parent(id, parent_id) END FROM done;
END $$;

-- Out of a lease and not finished: to run again later (an attempt that counts, or a snooze), or at once if it was
-- never begun. A lost attempt is one of these.
CREATE FUNCTION kappa.put_back(
    ids bigint[], tokens bigint[], delays double precision[], snoozed boolean[], summaries text[], details text[], started boolean[]
) RETURNS SETOF bigint LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH back AS (
        SELECT * FROM unnest(put_back.ids, put_back.tokens, put_back.delays,
                             put_back.snoozed, put_back.summaries, put_back.details, put_back.started)
                   AS b (id, token, delay, snoozed, summary, detail, really_started)
    ), moved AS (
        UPDATE kappa.jobs AS j
           SET state = (CASE WHEN b.delay > 0 THEN 'scheduled' ELSE 'queued' END)::kappa.job_state,
               run_at = CASE WHEN b.delay > 0 THEN now() + make_interval(secs => b.delay) END,
               queued_at = now(),
               attempt = j.attempt + (b.really_started AND j.attempt_started_at IS NULL)::int,
               max_attempts = j.max_attempts + b.snoozed::int,
               started_at = CASE WHEN b.really_started THEN coalesce(j.started_at, now()) ELSE j.started_at END,
               attempt_started_at = NULL, lease_owner = NULL, lease_token = NULL, lease_until = NULL, waiting = false,
               lane = coalesce((SELECT k.lane FROM kappa.lane_kinds AS k WHERE k.kind = j.kind), j.lane),
               error_summary = coalesce(b.summary, j.error_summary), error_detail = coalesce(b.detail, j.error_detail)
          FROM back AS b
         WHERE j.id = b.id AND j.lease_token = b.token
        RETURNING j.id, j.lane, j.run_at
    ), told AS (
        SELECT pg_notify('kappa_due', extract(epoch FROM min(run_at))::text) FROM moved HAVING min(run_at) IS NOT NULL
        UNION ALL
        SELECT pg_notify('kappa_wake', lane) FROM moved WHERE run_at IS NULL GROUP BY lane
    )
    SELECT id FROM moved WHERE (SELECT count(*) FROM told) >= 0;
END $$;

-- At the end of a grace period: the lease is given up, so that another owner adopts the job at once.
CREATE FUNCTION kappa.release(
    ids bigint[], tokens bigint[]
) RETURNS SETOF bigint LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH freed AS (
        UPDATE kappa.jobs AS j
           SET lease_owner = NULL, lease_token = NULL, lease_until = NULL,
               lane = coalesce((SELECT k.lane FROM kappa.lane_kinds AS k WHERE k.kind = j.kind), j.lane)
          FROM unnest(release.ids, release.tokens) AS held (id, token)
         WHERE j.id = held.id AND j.lease_token = held.token
        RETURNING j.id, j.lane
    ), told AS (
        SELECT pg_notify('kappa_wake', lane) FROM freed GROUP BY lane
    )
    SELECT id FROM freed WHERE (SELECT count(*) FROM told) >= 0;
END $$;

CREATE FUNCTION kappa.progress(
    ids bigint[], tokens bigint[], done double precision[], total double precision[], messages text[]
) RETURNS SETOF bigint LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    UPDATE kappa.jobs AS j
       SET progress_done = p.done, progress_total = p.total, progress_message = p.message
      FROM unnest(progress.ids, progress.tokens, progress.done,
                  progress.total, progress.messages) AS p (id, token, done, total, message)
     WHERE j.id = p.id AND j.lease_token = p.token
    RETURNING j.id;
END $$;

-- One job in. Null when the kind has no lane, or when a live job has the dedup key or is the same child already.
-- Sleepers are told by the transaction that made the job, and nobody is told when nobody sleeps: NOTIFY takes a lock
-- that all commits share. As a function, because a statement with this many parameters is planned anew each time.
CREATE FUNCTION kappa.enqueue(
    kind text, payload jsonb, priority smallint, submitted_by text, dedup_key text, parent_id bigint, spawn_key text,
    retry_of bigint, run_at timestamptz, delay interval, approval boolean, estimate jsonb, approved_by text,
    timeout interval, max_attempts int, always_notify boolean
) RETURNS bigint LANGUAGE plpgsql
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_variable
DECLARE
    home text := kappa.home_of(kind);
    made bigint;
    due timestamptz := coalesce(run_at, now() + delay);
    first_state kappa.job_state := 'queued';
    expiry timestamptz;
BEGIN
    IF home IS NULL THEN
        RETURN NULL;
    END IF;
    IF approval AND EXISTS (SELECT FROM kappa.auto_approved AS a WHERE a.submitter = submitted_by) THEN
        approval := false;
        approved_by := submitted_by;
    END IF;
    IF approval THEN
        first_state := 'awaiting_approval';
        SELECT now() + s.approval_wait INTO expiry FROM kappa.engine_settings AS s;
    ELSIF due > now() THEN
        first_state := 'scheduled';
    END IF;
    INSERT INTO kappa.jobs AS j (
        lane, kind, state, priority, payload, submitted_by, dedup_key, parent_id, spawn_key, retry_of, run_at, estimate,
        expires_at, approved_by, approved_at, timeout, max_attempts)
    VALUES (
        home, kind, first_state, priority, payload, submitted_by, dedup_key, parent_id, spawn_key, retry_of,
        CASE WHEN first_state = 'scheduled' THEN due END, estimate,
        expiry, approved_by, CASE WHEN approved_by IS NOT NULL THEN now() END, timeout, max_attempts)
    ON CONFLICT DO NOTHING
    RETURNING j.id INTO made;
    IF made IS NULL THEN
        RETURN NULL;
    END IF;
    IF first_state = 'scheduled' THEN
        PERFORM pg_notify('kappa_due', extract(epoch FROM due)::text);
    ELSIF first_state = 'queued'
          AND (always_notify OR EXISTS (SELECT FROM kappa.sleepers AS s WHERE s.lane = home)) THEN
        PERFORM pg_notify('kappa_wake', home);
    END IF;
    RETURN made;
END $$;

-- The usual job, which is to run as soon as it can, in as few steps as there can be.
CREATE FUNCTION kappa.enqueue_now(
    kind text, payload jsonb, priority smallint, submitted_by text, timeout interval, max_attempts int
) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    -- As in home_of: held before the next statement reads the kind's lane.
    kinds_stay text := pg_advisory_xact_lock_shared(1262568290, 0);
    made bigint;
    home text;
    asleep boolean;
BEGIN
    INSERT INTO kappa.jobs AS j (lane, kind, state, priority, payload, submitted_by, timeout, max_attempts)
    SELECT k.lane, k.kind, 'queued', priority, payload, submitted_by, timeout, max_attempts
      FROM kappa.lane_kinds AS k WHERE k.kind = kind
    RETURNING j.id, j.lane, EXISTS (SELECT FROM kappa.sleepers AS s WHERE s.lane = j.lane) INTO made, home, asleep;
    IF asleep THEN
        PERFORM pg_notify('kappa_wake', home);
    END IF;
    RETURN made;
END $$;
