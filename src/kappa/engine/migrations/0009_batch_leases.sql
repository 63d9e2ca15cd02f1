-- One lease for a whole batch. While a lane has more to do than it can take, a claim of jobs on the loop writes one row
-- here and none of theirs. Such a job's own row stays `queued` until it is settled, which most are at once; one that
-- lasts (WorkerConfig.start_mark_after), or of which anything is to be written, gets its lease written down in its row
-- (write_down) and is from then on like any other.
--
-- A claim takes what is queued and in no batch, under its lane's lock. Whoever settles, puts back or writes down takes
-- the batch's row first and the jobs' after it; so does the reaper. Whoever cancels takes the job's row alone.
CREATE TABLE kappa.batch_leases (
    token       bigint      PRIMARY KEY,
    lane        text        NOT NULL,
    owner       text        NOT NULL,
    lease_until timestamptz NOT NULL,
    ids         bigint[]    NOT NULL CHECK (ids <> '{}')
) WITH (fillfactor = 50, toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);
ALTER TABLE kappa.batch_leases ALTER COLUMN ids SET STORAGE MAIN;

-- Of these pairs, those that a batch holds; they are no longer its affair.
CREATE FUNCTION kappa.leave_batches(
    ids bigint[], tokens bigint[], OUT held bigint[], OUT held_by bigint[], OUT holder text
) LANGUAGE plpgsql
  SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    batch kappa.batch_leases;
    given bigint[];
    others bigint[];
BEGIN
    held := '{}';
    held_by := '{}';
    -- Only what holds one of these: whoever has its lease written down has no business with the rest of its batch.
    FOR batch IN SELECT b.* FROM kappa.batch_leases AS b
                  WHERE b.token = ANY (ARRAY(SELECT DISTINCT unnest(tokens))) AND b.ids && leave_batches.ids
                  ORDER BY b.token FOR UPDATE LOOP
        SELECT array_agg(i.id) FILTER (WHERE i.given), array_agg(i.id) FILTER (WHERE NOT i.given) INTO given, others
          FROM (SELECT i AS id, i IN (SELECT d.id FROM unnest(ids, tokens) AS d (id, token) WHERE d.token = batch.token) AS given
                  FROM unnest(batch.ids) AS i) AS i;
        CONTINUE WHEN given IS NULL;
        IF others IS NULL THEN
            DELETE FROM kappa.batch_leases AS b WHERE b.token = batch.token;
        ELSE
            UPDATE kappa.batch_leases AS b SET ids = others WHERE b.token = batch.token;
        END IF;
        held := held || given;
        held_by := held_by || array_fill(batch.token, ARRAY[cardinality(given)]);
        holder := batch.owner;
    END LOOP;
END $$;

CREATE FUNCTION kappa.write_down(ids bigint[], tokens bigint[]) RETURNS void LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    mine record;
BEGIN
    SELECT * INTO mine FROM kappa.leave_batches(write_down.ids, write_down.tokens);
    IF mine.held <> '{}' THEN
        UPDATE kappa.jobs AS j
           SET state = 'running', lease_owner = mine.holder, lease_token = d.token, claims = j.claims + 1,
               lease_until = now() + (SELECT l.lease_ttl FROM kappa.lanes AS l WHERE l.name = j.lane)
          FROM unnest(mine.held, mine.held_by) AS d (id, token)
         -- The state as text: no index of what is queued may look like a way there when statistics say that none is.
         WHERE j.id = d.id AND j.state::text = 'queued';
    END IF;
END $$;

