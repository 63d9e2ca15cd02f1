-- A worker that freezes for good in its handler's own transaction keeps everything locked that the handler wrote, also after
-- the job was given to another worker, which then waits for it. So such a transaction begins by sharing its lease's lock, and
-- once no job has that lease any more the session is ended. It goes by backends: behind a pooler it works the same.
--
-- 1262568299  share_lease         a handler's own transaction, by the low half of its lease's token
--
-- Two leases have the same number only where more than four billion claims lie between them. A session is ended only if no
-- lease with its number is left, so never for another's.
CREATE FUNCTION kappa.share_lease(token bigint) RETURNS void LANGUAGE sql
BEGIN ATOMIC SELECT pg_advisory_xact_lock_shared(1262568299, (token & 4294967295)::bit(32)::int); END;

-- Sessions that were in a handler's transaction whose lease is gone; `ended` is false for those that this role may not end.
-- Only sessions that wait: for their client, or for a lock. One that works may be about to finish its commit, and is found
-- the next time if it isn't.
CREATE FUNCTION kappa.end_lost_transactions() RETURNS TABLE (pid int, ended boolean) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_stat_clear_snapshot();
    FOR pid IN
        SELECT DISTINCT k.pid
          FROM pg_locks AS k JOIN pg_stat_get_activity(NULL) AS a ON a.pid = k.pid
         WHERE k.locktype = 'advisory' AND k.classid = 1262568299 AND k.objsubid = 2 AND k.granted
           AND k.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
           AND (a.state LIKE 'idle in transaction%' OR a.wait_event_type IN ('Client', 'Lock')
                OR a.state IS NULL)  -- this role may not see it
           AND NOT EXISTS (SELECT FROM kappa.jobs AS j
                            WHERE j.state = 'running' AND (j.lease_token & 4294967295)::oid = k.objid)
           AND NOT EXISTS (SELECT FROM kappa.batch_leases AS b WHERE (b.token & 4294967295)::oid = k.objid)
    LOOP
        BEGIN
            ended := pg_terminate_backend(pid);
        EXCEPTION WHEN insufficient_privilege THEN
            ended := false;
        END;
        RETURN NEXT;
    END LOOP;
END $$;
