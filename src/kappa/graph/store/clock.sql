-- name: take_epoch
SELECT kappa_graph.take_epoch();

-- name: now
SELECT max(epoch) FROM kappa_graph.epochs;

-- name: since
-- The latest epoch, and whether everything after the one given is still in the log.
SELECT max(epoch), EXISTS (SELECT FROM kappa_graph.epochs WHERE epoch = %(since)s::bigint) FROM kappa_graph.epochs;

-- name: changes
-- From the few new epochs to their changes by index; the planner, left alone, may read the whole log.
SELECT c.kind, c.nodes, c.ends, c.types
  FROM kappa_graph.epochs AS e
 CROSS JOIN LATERAL (SELECT * FROM kappa_graph.changes AS c WHERE c.xid = e.xid AND c.began = e.began OFFSET 0) AS c
 WHERE e.epoch > %(since)s::bigint;

-- name: concept_changes
-- Of the same changes those of concepts, and nothing where everything may have changed.
SELECT c.kind, c.nodes
  FROM kappa_graph.epochs AS e
 CROSS JOIN LATERAL (SELECT * FROM kappa_graph.changes AS c WHERE c.xid = e.xid AND c.began = e.began OFFSET 0) AS c
 WHERE e.epoch > %(since)s::bigint AND c.kind IN ('concepts', 'reload');

-- name: told_since
-- The latest epoch, and whether everything after the one given is in the log, with no change of some kinds.
SELECT max(epoch),
       EXISTS (SELECT FROM kappa_graph.epochs WHERE epoch = %(since)s::bigint)
       AND NOT EXISTS (
           SELECT FROM kappa_graph.epochs AS e
            CROSS JOIN LATERAL (SELECT * FROM kappa_graph.changes AS c
                                 WHERE c.xid = e.xid AND c.began = e.began OFFSET 0) AS c
            WHERE e.epoch > %(since)s::bigint AND c.kind = ANY (%(unlisted)s::text[]))
  FROM kappa_graph.epochs;

-- name: bulk_lock
SELECT kappa_graph.lock_bulk_writes();

-- name: empty_incoming
TRUNCATE kappa_graph.incoming_concepts, kappa_graph.incoming_relations;

-- name: prune
-- Oldest first and never the latest: an epoch that is still there proves that nothing after it was pruned.
WITH over AS (
    DELETE FROM kappa_graph.epochs
     WHERE at < now() - %(keep)s::interval AND epoch < (SELECT max(epoch) FROM kappa_graph.epochs)
    RETURNING epoch, xid, began
), gone AS (
    DELETE FROM kappa_graph.changes AS c USING over AS o WHERE c.xid = o.xid AND c.began = o.began
)
SELECT count(*) FROM over;
