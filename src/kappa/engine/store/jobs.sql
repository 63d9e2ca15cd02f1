-- name: enqueue
SELECT kappa.enqueue(
    %(kind)s::text, %(payload)s::jsonb, %(priority)s::smallint, %(submitted_by)s::text, %(dedup_key)s::text,
    %(parent_id)s::bigint, %(spawn_key)s::text, %(retry_of)s::bigint, %(run_at)s::timestamptz, %(delay)s::interval,
    %(approval)s::boolean, %(estimate)s::jsonb, %(approved_by)s::text, %(timeout)s::interval,
    %(max_attempts)s::int, %(always_notify)s::boolean);

-- name: enqueue_now
SELECT kappa.enqueue_now(%(kind)s::text, %(payload)s::jsonb, %(priority)s::smallint, %(submitted_by)s::text,
                         %(timeout)s::interval, %(max_attempts)s::int);

-- name: enqueue_some
SELECT kappa.enqueue_some(%(kind)s::text, %(payloads)s::jsonb[], %(priority)s::smallint, %(submitted_by)s::text,
                          %(run_at)s::timestamptz, %(timeout)s::interval, %(max_attempts)s::int, %(always_notify)s::boolean);

-- name: enqueue_together
SELECT kappa.enqueue_together(%(kinds)s::text[], %(payloads)s::jsonb[], %(priorities)s::smallint[], %(submitters)s::text[],
                              %(timeouts)s::interval[], %(max_attempts)s::int[]);

-- name: enqueued_before
SELECT id FROM kappa.jobs
 WHERE dedup_key = %(dedup_key)s::text
    OR (parent_id = %(parent_id)s::bigint AND spawn_key = %(spawn_key)s::text)
 LIMIT 1;

-- name: lane_of_kind
-- It can't change before the caller's transaction ends.
SELECT lane FROM kappa.home_of(%(kind)s) AS lane WHERE lane IS NOT NULL;

-- name: need
INSERT INTO kappa.job_needs (job_id, cores, memory_mb, labels)
VALUES (%(id)s, %(cores)s, %(memory_mb)s, %(labels)s::text[]);

-- name: need_the_same
INSERT INTO kappa.job_needs (job_id, cores, memory_mb, labels)
SELECT %(id)s, cores, memory_mb, labels FROM kappa.job_needs WHERE job_id = %(as)s;

-- name: copy_in
COPY kappa.jobs (lane, kind, state, priority, payload, submitted_by, run_at, timeout, max_attempts)
FROM STDIN (FORMAT binary);

-- name: wake
SELECT pg_notify('kappa_wake', %(lane)s::text);

-- name: announce_due
SELECT pg_notify('kappa_due', extract(epoch FROM %(run_at)s::timestamptz)::text);

-- name: claim
SELECT * FROM kappa.claim(%(lane)s::text, %(owner)s::text, %(capacity)s::int, %(kinds)s::text[], %(light_kinds)s::text[],
                          %(floor_rank)s::int, %(floor_id)s::bigint, %(floor_token)s::bigint,
                          %(ids)s::bigint[], %(tokens)s::bigint[]);

-- name: claim_at_rest
SELECT * FROM kappa.claim_at_rest(%(lane)s::text, %(owner)s::text, %(capacity)s::int, %(kinds)s::text[]);

-- name: write_down
SELECT kappa.write_down(%(ids)s::bigint[], %(tokens)s::bigint[]);

-- name: mark_started
SELECT * FROM kappa.mark_started(%(ids)s::bigint[], %(tokens)s::bigint[], %(ages)s::double precision[]);

-- name: renew
SELECT * FROM kappa.renew(%(ids)s::bigint[], %(tokens)s::bigint[]);

-- name: settle_succeeded
SELECT * FROM kappa.settle_succeeded(%(ids)s::bigint[], %(tokens)s::bigint[]);

-- name: settle
SELECT * FROM kappa.settle(%(ids)s::bigint[], %(tokens)s::bigint[], %(states)s::text[], %(results)s::text[], %(reasons)s::text[], %(summaries)s::text[], %(details)s::text[], %(started)s::boolean[], %(ages)s::double precision[]);

-- name: settle_own
SELECT kappa.settle_own(%(id)s::bigint, %(token)s::bigint, %(state)s::text, %(result)s::text, %(reason)s::text, %(summary)s::text, %(detail)s::text, %(started)s::boolean, %(age)s::double precision);

