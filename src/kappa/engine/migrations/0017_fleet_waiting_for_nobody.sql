-- What the fleet's server writes for many workers in one statement waits for nobody's row either. And a lane's
-- stale_timeout is no time-out any more: a task that reports no progress for so long is stopped by its next beat and tried
-- again. Tool runs, which may be silent, have time-outs of their own.
ALTER TABLE kappa.jobs ADD COLUMN progress_at timestamptz;
COMMENT ON COLUMN kappa.jobs.progress_at IS 'When a remote worker last reported something; local workers keep it themselves.';

-- A lane's row is read under the lane's lock: an edit that was committed while the claim waited counts. The answer to a
-- repeated request needs no lock.
CREATE OR REPLACE FUNCTION kappa.fleet_claim(
    owners text[], requests text[], counts int[], cores double precision[], memory int[], labels text[],
    known_kinds text[]
) RETURNS TABLE (
    place int, id bigint, token bigint, kind text, lane text, payload text, attempt int, max_attempts int,
    seconds_left double precision, lease_seconds double precision, checkpoint text, waited double precision
) LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off
  SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    head CONSTANT int := -32769;  -- before every priority
    look_at CONSTANT int := 1000;
    open_counts int[] := counts;
    wanted int;
    lane_row kappa.lanes;
    kept kappa.fleet_lanes;
    busy int;
    last_turn text;
    submitter text;
    next_one text;
    stage int;
    whole boolean;
    had_turn boolean;
    unnamed bigint[];
    unnamed_taken int;
    end_rank int;
    end_id bigint;
    share int;
    had_something int;
    visited boolean;
    candidate record;
    caller int;
    seen bigint[];
    taken bigint[];
    places int[];
    abilities int;
    some_cores double precision[];
    some_memory int[];
    some_labels text[];
    new_token bigint;
    answered int[];
    told_ids bigint[];
    told_tokens bigint[];
