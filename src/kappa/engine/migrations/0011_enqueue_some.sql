-- Jobs of one kind that differ in their payloads only, in one statement and one round trip. For thousands there is COPY; for
-- some hundreds its preparations, a slot for each row that it holds back, cost more than the rows. Null when the kind has
-- no lane.
CREATE FUNCTION kappa.enqueue_some(
    kind text, payloads jsonb[], priority smallint, submitted_by text, run_at timestamptz, timeout interval,
    max_attempts int, always_notify boolean
) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    home text := kappa.home_of(kind);
    first_state kappa.job_state := CASE WHEN run_at IS NULL THEN 'queued' ELSE 'scheduled' END;
BEGIN
    IF home IS NULL OR payloads = '{}' THEN
        RETURN CASE WHEN home IS NOT NULL THEN 0 END;
    END IF;
    INSERT INTO kappa.jobs (lane, kind, state, priority, payload, submitted_by, run_at, timeout, max_attempts)
    SELECT home, kind, first_state, priority, p, submitted_by, run_at, timeout, max_attempts FROM unnest(payloads) AS p;
    IF run_at IS NOT NULL THEN
        PERFORM pg_notify('kappa_due', extract(epoch FROM run_at)::text);
    ELSIF always_notify OR EXISTS (SELECT FROM kappa.sleepers AS s WHERE s.lane = home) THEN
        PERFORM pg_notify('kappa_wake', home);
    END IF;
    RETURN cardinality(payloads);
END $$;
