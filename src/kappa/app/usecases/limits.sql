-- name: live_jobs
-- The index of submitters is in this order.
SELECT count(*)
  FROM (SELECT FROM kappa.jobs AS j
         WHERE j.submitted_by = %(name)s::text COLLATE "C" AND j.parent_id IS NULL LIMIT %(most)s::int) AS live;
