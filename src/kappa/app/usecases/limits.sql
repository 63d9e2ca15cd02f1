-- name: live_jobs
SELECT count(*) FROM (SELECT FROM kappa.jobs AS j WHERE j.submitted_by = %(name)s::text LIMIT %(most)s::int) AS live;
