-- A tool run that backs off is `queued`, and says from when it may be claimed: `scheduled` is a state of jobs.
CREATE FUNCTION kappa.tool_run_status(state kappa.job_state) RETURNS kappa.job_state LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE state WHEN 'scheduled' THEN 'queued' ELSE state END
$$;

-- First, for its lock: whoever wrote a job with the former function has committed before the runs are corrected below.
CREATE OR REPLACE TRIGGER jobs_mirror AFTER UPDATE OF state, attempt, run_at ON kappa.jobs
    FOR EACH ROW WHEN (NEW.kind = 'tool_run') EXECUTE FUNCTION kappa.mirror_live();

CREATE OR REPLACE FUNCTION kappa.mirror_live() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE kappa.tool_runs
       SET status = kappa.tool_run_status(NEW.state), available_at = NEW.run_at, started_at = NEW.started_at,
           attempt = NEW.attempt, error_summary = NEW.error_summary
     WHERE job_id = NEW.id;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION kappa.mirror_finished() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE kappa.tool_runs
       SET status = NEW.state, available_at = NULL, started_at = NEW.started_at, finished_at = NEW.finished_at,
           attempt = NEW.attempt, reason = NEW.reason,
           error_summary = CASE WHEN NEW.state = 'succeeded' THEN NULL ELSE NEW.error_summary END
     WHERE job_id = NEW.id;
    RETURN NULL;
END $$;

ALTER TABLE kappa.tool_runs ADD COLUMN available_at timestamptz;

UPDATE kappa.tool_runs AS r SET status = 'queued', available_at = j.run_at
  FROM kappa.jobs AS j
 WHERE j.id = r.job_id AND r.status = 'scheduled';

ALTER TABLE kappa.tool_runs
    ADD CONSTRAINT tool_runs_status CHECK (status <> 'scheduled'),
    ADD CONSTRAINT tool_runs_available CHECK (available_at IS NULL OR status = 'queued');
