-- name: any_expired
-- Each part is what `artifact_cleanup` looks for; the last is when its schedule had it look at the files.
SELECT EXISTS (SELECT FROM kappa_graph.artifacts WHERE expires_at <= now())
    OR EXISTS (SELECT FROM kappa.artifact_removals)
    OR EXISTS (SELECT FROM kappa_graph.uploads WHERE expires_at < now())
    OR EXISTS (SELECT FROM kappa.restore_files AS f
                WHERE f.uploaded_at < now() - interval '1 day'
                  AND NOT EXISTS (SELECT FROM kappa.jobs AS j WHERE j.id = f.job_id))
    OR EXISTS (SELECT FROM kappa.tool_artifacts AS a JOIN kappa.all_tool_runs AS r ON r.id = a.run_id
                WHERE r.finished_at < now() - %(keep)s::interval)
    OR NOT EXISTS (SELECT FROM kappa.finished_jobs AS j
                    WHERE j.submitted_by = %(schedule)s::text AND j.state = 'succeeded'
                      AND j.finished_at > now() - interval '23 hours 30 minutes');

-- name: forget_uploads
-- Some documents whose time is over and that no live job names, each with its bytes. Who submits one makes its time longer
-- before there is a job, and that is seen here: a row that was changed meanwhile is looked at again.
WITH needed AS MATERIALIZED (
    SELECT j.payload ->> 'upload' AS key FROM kappa.jobs AS j WHERE j.kind = ANY (%(kinds)s::text[])
     UNION
    SELECT u.key
      FROM kappa.jobs AS j
     CROSS JOIN LATERAL jsonb_array_elements_text(
           CASE jsonb_typeof(j.payload -> 'uploads') WHEN 'array' THEN j.payload -> 'uploads' ELSE '[]' END) AS u (key)
     WHERE j.kind = ANY (%(kinds)s::text[])
), over AS (
    SELECT u.id FROM kappa_graph.uploads AS u
     WHERE u.expires_at < coalesce(%(now)s::timestamptz, now())
       AND NOT EXISTS (SELECT FROM needed AS n WHERE n.key = u.key::text)
     ORDER BY u.expires_at, u.id LIMIT %(most)s::int FOR UPDATE OF u
)
DELETE FROM kappa_graph.uploads AS u USING over AS o WHERE u.id = o.id RETURNING u.id;
