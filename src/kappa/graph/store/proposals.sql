-- name: add
-- One that was made before, whatever became of it, is not made again.
INSERT INTO kappa_graph.proposals (key, kind, ontology_id, body, scores, as_of_epoch)
VALUES (%(key)s::uuid, %(kind)s::text, %(ontology)s::int, %(body)s::jsonb, %(scores)s::jsonb, %(epoch)s::bigint)
ON CONFLICT (key) DO NOTHING
RETURNING id;

-- name: find_all
SELECT p.id, p.key, p.kind, o.name, p.body, p.scores, p.state, p.created_at, p.decided_by, p.decided_at, p.executed_at,
       p.undone_at, p.undo_requested_by, p.error
  FROM kappa_graph.proposals AS p LEFT JOIN kappa_graph.ontologies AS o ON o.id = p.ontology_id
 WHERE (%(id)s::bigint IS NULL OR p.id = %(id)s::bigint) AND (%(state)s::text IS NULL OR p.state = %(state)s::text)
 ORDER BY p.id DESC
 LIMIT %(limit)s::int;

-- name: decide
UPDATE kappa_graph.proposals SET state = %(state)s::text, decided_by = %(who)s::text, decided_at = now()
 WHERE id = %(id)s::bigint AND state = 'pending' RETURNING id;

-- name: lock
SELECT state FROM kappa_graph.proposals WHERE id = %(id)s::bigint FOR UPDATE;

-- name: executed
UPDATE kappa_graph.proposals SET state = 'executed', executed_at = now(), error = NULL WHERE id = %(id)s::bigint;

-- name: failed
UPDATE kappa_graph.proposals SET state = 'failed', executed_at = now(), error = %(error)s::text
 WHERE id = %(id)s::bigint AND state = 'approved' RETURNING id;

-- name: ask_undo
UPDATE kappa_graph.proposals SET undo_requested_by = %(who)s::text
 WHERE id = %(id)s::bigint AND state = 'executed' RETURNING id;

-- name: undone
UPDATE kappa_graph.proposals SET state = 'undone', undone_at = now(), error = NULL WHERE id = %(id)s::bigint;

-- name: forget_undo
DELETE FROM kappa_graph.undo_rows WHERE proposal_id = %(id)s::bigint;

-- name: refuse_undo
UPDATE kappa_graph.proposals SET undo_requested_by = NULL, error = %(error)s::text
 WHERE id = %(id)s::bigint AND state = 'executed' RETURNING id;
