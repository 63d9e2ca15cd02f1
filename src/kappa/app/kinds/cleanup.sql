-- name: any_expired
-- Each part is what `artifact_cleanup` looks for; the last is when its schedule had it look at the files.
SELECT EXISTS (SELECT FROM kappa_graph.artifacts WHERE expires_at <= now())
    OR EXISTS (SELECT FROM kappa.artifact_removals)
    OR EXISTS (SELECT FROM kappa.restore_files AS f
                WHERE f.uploaded_at < now() - interval '1 day'
                  AND NOT EXISTS (SELECT FROM kappa.jobs AS j WHERE j.id = f.job_id))
    OR EXISTS (SELECT FROM kappa.tool_artifacts AS a JOIN kappa.tool_runs AS r ON r.id = a.run_id
                WHERE r.finished_at < now() - %(keep)s::interval)
    OR NOT EXISTS (SELECT FROM kappa.finished_jobs AS j
                    WHERE j.submitted_by = %(schedule)s::text AND j.state = 'succeeded'
                      AND j.finished_at > now() - interval '23 hours 30 minutes');
