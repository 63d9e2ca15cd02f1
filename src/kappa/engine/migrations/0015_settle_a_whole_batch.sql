-- As before, and shorter for what a busy lane settles: all that is left of one batch, by its one lease. Then nobody has to
-- be looked up among the others, and the jobs are read in one pass over their key.
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
    settled bigint;
BEGIN
    IF tokens[1] = ALL (tokens) THEN
        DELETE FROM kappa.batch_leases AS b WHERE b.token = settle_succeeded.tokens[1] AND b.ids = settle_succeeded.ids;
        IF FOUND THEN
            WITH done AS (
                DELETE FROM kappa.jobs AS j
                 WHERE j.id = ANY (settle_succeeded.ids)
                   AND (j.state = 'queued' OR j.lease_token = settle_succeeded.tokens[1])
                RETURNING j.*
            ), kept AS (
                INSERT INTO kappa.finished_jobs (
                    id, lane, kind, state, priority, payload, created_at, submitted_by, dedup_key, parent_id, spawn_key,
                    retry_of, estimate, approved_by, approved_at, timeout, max_attempts, attempt, started_at, finished_at,
                    progress_done, progress_total, progress_message, checkpoint, error_summary, error_detail, keep_until)
                SELECT id, lane, kind, 'succeeded', priority, payload, created_at, submitted_by, dedup_key, parent_id,
                       spawn_key, retry_of, estimate, approved_by, approved_at, timeout, max_attempts,
                       attempt + (attempt_started_at IS NULL)::int, coalesce(started_at, now()), now(),
                       progress_done, progress_total, progress_message, checkpoint, error_summary, error_detail,
                       now() + (SELECT keep_done FROM kappa.engine_settings)
                  FROM done
            )
            SELECT count(CASE WHEN parent_id IS NULL THEN id ELSE kappa.tell_parent(id, parent_id) END)
              INTO settled FROM done;
            IF settled < cardinality(ids) THEN
                RETURN QUERY
                SELECT unnest(ids) EXCEPT SELECT f.id FROM kappa.finished_jobs AS f
                 WHERE f.id = ANY (settle_succeeded.ids) AND f.finished_at = now();
            END IF;
            RETURN;
        END IF;
    END IF;
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
