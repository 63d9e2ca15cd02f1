-- Submitters take turns in every lane: where jobs of several are queued, a claim goes round the names, and takes one job of
-- each before a second of any. What comes first is still the priority: the circle is among the jobs of the highest one.
-- Within a submitter the order is that of the ids.
--
-- A claim looks whether there is more than one name (has_turns): an index that has named jobs alone answers, so that lanes
-- of jobs without a submitter, or of one, are claimed as before. Jobs without a submitter have no such index; they are one
-- more name in the circle while they are among the first of the line, and else keep their place in it.

-- Whose turn it was last, under the lane's lock. Lost in a crash: then the circle begins at its first name.
CREATE UNLOGGED TABLE kappa.lane_turns (
    lane      text PRIMARY KEY,
    last_name text NOT NULL
);

-- Whether somebody else than `last_name`, the last name of the lane's queue, has jobs there. The end of a name's range is
-- where its newest jobs are; the beginning has the remains of what was claimed.
CREATE FUNCTION kappa.has_turns(
    lane_name text, last_name text, floor_rank int, floor_id bigint
) RETURNS boolean LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN (SELECT q.submitted_by FROM kappa.jobs AS q
             WHERE q.lane = lane_name AND q.state = 'queued' AND q.submitted_by < last_name
             ORDER BY q.submitted_by DESC LIMIT 1) IS NOT NULL
        OR (SELECT coalesce(q.submitted_by, '') FROM kappa.jobs AS q
             WHERE q.lane = lane_name AND q.state = 'queued' AND ((-q.priority), q.id) > (floor_rank, floor_id)
             ORDER BY (-q.priority), q.id LIMIT 1) = '';
END $$;

-- Up to `wanted` queued jobs in turn, locked. A row that somebody else has locked is passed over.
CREATE FUNCTION kappa.take_turns(
    lane_name text, wanted int, known_kinds text[], held bigint[], floor_rank int, floor_id bigint
) RETURNS tid[] LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    look_at CONSTANT int := 100;  -- so far down the line are jobs without a submitter looked for
    visits int := 1000;  -- so many names are asked in one claim; the next one goes on after them
    from_rank int := floor_rank;
    from_id bigint := floor_id;
    level int;
    head bigint;
    seen bigint[] := held;
    taken tid[] := '{}';
    rows tid[];
    ids bigint[];
    unnamed bigint[];
    last_turn text := coalesce((SELECT t.last_name FROM kappa.lane_turns AS t WHERE t.lane = lane_name), '');
    name text;
    next_name text;
    is_second_half boolean;
    share int;
    had_something int;