-- A job that a batch holds has begun: its row says so from now on. The row's lock is a statement of its own, so that the
-- next one sees what a claim or a settlement committed that held it.
CREATE FUNCTION kappa.cancel_before_start(job bigint, from_states text[], why text) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM FROM kappa.jobs AS j WHERE j.id = job AND j.state = 'queued' AND 'queued' = ANY (from_states) FOR UPDATE;
    IF FOUND THEN
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            RAISE EXCEPTION 'a queued job is cancelled in a READ COMMITTED transaction only: in this one it can''t be seen whether a batch holds it'
                USING ERRCODE = 'feature_not_supported';
        END IF;
        UPDATE kappa.jobs AS j
           SET state = 'running', lease_owner = b.owner, lease_token = b.token, lease_until = b.lease_until,
               claims = j.claims + 1
          FROM kappa.batch_leases AS b
         WHERE j.id = job AND j.state = 'queued' AND b.lane = j.lane AND job = ANY (b.ids);
    END IF;
    RETURN QUERY
    WITH done AS (
        DELETE FROM kappa.jobs
         WHERE id = job AND state::text = ANY (from_states)
        RETURNING *
    ), kept AS (
        INSERT INTO kappa.finished_jobs (
            id, lane, kind, state, priority, payload, created_at, submitted_by, dedup_key, parent_id, spawn_key, retry_of,
            estimate, approved_by, approved_at, timeout, max_attempts, attempt, started_at, finished_at, reason,
            progress_done, progress_total, progress_message, checkpoint, error_summary, error_detail, keep_until)
        SELECT id, lane, kind, 'cancelled', priority, payload, created_at, submitted_by, dedup_key, parent_id, spawn_key,
               retry_of, estimate, approved_by, approved_at, timeout, max_attempts, attempt, started_at, now(),
               why, progress_done, progress_total, progress_message, checkpoint, error_summary, error_detail,
               now() + (SELECT keep_done FROM kappa.engine_settings)
          FROM done
    )
    SELECT CASE WHEN parent_id IS NULL THEN id ELSE kappa.tell_parent(id, parent_id) END FROM done;
END $$;

-- Batches whose lease ran out: their jobs have no owner now, and the next claim adopts them. What a batch holds and has its
-- lease written down already, by somebody who cancels, loses it in the same moment as the rest: else it could be adopted,
-- put back and be settled by the pair that its old batch still has.
CREATE FUNCTION kappa.reap_batches(at timestamptz, most int) RETURNS TABLE (id bigint, lane text) LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    batch kappa.batch_leases;
BEGIN
    FOR batch IN SELECT b.* FROM kappa.batch_leases AS b
                  WHERE b.lease_until <= at ORDER BY b.token LIMIT most FOR UPDATE SKIP LOCKED LOOP
        RETURN QUERY
        UPDATE kappa.jobs AS j
           SET state = 'running', lease_owner = NULL, lease_token = NULL, lease_until = NULL,
               claims = j.claims + (j.state = 'queued')::int,
               lane = coalesce((SELECT k.lane FROM kappa.lane_kinds AS k WHERE k.kind = j.kind), j.lane)
         WHERE j.ctid = ANY (ARRAY(
                   SELECT q.ctid FROM kappa.jobs AS q
                    WHERE q.id = ANY (batch.ids) AND (q.state = 'queued' OR q.lease_token = batch.token)
                      FOR UPDATE SKIP LOCKED))
        RETURNING j.id, j.lane;
        DELETE FROM kappa.batch_leases AS b WHERE b.token = batch.token;
    END LOOP;
END $$;

-- Of a start that is written later than it was, `ages` says how many seconds ago it was by the worker's stopwatch: the
-- time of day is still the database's.
DROP FUNCTION kappa.mark_started;
CREATE FUNCTION kappa.mark_started(
    ids bigint[], tokens bigint[], ages double precision[] DEFAULT NULL
) RETURNS SETOF bigint LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    PERFORM kappa.write_down(mark_started.ids, mark_started.tokens);
    RETURN QUERY
    UPDATE kappa.jobs AS j
       SET attempt = j.attempt + 1, attempt_started_at = now() - make_interval(secs => coalesce(s.age, 0)),
           started_at = coalesce(j.started_at, now() - make_interval(secs => coalesce(s.age, 0)))
      FROM unnest(mark_started.ids, mark_started.tokens, mark_started.ages) AS s (id, token, age)
     WHERE j.id = s.id AND j.lease_token = s.token AND j.attempt_started_at IS NULL
    RETURNING j.id;
