-- name: stances
-- Every type that relations may have, with what was measured of it.
SELECT t.id, t.name, m.stance
  FROM kappa_graph.relation_types AS t LEFT JOIN kappa_graph.type_measures AS m ON m.type_id = t.id;

-- name: counts
SELECT n.node, r.relations, r.types, i.sources, i.evidence
  FROM unnest(%(nodes)s::bigint[]) AS n (node)
 CROSS JOIN LATERAL (
        SELECT count(*) AS relations, count(DISTINCT u.type_id) AS types
          FROM (SELECT type_id FROM kappa_graph.relations WHERE to_id = n.node
                 UNION ALL
                SELECT type_id FROM kappa_graph.relations WHERE from_id = n.node AND to_id <> n.node) AS u) AS r
 CROSS JOIN LATERAL (
        SELECT count(*) AS evidence, count(DISTINCT source_id) AS sources
          FROM kappa_graph.instances WHERE concept_id = n.node) AS i;

-- name: incoming
-- For each concept and type: how many relations come in, and their confidences, each times the documents that say so.
-- Only types that take a side are looked at: the hubs of a graph have mostly others. Chunks of one document overlap, so
-- documents are counted, not sources, and only of relations that have several: few do, and one is what the others have.
WITH r AS MATERIALIZED (
        SELECT r.id, r.to_id, r.type_id, r.confidence
          FROM unnest(%(nodes)s::bigint[]) AS n (node)
          JOIN kappa_graph.relations AS r
            ON r.to_id = n.node AND r.from_id <> n.node AND r.type_id = ANY (%(types)s::int[])),
     d AS (
        SELECT m.relation_id, count(DISTINCT s.document_id) AS documents
          FROM (SELECT relation_id FROM kappa_graph.relation_sources
                 WHERE relation_id = ANY (ARRAY(SELECT id FROM r)) GROUP BY relation_id HAVING count(*) > 1) AS m
          JOIN kappa_graph.relation_sources AS x USING (relation_id)
          JOIN kappa_graph.sources AS s ON s.id = x.source_id
         GROUP BY m.relation_id)
SELECT r.to_id, r.type_id, count(*), sum(r.confidence * coalesce(d.documents, 1))::bigint
  FROM r LEFT JOIN d ON d.relation_id = r.id
 GROUP BY r.to_id, r.type_id;

-- name: strongest
-- Documents are counted as above.
WITH r AS MATERIALIZED (
        SELECT r.id, r.from_id, r.type_id, r.confidence, y.stance
          FROM kappa_graph.relations AS r
          JOIN unnest(%(types)s::int[], %(stances)s::float8[]) AS y (type_id, stance) USING (type_id)
         WHERE r.to_id = %(node)s::bigint AND r.from_id <> r.to_id),
     d AS (
        SELECT m.relation_id, count(DISTINCT s.document_id) AS documents
          FROM (SELECT relation_id FROM kappa_graph.relation_sources
                 WHERE relation_id = ANY (ARRAY(SELECT id FROM r)) GROUP BY relation_id HAVING count(*) > 1) AS m
          JOIN kappa_graph.relation_sources AS x USING (relation_id)
          JOIN kappa_graph.sources AS s ON s.id = x.source_id
         GROUP BY m.relation_id)
SELECT f.key, f.label, s.type_id, s.confidence, s.documents
  FROM (SELECT r.id, r.from_id, r.type_id, r.confidence, coalesce(d.documents, 1)::int AS documents,
               abs(r.stance) * r.confidence * coalesce(d.documents, 1) AS weight
          FROM r LEFT JOIN d ON d.relation_id = r.id
         ORDER BY weight DESC, r.id LIMIT %(most)s::int) AS s
  JOIN kappa_graph.concepts AS f ON f.id = s.from_id
 ORDER BY s.weight DESC, s.id;
