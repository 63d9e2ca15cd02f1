-- name: concepts
-- An ontology's concepts that have a vector of a kind, for matching.
SELECT id, key, label, array_send(embedding) FROM kappa_graph.concepts
 WHERE ontology_id = %(ontology)s::int AND embedding IS NOT NULL
   AND embedding_model = %(model)s::text AND dimension = %(dimension)s::int
 ORDER BY id;

-- name: changed_concepts
-- Nodes that were touched after an epoch; those that are to be matched with, as they are now. From the few new epochs to
-- their changes by index; the planner, left alone, may read the whole log.
SELECT t.node, c.key, c.label, array_send(c.embedding)
  FROM (SELECT DISTINCT n.node
          FROM kappa_graph.epochs AS e
         CROSS JOIN LATERAL (SELECT * FROM kappa_graph.changes AS c
                              WHERE c.xid = e.xid AND c.began = e.began AND c.kind = 'concepts' OFFSET 0) AS c
         CROSS JOIN LATERAL unnest(c.nodes) AS n (node)
         WHERE e.epoch > %(since)s::bigint) AS t
  LEFT JOIN kappa_graph.concepts AS c
    ON c.id = t.node AND c.ontology_id = %(ontology)s::int AND c.embedding IS NOT NULL
   AND c.embedding_model = %(model)s::text AND c.dimension = %(dimension)s::int
 ORDER BY t.node;

-- name: types
-- The vocabulary, with the vectors of a kind.
SELECT name, CASE WHEN embedding_model = %(model)s::text AND dimension = %(dimension)s::int
                  THEN array_send(embedding) END
  FROM kappa_graph.relation_types WHERE active OR merged_into IS NOT NULL ORDER BY name;

-- name: put_concepts
-- Only where there is none of this kind. A row that another writer holds is left to that one: to wait for it here, after
-- others were locked, could be to wait in a circle.
UPDATE kappa_graph.concepts AS c
   SET embedding = n.embedding, embedding_model = %(model)s::text, updated_at = now()
  FROM (SELECT c.id, (%(flat)s::real[])[(k.place - 1) * %(dimension)s::int + 1 : k.place * %(dimension)s::int] AS embedding
          FROM unnest(%(keys)s::uuid[]) WITH ORDINALITY AS k (key, place)
          JOIN kappa_graph.concepts AS c ON c.key = k.key
         WHERE c.embedding IS NULL OR c.embedding_model <> %(model)s::text OR c.dimension <> %(dimension)s::int
         ORDER BY c.key FOR NO KEY UPDATE OF c SKIP LOCKED) AS n
 WHERE c.id = n.id;

-- name: put_types
UPDATE kappa_graph.relation_types AS t
   SET embedding = n.embedding, embedding_model = %(model)s::text
  FROM (SELECT t.id, (%(flat)s::real[])[(k.place - 1) * %(dimension)s::int + 1 : k.place * %(dimension)s::int] AS embedding
          FROM unnest(%(keys)s::text[]) WITH ORDINALITY AS k (name, place)
          JOIN kappa_graph.relation_types AS t ON t.name = k.name
         WHERE t.embedding IS NULL OR t.embedding_model <> %(model)s::text OR t.dimension <> %(dimension)s::int
         ORDER BY t.name FOR NO KEY UPDATE OF t SKIP LOCKED) AS n
 WHERE t.id = n.id;

-- name: put_sources
-- With what was embedded: a source whose text is another one by then is found again.
UPDATE kappa_graph.sources AS s
   SET embedding = n.embedding, embedding_model = %(model)s::text, embedded_hash = n.hash
  FROM (SELECT s.id, k.hash,
               (%(flat)s::real[])[(k.place - 1) * %(dimension)s::int + 1 : k.place * %(dimension)s::int] AS embedding
          FROM unnest(%(keys)s::bigint[], %(hashes)s::bytea[]) WITH ORDINALITY AS k (id, hash, place)
          JOIN kappa_graph.sources AS s ON s.id = k.id
         WHERE s.embedding IS NULL OR s.embedding_model <> %(model)s::text OR s.dimension <> %(dimension)s::int
            OR s.embedded_hash IS DISTINCT FROM k.hash
         ORDER BY s.id FOR NO KEY UPDATE OF s SKIP LOCKED) AS n
 WHERE s.id = n.id;

-- name: stale_concepts
SELECT id, key, label FROM kappa_graph.concepts
 WHERE id > %(after)s::bigint
   AND (embedding IS NULL OR embedding_model <> %(model)s::text OR dimension <> %(dimension)s::int)
 ORDER BY id LIMIT %(limit)s::int;

-- name: stale_types
SELECT id, name, name FROM kappa_graph.relation_types
 WHERE id > %(after)s::bigint
   AND (embedding IS NULL OR embedding_model <> %(model)s::text OR dimension <> %(dimension)s::int)
 ORDER BY id LIMIT %(limit)s::int;

-- name: stale_sources
SELECT id, id, text FROM kappa_graph.sources
 WHERE id > %(after)s::bigint
   AND (embedding IS NULL OR embedding_model <> %(model)s::text OR dimension <> %(dimension)s::int
        OR embedded_hash IS DISTINCT FROM sha256(convert_to(text, 'UTF8')))
 ORDER BY id LIMIT %(limit)s::int;

-- name: stale
-- How many there are, of concepts, relation types and sources.
SELECT (SELECT count(*) FROM kappa_graph.concepts
         WHERE embedding IS NULL OR embedding_model <> %(model)s::text OR dimension <> %(dimension)s::int),
       (SELECT count(*) FROM kappa_graph.relation_types
         WHERE embedding IS NULL OR embedding_model <> %(model)s::text OR dimension <> %(dimension)s::int),
       (SELECT count(*) FROM kappa_graph.sources
         WHERE embedding IS NULL OR embedding_model <> %(model)s::text OR dimension <> %(dimension)s::int
            OR embedded_hash IS DISTINCT FROM sha256(convert_to(text, 'UTF8')));

-- name: of_other_models
-- Concepts of an ontology that a kind of vector can't be compared with.
SELECT count(*) FROM kappa_graph.concepts
 WHERE ontology_id = %(ontology)s::int AND embedding IS NOT NULL
   AND (embedding_model <> %(model)s::text OR dimension <> %(dimension)s::int);
