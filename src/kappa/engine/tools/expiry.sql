-- name: expire
-- Artifacts of runs that ended so long ago: their rows go, and what nothing else refers to is to be removed.
WITH gone AS (
    DELETE FROM kappa.tool_artifacts AS a
     WHERE (a.run_id, a.path) IN (
            SELECT o.run_id, o.path FROM kappa.tool_artifacts AS o JOIN kappa.all_tool_runs AS r ON r.id = o.run_id
             WHERE r.finished_at < coalesce(%(now)s::timestamptz, now()) - %(keep)s::interval LIMIT %(limit)s::int)
    RETURNING a.run_id, a.path, a.sha256
), written AS (
    INSERT INTO kappa.artifact_removals (sha256)
    SELECT DISTINCT g.sha256 FROM gone AS g
     WHERE NOT EXISTS (SELECT FROM kappa.tool_artifacts AS a WHERE a.sha256 = g.sha256
                          AND NOT EXISTS (SELECT FROM gone AS o WHERE o.run_id = a.run_id AND o.path = a.path))
    ON CONFLICT DO NOTHING
)
SELECT count(*) FROM gone;

-- name: record_unknown
INSERT INTO kappa.artifact_removals (sha256)
SELECT u.sha256 FROM unnest(%(sums)s::text[]) AS u (sha256)
 WHERE NOT EXISTS (SELECT FROM kappa.tool_artifacts AS a WHERE a.sha256 = u.sha256)
ON CONFLICT DO NOTHING
RETURNING sha256;

-- name: removals
SELECT sha256 FROM kappa.artifact_removals WHERE sha256 > %(after)s::text ORDER BY sha256 LIMIT %(limit)s::int;

-- name: referred
SELECT EXISTS (SELECT FROM kappa.tool_artifacts WHERE sha256 = %(sha256)s::text);

-- name: forget
DELETE FROM kappa.artifact_removals WHERE sha256 = %(sha256)s::text;
