-- name: delete_expired
-- A row and its bytes are one; so many at a time.
DELETE FROM kappa_graph.artifacts
 WHERE id IN (SELECT id FROM kappa_graph.artifacts WHERE expires_at <= coalesce(%(now)s::timestamptz, now())
               ORDER BY expires_at LIMIT %(limit)s::int FOR UPDATE SKIP LOCKED)
RETURNING id;

-- name: count_expired
SELECT count(*) FROM kappa_graph.artifacts WHERE expires_at <= coalesce(%(now)s::timestamptz, now());
