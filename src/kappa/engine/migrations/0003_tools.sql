CREATE TABLE kappa.tools (
    name        text        NOT NULL CHECK (name ~ '^[a-z][a-z0-9_-]{0,62}$'),
    version     text        NOT NULL CHECK (version ~ '^[A-Za-z0-9][A-Za-z0-9._+-]{0,62}$'),
    description text        NOT NULL DEFAULT '',
    image       text,
    argv        text[]      NOT NULL,
    limits      jsonb       NOT NULL DEFAULT '{}',
    timeout     interval    NOT NULL DEFAULT '10 minutes' CHECK (timeout > '0'),
    enabled     boolean     NOT NULL DEFAULT true,
    created_by  text,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (name, version),
    -- An image may bring its own command; a process has only what is said here.
    CONSTRAINT tools_command CHECK (image IS NOT NULL OR cardinality(argv) > 0)
);

-- What a user asked for and reads. Everything that its job says of it is copied by triggers, in the job's transaction.
CREATE TABLE kappa.tool_runs (
    id            bigint          GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id        bigint          UNIQUE,
    tool          text            NOT NULL,
    version       text            NOT NULL,
    status        kappa.job_state NOT NULL,
    requested_by  text,
    requested_at  timestamptz     NOT NULL DEFAULT now(),
    started_at    timestamptz,
    finished_at   timestamptz,
    attempt       int             NOT NULL DEFAULT 0,
    inputs        jsonb           NOT NULL DEFAULT 'null',
    outputs       jsonb,
    exit_code     int,
    reason        text,
    error_summary text,
    FOREIGN KEY (tool, version) REFERENCES kappa.tools
);
CREATE INDEX tool_runs_tool ON kappa.tool_runs (tool, id);

CREATE TABLE kappa.tool_inputs (
    run_id  bigint NOT NULL REFERENCES kappa.tool_runs ON DELETE CASCADE,
    name    text   NOT NULL CHECK (name ~ '^[^/\\[:cntrl:]]{1,255}$' AND name NOT IN ('.', '..')),
    content bytea  NOT NULL,
    PRIMARY KEY (run_id, name)
);

-- A row means that all bytes are in the store of artifacts.
CREATE TABLE kappa.tool_artifacts (
    run_id     bigint NOT NULL REFERENCES kappa.tool_runs ON DELETE CASCADE,
    path       text   NOT NULL,
    media_type text,
    size       bigint NOT NULL CHECK (size >= 0),
    sha256     text   NOT NULL,
    PRIMARY KEY (run_id, path)
);

-- What a run says while it runs, in the order of its offsets; 200 kB a stream at most.
CREATE TABLE kappa.tool_logs (
    run_id   bigint NOT NULL REFERENCES kappa.tool_runs ON DELETE CASCADE,
    attempt  int    NOT NULL,
    stream   text   NOT NULL CHECK (stream IN ('stdout', 'stderr')),
    position int    NOT NULL CHECK (position >= 0),
    content  bytea  NOT NULL,
    PRIMARY KEY (run_id, attempt, stream, position)
);

CREATE FUNCTION kappa.mirror_live() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE kappa.tool_runs
       SET status = NEW.state, started_at = NEW.started_at, attempt = NEW.attempt, error_summary = NEW.error_summary
     WHERE job_id = NEW.id;
    RETURN NULL;
END $$;

CREATE FUNCTION kappa.mirror_finished() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE kappa.tool_runs
       SET status = NEW.state, started_at = NEW.started_at, finished_at = NEW.finished_at, attempt = NEW.attempt,
           reason = NEW.reason, error_summary = CASE WHEN NEW.state = 'succeeded' THEN NULL ELSE NEW.error_summary END
     WHERE job_id = NEW.id;
    RETURN NULL;
END $$;

CREATE TRIGGER jobs_mirror AFTER UPDATE OF state, attempt ON kappa.jobs
    FOR EACH ROW WHEN (NEW.kind = 'tool_run') EXECUTE FUNCTION kappa.mirror_live();
CREATE TRIGGER finished_jobs_mirror AFTER INSERT ON kappa.finished_jobs
    FOR EACH ROW WHEN (NEW.kind = 'tool_run') EXECUTE FUNCTION kappa.mirror_finished();
