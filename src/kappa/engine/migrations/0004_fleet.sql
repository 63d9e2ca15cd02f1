-- The fleet: workers over HTTP, their tasks, and whose turn it is.

-- What a job needs of the machine that runs it. Only jobs that need something have a row.
CREATE TABLE kappa.job_needs (
    job_id    bigint           PRIMARY KEY,
    cores     double precision NOT NULL DEFAULT 0 CHECK (cores >= 0),
    memory_mb int              NOT NULL DEFAULT 0 CHECK (memory_mb >= 0),
    labels    text[]           NOT NULL DEFAULT '{}'
);

-- Every claim by the fleet, and how it ended: what makes a call safe to repeat.
CREATE TABLE kappa.fleet_tasks (
    job_id     bigint      NOT NULL,
    token      bigint      NOT NULL,
    owner      text        NOT NULL,
    request_id text        NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT now(),
    settled_at timestamptz,
    state      kappa.job_state,  -- that the settlement gave the job
    PRIMARY KEY (job_id, token)
) WITH (fillfactor = 90);
CREATE INDEX fleet_tasks_request ON kappa.fleet_tasks (owner, request_id);
CREATE INDEX fleet_tasks_age ON kappa.fleet_tasks (claimed_at);

-- Under the lane's lock: how many jobs may run at most by now, as of which token, and whose turn it was last. Lost in a
-- crash, and counted anew by the next claim.
CREATE UNLOGGED TABLE kappa.fleet_lanes (
    lane       text   PRIMARY KEY,
    bound      int    NOT NULL,
    last_token bigint NOT NULL,
    cursor     text   NOT NULL,  -- a submitter; empty for those jobs that have none
    floor_rank int    NOT NULL,  -- where the next look for jobs without a submitter begins
    floor_id   bigint NOT NULL
);

-- Who is out there, for people to look at and to count machines by. Lost in a crash, and written again by the next word.
CREATE UNLOGGED TABLE kappa.fleet_workers (
    owner      text             PRIMARY KEY,
    pass       bigint           NOT NULL,
    worker     text             NOT NULL,
    kinds      text[]           NOT NULL,
    cores      double precision NOT NULL,
    memory_mb  int              NOT NULL,
    labels     text[]           NOT NULL,
    slots      int              NOT NULL,
    version    text             NOT NULL,
    started_at timestamptz      NOT NULL DEFAULT now(),
    seen_at    timestamptz      NOT NULL DEFAULT now()
);
CREATE INDEX fleet_workers_pass ON kappa.fleet_workers (pass);

-- Round the submitters, and each one's jobs by priority and age. Jobs without a submitter have none of it.
CREATE INDEX jobs_fair ON kappa.jobs (lane, submitted_by, (-priority), id)
    WHERE state = 'queued' AND submitted_by IS NOT NULL;

CREATE FUNCTION kappa.backoff(attempt int) RETURNS double precision LANGUAGE sql VOLATILE AS $$
    SELECT least(60, power(2, least(greatest(attempt - 1, 0), 30)) * (0.8 + 0.4 * random()))
$$;

