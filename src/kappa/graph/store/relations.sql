-- name: upsert
-- In the order of their ends and types. The most certain word on a relation stays.
INSERT INTO kappa_graph.relations AS r (from_id, to_id, type_id, confidence, category, provenance)
SELECT DISTINCT ON (n.from_id, n.to_id, n.type_id) n.from_id, n.to_id, n.type_id, n.confidence, n.category, n.provenance
  FROM unnest(%(from_ids)s::bigint[], %(to_ids)s::bigint[], %(types)s::int[], %(confidences)s::smallint[],
              %(categories)s::text[], %(provenances)s::text[])
       AS n (from_id, to_id, type_id, confidence, category, provenance)
 WHERE NOT EXISTS (
        SELECT FROM kappa_graph.relations AS o
         WHERE (o.from_id, o.to_id, o.type_id) = (n.from_id, n.to_id, n.type_id) AND o.confidence >= n.confidence)
 ORDER BY n.from_id, n.to_id, n.type_id, n.confidence DESC
ON CONFLICT (from_id, to_id, type_id) DO UPDATE SET confidence = excluded.confidence
 WHERE r.confidence < excluded.confidence
RETURNING (xmax = 0);

-- name: copy_in
COPY kappa_graph.incoming_relations (from_key, to_key, type, confidence, category, provenance)
FROM STDIN (FORMAT binary);

-- name: incoming_types
SELECT DISTINCT type, category FROM kappa_graph.incoming_relations;

-- name: incoming_strangers
SELECT key FROM (SELECT from_key AS key FROM kappa_graph.incoming_relations UNION
                 SELECT to_key FROM kappa_graph.incoming_relations) AS k
 WHERE NOT EXISTS (SELECT FROM kappa_graph.concepts AS c WHERE c.key = k.key)
 LIMIT 1;

-- name: merge_incoming
INSERT INTO kappa_graph.relations AS r (from_id, to_id, type_id, confidence, category, provenance)
SELECT DISTINCT ON (f.id, t.id, y.id) f.id, t.id, y.id, n.confidence, n.category, n.provenance
  FROM kappa_graph.incoming_relations AS n
  JOIN kappa_graph.concepts AS f ON f.key = n.from_key
  JOIN kappa_graph.concepts AS t ON t.key = n.to_key
  JOIN (SELECT name, coalesce(merged_into, id) AS id FROM kappa_graph.relation_types) AS y ON y.name = n.type
 ORDER BY f.id, t.id, y.id, n.confidence DESC
ON CONFLICT (from_id, to_id, type_id) DO UPDATE SET confidence = excluded.confidence
 WHERE r.confidence < excluded.confidence;

-- name: support
-- Which source says so.
INSERT INTO kappa_graph.relation_sources (relation_id, source_id)
SELECT r.id, %(source)s::bigint
  FROM unnest(%(from_ids)s::bigint[], %(to_ids)s::bigint[], %(types)s::int[]) AS n (from_id, to_id, type_id)
  JOIN kappa_graph.relations AS r USING (from_id, to_id, type_id)
 ORDER BY r.id
ON CONFLICT DO NOTHING;

-- name: delete
WITH doomed AS (
    SELECT r.id
      FROM unnest(%(from_keys)s::uuid[], %(to_keys)s::uuid[], %(types)s::text[]) AS n (from_key, to_key, type)
      JOIN kappa_graph.concepts AS f ON f.key = n.from_key
      JOIN kappa_graph.concepts AS t ON t.key = n.to_key
      JOIN kappa_graph.relation_types AS y ON y.name = n.type
      JOIN kappa_graph.relations AS r ON (r.from_id, r.to_id, r.type_id) = (f.id, t.id, coalesce(y.merged_into, y.id))
     ORDER BY r.from_id, r.to_id, r.type_id FOR UPDATE OF r
)
DELETE FROM kappa_graph.relations AS r USING doomed AS d WHERE r.id = d.id RETURNING r.id;

-- name: between
-- All relations from one node to another, for each pair.
SELECT r.from_id, r.to_id, f.key, t.key, y.name, r.confidence, coalesce(nullif(r.category, ''), y.category), r.type_id
  FROM unnest(%(from_ids)s::bigint[], %(to_ids)s::bigint[]) AS p (from_id, to_id)
  JOIN kappa_graph.relations AS r ON (r.from_id, r.to_id) = (p.from_id, p.to_id)
  JOIN kappa_graph.concepts AS f ON f.id = r.from_id
  JOIN kappa_graph.concepts AS t ON t.id = r.to_id
  JOIN kappa_graph.relation_types AS y ON y.id = r.type_id
 WHERE r.confidence >= %(min_confidence)s::smallint
   AND (%(types)s::int[] IS NULL OR r.type_id = ANY (%(types)s::int[]))
 ORDER BY r.from_id, r.to_id, r.type_id;