END $$;

-- A batch whose row is locked is about to be settled or written down by somebody who may have to wait for the lane. Its
-- jobs are still held, and are left for the next time: a renewal is for the jobs of all lanes and must not wait for one.
CREATE OR REPLACE FUNCTION kappa.renew(
    ids bigint[], tokens bigint[]
) RETURNS TABLE (job bigint, cancel text) LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    free bigint[];
BEGIN
    free := ARRAY(SELECT b.token FROM kappa.batch_leases AS b
                   WHERE b.token = ANY (ARRAY(SELECT DISTINCT unnest(renew.tokens))) AND b.ids && renew.ids
                   ORDER BY b.token FOR UPDATE SKIP LOCKED);
    IF free <> '{}' THEN
        PERFORM kappa.write_down(array_agg(held.id), array_agg(held.token))
           FROM unnest(renew.ids, renew.tokens) AS held (id, token) WHERE held.token = ANY (free);
    END IF;
    RETURN QUERY
    UPDATE kappa.jobs AS j
       SET lease_until = now() + l.lease_ttl
      FROM unnest(renew.ids, renew.tokens) AS held (id, token), kappa.lanes AS l
     WHERE j.id = held.id AND j.lease_token = held.token AND l.name = j.lane
    RETURNING j.id, j.cancel_reason;
    RETURN QUERY
    SELECT held.id, NULL::text
      FROM unnest(renew.ids, renew.tokens) AS held (id, token)
      JOIN kappa.batch_leases AS b ON b.token = held.token AND held.id = ANY (b.ids)
     WHERE NOT EXISTS (SELECT FROM kappa.jobs AS j WHERE j.id = held.id AND j.lease_token = held.token);
END $$;

CREATE OR REPLACE FUNCTION kappa.release(
    ids bigint[], tokens bigint[]
) RETURNS SETOF bigint LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    PERFORM kappa.write_down(release.ids, release.tokens);
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

CREATE OR REPLACE FUNCTION kappa.progress(
    ids bigint[], tokens bigint[], done double precision[], total double precision[], messages text[]
) RETURNS SETOF bigint LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    PERFORM kappa.write_down(progress.ids, progress.tokens);
    RETURN QUERY
    UPDATE kappa.jobs AS j
       SET progress_done = p.done, progress_total = p.total, progress_message = p.message
      FROM unnest(progress.ids, progress.tokens, progress.done,
                  progress.total, progress.messages) AS p (id, token, done, total, message)
     WHERE j.id = p.id AND j.lease_token = p.token
    RETURNING j.id;
END $$;

-- The ways out accept what is queued in its own row and held by a batch of the caller's. This one, for what succeeded at
-- once, takes its end for its start as well: they are less than WorkerConfig.start_mark_after apart.
CREATE OR REPLACE FUNCTION kappa.settle_succeeded(
    ids bigint[], tokens bigint[]
) RETURNS SETOF bigint LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    written bigint[];
    mine record;
