-- That an operator has switched a lane off, and that a job holds it, are two facts. A lane is open where it is enabled and
-- not held, and only then is anything claimed from it; who edits one fact doesn't touch the other. The holder's lease is
-- what holds: a lane whose `hold_token` is of no running job is let go by whoever finds it (`kappa.engine.store.holds`).
ALTER TABLE kappa.lanes
    ADD COLUMN held_by    bigint,
    ADD COLUMN hold_token bigint,
    ADD COLUMN is_open    boolean GENERATED ALWAYS AS (enabled AND held_by IS NULL) STORED,
    ADD CONSTRAINT lanes_hold CHECK ((held_by IS NULL) = (hold_token IS NULL));

-- Only what was enabled could be held.
UPDATE kappa.lanes AS l SET enabled = true, held_by = h.job_id, hold_token = h.lease_token
  FROM kappa.lane_holds AS h WHERE l.name = h.lane;
DROP TABLE kappa.lane_holds;

-- A lane that is made while a job holds the others is held like them. The lock is that of `holds.lock`: either this sees
-- the hold, or the hold sees this lane.
CREATE FUNCTION kappa.hold_new_lane() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1262568291, 0);
    SELECT l.held_by, l.hold_token INTO NEW.held_by, NEW.hold_token
      FROM kappa.lanes AS l WHERE l.held_by IS NOT NULL LIMIT 1;
    RETURN NEW;
END $$;
CREATE TRIGGER lanes_hold_new BEFORE INSERT ON kappa.lanes FOR EACH ROW EXECUTE FUNCTION kappa.hold_new_lane();

-- The claims as they are, but for which column says whether a lane is open.
DO $$
DECLARE
    claim regproc;
    text text;
BEGIN
    FOREACH claim IN ARRAY ARRAY['kappa.claim', 'kappa.claim_at_rest', 'kappa.fleet_claim']::regproc[] LOOP
        text := pg_get_functiondef(claim);
        IF text NOT LIKE '%l.enabled%' THEN
            RAISE EXCEPTION '% doesn''t read l.enabled', claim;
        END IF;
        EXECUTE replace(text, 'l.enabled', 'l.is_open');
    END LOOP;
END $$;
