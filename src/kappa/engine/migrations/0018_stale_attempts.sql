-- A lane's stale_timeout is no time-out any more: workers stop an attempt that reports no progress for so long. A job
-- without a time-out has endless time. The functions are otherwise as they were.
DO $$
DECLARE
    change record;
    text text;
BEGIN
    FOR change IN
        SELECT * FROM (VALUES
            ('kappa.claim', 'coalesce(date_part(''epoch'', j.timeout), usual)', 'coalesce(date_part(''epoch'', j.timeout), ''Infinity'')'),
            ('kappa.claim', E'    usual := date_part(''epoch'', lane_row.stale_timeout);\n', ''),
            ('kappa.claim', E'    usual double precision;\n', ''),
            ('kappa.claim', 'l.lease_ttl, l.stale_timeout, ', 'l.lease_ttl, '),
            ('kappa.claim_at_rest', 'coalesce(date_part(''epoch'', j.timeout), lane_row.usual)', 'coalesce(date_part(''epoch'', j.timeout), ''Infinity'')'),
            ('kappa.claim_at_rest', 'date_part(''epoch'', l.stale_timeout) AS usual, ', ''),
            ('kappa.fleet_bury', 'coalesce(o.timeout, l.stale_timeout)', 'o.timeout')
        ) AS c (function, old, new)
    LOOP
        text := pg_get_functiondef(change.function::regproc);
        IF position(change.old IN text) = 0 THEN
            RAISE EXCEPTION '% has no %', change.function, change.old;
        END IF;
        EXECUTE replace(text, change.old, change.new);
    END LOOP;
END $$;