BEGIN
    PERFORM pg_advisory_xact_lock(1262568293, 0);

    SELECT array_agg(a.place), array_agg(t.job_id), array_agg(t.token) INTO answered, told_ids, told_tokens
      FROM unnest(owners, requests) WITH ORDINALITY AS a (owner, request, place)
     CROSS JOIN LATERAL (SELECT f.job_id, f.token FROM kappa.fleet_tasks AS f
                          WHERE f.owner = a.owner AND f.request_id = a.request OFFSET 0) AS t;
    IF answered IS NOT NULL THEN
        -- Read before the renewal, which skips rows that somebody has locked: all claims of the fleet would wait for them.
        RETURN QUERY
        SELECT t.place::int, j.id, j.lease_token, j.kind, j.lane, j.payload::text,
               j.attempt + (j.attempt_started_at IS NULL)::int, j.max_attempts,
               date_part('epoch', j.timeout - (now() - coalesce(j.attempt_started_at, now()))),
               date_part('epoch', l.lease_ttl), j.checkpoint::text, 0::double precision
          FROM unnest(answered, told_ids, told_tokens) AS t (place, job_id, token)
          JOIN kappa.jobs AS j ON j.id = t.job_id AND j.lease_token = t.token
          JOIN kappa.lanes AS l ON l.name = j.lane;
        UPDATE kappa.jobs AS j SET lease_until = now() + l.lease_ttl
          FROM (SELECT f.id FROM unnest(told_ids, told_tokens) AS t (job_id, token)
                  JOIN kappa.jobs AS f ON f.id = t.job_id AND f.lease_token = t.token
                   FOR UPDATE OF f SKIP LOCKED) AS mine, kappa.lanes AS l
         WHERE j.id = mine.id AND l.name = j.lane;
        FOREACH caller IN ARRAY answered LOOP
            open_counts[caller] := 0;
        END LOOP;
    END IF;

    FOR lane_row IN
        SELECT l.* FROM kappa.lanes AS l WHERE l.executor = 'fleet' AND l.enabled AND l.kinds && known_kinds
         ORDER BY random()  -- else the others would starve behind the first of several busy lanes
    LOOP
        SELECT sum(c) INTO wanted FROM unnest(open_counts) AS c;
        EXIT WHEN wanted = 0;
        PERFORM pg_advisory_xact_lock(1262568289, hashtext(lane_row.name));
        -- Read again: the lane may have been edited while this waited for its lock.
        SELECT l.* INTO lane_row FROM kappa.lanes AS l
         WHERE l.name = lane_row.name AND l.executor = 'fleet' AND l.enabled;
        CONTINUE WHEN NOT FOUND;
        SELECT * INTO kept FROM kappa.fleet_lanes AS f WHERE f.lane = lane_row.name;
        busy := kept.bound;
        -- What ran here before the lane was the fleet's, or was moved here, has a later token or none.
        IF busy IS NULL OR busy + wanted > lane_row.max_slots
           OR EXISTS (SELECT FROM kappa.jobs AS r WHERE r.lane = lane_row.name AND r.state = 'running'
                         AND r.lease_token > kept.last_token)
           OR EXISTS (SELECT FROM kappa.jobs AS r WHERE r.lane = lane_row.name AND r.state = 'running'
                         AND r.lease_token IS NULL) THEN
            SELECT count(*) INTO busy FROM kappa.jobs AS r WHERE r.lane = lane_row.name AND r.state = 'running';
            kept.last_token := nextval('kappa.lease_tokens');
        END IF;
        wanted := least(wanted, lane_row.max_slots - busy);
        last_turn := coalesce(kept.cursor, '');
        seen := '{}';
        taken := '{}';
        places := '{}';
        share := 1;
        whole := false;
        had_turn := false;
        unnamed_taken := 0;
        -- Jobs without a submitter are looked for among so many of the lane, and next time further down if there are
        -- none: an index of their own would cost every enqueue of every lane.
        kept.floor_rank := coalesce(kept.floor_rank, head);
        kept.floor_id := coalesce(kept.floor_id, 0);
        IF wanted > 0 THEN
            SELECT array_agg(w.id) FILTER (WHERE coalesce(w.submitted_by, '') = '' AND w.kind = ANY (known_kinds)),
                   (array_agg(w.rank))[look_at], (array_agg(w.id))[look_at]
              INTO unnamed, end_rank, end_id
              FROM (SELECT q.id, q.submitted_by, q.kind, -q.priority AS rank FROM kappa.jobs AS q
                     WHERE q.lane = lane_row.name AND q.state = 'queued'
                       AND ((-q.priority), q.id) > (kept.floor_rank, kept.floor_id)
                     ORDER BY (-q.priority), q.id LIMIT look_at) AS w;
            SELECT count(*), array_agg(c.cores), array_agg(c.memory), array_agg(c.labels)
              INTO abilities, some_cores, some_memory, some_labels
              FROM (SELECT DISTINCT a.cores, a.memory, a.labels
                      FROM unnest(open_counts, cores, memory, labels) AS a (open, cores, memory, labels)
                     WHERE a.open > 0) AS c;
        END IF;

        -- Circles round the submitters: one job from each in the first, then what is left in equal shares. The names
        -- after the last one served, those without a name, the names up to the last.
        WHILE cardinality(taken) < wanted LOOP
            had_something := 0;
            stage := CASE WHEN whole THEN 2 ELSE 1 END;
            submitter := last_turn;
            LOOP
                IF stage <> 2 THEN
                    SELECT q.submitted_by INTO next_one FROM kappa.jobs AS q
                     WHERE q.lane = lane_row.name AND q.state = 'queued' AND q.submitted_by > submitter
                     ORDER BY q.submitted_by LIMIT 1;
                    IF FOUND AND (stage = 1 OR next_one <= last_turn) THEN
                        submitter := next_one;
                    ELSIF stage = 1 THEN
                        stage := 2;
                    ELSE
                        EXIT;
                    END IF;
                END IF;
                had_turn := had_turn OR stage = 2;
                visited := false;
                FOR candidate IN
                    SELECT * FROM kappa.fleet_candidates(
                        lane_row.name, CASE WHEN stage = 2 THEN '' ELSE submitter END,
                        CASE WHEN NOT whole THEN coalesce(unnamed, '{}') END, known_kinds, seen,
                        some_cores, some_memory, some_labels, least(share, wanted - cardinality(taken)))
                LOOP
                    visited := true;
                    seen := seen || candidate.id;
                    FOR caller IN 1 .. cardinality(owners) LOOP
                        IF open_counts[caller] > 0 AND candidate.cores <= cores[caller]
                           AND candidate.memory_mb <= memory[caller] AND candidate.labels <@ labels[caller]::text[] THEN
                            open_counts[caller] := open_counts[caller] - 1;
                            taken := taken || candidate.id;
                            places := places || caller;
                            unnamed_taken := unnamed_taken + (stage = 2)::int;
                            EXIT;
                        END IF;
                    END LOOP;
                END LOOP;
                had_something := had_something + visited::int;
                IF cardinality(taken) >= wanted THEN
                    last_turn := CASE WHEN stage = 2 THEN '' ELSE submitter END;
                    EXIT;
                END IF;
                IF visited AND abilities > 1 THEN  -- what only those could do who have enough is not looked at any more
                    SELECT array_agg(c.cores), array_agg(c.memory), array_agg(c.labels)
                      INTO some_cores, some_memory, some_labels
                      FROM (SELECT DISTINCT a.cores, a.memory, a.labels
                              FROM unnest(open_counts, cores, memory, labels) AS a (open, cores, memory, labels)
                             WHERE a.open > 0) AS c;
                END IF;
                IF stage = 2 THEN
                    EXIT WHEN whole;
                    stage := 3;
                    submitter := '';
                END IF;
            END LOOP;
            IF had_something = 0 THEN
                -- There is time to look for those without a submitter everywhere.
                EXIT WHEN whole OR (end_id IS NULL AND kept.floor_rank = head);
                whole := true;
            END IF;
            share := greatest(1, ceil((wanted - cardinality(taken))::numeric / greatest(had_something, 1)));
        END LOOP;
        IF had_turn THEN
            IF unnamed_taken > 0 OR end_id IS NULL THEN
                end_rank := head;
                end_id := 0;
            END IF;
            kept.floor_rank := end_rank;
            kept.floor_id := end_id;
        END IF;

        IF taken <> '{}' THEN
            new_token := nextval('kappa.lease_tokens');
            kept.last_token := new_token;
        END IF;
        INSERT INTO kappa.fleet_lanes AS f (lane, bound, last_token, cursor, floor_rank, floor_id)
        VALUES (lane_row.name, busy + cardinality(taken), kept.last_token, last_turn, kept.floor_rank, kept.floor_id)
        ON CONFLICT (lane) DO UPDATE
           SET bound = EXCLUDED.bound, last_token = EXCLUDED.last_token, cursor = EXCLUDED.cursor,
               floor_rank = EXCLUDED.floor_rank, floor_id = EXCLUDED.floor_id;
        CONTINUE WHEN taken = '{}';
        RETURN QUERY
        WITH claimed AS (
            UPDATE kappa.jobs AS j
               SET state = 'running', lease_owner = owners[g.place], lease_token = new_token,
                   lease_until = now() + lane_row.lease_ttl, claims = j.claims + 1
              FROM unnest(taken, places) AS g (id, place)
             WHERE j.id = g.id
            RETURNING j.*, g.place
        ), noted AS (
            INSERT INTO kappa.fleet_tasks (job_id, token, owner, request_id)
            SELECT c.id, new_token, c.lease_owner, requests[c.place] FROM claimed AS c
        )
        SELECT c.place, c.id, new_token, c.kind, c.lane, c.payload::text, c.attempt + 1, c.max_attempts,
               date_part('epoch', c.timeout),
               date_part('epoch', lane_row.lease_ttl), c.checkpoint::text,
               date_part('epoch', now() - coalesce(c.queued_at, c.created_at))
          FROM claimed AS c;
    END LOOP;
