-- name: hold_alone
-- Waits for all who write relations, and keeps them waiting: which types there are is not to change under them.
SELECT kappa_graph.lock_merges();

-- name: lock_types
-- In the order of their names.
SELECT t.id FROM kappa_graph.relation_types AS t
 WHERE t.name = ANY (%(names)s::text[]) OR t.id = ANY (%(numbers)s::int[]) ORDER BY t.name FOR UPDATE;

-- name: read_types
SELECT t.name, t.id, t.active, m.name
  FROM kappa_graph.relation_types AS t LEFT JOIN kappa_graph.relation_types AS m ON m.id = t.merged_into
 WHERE t.name = ANY (%(names)s::text[]);

-- name: retire
UPDATE kappa_graph.relation_types SET active = false, merged_into = %(survivor)s::int WHERE id = %(merged)s::int;

-- name: redirect
-- Names lead to where they end in one step.
UPDATE kappa_graph.relation_types SET merged_into = %(survivor)s::int
 WHERE merged_into = %(merged)s::int
RETURNING id;

-- name: record
INSERT INTO kappa_graph.type_merges (merged, survivor, similarity, made_by, moved, followers)
VALUES (%(merged)s::int, %(survivor)s::int, %(similarity)s::real, %(by)s::text, '{}', %(followers)s::int[])
RETURNING id;

-- name: lock_relations
-- All of both types between the same ends, in the order in which writers lock them.
SELECT r.id FROM kappa_graph.relations AS r
 WHERE r.type_id = %(merged)s::int
    OR (r.type_id = %(survivor)s::int
        AND EXISTS (SELECT FROM kappa_graph.relations AS o
                     WHERE (o.from_id, o.to_id, o.type_id) = (r.from_id, r.to_id, %(merged)s::int)))
 ORDER BY r.from_id, r.to_id, r.type_id FOR UPDATE;

-- name: record_united
INSERT INTO kappa_graph.merged_relations (merge_id, relation_id, kept_id, from_id, to_id, confidence, category, provenance,
                                          created_at, sources, given_sources, kept_before)
SELECT %(merge)s::bigint, r.id, k.id, r.from_id, r.to_id, r.confidence, r.category, r.provenance, r.created_at,
       ARRAY(SELECT x.source_id FROM kappa_graph.relation_sources AS x WHERE x.relation_id = r.id ORDER BY 1),
       ARRAY(SELECT x.source_id FROM kappa_graph.relation_sources AS x WHERE x.relation_id = r.id
              EXCEPT SELECT x.source_id FROM kappa_graph.relation_sources AS x WHERE x.relation_id = k.id ORDER BY 1),
       k.confidence
  FROM kappa_graph.relations AS r
  JOIN kappa_graph.relations AS k ON (k.from_id, k.to_id, k.type_id) = (r.from_id, r.to_id, %(survivor)s::int)
 WHERE r.type_id = %(merged)s::int
RETURNING relation_id;

-- name: give_sources
INSERT INTO kappa_graph.relation_sources (relation_id, source_id)
SELECT u.kept_id, g.source
  FROM kappa_graph.merged_relations AS u CROSS JOIN LATERAL unnest(u.given_sources) AS g (source)
 WHERE u.merge_id = %(merge)s::bigint
 ORDER BY 1, 2;

-- name: raise_kept
UPDATE kappa_graph.relations AS r SET confidence = u.confidence
  FROM kappa_graph.merged_relations AS u
 WHERE u.merge_id = %(merge)s::bigint AND r.id = u.kept_id AND r.confidence < u.confidence;

-- name: delete_united
DELETE FROM kappa_graph.relations AS r USING kappa_graph.merged_relations AS u
 WHERE u.merge_id = %(merge)s::bigint AND r.id = u.relation_id;

-- name: move
WITH moved AS (
    UPDATE kappa_graph.relations SET type_id = %(survivor)s::int WHERE type_id = %(merged)s::int RETURNING id
), listed AS (
    SELECT coalesce(array_agg(id ORDER BY id), '{}') AS ids FROM moved
)
UPDATE kappa_graph.type_merges AS m SET moved = l.ids FROM listed AS l WHERE m.id = %(merge)s::bigint
RETURNING cardinality(l.ids);