-- Tasks for callers that know the same kinds, the first come first. `place` is the caller's number.
--
-- One claim at a time in the cluster: what an earlier one wrote, also for a request that is repeated on another server,
-- is seen by the statements after the lock.
CREATE FUNCTION kappa.fleet_claim(
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
      JOIN kappa.fleet_tasks AS t ON t.owner = a.owner AND t.request_id = a.request;
    IF answered IS NOT NULL THEN
        RETURN QUERY
        UPDATE kappa.jobs AS j SET lease_until = now() + l.lease_ttl
          FROM (SELECT * FROM unnest(answered, told_ids, told_tokens) AS a (place, job_id, token)
                 ORDER BY a.job_id) AS t, kappa.lanes AS l  -- in the order of the beats
         WHERE j.id = t.job_id AND j.lease_token = t.token AND l.name = j.lane
        RETURNING t.place::int, j.id, j.lease_token, j.kind, j.lane, j.payload::text,
                  j.attempt + (j.attempt_started_at IS NULL)::int, j.max_attempts,
                  date_part('epoch', coalesce(j.timeout, l.stale_timeout)
                                     - (now() - coalesce(j.attempt_started_at, now()))),
                  date_part('epoch', l.lease_ttl), j.checkpoint::text, 0::double precision;
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
               date_part('epoch', coalesce(c.timeout, lane_row.stale_timeout)),
               date_part('epoch', lane_row.lease_ttl), c.checkpoint::text,
               date_part('epoch', now() - coalesce(c.queued_at, c.created_at))
          FROM claimed AS c;
    END LOOP;
END $$;

-- Queued jobs of one submitter that somebody who asks could do: each of `cores`, `memory` and `labels` is one of them.
-- With the empty name those without a submitter, of so many jobs or of the whole lane.
CREATE FUNCTION kappa.fleet_candidates(
    lane_name text, submitter text, among bigint[], known_kinds text[], seen bigint[], some_cores double precision[],
    some_memory int[], some_labels text[], most int
) RETURNS TABLE (id bigint, cores double precision, memory_mb int, labels text[]) LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off
  SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    IF submitter <> '' THEN
        RETURN QUERY
        SELECT q.id, coalesce(n.cores, 0), coalesce(n.memory_mb, 0), coalesce(n.labels, '{}')
          FROM kappa.jobs AS q LEFT JOIN kappa.job_needs AS n ON n.job_id = q.id
         WHERE q.lane = lane_name AND q.state = 'queued' AND q.submitted_by = submitter
           AND q.kind = ANY (known_kinds) AND q.id <> ALL (seen)
           AND (n.job_id IS NULL
                OR EXISTS (SELECT FROM unnest(some_cores, some_memory, some_labels) AS c (cores, memory_mb, labels)
                            WHERE n.cores <= c.cores AND n.memory_mb <= c.memory_mb AND n.labels <@ c.labels::text[]))
         ORDER BY (-q.priority), q.id
         LIMIT most FOR UPDATE OF q SKIP LOCKED;
    ELSIF among IS NULL THEN
        RETURN QUERY
        SELECT q.id, coalesce(n.cores, 0), coalesce(n.memory_mb, 0), coalesce(n.labels, '{}')
          FROM kappa.jobs AS q LEFT JOIN kappa.job_needs AS n ON n.job_id = q.id
         WHERE q.lane = lane_name AND q.state = 'queued' AND coalesce(q.submitted_by, '') = ''
           AND q.kind = ANY (known_kinds) AND q.id <> ALL (seen)
           AND (n.job_id IS NULL
                OR EXISTS (SELECT FROM unnest(some_cores, some_memory, some_labels) AS c (cores, memory_mb, labels)
                            WHERE n.cores <= c.cores AND n.memory_mb <= c.memory_mb AND n.labels <@ c.labels::text[]))
         ORDER BY (-q.priority), q.id
         LIMIT most FOR UPDATE OF q SKIP LOCKED;
    ELSIF among <> '{}' THEN
        RETURN QUERY
        SELECT q.id, coalesce(n.cores, 0), coalesce(n.memory_mb, 0), coalesce(n.labels, '{}')
          FROM kappa.jobs AS q LEFT JOIN kappa.job_needs AS n ON n.job_id = q.id
         WHERE q.id = ANY (among) AND q.id <> ALL (seen) AND q.state = 'queued'
           AND (n.job_id IS NULL
                OR EXISTS (SELECT FROM unnest(some_cores, some_memory, some_labels) AS c (cores, memory_mb, labels)
                            WHERE n.cores <= c.cores AND n.memory_mb <= c.memory_mb AND n.labels <@ c.labels::text[]))
         ORDER BY (-q.priority), q.id
         LIMIT most FOR UPDATE OF q SKIP LOCKED;
    END IF;
END $$;

-- Signs of life for many tasks. Only what a worker must know comes back. The first sign of a task is its start; one that
-- is over its time ends here.
CREATE FUNCTION kappa.fleet_beat(
    ids bigint[], tokens bigint[], owners text[]
) RETURNS TABLE (place int, verdict text, reason text) LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    renewed int[];
    over int[];
    cancelled int[];
    reasons text[];
BEGIN
    WITH alive AS (
        UPDATE kappa.jobs AS j
           SET lease_until = now() + l.lease_ttl,
               attempt = j.attempt + (j.attempt_started_at IS NULL)::int,
               attempt_started_at = coalesce(j.attempt_started_at, now()),
               started_at = coalesce(j.started_at, now())
          FROM unnest(ids, tokens, owners) WITH ORDINALITY AS h (id, token, owner, place), kappa.lanes AS l
         WHERE j.id = h.id AND j.lease_token = h.token AND j.lease_owner = h.owner AND l.name = j.lane
        RETURNING h.place::int AS place, j.cancel_reason,
                  now() > j.attempt_started_at + coalesce(j.timeout, l.stale_timeout) AS is_over
    )
    SELECT array_agg(a.place), array_agg(a.place) FILTER (WHERE a.is_over),
           array_agg(a.place) FILTER (WHERE a.cancel_reason IS NOT NULL AND NOT a.is_over),
           array_agg(a.cancel_reason) FILTER (WHERE a.cancel_reason IS NOT NULL AND NOT a.is_over)
      INTO renewed, over, cancelled, reasons FROM alive AS a;
    IF over IS NOT NULL THEN
        PERFORM kappa.fleet_settle(
            ARRAY(SELECT ids[o] FROM unnest(over) AS o), ARRAY(SELECT tokens[o] FROM unnest(over) AS o),
            ARRAY(SELECT owners[o] FROM unnest(over) AS o), array_fill('timed_out'::text, ARRAY[cardinality(over)]),
            array_fill(NULL::text, ARRAY[cardinality(over)]),
            array_fill('the time-out was reached'::text, ARRAY[cardinality(over)]),
            array_fill(NULL::text, ARRAY[cardinality(over)]),
            array_fill(NULL::double precision, ARRAY[cardinality(over)]));
        RETURN QUERY SELECT o, 'timed_out'::text, NULL::text FROM unnest(over) AS o;
    END IF;
    IF cancelled IS NOT NULL THEN
        RETURN QUERY SELECT c.place, 'cancel'::text, c.reason FROM unnest(cancelled, reasons) AS c (place, reason);
    END IF;
    IF cardinality(renewed) IS DISTINCT FROM cardinality(ids) THEN
        RETURN QUERY
        SELECT lost, 'lost'::text, NULL::text FROM generate_series(1, cardinality(ids)) AS lost
         WHERE lost <> ALL (coalesce(renewed, '{}'));
    END IF;
END $$;

-- What workers say of their tasks; also a sign of life. What doesn't come back is lost.
CREATE FUNCTION kappa.fleet_update(
    ids bigint[], tokens bigint[], owners text[], started boolean[], done double precision[], total double precision[],
    messages text[], checkpoints text[]
) RETURNS TABLE (place int, cancel text) LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    UPDATE kappa.jobs AS j
       SET lease_until = now() + l.lease_ttl,
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

-- How tasks ended. Each is settled by the policy of retries and its end noted; one that was settled before is answered as
-- it was then. What doesn't come back is lost. A tool run that succeeded is left alone, unless it is said to be `kept`:
-- its outputs go with it, in the caller's transaction.
--
-- Outcomes: succeeded, kept, fatal, cancelled, timed_out; failed and lost (again while attempts are left); snooze;
-- released and given_up (it had not begun; the latter failed).
CREATE FUNCTION kappa.fleet_settle(
    ids bigint[], tokens bigint[], owners text[], outcomes text[], results text[], summaries text[], details text[],
    afters double precision[]
) RETURNS TABLE (place int, state text, kind text, lane text, attempt int, seconds double precision) LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    item record;
    new_state text;
    delay double precision;
    begun boolean;
    done_ids bigint[] := '{}';
    done_tokens bigint[] := '{}';
    done_states text[] := '{}';
    done_results text[] := '{}';
    done_reasons text[] := '{}';
    done_summaries text[] := '{}';
    done_details text[] := '{}';
    done_begun boolean[] := '{}';
    back_ids bigint[] := '{}';
    back_tokens bigint[] := '{}';
    back_delays double precision[] := '{}';
    back_snoozed boolean[] := '{}';
    back_summaries text[] := '{}';
    back_details text[] := '{}';
    back_begun boolean[] := '{}';
    all_states text[] := '{}';
    all_ids bigint[] := '{}';
    all_tokens bigint[] := '{}';
BEGIN
    FOR item IN
        SELECT s.*, j.kind, j.lane, j.max_attempts, j.cancel_reason, j.attempt, j.attempt_started_at
          FROM unnest(ids, tokens, owners, outcomes, results, summaries, details, afters) WITH ORDINALITY
                   AS s (id, token, owner, outcome, result, summary, detail, after, place)
          JOIN kappa.jobs AS j ON j.id = s.id AND j.lease_token = s.token AND j.lease_owner = s.owner
           FOR UPDATE OF j
    LOOP
        place := item.place;
        kind := item.kind;
        lane := item.lane;
        IF item.kind = 'tool_run' AND item.outcome = 'succeeded' THEN
            state := 'tool_run';
            RETURN NEXT;
            CONTINUE;
        END IF;
        begun := item.outcome NOT IN ('released', 'given_up') OR item.attempt_started_at IS NOT NULL;
        attempt := item.attempt + (begun AND item.attempt_started_at IS NULL)::int;
        seconds := date_part('epoch', now() - item.attempt_started_at);
        delay := NULL;
        IF item.outcome IN ('succeeded', 'kept') THEN
            new_state := 'succeeded';
        ELSIF item.outcome = 'fatal' THEN
            new_state := 'failed';
        ELSIF item.outcome IN ('cancelled', 'timed_out') THEN
            new_state := item.outcome;
        ELSIF item.cancel_reason IS NOT NULL THEN
            new_state := 'cancelled';
        ELSIF item.outcome = 'given_up' THEN
            new_state := 'failed';
        ELSIF item.outcome = 'snooze' THEN
            delay := greatest(item.after, 0.001);
        ELSIF NOT begun THEN
            delay := 0;
        ELSIF attempt >= item.max_attempts THEN
            new_state := 'failed';
        ELSE
            delay := greatest(coalesce(item.after, kappa.backoff(attempt)), 0.001);
        END IF;
        IF delay IS NULL THEN
            done_ids := done_ids || item.id;
            done_tokens := done_tokens || item.token;
            done_states := done_states || new_state;
            done_results := done_results || item.result;
            done_reasons := done_reasons || CASE WHEN new_state = 'cancelled'
                                                 THEN coalesce(item.cancel_reason, nullif(item.summary, ''), 'cancelled') END;
            done_summaries := done_summaries || CASE WHEN new_state <> 'cancelled' THEN nullif(item.summary, '') END;
            done_details := done_details || item.detail;
            done_begun := done_begun || begun;
        ELSE
            new_state := CASE WHEN delay > 0 THEN 'scheduled' ELSE 'queued' END;
            back_ids := back_ids || item.id;
            back_tokens := back_tokens || item.token;
            back_delays := back_delays || delay;
            back_snoozed := back_snoozed || (item.outcome = 'snooze');
            back_summaries := back_summaries || nullif(item.summary, '');
            back_details := back_details || item.detail;
            back_begun := back_begun || begun;
        END IF;
        all_ids := all_ids || item.id;
        all_tokens := all_tokens || item.token;
        all_states := all_states || new_state;
        state := new_state;
        RETURN NEXT;
    END LOOP;
    IF done_ids <> '{}' THEN
        PERFORM kappa.settle(done_ids, done_tokens, done_states, done_results, done_reasons, done_summaries,
                             done_details, done_begun);
    END IF;
    IF back_ids <> '{}' THEN
        PERFORM kappa.put_back(back_ids, back_tokens, back_delays, back_snoozed, back_summaries, back_details,
                               back_begun);
    END IF;
    UPDATE kappa.fleet_tasks AS t SET settled_at = now(), state = s.state::kappa.job_state
      FROM unnest(all_ids, all_tokens, all_states) AS s (id, token, state)
     WHERE t.job_id = s.id AND t.token = s.token;
    IF cardinality(all_ids) < cardinality(ids) THEN
        RETURN QUERY
        SELECT s.place::int, t.state::text, NULL::text, NULL::text, NULL::int, NULL::double precision
          FROM unnest(ids, tokens, owners) WITH ORDINALITY AS s (id, token, owner, place)
          JOIN kappa.fleet_tasks AS t ON t.job_id = s.id AND t.token = s.token AND t.owner = s.owner
         WHERE t.settled_at IS NOT NULL
           AND NOT EXISTS (SELECT FROM unnest(all_ids, all_tokens) AS a (id, token)
                            WHERE a.id = s.id AND a.token = s.token);
    END IF;
END $$;

-- Orphans of fleet lanes: nobody can be asked what became of them, so they are lost attempts.
CREATE FUNCTION kappa.fleet_bury(most int) RETURNS SETOF bigint LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    new_token bigint := nextval('kappa.lease_tokens');
    buried bigint[];
    outcomes text[];
    summaries text[];
BEGIN
    WITH orphans AS (
        UPDATE kappa.jobs AS j
           SET lease_owner = 'fleet:', lease_token = new_token, lease_until = now() + interval '1 minute'
         WHERE j.ctid = ANY (ARRAY(
                   SELECT o.ctid FROM kappa.lanes AS l, kappa.jobs AS o
                    WHERE l.executor = 'fleet' AND o.lane = l.name AND o.state = 'running' AND o.lease_token IS NULL
                    LIMIT most FOR UPDATE OF o SKIP LOCKED))
        RETURNING j.*
    )
    SELECT array_agg(o.id), array_agg(CASE
               WHEN o.attempt_started_at IS NULL AND o.claims >= o.max_attempts + 10 THEN 'given_up'
               WHEN o.attempt_started_at IS NULL THEN 'released'
               WHEN now() > o.attempt_started_at + coalesce(o.timeout, l.stale_timeout) THEN 'timed_out'
               ELSE 'lost' END),
           array_agg(CASE
               WHEN o.attempt_started_at IS NULL AND o.claims >= o.max_attempts + 10
               THEN 'it was claimed ' || o.claims || ' times, and every worker was lost before it was seen to start'
               WHEN o.attempt_started_at IS NULL THEN NULL
               WHEN now() > o.attempt_started_at + coalesce(o.timeout, l.stale_timeout) THEN 'the time-out was reached'
               ELSE 'the worker that ran it was lost' END)
      INTO buried, outcomes, summaries
      FROM orphans AS o JOIN kappa.lanes AS l ON l.name = o.lane;
    IF buried IS NOT NULL THEN
        PERFORM kappa.fleet_settle(
            buried, array_fill(new_token, ARRAY[cardinality(buried)]),
            array_fill('fleet:'::text, ARRAY[cardinality(buried)]), outcomes,
            array_fill(NULL::text, ARRAY[cardinality(buried)]), summaries,
            array_fill(NULL::text, ARRAY[cardinality(buried)]),
            array_fill(NULL::double precision, ARRAY[cardinality(buried)]));
    END IF;
    RETURN QUERY SELECT unnest(buried);
END $$;

-- Machines that say who they are. What doesn't come back is one more than its pass allows; a known one stays so.
-- One registration at a time: two new machines can't both be the last.
CREATE FUNCTION kappa.fleet_register(machines jsonb, gone_after interval) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1262568294, 0);
    RETURN QUERY
    WITH said AS (
        SELECT m.*, row_number() OVER (PARTITION BY m.pass, w.owner IS NULL ORDER BY m.owner) AS nth,
               w.owner IS NOT NULL AS known
          FROM jsonb_to_recordset(machines) AS m (
                   owner text, pass bigint, worker text, kinds text[], cores double precision, memory_mb int,
                   labels text[], slots int, version text, most int)
          LEFT JOIN kappa.fleet_workers AS w ON w.owner = m.owner AND w.seen_at > now() - gone_after
    )
    INSERT INTO kappa.fleet_workers AS w (owner, pass, worker, kinds, cores, memory_mb, labels, slots, version)
    SELECT s.owner, s.pass, s.worker, s.kinds, s.cores, s.memory_mb, s.labels, s.slots, s.version
      FROM said AS s
     WHERE s.known OR s.most IS NULL
        OR s.nth + (SELECT count(*) FROM kappa.fleet_workers AS o
                     WHERE o.pass = s.pass AND o.seen_at > now() - gone_after) <= s.most
    ON CONFLICT (owner) DO UPDATE
       SET kinds = EXCLUDED.kinds, cores = EXCLUDED.cores, memory_mb = EXCLUDED.memory_mb, labels = EXCLUDED.labels,
           slots = EXCLUDED.slots, version = EXCLUDED.version, seen_at = now()
    RETURNING w.owner;
END $$;