BEGIN
    WHILE cardinality(taken) < wanted AND visits > 0 LOOP
        SELECT -q.priority, q.id INTO level, head FROM kappa.jobs AS q
         WHERE q.lane = lane_name AND q.state = 'queued' AND ((-q.priority), q.id) > (from_rank, from_id)
           AND (known_kinds IS NULL OR q.kind = ANY (known_kinds)) AND q.id <> ALL (seen)
         ORDER BY (-q.priority), q.id LIMIT 1;
        EXIT WHEN NOT FOUND;
        unnamed := ARRAY(
            SELECT w.id FROM (SELECT q.id, q.submitted_by, q.kind, -q.priority AS rank FROM kappa.jobs AS q
                               WHERE q.lane = lane_name AND q.state = 'queued'
                                 AND ((-q.priority), q.id) >= (level, head)
                               ORDER BY (-q.priority), q.id LIMIT look_at) AS w
             WHERE coalesce(w.submitted_by, '') = '' AND w.rank = level
               AND (known_kinds IS NULL OR w.kind = ANY (known_kinds)) AND w.id <> ALL (seen));

        -- In the first circle one job of each, then what is left in equal shares: the names after the last one served,
        -- those without a name, the names up to the last.
        share := 1;
        LOOP
            had_something := 0;
            name := last_turn;
            is_second_half := false;
            LOOP
                SELECT q.submitted_by INTO next_name FROM kappa.jobs AS q
                 WHERE q.lane = lane_name AND q.state = 'queued' AND q.submitted_by > name
                 ORDER BY q.submitted_by LIMIT 1;
                IF is_second_half THEN
                    EXIT WHEN next_name IS NULL OR next_name > last_turn;
                ELSIF next_name IS NULL THEN
                    is_second_half := true;
                    next_name := '';
                END IF;
                name := next_name;
                IF name = '' THEN
                    SELECT array_agg(c.ctid), array_agg(c.id) INTO rows, ids
                      FROM (SELECT q.ctid, q.id FROM kappa.jobs AS q
                             WHERE q.id = ANY (unnamed) AND q.state::text = 'queued' AND q.id <> ALL (seen)
                             ORDER BY q.id LIMIT least(share, wanted - cardinality(taken)) FOR UPDATE SKIP LOCKED) AS c;
                ELSE
                    SELECT array_agg(c.ctid), array_agg(c.id) INTO rows, ids
                      FROM (SELECT q.ctid, q.id FROM kappa.jobs AS q
                             WHERE q.lane = lane_name AND q.state = 'queued' AND q.submitted_by = name
                               AND (-q.priority) = level AND q.id >= head
                               AND (known_kinds IS NULL OR q.kind = ANY (known_kinds)) AND q.id <> ALL (seen)
                             ORDER BY q.submitted_by, (-q.priority), q.id
                             LIMIT least(share, wanted - cardinality(taken)) FOR UPDATE SKIP LOCKED) AS c;
                END IF;
                IF rows IS NOT NULL THEN
                    taken := taken || rows;
                    seen := seen || ids;
                    had_something := had_something + 1;
                END IF;
                visits := visits - 1;
                EXIT WHEN cardinality(taken) >= wanted OR visits <= 0;
            END LOOP;
            IF cardinality(taken) >= wanted OR visits <= 0 THEN
                last_turn := name;
                EXIT;
            END IF;
            EXIT WHEN had_something = 0;
            share := ceil((wanted - cardinality(taken))::numeric / had_something);
        END LOOP;
        from_rank := level;
        from_id := 9223372036854775807;
    END LOOP;
    IF cardinality(taken) < wanted AND visits <= 0 THEN
        taken := taken || ARRAY(
            SELECT q.ctid FROM kappa.jobs AS q
             WHERE q.lane = lane_name AND q.state = 'queued' AND ((-q.priority), q.id) > (floor_rank, floor_id)
               AND (known_kinds IS NULL OR q.kind = ANY (known_kinds)) AND q.id <> ALL (seen)
             ORDER BY (-q.priority), q.id LIMIT wanted - cardinality(taken) FOR UPDATE SKIP LOCKED);
    END IF;
    IF taken <> '{}' THEN
        INSERT INTO kappa.lane_turns AS t (lane, last_name) VALUES (lane_name, last_turn)
        ON CONFLICT (lane) DO UPDATE SET last_name = EXCLUDED.last_name WHERE t.last_name <> EXCLUDED.last_name;
    END IF;
    RETURN taken;
END $$;

-- A child takes its parent's turn: else those of one large job would be before everybody else's.
DO $$
DECLARE
    text text := pg_get_functiondef('kappa.spawn'::regproc);
BEGIN
    IF text NOT LIKE '%kind, payload, priority, NULL, NULL, parent,%' THEN
        RAISE EXCEPTION 'kappa.spawn gives its child a submitter already';
    END IF;
    EXECUTE replace(text, 'kind, payload, priority, NULL, NULL, parent,',
                    'kind, payload, priority, (SELECT j.submitted_by FROM kappa.jobs AS j WHERE j.id = parent), NULL, parent,');
END $$;

-- How many live jobs somebody has is counted where jobs are taken in. In no order that a claim asks for: on its way to a
-- lane's next submitter it would read the jobs of all lanes here.
CREATE INDEX jobs_submitter ON kappa.jobs (submitted_by COLLATE "C") WHERE submitted_by IS NOT NULL AND parent_id IS NULL;