END $$;

-- The verdict `locked` is for a lease that could not be renewed because another session has the job's row locked. It is
-- still the worker's, and the server tries again.
CREATE OR REPLACE FUNCTION kappa.fleet_beat(
    ids bigint[], tokens bigint[], owners text[]
) RETURNS TABLE (place int, verdict text, reason text) LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    free_jobs bigint[];
    renewed int[];
    over int[];
    cancelled int[];
    reasons text[];
    stale int[];
    silences text[];
BEGIN
    free_jobs := ARRAY(SELECT j.id
                         FROM unnest(ids, tokens, owners) AS h (id, token, owner)
                         JOIN kappa.jobs AS j ON j.id = h.id AND j.lease_token = h.token AND j.lease_owner = h.owner
                          FOR UPDATE OF j SKIP LOCKED);
    WITH alive AS (
        UPDATE kappa.jobs AS j
           SET lease_until = now() + l.lease_ttl,
               attempt = j.attempt + (j.attempt_started_at IS NULL)::int,
               attempt_started_at = coalesce(j.attempt_started_at, now()),
               started_at = coalesce(j.started_at, now())
          FROM unnest(ids, tokens, owners) WITH ORDINALITY AS h (id, token, owner, place), kappa.lanes AS l
         WHERE j.id = h.id AND j.lease_token = h.token AND j.lease_owner = h.owner AND l.name = j.lane
           AND h.id = ANY (free_jobs)
        RETURNING h.place::int AS place, j.cancel_reason,
                  coalesce(now() > j.attempt_started_at + j.timeout, false) AS is_over,
                  j.kind <> 'tool_run' AND now() > greatest(j.attempt_started_at, j.progress_at) + l.stale_timeout AS is_stale,
                  'no progress for ' || date_part('epoch', l.stale_timeout) || ' s' AS silence
    )
    SELECT array_agg(a.place), array_agg(a.place) FILTER (WHERE a.is_over),
           array_agg(a.place) FILTER (WHERE a.cancel_reason IS NOT NULL AND NOT a.is_over),
           array_agg(a.cancel_reason) FILTER (WHERE a.cancel_reason IS NOT NULL AND NOT a.is_over),
           array_agg(a.place) FILTER (WHERE a.is_stale AND NOT a.is_over),
           array_agg(a.silence) FILTER (WHERE a.is_stale AND NOT a.is_over)
      INTO renewed, over, cancelled, reasons, stale, silences FROM alive AS a;
    -- What can't be settled now, for somebody's lock, is left to the next beat: this one is for all workers.
    IF stale IS NOT NULL THEN BEGIN
        PERFORM kappa.fleet_settle(
            ARRAY(SELECT ids[s] FROM unnest(stale) AS s), ARRAY(SELECT tokens[s] FROM unnest(stale) AS s),
            ARRAY(SELECT owners[s] FROM unnest(stale) AS s), array_fill('stale'::text, ARRAY[cardinality(stale)]),
            array_fill(NULL::text, ARRAY[cardinality(stale)]), silences,
            array_fill(NULL::text, ARRAY[cardinality(stale)]),
            array_fill(NULL::double precision, ARRAY[cardinality(stale)]));
        RETURN QUERY SELECT s, 'lost'::text, NULL::text FROM unnest(stale) AS s;
    EXCEPTION WHEN lock_not_available THEN NULL;
    END; END IF;
    IF over IS NOT NULL THEN BEGIN
        PERFORM kappa.fleet_settle(
            ARRAY(SELECT ids[o] FROM unnest(over) AS o), ARRAY(SELECT tokens[o] FROM unnest(over) AS o),
            ARRAY(SELECT owners[o] FROM unnest(over) AS o), array_fill('timed_out'::text, ARRAY[cardinality(over)]),
            array_fill(NULL::text, ARRAY[cardinality(over)]),
            array_fill('the time-out was reached'::text, ARRAY[cardinality(over)]),
            array_fill(NULL::text, ARRAY[cardinality(over)]),
            array_fill(NULL::double precision, ARRAY[cardinality(over)]));
        RETURN QUERY SELECT o, 'timed_out'::text, NULL::text FROM unnest(over) AS o;
    EXCEPTION WHEN lock_not_available THEN NULL;
    END; END IF;
    IF cancelled IS NOT NULL THEN
        RETURN QUERY SELECT c.place, 'cancel'::text, c.reason FROM unnest(cancelled, reasons) AS c (place, reason);
    END IF;
    IF cardinality(renewed) IS DISTINCT FROM cardinality(ids) THEN
        RETURN QUERY
        SELECT missing.place, CASE WHEN j.id IS NULL THEN 'lost' ELSE 'locked' END, NULL::text
          FROM generate_series(1, cardinality(ids)) AS missing (place)
          LEFT JOIN kappa.jobs AS j ON j.id = ids[missing.place] AND j.lease_token = tokens[missing.place]
                                   AND j.lease_owner = owners[missing.place]
         WHERE missing.place <> ALL (coalesce(renewed, '{}'));
    END IF;