-- name: put_back
SELECT * FROM kappa.put_back(%(ids)s::bigint[], %(tokens)s::bigint[], %(delays)s::double precision[], %(snoozed)s::boolean[], %(summaries)s::text[], %(details)s::text[], %(started)s::boolean[], %(ages)s::double precision[]);

-- name: release
SELECT * FROM kappa.release(%(ids)s::bigint[], %(tokens)s::bigint[]);

-- name: progress
SELECT * FROM kappa.progress(%(ids)s::bigint[], %(tokens)s::bigint[], %(done)s::double precision[], %(total)s::double precision[], %(messages)s::text[]);

-- name: checkpoint
WITH mine AS (
    SELECT id FROM kappa.jobs WHERE id = %(id)s AND lease_token = %(token)s AND state = 'running' FOR UPDATE NOWAIT
)
UPDATE kappa.jobs AS j SET checkpoint = %(value)s::jsonb FROM mine WHERE j.id = mine.id
RETURNING j.id;

-- name: read_checkpoint
SELECT checkpoint FROM kappa.jobs WHERE id = %(id)s AND lease_token = %(token)s AND state = 'running';

-- name: release_slot
-- A parent that waits for its children gives its slot to others.
WITH mine AS (
    SELECT id FROM kappa.jobs WHERE id = %(id)s AND lease_token = %(token)s AND state = 'running' FOR UPDATE NOWAIT
)
UPDATE kappa.jobs AS j SET waiting = true FROM mine WHERE j.id = mine.id
RETURNING j.id, pg_notify('kappa_wake', j.lane);

-- name: lock_lane
-- Only in autocommit: a client that stops in a transaction would keep the lock, and every claim of the lane waits for it.
SELECT kappa.lock_lane(%(lane)s::text);

-- name: share_lease
-- The first statement of a handler's own transaction.
SELECT kappa.share_lease(%(token)s::bigint);

-- name: reacquire_slot
SELECT kappa.reacquire_slot(%(id)s::bigint, %(token)s::bigint);

-- name: locked
-- Jobs whose rows somebody else has locked at this moment. What is gone is not locked.
SELECT j.id FROM kappa.jobs AS j
 WHERE j.id = ANY (%(ids)s::bigint[])
   AND j.id <> ALL (ARRAY(SELECT f.id FROM kappa.jobs AS f WHERE f.id = ANY (%(ids)s::bigint[]) FOR UPDATE SKIP LOCKED));

-- name: children
SELECT spawn_key, id, state::text, result, error_summary FROM kappa.all_jobs
 WHERE parent_id = %(parent_id)s AND spawn_key = ANY (%(keys)s::text[]);

-- name: spawn
SELECT is_held, child
  FROM kappa.spawn(%(parent_id)s::bigint, %(token)s::bigint, %(key)s::text, %(kind)s::text, %(payload)s::jsonb,
                   %(priority)s::smallint, %(timeout)s::interval, %(max_attempts)s::int);

-- name: approve
WITH moved AS (
    UPDATE kappa.jobs
       SET state = 'queued', queued_at = now(), expires_at = NULL, approved_by = %(by)s::text, approved_at = now()
     WHERE id = %(id)s AND state = 'awaiting_approval' AND expires_at > coalesce(%(now)s::timestamptz, now())
    RETURNING id, lane
)
SELECT id, pg_notify('kappa_wake', lane) FROM moved;

-- name: auto_approve
INSERT INTO kappa.auto_approved (submitter) VALUES (%(submitter)s) ON CONFLICT DO NOTHING;

-- name: ask_for_approval
DELETE FROM kappa.auto_approved WHERE submitter = %(submitter)s;

-- name: auto_approved
SELECT submitter FROM kappa.auto_approved ORDER BY submitter;

-- name: cancel_before_start
SELECT * FROM kappa.cancel_before_start(%(id)s::bigint, %(from_states)s::text[], %(reason)s::text);

-- name: live_children
SELECT id FROM kappa.jobs WHERE parent_id = %(parent_id)s ORDER BY id;

-- name: request_cancel
UPDATE kappa.jobs SET cancel_reason = coalesce(cancel_reason, %(reason)s::text)
 WHERE id = %(id)s AND state = 'running'
RETURNING id, pg_notify('kappa_job', 'cancel ' || id);

-- name: prioritise
SELECT * FROM kappa.prioritise(%(id)s::bigint, %(priority)s::smallint);