-- Of what is claimed in turn, token_floor is null: below the last of these there is more to claim.
CREATE OR REPLACE FUNCTION kappa.claim(
    lane_name text, claimer text, capacity int, known_kinds text[], light_kinds text[], floor_rank int,
    floor_id bigint, floor_token bigint, done_ids bigint[], done_tokens bigint[]
) RETURNS TABLE (
    id bigint, kind text, payload text, attempt int, max_attempts int, claims int, token bigint, adopted boolean,
    started boolean, seconds_left double precision, cancel_reason text, priority smallint, token_floor bigint,
    parent_id bigint, waited double precision, light boolean
) LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    lane_row record;
    new_token bigint;
    free int;
    left_over int := capacity;
    got int := 0;
    rows tid[];
    ids bigint[];
    all_light boolean;
    turns boolean;
BEGIN
    IF done_ids IS NOT NULL THEN
        RETURN QUERY
        SELECT lost, NULL::text, NULL::text, 0, 0, 0, 0::bigint, false, false, 0::double precision, NULL::text,
               0::smallint, NULL::bigint, NULL::bigint, 0::double precision, false
          FROM kappa.settle_succeeded(done_ids, done_tokens) AS lost;
    END IF;
    PERFORM kappa.lock_lane(lane_name);

    -- A parent that waits takes no slot now and one later: the floor must not rise above its token. Orphans and batches
    -- take slots too, and all are counted in one statement: a job that leaves one of them for another between two
    -- statements would be seen by neither. With the lane, since every statement has its price where one job is claimed.
    WITH h AS MATERIALIZED (
        SELECT b.token, unnest(b.ids) AS id FROM kappa.batch_leases AS b WHERE b.token >= floor_token AND b.lane = lane_name
    )
    SELECT l.max_slots, l.lease_ttl, l.is_open AND l.executor <> 'fleet' AS open, l.executor = 'async' AS on_loop,
           r.busy + o.busy + b.busy AS busy, o.orphans, least(r.lowest, b.lowest) AS lowest, b.held, n.last_name
      INTO lane_row
      FROM kappa.lanes AS l,
           (SELECT count(*) FILTER (WHERE NOT r.waiting AND r.id NOT IN (SELECT h.id FROM h)) AS busy,
                   min(r.lease_token) AS lowest
              FROM kappa.jobs AS r
             WHERE r.lane = lane_name AND r.state = 'running' AND r.lease_token >= floor_token) AS r,
           (SELECT count(*) FILTER (WHERE NOT o.waiting) AS busy, count(*) AS orphans FROM kappa.jobs AS o
             WHERE o.lane = lane_name AND o.state = 'running' AND o.lease_token IS NULL) AS o,
           (SELECT count(*) AS busy, min(h.token) AS lowest, coalesce(array_agg(h.id), '{}') AS held FROM h) AS b,
           (SELECT (SELECT q.submitted_by FROM kappa.jobs AS q
                     WHERE q.lane = lane_name AND q.state = 'queued' AND q.submitted_by IS NOT NULL
                     ORDER BY q.submitted_by DESC LIMIT 1) AS last_name) AS n
     WHERE l.name = lane_name;
    IF NOT FOUND THEN
        RETURN;
    END IF;
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
                  coalesce(date_part('epoch', j.timeout), 'Infinity')
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
    turns := lane_row.last_name IS NOT NULL AND kappa.has_turns(lane_name, lane_row.last_name, floor_rank, floor_id);
    IF turns THEN
        rows := kappa.take_turns(lane_name, least(left_over, free), known_kinds, lane_row.held, floor_rank, floor_id);
        IF light_kinds IS NOT NULL AND lane_row.on_loop THEN
            SELECT array_agg(j.id),
                   bool_and(j.kind = ANY (light_kinds) AND j.attempt + 1 < j.max_attempts AND j.claims <= j.attempt)
              INTO ids, all_light FROM kappa.jobs AS j WHERE j.ctid = ANY (rows);
        END IF;
    ELSIF light_kinds IS NOT NULL AND lane_row.on_loop THEN
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
               coalesce(date_part('epoch', j.timeout), 'Infinity'),
               j.cancel_reason, j.priority, CASE WHEN NOT turns THEN least(lane_row.lowest, new_token) END, j.parent_id,
               date_part('epoch', now() - coalesce(j.queued_at, j.created_at)), true
          FROM kappa.jobs AS j WHERE j.ctid = ANY (rows);
    ELSE
        RETURN QUERY
        UPDATE kappa.jobs AS j
           SET state = 'running', lease_owner = claimer, lease_token = new_token,
               lease_until = now() + lane_row.lease_ttl, claims = j.claims + 1
         WHERE j.ctid = ANY (CASE WHEN turns THEN rows ELSE ARRAY(
                   SELECT q.ctid FROM kappa.jobs AS q
                    WHERE q.lane = lane_name AND q.state = 'queued' AND ((-q.priority), q.id) > (floor_rank, floor_id)
                      AND (known_kinds IS NULL OR q.kind = ANY (known_kinds))
                      AND q.id NOT IN (SELECT unnest(lane_row.held))
                    ORDER BY (-q.priority), q.id
                    LIMIT least(left_over, free)
                    FOR UPDATE SKIP LOCKED) END)
        RETURNING j.id, j.kind, j.payload::text, j.attempt, j.max_attempts, j.claims, j.lease_token, false, false,
                  coalesce(date_part('epoch', j.timeout), 'Infinity'),
                  j.cancel_reason, j.priority, CASE WHEN NOT turns THEN least(lane_row.lowest, new_token) END, j.parent_id,
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

