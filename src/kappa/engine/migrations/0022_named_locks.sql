-- Every advisory lock of the engine by name: the numbers stand here and nowhere else.
--
-- 1262568289  lock_lane           a lane's claims, by the hash of its name
-- 1262568290  lock_kinds          which lane has which kind
-- 1262568291  lock_holds          which job holds the lanes
-- 1262568293  lock_fleet_claims   claims of the fleet
-- 1262568294  lock_registrations  how many machines a token has at work
-- 1262568295  share_term, try_lead (0019_leadership.sql)
CREATE FUNCTION kappa.lock_lane(lane_name text) RETURNS void LANGUAGE sql
BEGIN ATOMIC SELECT pg_advisory_xact_lock(1262568289, hashtext(lane_name)); END;

-- For transactions of several statements. Every claim of the lane waits for them, so a client that stops in the middle
-- loses its session instead.
CREATE FUNCTION kappa.lock_lane_in_transaction(lane_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('idle_in_transaction_session_timeout', '5s', true);
    PERFORM kappa.lock_lane(lane_name);
END $$;

CREATE FUNCTION kappa.lock_kinds() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('idle_in_transaction_session_timeout', '5s', true);  -- every enqueue waits for it
    PERFORM pg_advisory_xact_lock(1262568290, 0);
END $$;

CREATE FUNCTION kappa.share_kinds() RETURNS void LANGUAGE sql
BEGIN ATOMIC SELECT pg_advisory_xact_lock_shared(1262568290, 0); END;

CREATE FUNCTION kappa.lock_holds() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('idle_in_transaction_session_timeout', '5s', true);  -- every program that starts waits for it
    PERFORM pg_advisory_xact_lock(1262568291, 0);
END $$;

CREATE FUNCTION kappa.share_holds() RETURNS void LANGUAGE sql
BEGIN ATOMIC SELECT pg_advisory_xact_lock_shared(1262568291, 0); END;

CREATE FUNCTION kappa.lock_fleet_claims() RETURNS void LANGUAGE sql
BEGIN ATOMIC SELECT pg_advisory_xact_lock(1262568293, 0); END;

CREATE FUNCTION kappa.lock_registrations() RETURNS void LANGUAGE sql
BEGIN ATOMIC SELECT pg_advisory_xact_lock(1262568294, 0); END;

-- The functions are otherwise as they were. Triggers that lock lanes run in transactions of clients.
DO $$
DECLARE
    function record;
    text text;
BEGIN
    FOR function IN
        SELECT p.oid, p.proname IN ('place_kinds', 'write_down_lane') AS of_clients FROM pg_proc AS p
         WHERE p.pronamespace = 'kappa'::regnamespace AND p.proname !~ '^(lock|share)_'
           AND p.prosrc ~ 'advisory_xact_lock(_shared)?\(12625682(89|9[0134])'
    LOOP
        text := pg_get_functiondef(function.oid);
        text := regexp_replace(text, 'pg_advisory_xact_lock\(1262568289, hashtext\(([a-zA-Z_.]+)\)\)',
                               CASE WHEN function.of_clients THEN 'kappa.lock_lane_in_transaction(\1)'
                                    ELSE 'kappa.lock_lane(\1)' END, 'g');
        text := replace(text, 'pg_advisory_xact_lock(1262568290, 0)', 'kappa.lock_kinds()');
        text := replace(text, 'pg_advisory_xact_lock_shared(1262568290, 0)', 'kappa.share_kinds()');
        text := replace(text, 'pg_advisory_xact_lock_shared(1262568291, 0)', 'kappa.share_holds()');
        text := replace(text, 'pg_advisory_xact_lock(1262568293, 0)', 'kappa.lock_fleet_claims()');
        text := replace(text, 'pg_advisory_xact_lock(1262568294, 0)', 'kappa.lock_registrations()');
        EXECUTE text;
    END LOOP;
END $$;
