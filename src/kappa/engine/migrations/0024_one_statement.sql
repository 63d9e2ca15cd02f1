-- A child of a job that runs, in one statement: a worker that stops in the middle of several would keep the parent's row
-- locked, and nobody could adopt it. The child's id; NULL if its kind has no lane. `is_held` is false, and no child is made,
-- if the parent's lease is lost.
CREATE FUNCTION kappa.spawn(
    parent bigint, parent_token bigint, child_key text, kind text, payload jsonb, priority smallint, timeout interval,
    max_attempts int, OUT is_held boolean, OUT child bigint
) LANGUAGE plpgsql SET lock_timeout = '200ms' SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    PERFORM FROM kappa.jobs AS j WHERE j.id = parent AND j.lease_token = parent_token AND j.state = 'running' FOR UPDATE;
    is_held := FOUND;
    IF is_held THEN
        SELECT a.id INTO child FROM kappa.all_jobs AS a WHERE a.parent_id = parent AND a.spawn_key = child_key LIMIT 1;
        IF child IS NULL THEN
            child := kappa.enqueue(
                kind, payload, priority, NULL, NULL, parent, child_key, NULL, NULL, NULL, false, NULL, 'job ' || parent,
                timeout, max_attempts, false);
        END IF;
    END IF;
END $$;

-- kappa.settle without a limit on how long it waits for locks.
DO $$
DECLARE
    text text := pg_get_functiondef('kappa.settle'::regproc);
BEGIN
    text := regexp_replace(text, '\msettle\.', 'settle_patiently.', 'g');
    EXECUTE replace(text, 'FUNCTION kappa.settle(', 'FUNCTION kappa.settle_patiently(');
    ALTER FUNCTION kappa.settle_patiently RESET lock_timeout;
END $$;

-- The outcome of a job whose handler's own transaction is about to commit: true if the lease was still the caller's. It
-- waits for locks as long as it takes: giving up would undo what the handler wrote. A worker that stops before the commit loses its
-- session when the lease is over: else nobody could adopt the job.
CREATE FUNCTION kappa.settle_own(
    job bigint, token bigint, state text, result text, reason text, summary text, detail text, started boolean,
    age double precision
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    lease_ttl interval;
BEGIN
    SELECT l.lease_ttl INTO lease_ttl FROM kappa.jobs AS j JOIN kappa.lanes AS l ON l.name = j.lane
     WHERE j.id = job AND j.lease_token = token FOR UPDATE OF j;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM set_config('idle_in_transaction_session_timeout',
                       greatest(1, ceil(date_part('epoch', lease_ttl) * 1000))::bigint::text, true);
    RETURN EXISTS (SELECT FROM kappa.settle_patiently(
        ARRAY[job], ARRAY[token], ARRAY[state], ARRAY[result], ARRAY[reason], ARRAY[summary], ARRAY[detail],
        ARRAY[started], ARRAY[age]));
END $$;
