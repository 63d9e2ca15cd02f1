-- For retention, which keeps the origin of a retry that is kept. Retries are few, and no other job pays for this.
CREATE INDEX finished_jobs_retries ON kappa.finished_jobs (retry_of) WHERE retry_of IS NOT NULL;

-- A function for the planner's sake: where it has counted nothing yet, it takes every job for a retry.
CREATE FUNCTION kappa.origins(at timestamptz) RETURNS SETOF bigint LANGUAGE sql STABLE
  SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT r.retry_of FROM kappa.finished_jobs AS r WHERE r.retry_of IS NOT NULL AND r.keep_until > at
$$;
