-- Who leads. A leader renews its heartbeat, and writes only in transactions that have begun with `kappa.share_term`: they
-- hold a lock together. Whoever wants the next term needs that lock alone. So a new term begins when no transaction of the
-- one before is left, and none of that one can begin any more. (`kappa.workers.leads` is of older versions.)
CREATE TABLE kappa.leadership (
    only_row      boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    term          bigint      NOT NULL DEFAULT 0,
    owner         text,
    pid           int,
    backend_start timestamptz,
    heartbeat_at  timestamptz NOT NULL DEFAULT '-infinity',
    ttl           interval    NOT NULL DEFAULT '0'
) WITH (fillfactor = 10);
INSERT INTO kappa.leadership DEFAULT VALUES;

-- Its session is there and its heartbeat is recent. One from the future is none: the clock was set back since, and else a
-- leader that froze before that would be waited for until the clock is there again. A role that may not see when another's
-- sessions began takes them for the leader's.
CREATE FUNCTION kappa.leader_lives() RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT EXISTS (
        SELECT FROM kappa.leadership AS l, pg_stat_get_activity(l.pid) AS a
         WHERE a.pid = l.pid AND a.datid = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
           AND coalesce(a.backend_start = l.backend_start, true)
           AND l.heartbeat_at BETWEEN clock_timestamp() - l.ttl AND clock_timestamp() + l.ttl)
$$;

-- The first statement of every transaction in which a leader writes. No row is locked for it: that would be a write, and
-- most of these transactions find nothing to do.
CREATE FUNCTION kappa.share_term(mine bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1262568295, 0);
    -- A leader that stops in the middle of a transaction keeps nobody waiting for longer than its heartbeat is good.
    PERFORM set_config('idle_in_transaction_session_timeout', ceil(date_part('epoch', l.ttl) * 1000)::bigint::text, true)
       FROM kappa.leadership AS l WHERE l.term = mine;
    RETURN FOUND;
END $$;

-- A term for this session, or none while another leader lives. What is left of the last leader's sessions is ended, so
-- that one which is frozen in a transaction doesn't keep the next from leading; `refused` are those that may not be ended
-- by this role. One candidate at a time: what holds the term's lock then is of the term that it has seen.
CREATE FUNCTION kappa.try_lead(
    candidate text, heartbeat_ttl interval, OUT term bigint, OUT refused int[]
) LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
#variable_conflict use_column
DECLARE
    last kappa.leadership;
    session record;
BEGIN
    refused := '{}';
    IF kappa.leader_lives() OR NOT pg_try_advisory_xact_lock(1262568295, 1) THEN
        RETURN;
    END IF;
    PERFORM pg_stat_clear_snapshot();
    IF kappa.leader_lives() THEN
        RETURN;
    END IF;
    SELECT l.* INTO last FROM kappa.leadership AS l;
    FOR session IN
        SELECT s.pid, s.acts OR s.backend_start = last.backend_start AS known
          FROM (SELECT a.pid, a.backend_start,
                       a.pid IN (SELECT k.pid FROM pg_locks AS k
                                  WHERE k.locktype = 'advisory' AND k.database = a.datid AND k.classid = 1262568295
                                    AND k.objid = 0 AND k.objsubid = 2 AND k.mode = 'ShareLock' AND k.granted) AS acts
                  FROM pg_stat_get_activity(NULL) AS a
                 WHERE a.pid <> pg_backend_pid()
                   AND a.datid = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())) AS s
         WHERE s.acts OR s.pid = last.pid AND coalesce(s.backend_start = last.backend_start, true)
    LOOP
        BEGIN
            IF session.known THEN
                PERFORM pg_terminate_backend(session.pid);
            ELSE
                refused := refused || session.pid;
            END IF;
        EXCEPTION WHEN insufficient_privilege THEN
            refused := refused || session.pid;
        END;
    END LOOP;
    BEGIN
        PERFORM pg_advisory_xact_lock(1262568295, 0);
    EXCEPTION WHEN lock_not_available THEN
        RETURN;
    END;
    UPDATE kappa.leadership AS l
       SET term = last.term + 1, owner = candidate, pid = pg_backend_pid(), ttl = heartbeat_ttl,
           backend_start = (SELECT a.backend_start FROM pg_stat_get_activity(pg_backend_pid()) AS a),
           heartbeat_at = clock_timestamp()
     WHERE l.term = last.term AND l.heartbeat_at = last.heartbeat_at
    RETURNING l.term INTO term;
END $$;