END $$;

CREATE OR REPLACE FUNCTION kappa.fleet_update(
    ids bigint[], tokens bigint[], owners text[], started boolean[], done double precision[], total double precision[],
    messages text[], checkpoints text[]
) RETURNS TABLE (place int, cancel text) LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan SET lock_timeout = '200ms'
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    UPDATE kappa.jobs AS j
       SET lease_until = now() + l.lease_ttl, progress_at = now(),
           attempt = j.attempt + (u.started AND j.attempt_started_at IS NULL)::int,
           attempt_started_at = CASE WHEN u.started THEN coalesce(j.attempt_started_at, now())
                                     ELSE j.attempt_started_at END,
           started_at = CASE WHEN u.started THEN coalesce(j.started_at, now()) ELSE j.started_at END,
           progress_done = coalesce(u.done, j.progress_done), progress_total = coalesce(u.total, j.progress_total),
           progress_message = coalesce(u.message, j.progress_message),
           checkpoint = coalesce(u.checkpoint::jsonb, j.checkpoint)
      FROM unnest(ids, tokens, owners, started, done, total, messages, checkpoints) WITH ORDINALITY
               AS u (id, token, owner, started, done, total, message, checkpoint, place), kappa.lanes AS l
     WHERE j.id = u.id AND j.lease_token = u.token AND j.lease_owner = u.owner AND l.name = j.lane
    RETURNING u.place::int, j.cancel_reason;
END $$;

ALTER FUNCTION kappa.fleet_settle SET lock_timeout = '200ms';
