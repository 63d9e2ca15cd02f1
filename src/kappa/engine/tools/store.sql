-- name: put_tool
INSERT INTO kappa.tools (name, version, description, image, argv, limits, timeout, created_by)
VALUES (%(name)s, %(version)s, %(description)s, %(image)s, %(argv)s, %(limits)s::jsonb, %(timeout)s, %(created_by)s)
ON CONFLICT (name, version) DO NOTHING
RETURNING name;

-- name: read_tools
SELECT name, version, description, image, argv, limits, timeout, enabled, created_by, created_at
  FROM kappa.tools
 WHERE %(name)s::text IS NULL OR name = %(name)s::text
 ORDER BY name, created_at DESC, version;

-- name: set_tool_enabled
UPDATE kappa.tools SET enabled = %(enabled)s
 WHERE name = %(name)s AND (%(version)s::text IS NULL OR version = %(version)s::text)
RETURNING version;

-- name: make_run
INSERT INTO kappa.tool_runs (tool, version, status, requested_by, inputs)
VALUES (%(tool)s, %(version)s, 'queued', %(requested_by)s, %(inputs)s::jsonb)
RETURNING id;

-- name: put_input
INSERT INTO kappa.tool_inputs (run_id, name, content) VALUES (%(run_id)s, %(name)s, %(content)s);

-- name: tie_run
-- Tools may be silent for as long as they like: they have time-outs. Wherever the job runs, that is its stale_timeout.
WITH job AS (
    UPDATE kappa.jobs SET stale_timeout = '100 years' WHERE id = %(job_id)s
)
UPDATE kappa.tool_runs SET job_id = %(job_id)s WHERE id = %(run_id)s;

-- name: read_runs
SELECT id, job_id, tool, version, status::text, requested_by, requested_at, available_at, started_at, finished_at,
       attempt, inputs, outputs, exit_code, reason, error_summary
  FROM kappa.all_tool_runs
 WHERE (%(id)s::bigint IS NULL OR id = %(id)s::bigint)
   AND (%(tool)s::text IS NULL OR tool = %(tool)s::text)
   AND (%(states)s::text[] IS NULL OR status::text = ANY (%(states)s::text[]))
   AND (%(requested_by)s::text IS NULL OR requested_by = %(requested_by)s::text)
   AND id < coalesce(%(before)s::bigint, 9223372036854775807)
 ORDER BY id DESC
 LIMIT %(limit)s::int;

-- name: begin_run
SELECT r.id, r.inputs, t.name, t.version, t.image, t.argv, t.limits, extract(epoch FROM t.timeout)::double precision
  FROM kappa.tool_runs AS r JOIN kappa.tools AS t ON t.name = r.tool AND t.version = r.version
 WHERE r.id = %(run_id)s AND r.job_id = %(job_id)s;

-- name: read_inputs
SELECT name, content FROM kappa.tool_inputs WHERE run_id = %(run_id)s ORDER BY name;

-- name: put_log
-- Guarded by the lease as everything that an attempt writes; said twice it is there once.
SELECT kappa.put_tool_log(%(run_id)s::bigint, %(attempt)s::int, %(stream)s::text, %(position)s::int, %(content)s::bytea,
                          %(job_id)s::bigint, %(token)s::bigint);

-- name: log_length
SELECT coalesce(max(position + length(content)), 0) FROM kappa.tool_logs
 WHERE run_id = %(run_id)s AND attempt = %(attempt)s AND stream = %(stream)s;

-- name: read_logs
SELECT attempt, stream, position, content FROM kappa.tool_logs
 WHERE run_id = %(run_id)s
   AND attempt = coalesce(%(attempt)s::int, (SELECT max(attempt) FROM kappa.tool_logs WHERE run_id = %(run_id)s))
   AND (%(stream)s::text IS NULL OR stream = %(stream)s::text)
 ORDER BY stream DESC, position;

-- name: put_artifact
INSERT INTO kappa.tool_artifacts (run_id, path, media_type, size, sha256)
VALUES (%(run_id)s, %(path)s, %(media_type)s, %(size)s, %(sha256)s)
ON CONFLICT (run_id, path) DO UPDATE
   SET media_type = EXCLUDED.media_type, size = EXCLUDED.size, sha256 = EXCLUDED.sha256;

-- name: read_artifacts
SELECT path, media_type, size, sha256 FROM kappa.tool_artifacts WHERE run_id = %(run_id)s ORDER BY path;

-- name: put_outputs
UPDATE kappa.tool_runs SET outputs = %(outputs)s::jsonb, exit_code = %(exit_code)s WHERE id = %(run_id)s;

-- name: live_attempts
-- Runs that some worker may still ask for.
SELECT id, attempt + (state <> 'running' OR attempt_started_at IS NULL)::int FROM kappa.jobs
 WHERE id = ANY (%(ids)s::bigint[]);

-- name: note_exit
SELECT kappa.note_tool_exit(%(run_id)s::bigint, %(exit_code)s::int, %(job_id)s::bigint, %(token)s::bigint);
