-- As before, but what somebody has locked stays in its batch, whose lease is over, and is reaped once it is free. Were it
-- in no batch, a claim would take it for a job that nobody has begun.
CREATE OR REPLACE FUNCTION kappa.reap_batches(at timestamptz, most int) RETURNS TABLE (id bigint, lane text) LANGUAGE plpgsql
  SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
  SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    batch kappa.batch_leases;
    skipped bigint[];
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
        skipped := ARRAY(SELECT q.id FROM kappa.jobs AS q
                          WHERE q.id = ANY (batch.ids) AND (q.state = 'queued' OR q.lease_token = batch.token));
        IF skipped = '{}' THEN
            DELETE FROM kappa.batch_leases AS b WHERE b.token = batch.token;
        ELSIF cardinality(skipped) < cardinality(batch.ids) THEN
            UPDATE kappa.batch_leases AS b SET ids = skipped WHERE b.token = batch.token;
        END IF;
    END LOOP;
END $$;
