-- The same functions as before, but for how they find the tasks of a batch: one look in the index for each.
--
-- A table that vacuum saw empty counts as having one row, so a join of a batch with it was planned to begin at the table,
-- and the plan stayed when there were ten thousand tasks: a claim for sixty callers made six hundred thousand comparisons.
-- What stands in a LATERAL with an OFFSET can't be turned around.

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

CREATE OR REPLACE FUNCTION kappa.fleet_settle(
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
        UPDATE kappa.fleet_tasks AS t SET settled_at = now(), state = new_state::kappa.job_state
         WHERE t.job_id = item.id AND t.token = item.token;
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
    IF cardinality(all_ids) < cardinality(ids) THEN
        RETURN QUERY
        SELECT s.place::int, t.state::text, NULL::text, NULL::text, NULL::int, NULL::double precision
          FROM unnest(ids, tokens, owners) WITH ORDINALITY AS s (id, token, owner, place)
         CROSS JOIN LATERAL (SELECT f.state, f.settled_at FROM kappa.fleet_tasks AS f
                              WHERE f.job_id = s.id AND f.token = s.token AND f.owner = s.owner OFFSET 0) AS t
         WHERE t.settled_at IS NOT NULL
           AND NOT EXISTS (SELECT FROM unnest(all_ids, all_tokens) AS a (id, token)
                            WHERE a.id = s.id AND a.token = s.token);
    END IF;
END $$;
