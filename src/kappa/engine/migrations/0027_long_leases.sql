-- compatible: yes
-- PostgreSQL's time-outs are milliseconds in 31 bits, some 24 days. Leases may be longer.
DO $$
DECLARE
    function regproc;
    old text;
    new text;
BEGIN
    FOREACH function IN ARRAY ARRAY['kappa.settle_own', 'kappa.share_term']::regproc[] LOOP
        old := pg_get_functiondef(function);
        new := regexp_replace(old, 'ceil\(date_part\(''epoch'', (lease_ttl|l\.ttl)\) \* 1000\)',
                              'least(2147483647, ceil(date_part(''epoch'', \1) * 1000))');
        IF new = old THEN
            RAISE EXCEPTION '% sets no time-out', function;
        END IF;
        EXECUTE new;
    END LOOP;
END $$;