-- name: keep
SELECT 1 FROM kappa.finished_jobs WHERE id = %(id)s FOR SHARE;

-- name: snoozes
SELECT times FROM kappa.snoozes WHERE job_id = %(id)s;

-- name: show
-- And whether a batch holds it, which makes of what is queued in its own row what runs.
SELECT j.*, j.state = 'queued' AND EXISTS (SELECT FROM kappa.batch_leases AS b WHERE b.lane = j.lane AND j.id = ANY (b.ids))
  FROM kappa.all_jobs AS j WHERE j.id = %(id)s LIMIT 1;

-- name: show_many
SELECT j.*, j.state = 'queued' AND EXISTS (SELECT FROM kappa.batch_leases AS b WHERE b.lane = j.lane AND j.id = ANY (b.ids))
  FROM kappa.all_jobs AS j WHERE j.id = ANY (%(ids)s::bigint[]) ORDER BY j.id;

-- name: list_jobs
SELECT * FROM kappa.all_jobs
 WHERE (%(states)s::text[] IS NULL OR state::text = ANY (%(states)s::text[]))
   AND (%(kinds)s::text[] IS NULL OR kind = ANY (%(kinds)s::text[]))
   AND (%(lane)s::text IS NULL OR lane = %(lane)s::text)
   AND id >= %(first)s::bigint AND id < coalesce(%(before)s::bigint, 9223372036854775807)
 ORDER BY id DESC
 LIMIT %(limit)s::int;

-- name: list_of
-- Of one submitter: history has an index of them, which a plan for any submitter can use only if it names one.
SELECT * FROM kappa.all_jobs
 WHERE submitted_by = %(submitted_by)s::text
   AND (%(states)s::text[] IS NULL OR state::text = ANY (%(states)s::text[]))
   AND (%(kinds)s::text[] IS NULL OR kind = ANY (%(kinds)s::text[]))
   AND (%(lane)s::text IS NULL OR lane = %(lane)s::text)
   AND id < coalesce(%(before)s::bigint, 9223372036854775807)
 ORDER BY id DESC
 LIMIT %(limit)s::int;

-- name: stretch
-- So many ids down from the newest job, or from `before`: the first of them, and where the jobs below go on.
SELECT top.id - %(length)s::bigint,
       (SELECT j.id + 1 FROM kappa.all_jobs AS j WHERE j.id < top.id - %(length)s::bigint ORDER BY j.id DESC LIMIT 1)
  FROM (SELECT least(newest.id + 1, coalesce(%(before)s::bigint, 9223372036854775807)) AS id
          FROM (SELECT id FROM kappa.all_jobs ORDER BY id DESC LIMIT 1) AS newest) AS top;

-- name: list_live
-- Of live jobs alone; history, which has far more, is not looked at.
SELECT * FROM kappa.live_jobs
 WHERE state = ANY (%(states)s::kappa.job_state[])
   AND (%(kinds)s::text[] IS NULL OR kind = ANY (%(kinds)s::text[]))
   AND (%(lane)s::text IS NULL OR lane = %(lane)s::text)
   AND (%(submitted_by)s::text IS NULL OR submitted_by = %(submitted_by)s::text)
   AND id < coalesce(%(before)s::bigint, 9223372036854775807)
 ORDER BY id DESC
 LIMIT %(limit)s::int;

-- name: list_unwell
-- Without those that succeeded, which are most: the others have an index of their own.
SELECT * FROM kappa.all_jobs
 WHERE state <> 'succeeded' AND (%(states)s::text[] IS NULL OR state::text = ANY (%(states)s::text[]))
   AND (%(kinds)s::text[] IS NULL OR kind = ANY (%(kinds)s::text[]))
   AND (%(lane)s::text IS NULL OR lane = %(lane)s::text)
   AND (%(submitted_by)s::text IS NULL OR submitted_by = %(submitted_by)s::text)
   AND id < coalesce(%(before)s::bigint, 9223372036854775807)
 ORDER BY id DESC
 LIMIT %(limit)s::int;

-- name: count_by_state
-- What a batch holds runs.
SELECT j.lane, CASE WHEN h.id IS NULL THEN j.state ELSE 'running' END::text, count(*)
  FROM kappa.jobs AS j
  LEFT JOIN (SELECT unnest(b.ids) AS id FROM kappa.batch_leases AS b) AS h ON h.id = j.id AND j.state = 'queued'
 GROUP BY 1, 2;