CREATE OR REPLACE FUNCTION kappa.claim_at_rest(
    lane_name text, claimer text, capacity int, known_kinds text[]
) RETURNS TABLE (
    id bigint, kind text, payload text, attempt int, max_attempts int, claims int, token bigint, adopted boolean,
    started boolean, seconds_left double precision, cancel_reason text, priority smallint, token_floor bigint,
    parent_id bigint, waited double precision, light boolean
) LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    lane_row record;
    new_token bigint;
    got int;
BEGIN
    PERFORM kappa.lock_lane(lane_name);
    SELECT l.lease_ttl, r.orphans = 0 AND r.batches = 0
               AND (n.last_name IS NULL OR NOT kappa.has_turns(lane_name, n.last_name, -32769, 0)) AS at_rest, r.lowest,
           CASE WHEN l.is_open AND l.executor <> 'fleet' THEN greatest(0, l.max_slots - r.busy) END AS free
      INTO lane_row
      FROM kappa.lanes AS l,
           (SELECT count(*) FILTER (WHERE NOT r.waiting) AS busy, count(*) - count(r.lease_token) AS orphans,
                   min(r.lease_token) AS lowest, (SELECT count(*) FROM kappa.batch_leases AS b WHERE b.lane = lane_name) AS batches
              FROM kappa.jobs AS r WHERE r.lane = lane_name AND r.state = 'running') AS r,
           (SELECT (SELECT q.submitted_by FROM kappa.jobs AS q
                     WHERE q.lane = lane_name AND q.state = 'queued' AND q.submitted_by IS NOT NULL
                     ORDER BY q.submitted_by DESC LIMIT 1) AS last_name) AS n
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
              coalesce(date_part('epoch', j.timeout), 'Infinity'),
              j.cancel_reason, j.priority, least(lane_row.lowest, new_token), j.parent_id,
              date_part('epoch', now() - coalesce(j.queued_at, j.created_at)), false;
    GET DIAGNOSTICS got = ROW_COUNT;
    IF got = lane_row.free THEN
        id := 0;  -- as in claim: the lane has no slot left
        RETURN NEXT;
    END IF;
END $$;