-- name: find
SELECT g.id, a.name, b.name, g.similarity, g.made_by, g.made_at, g.undone_by, g.undone_at,
       cardinality(g.moved) + u.united, u.united
  FROM kappa_graph.type_merges AS g
  JOIN kappa_graph.relation_types AS a ON a.id = g.merged
  JOIN kappa_graph.relation_types AS b ON b.id = g.survivor
 CROSS JOIN LATERAL (SELECT count(*)::int AS united FROM kappa_graph.merged_relations AS r WHERE r.merge_id = g.id) AS u
 WHERE (%(merge)s::bigint IS NULL OR g.id = %(merge)s::bigint)
 ORDER BY g.id DESC
 LIMIT %(limit)s::int;

-- name: lock_merge
SELECT g.merged, g.survivor, g.undone_at IS NOT NULL, g.followers
  FROM kappa_graph.type_merges AS g WHERE g.id = %(merge)s::bigint FOR UPDATE;

-- name: later
-- A merge of either type that came after and stands: it must be undone first.
SELECT min(g.id) FROM kappa_graph.type_merges AS g
 WHERE g.id > %(merge)s::bigint AND g.undone_at IS NULL
   AND (g.merged = ANY (%(numbers)s::int[]) OR g.survivor = ANY (%(numbers)s::int[]));

-- name: move_back
UPDATE kappa_graph.relations AS r SET type_id = %(merged)s::int
 WHERE r.id = ANY (ARRAY(SELECT unnest(g.moved) FROM kappa_graph.type_merges AS g WHERE g.id = %(merge)s::bigint))
   AND r.type_id = %(survivor)s::int
RETURNING r.id;

-- name: part
-- Those whose other half is still there: a relation that somebody deleted since was deleted for both.
INSERT INTO kappa_graph.relations (id, from_id, to_id, type_id, confidence, category, provenance, created_at)
OVERRIDING SYSTEM VALUE
SELECT u.relation_id, u.from_id, u.to_id, %(merged)s::int, u.confidence, u.category, u.provenance, u.created_at
  FROM kappa_graph.merged_relations AS u JOIN kappa_graph.relations AS k ON k.id = u.kept_id
 WHERE u.merge_id = %(merge)s::bigint
 ORDER BY u.from_id, u.to_id
RETURNING id;

-- name: part_sources
INSERT INTO kappa_graph.relation_sources (relation_id, source_id)
SELECT u.relation_id, s.id
  FROM kappa_graph.merged_relations AS u
  JOIN kappa_graph.relations AS r ON r.id = u.relation_id
  JOIN kappa_graph.sources AS s ON s.id = ANY (u.sources)
 WHERE u.merge_id = %(merge)s::bigint
 ORDER BY 1, 2;

-- name: take_sources
DELETE FROM kappa_graph.relation_sources AS x USING kappa_graph.merged_relations AS u
 WHERE u.merge_id = %(merge)s::bigint AND x.relation_id = u.kept_id AND x.source_id = ANY (u.given_sources);

-- name: lower_kept
-- Where the merge raised it and nobody has since.
UPDATE kappa_graph.relations AS r SET confidence = u.kept_before
  FROM kappa_graph.merged_relations AS u
 WHERE u.merge_id = %(merge)s::bigint AND r.id = u.kept_id AND u.kept_before < u.confidence
   AND r.confidence = u.confidence;

-- name: restore
UPDATE kappa_graph.relation_types SET active = true, merged_into = NULL WHERE id = %(merged)s::int;

-- name: lead_back
UPDATE kappa_graph.relation_types SET merged_into = %(merged)s::int
 WHERE id = ANY (%(followers)s::int[]) AND merged_into = %(survivor)s::int;

-- name: mark_undone
UPDATE kappa_graph.type_merges SET undone_by = %(by)s::text, undone_at = now() WHERE id = %(merge)s::bigint;