BEGIN
    SELECT * INTO mine FROM kappa.leave_batches(settle_succeeded.ids, settle_succeeded.tokens);
    WITH done AS (
        DELETE FROM kappa.jobs AS j
         USING unnest(settle_succeeded.ids, settle_succeeded.tokens) AS d (id, token)
         WHERE j.id = d.id AND (j.lease_token = d.token OR (j.state = 'queued' AND (d.id, d.token) IN (
                   SELECT h.id, h.token FROM unnest(mine.held, mine.held_by) AS h (id, token))))
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

DROP FUNCTION kappa.settle;
CREATE FUNCTION kappa.settle(
    ids bigint[], tokens bigint[], states text[], results text[], reasons text[], summaries text[], details text[],
    started boolean[], ages double precision[] DEFAULT NULL
) RETURNS SETOF bigint LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    mine record;
BEGIN
    SELECT * INTO mine FROM kappa.leave_batches(settle.ids, settle.tokens);
    RETURN QUERY
    WITH outcome AS (
        SELECT * FROM unnest(settle.ids, settle.tokens, settle.states, settle.results,
                             settle.reasons, settle.summaries, settle.details, settle.started, settle.ages)
                   AS o (id, token, new_state, new_result, new_reason, summary, detail, really_started, age)
    ), done AS (
        DELETE FROM kappa.jobs AS j
         USING outcome AS o
         WHERE j.id = o.id AND (j.lease_token = o.token OR (j.state = 'queued' AND (o.id, o.token) IN (
                   SELECT h.id, h.token FROM unnest(mine.held, mine.held_by) AS h (id, token))))
        RETURNING j.*, o.new_state, o.new_result, o.new_reason, o.summary, o.detail, o.really_started, o.age
    ), kept AS (
        INSERT INTO kappa.finished_jobs (
            id, lane, kind, state, priority, payload, created_at, submitted_by, dedup_key, parent_id, spawn_key, retry_of,
            estimate, approved_by, approved_at, timeout, max_attempts, attempt, started_at, finished_at, reason, result,
            progress_done, progress_total, progress_message, checkpoint, error_summary, error_detail, keep_until)
        SELECT id, lane, kind, new_state::kappa.job_state, priority, payload, created_at, submitted_by, dedup_key,
               parent_id, spawn_key, retry_of, estimate, approved_by, approved_at, timeout, max_attempts,
               attempt + (really_started AND attempt_started_at IS NULL)::int,
               -- Of the clock, as a handler's own transaction began long ago.
               CASE WHEN really_started
                    THEN coalesce(started_at, least(now(), clock_timestamp() - make_interval(secs => coalesce(age, 0))))
                    ELSE started_at END,
               now(), CASE WHEN new_state = 'cancelled' THEN coalesce(cancel_reason, new_reason) ELSE new_reason END,
               new_result::jsonb,
               progress_done, progress_total, progress_message, checkpoint,
               coalesce(summary, error_summary), coalesce(detail, error_detail),
               now() + CASE WHEN new_state IN ('succeeded', 'cancelled') THEN s.keep_done ELSE s.keep_failed END
          FROM done, kappa.engine_settings AS s
    )
    SELECT CASE WHEN parent_id IS NULL THEN id ELSE kappa.tell_parent(id, parent_id) END FROM done;
END $$;

-- How many of a job's `max_attempts` it has for its snoozes: a retry gets what it was enqueued with.
CREATE TABLE kappa.snoozes (
    job_id bigint PRIMARY KEY,
    times  int    NOT NULL DEFAULT 1
);

DROP FUNCTION kappa.put_back;
CREATE FUNCTION kappa.put_back(
    ids bigint[], tokens bigint[], delays double precision[], snoozed boolean[], summaries text[], details text[],
    started boolean[], ages double precision[] DEFAULT NULL
) RETURNS SETOF bigint LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    mine record;
BEGIN
    SELECT * INTO mine FROM kappa.leave_batches(put_back.ids, put_back.tokens);
    RETURN QUERY
    WITH back AS (
        SELECT * FROM unnest(put_back.ids, put_back.tokens, put_back.delays,
                             put_back.snoozed, put_back.summaries, put_back.details, put_back.started, put_back.ages)
                   AS b (id, token, delay, snoozed, summary, detail, really_started, age)
    ), moved AS (
        UPDATE kappa.jobs AS j
           SET state = (CASE WHEN b.delay > 0 THEN 'scheduled' ELSE 'queued' END)::kappa.job_state,
               run_at = CASE WHEN b.delay > 0 THEN now() + make_interval(secs => b.delay) END,
               queued_at = now(),
               attempt = j.attempt + (b.really_started AND j.attempt_started_at IS NULL)::int,
               claims = j.claims + (j.state = 'queued')::int,
               max_attempts = j.max_attempts + b.snoozed::int,
               started_at = CASE WHEN b.really_started
                                 THEN coalesce(j.started_at, now() - make_interval(secs => coalesce(b.age, 0)))
                                 ELSE j.started_at END,
               attempt_started_at = NULL, lease_owner = NULL, lease_token = NULL, lease_until = NULL, waiting = false,
               lane = coalesce((SELECT k.lane FROM kappa.lane_kinds AS k WHERE k.kind = j.kind), j.lane),
               error_summary = coalesce(b.summary, j.error_summary), error_detail = coalesce(b.detail, j.error_detail)
          FROM back AS b
         WHERE j.id = b.id AND (j.lease_token = b.token OR (j.state = 'queued' AND (b.id, b.token) IN (
                   SELECT h.id, h.token FROM unnest(mine.held, mine.held_by) AS h (id, token))))
        RETURNING j.id, j.lane, j.run_at, b.snoozed
    ), counted AS (
        INSERT INTO kappa.snoozes AS s (job_id) SELECT m.id FROM moved AS m WHERE m.snoozed
        ON CONFLICT (job_id) DO UPDATE SET times = s.times + 1
    ), told AS (
        SELECT pg_notify('kappa_due', extract(epoch FROM min(run_at))::text) FROM moved HAVING min(run_at) IS NOT NULL
        UNION ALL
        SELECT pg_notify('kappa_wake', lane) FROM moved WHERE run_at IS NULL GROUP BY lane
    )
    SELECT id FROM moved WHERE (SELECT count(*) FROM told) >= 0;
END $$;

-- As before, and with `light_kinds` one lease for the whole batch where every job of it is of these kinds, may be
-- attempted again and never vanished with a claim: else the attempt begins only when its own row says so.
DROP FUNCTION kappa.claim;
CREATE FUNCTION kappa.claim(
    lane_name text, claimer text, capacity int, known_kinds text[],
    light_kinds text[], floor_rank int, floor_id bigint, floor_token bigint, done_ids bigint[], done_tokens bigint[]
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
    usual double precision;
    free int;
    left_over int := capacity;
    got int := 0;
    rows tid[];
    ids bigint[];
    all_light boolean;
BEGIN
    IF done_ids IS NOT NULL THEN
        RETURN QUERY
        SELECT lost, NULL::text, NULL::text, 0, 0, 0, 0::bigint, false, false, 0::double precision, NULL::text,
               0::smallint, NULL::bigint, NULL::bigint, 0::double precision, false
          FROM kappa.settle_succeeded(done_ids, done_tokens) AS lost;
    END IF;
    PERFORM pg_advisory_xact_lock(1262568289, hashtext(lane_name));

    -- A parent that waits takes no slot now and one later: the floor must not rise above its token. Orphans and batches
    -- take slots too, and all are counted in one statement: a job that leaves one of them for another between two
    -- statements would be seen by neither. With the lane, since every statement has its price where one job is claimed.
    WITH h AS MATERIALIZED (
        SELECT b.token, unnest(b.ids) AS id FROM kappa.batch_leases AS b WHERE b.token >= floor_token AND b.lane = lane_name
    )
    SELECT l.max_slots, l.lease_ttl, l.stale_timeout, l.enabled AND l.executor <> 'fleet' AS open, l.executor = 'async' AS on_loop,
           r.busy + o.busy + b.busy AS busy, o.orphans, least(r.lowest, b.lowest) AS lowest, b.held
      INTO lane_row
      FROM kappa.lanes AS l,
           (SELECT count(*) FILTER (WHERE NOT r.waiting AND r.id NOT IN (SELECT h.id FROM h)) AS busy,
                   min(r.lease_token) AS lowest
              FROM kappa.jobs AS r
             WHERE r.lane = lane_name AND r.state = 'running' AND r.lease_token >= floor_token) AS r,
           (SELECT count(*) FILTER (WHERE NOT o.waiting) AS busy, count(*) AS orphans FROM kappa.jobs AS o
             WHERE o.lane = lane_name AND o.state = 'running' AND o.lease_token IS NULL) AS o,
           (SELECT count(*) AS busy, min(h.token) AS lowest, coalesce(array_agg(h.id), '{}') AS held FROM h) AS b
     WHERE l.name = lane_name;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    usual := date_part('epoch', lane_row.stale_timeout);
    new_token := nextval('kappa.lease_tokens');

    IF lane_row.orphans > 0 THEN
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
                  j.cancel_reason, j.priority, NULL::bigint, j.parent_id, 0::double precision, false;
        GET DIAGNOSTICS got = ROW_COUNT;
        left_over := capacity - got;
        IF left_over <= 0 THEN
            RETURN;
        END IF;
    END IF;
    IF NOT lane_row.open THEN
        RETURN;
    END IF;

    free := greatest(0, lane_row.max_slots - lane_row.busy);
    IF light_kinds IS NOT NULL AND lane_row.on_loop THEN
        SELECT array_agg(p.ctid), array_agg(p.id), bool_and(p.light) INTO rows, ids, all_light
          FROM (SELECT q.ctid, q.id,
                       q.kind = ANY (light_kinds) AND q.attempt + 1 < q.max_attempts AND q.claims <= q.attempt AS light
                  FROM kappa.jobs AS q
                 WHERE q.lane = lane_name AND q.state = 'queued' AND ((-q.priority), q.id) > (floor_rank, floor_id)
                   AND (known_kinds IS NULL OR q.kind = ANY (known_kinds))
                   AND q.id NOT IN (SELECT unnest(lane_row.held))
                 ORDER BY (-q.priority), q.id
                 LIMIT least(left_over, free)
                 FOR UPDATE SKIP LOCKED) AS p;
    END IF;
    IF all_light THEN
        INSERT INTO kappa.batch_leases (token, lane, owner, lease_until, ids)
        VALUES (new_token, lane_name, claimer, now() + lane_row.lease_ttl, ids);
        RETURN QUERY
        SELECT j.id, j.kind, j.payload::text, j.attempt, j.max_attempts, j.claims + 1, new_token, false, false,
               coalesce(date_part('epoch', j.timeout), usual),
               j.cancel_reason, j.priority, least(lane_row.lowest, new_token), j.parent_id,
               date_part('epoch', now() - coalesce(j.queued_at, j.created_at)), true
          FROM kappa.jobs AS j WHERE j.ctid = ANY (rows);
    ELSE
        RETURN QUERY
        UPDATE kappa.jobs AS j
           SET state = 'running', lease_owner = claimer, lease_token = new_token,
               lease_until = now() + lane_row.lease_ttl, claims = j.claims + 1
         WHERE j.ctid = ANY (ARRAY(
                   SELECT q.ctid FROM kappa.jobs AS q
                    WHERE q.lane = lane_name AND q.state = 'queued' AND ((-q.priority), q.id) > (floor_rank, floor_id)
                      AND (known_kinds IS NULL OR q.kind = ANY (known_kinds))
                      AND q.id NOT IN (SELECT unnest(lane_row.held))
                    ORDER BY (-q.priority), q.id
                    LIMIT least(left_over, free)
                    FOR UPDATE SKIP LOCKED))
        RETURNING j.id, j.kind, j.payload::text, j.attempt, j.max_attempts, j.claims, j.lease_token, false, false,
                  coalesce(date_part('epoch', j.timeout), usual),
                  j.cancel_reason, j.priority, least(lane_row.lowest, new_token), j.parent_id,
                  date_part('epoch', now() - coalesce(j.queued_at, j.created_at)), false;
    END IF;
    GET DIAGNOSTICS got = ROW_COUNT;
    -- At the end a row with no job: the lane has no slot left, and there may be more to claim when one is free.
    IF got = free THEN
        RETURN QUERY
        SELECT 0::bigint, NULL::text, NULL::text, 0, 0, 0, 0::bigint, false, false, 0::double precision, NULL::text,
               0::smallint, NULL::bigint, NULL::bigint, 0::double precision, false;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION kappa.place_kinds() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    taken record;
BEGIN
    PERFORM pg_advisory_xact_lock(1262568290, 0);
    DELETE FROM kappa.lane_kinds WHERE lane = NEW.name AND kind <> ALL (NEW.kinds);
    INSERT INTO kappa.lane_kinds (kind, lane)
    SELECT DISTINCT unnest(NEW.kinds), NEW.name ON CONFLICT (kind) DO NOTHING;
    SELECT k.kind, k.lane INTO taken
      FROM kappa.lane_kinds k WHERE k.kind = ANY (NEW.kinds) AND k.lane <> NEW.name LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'kind "%" belongs to lane "%" already', taken.kind, taken.lane
            USING ERRCODE = 'unique_violation', CONSTRAINT = 'lane_kinds_pkey';
    END IF;
    -- Also orphans: they are adopted where their kind is. What a batch holds stays until it is settled or put back. The
    -- locks are those of claims: a batch that was about to be taken is there for the next statement to see. Not only of
    -- lanes that have batches now: this transaction may have just changed one that had.
    PERFORM pg_advisory_xact_lock(1262568289, hashtext(l.name))
       FROM (SELECT name FROM kappa.lanes WHERE executor <> 'fleet' AND name <> NEW.name ORDER BY name) AS l;
    UPDATE kappa.jobs AS j SET lane = NEW.name
     WHERE j.kind = ANY (NEW.kinds) AND j.lane <> NEW.name AND j.lease_token IS NULL
       AND NOT EXISTS (SELECT FROM kappa.batch_leases AS b WHERE b.lane = j.lane AND j.id = ANY (b.ids));
    RETURN NULL;
END $$;

-- An edit of anything else waits for no claim.
DROP TRIGGER lanes_place_kinds ON kappa.lanes;
CREATE TRIGGER lanes_place_kinds AFTER INSERT ON kappa.lanes FOR EACH ROW EXECUTE FUNCTION kappa.place_kinds();
CREATE TRIGGER lanes_move_kinds AFTER UPDATE OF kinds ON kappa.lanes FOR EACH ROW
    WHEN (OLD.kinds IS DISTINCT FROM NEW.kinds) EXECUTE FUNCTION kappa.place_kinds();

-- A lane that becomes the fleet's has its batches written down, but for jobs whose rows are locked just then. Those are
-- kept from the fleet while a batch holds them.
CREATE FUNCTION kappa.write_down_lane() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1262568289, hashtext(NEW.name));
    UPDATE kappa.jobs AS j
       SET state = 'running', lease_owner = b.owner, lease_token = b.token, lease_until = b.lease_until,
           claims = j.claims + 1
      FROM kappa.batch_leases AS b
     WHERE b.lane = NEW.name AND j.id = ANY (b.ids) AND j.state = 'queued'
       -- Not those that somebody is about to settle, who may be waiting for this lane's lock.
       AND j.id = ANY (ARRAY(SELECT q.id FROM kappa.batch_leases AS o, unnest(o.ids) AS held, kappa.jobs AS q
                              WHERE o.lane = NEW.name AND q.id = held AND q.state = 'queued'
                                FOR UPDATE OF q SKIP LOCKED));
    RETURN NULL;
END $$;

CREATE TRIGGER lanes_write_down AFTER UPDATE OF executor ON kappa.lanes FOR EACH ROW
    WHEN (OLD.executor <> NEW.executor AND NEW.executor = 'fleet') EXECUTE FUNCTION kappa.write_down_lane();

ALTER FUNCTION kappa.fleet_candidates(
    text, text, bigint[], text[], bigint[], double precision[], int[], text[], int) RENAME TO fleet_queued;
CREATE FUNCTION kappa.fleet_candidates(
    lane_name text, submitter text, among bigint[], known_kinds text[], seen bigint[], some_cores double precision[],
    some_memory int[], some_labels text[], most int
) RETURNS TABLE (id bigint, cores double precision, memory_mb int, labels text[]) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT * FROM kappa.fleet_queued(
        lane_name, submitter, among, known_kinds,
        seen || ARRAY(SELECT unnest(b.ids) FROM kappa.batch_leases AS b WHERE b.lane = lane_name),
        some_cores, some_memory, some_labels, most);
END $$;

-- How many jobs of a lane run by a batch's lease and not by one in their own row.
CREATE FUNCTION kappa.in_batches(lane_name text) RETURNS bigint LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT count(*)
      FROM kappa.batch_leases AS b, unnest(b.ids) AS held
     CROSS JOIN LATERAL (SELECT FROM kappa.jobs AS j WHERE j.id = held AND j.state::text = 'queued' OFFSET 0) AS unwritten
     WHERE b.lane = lane_name;
END;

-- A job that a batch holds has an owner too: what happens to it is told like what happens to any other. The condition is
-- short, since every claim reads it anew.
CREATE OR REPLACE FUNCTION kappa.note_event() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    held_by text := OLD.lease_owner;
BEGIN
    IF OLD.state = 'queued' THEN
        IF NEW.state <> 'running' AND NEW.queued_at IS NOT DISTINCT FROM OLD.queued_at THEN
            RETURN NULL;
        END IF;
        SELECT b.owner INTO held_by FROM kappa.batch_leases AS b WHERE b.lane = OLD.lane AND OLD.id = ANY (b.ids);
    ELSIF NEW.state = 'running' AND NEW.lease_token IS NOT DISTINCT FROM OLD.lease_token THEN
        RETURN NULL;
    END IF;
    IF NEW.state <> 'running' THEN
        INSERT INTO kappa.job_events (job_id, event, attempt, owner, detail)
        VALUES (NEW.id, 'put_back', NEW.attempt, held_by, NEW.error_summary);
    ELSIF NEW.lease_token IS NULL THEN
        INSERT INTO kappa.job_events (job_id, event, attempt, owner)
        VALUES (NEW.id, CASE WHEN OLD.state = 'queued' OR OLD.lease_until <= now() THEN 'lease_ran_out' ELSE 'released' END,
                NEW.attempt, held_by);
    ELSE
        INSERT INTO kappa.job_events (job_id, event, attempt, owner) VALUES (NEW.id, 'adopted', NEW.attempt, NEW.lease_owner);
    END IF;
    RETURN NULL;
END $$;

DROP TRIGGER jobs_note_event ON kappa.jobs;
CREATE TRIGGER jobs_note_event AFTER UPDATE OF state, lease_token ON kappa.jobs FOR EACH ROW
    WHEN (OLD.state = 'running' OR (OLD.state = 'queued' AND NEW.lease_token IS NULL))
    EXECUTE FUNCTION kappa.note_event();

-- As before; what a batch holds runs.
CREATE OR REPLACE FUNCTION kappa.depths(most int) RETURNS TABLE (lane text, state text, jobs bigint) LANGUAGE sql STABLE
  SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT l.name, s.state, s.jobs
      FROM kappa.lanes AS l
     CROSS JOIN LATERAL (
         SELECT 'queued' AS state, greatest(0, count(*) - kappa.in_batches(l.name)) AS jobs
           FROM (SELECT 1 FROM kappa.jobs AS q WHERE q.lane = l.name AND q.state = 'queued'
                  ORDER BY (-q.priority), q.id LIMIT depths.most + kappa.in_batches(l.name)) AS queued
         UNION ALL
         SELECT 'running', least(depths.most, count(*) + kappa.in_batches(l.name))
           FROM (SELECT 1 FROM kappa.jobs AS r WHERE r.lane = l.name AND r.state = 'running'
                  ORDER BY r.lease_token LIMIT depths.most) AS running
     ) AS s
    UNION ALL
    SELECT due.lane, 'scheduled', count(*)
      FROM (SELECT lane FROM kappa.jobs WHERE state = 'scheduled' ORDER BY run_at LIMIT depths.most) AS due
     GROUP BY due.lane
    UNION ALL
    SELECT unapproved.lane, 'awaiting_approval', count(*)
      FROM (SELECT lane FROM kappa.jobs WHERE state = 'awaiting_approval' ORDER BY expires_at LIMIT depths.most)
           AS unapproved
     GROUP BY unapproved.lane
$$;
