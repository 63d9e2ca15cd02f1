-- As before, and what a batch holds and has its lease written down already, by somebody who cancels, loses it in the same
-- moment as the rest: else it could be adopted, put back and be settled by the pair that its old batch still has.
CREATE OR REPLACE FUNCTION kappa.reap_batches(at timestamptz, most int) RETURNS TABLE (id bigint, lane text) LANGUAGE plpgsql
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
