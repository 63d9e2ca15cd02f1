-- For retention, which keeps the origin of a retry that is kept. Retries are few, and no other job pays for this.
CREATE INDEX finished_jobs_retries ON kappa.finished_jobs (retry_of) WHERE retry_of IS NOT NULL;

-- A function for the planner's sake: where it has counted nothing yet, it takes every job for a retry.
CREATE FUNCTION kappa.origins(at timestamptz) RETURNS SETOF bigint LANGUAGE sql STABLE
  SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT r.retry_of FROM kappa.finished_jobs AS r WHERE r.retry_of IS NOT NULL AND r.keep_until > at
$$;

-- Only what doesn't run, in its own row or in a batch. The row's lock is a statement of its own, so that the next one
-- sees the batch of a claim that held it.
CREATE FUNCTION kappa.prioritise(job bigint, wanted smallint) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM kappa.jobs AS j WHERE j.id = job FOR UPDATE;
    RETURN QUERY
    UPDATE kappa.jobs AS j SET priority = wanted
     WHERE j.id = job AND j.state <> 'running'
       AND NOT EXISTS (SELECT FROM kappa.batch_leases AS b WHERE b.lane = j.lane AND job = ANY (b.ids))
    RETURNING j.id;
END $$;
