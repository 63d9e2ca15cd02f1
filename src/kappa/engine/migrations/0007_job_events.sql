-- What happened to a job between its first start and its end, where that was not simply one attempt: a lease that was
-- lost, an adoption, an attempt that ended and another to come. The usual job writes none of these: its update is
-- looked at by the trigger's condition and no further.
CREATE TABLE kappa.job_events (
    id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id  bigint      NOT NULL,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    event   text        NOT NULL CHECK (event IN ('lease_ran_out', 'released', 'adopted', 'put_back')),
    attempt int         NOT NULL,
    owner   text,
    detail  text
);
CREATE INDEX job_events_job ON kappa.job_events (job_id, id);

CREATE FUNCTION kappa.note_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state <> 'running' THEN
        INSERT INTO kappa.job_events (job_id, event, attempt, owner, detail)
        VALUES (NEW.id, 'put_back', NEW.attempt, OLD.lease_owner, NEW.error_summary);
    ELSIF NEW.lease_token IS NULL THEN
        INSERT INTO kappa.job_events (job_id, event, attempt, owner)
        VALUES (NEW.id, CASE WHEN OLD.lease_until <= now() THEN 'lease_ran_out' ELSE 'released' END, NEW.attempt, OLD.lease_owner);
    ELSE
        INSERT INTO kappa.job_events (job_id, event, attempt, owner) VALUES (NEW.id, 'adopted', NEW.attempt, NEW.lease_owner);
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER jobs_note_event AFTER UPDATE OF state, lease_token ON kappa.jobs FOR EACH ROW
    WHEN (OLD.state = 'running' AND (NEW.state <> 'running' OR OLD.lease_token IS DISTINCT FROM NEW.lease_token))
    EXECUTE FUNCTION kappa.note_event();

-- Of a million jobs that ended, those that did not end well are found at once, and so are those of one submitter.
CREATE INDEX finished_jobs_unwell ON kappa.finished_jobs (id) WHERE state <> 'succeeded';
CREATE INDEX finished_jobs_submitter ON kappa.finished_jobs (submitted_by, id) WHERE submitted_by IS NOT NULL;

CREATE VIEW kappa.live_jobs AS
SELECT id, lane, kind, state, priority, payload, created_at, submitted_by, dedup_key, parent_id, spawn_key, retry_of,
       run_at, estimate, expires_at, approved_by, approved_at, timeout, max_attempts, attempt, started_at,
       NULL::timestamptz AS finished_at, lease_owner, lease_until, waiting, cancel_reason AS reason,
       NULL::jsonb AS result, progress_done, progress_total, progress_message, checkpoint, error_summary, error_detail
  FROM kappa.jobs;

-- Live jobs by lane and state, none counted further than `most`: a long queue is not read to its end to say that it is
-- long. The order is that of an index, and statistics, which lie about a queue, may not choose another way.
CREATE FUNCTION kappa.depths(most int) RETURNS TABLE (lane text, state text, jobs bigint) LANGUAGE sql STABLE
  SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT l.name, s.state, s.jobs
      FROM kappa.lanes AS l
     CROSS JOIN LATERAL (
         SELECT 'queued' AS state, count(*) AS jobs
           FROM (SELECT 1 FROM kappa.jobs AS q WHERE q.lane = l.name AND q.state = 'queued'
                  ORDER BY (-q.priority), q.id LIMIT depths.most) AS queued
         UNION ALL
         SELECT 'running', count(*)
           FROM (SELECT 1 FROM kappa.jobs AS r WHERE r.lane = l.name AND r.state = 'running'
                  ORDER BY r.lease_token LIMIT depths.most) AS running
     ) AS s
    UNION ALL
    SELECT due.lane, 'scheduled', count(*)
      FROM (SELECT lane FROM kappa.jobs WHERE state = 'scheduled' ORDER BY run_at LIMIT depths.most) AS due
     GROUP BY due.lane
    UNION ALL
    SELECT unapproved.lane, 'awaiting_approval', count(*)
      FROM (SELECT lane FROM kappa.jobs WHERE state = 'awaiting_approval' ORDER BY expires_at LIMIT depths.most)
           AS unapproved
     GROUP BY unapproved.lane
$$;
