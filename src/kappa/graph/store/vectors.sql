-- name: models
-- The models that embedded something, with the lengths of their vectors.
SELECT embedding_model, dimension, count(*)
  FROM kappa_graph.concepts WHERE embedding IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2;

-- name: dimension
SELECT dimension FROM kappa_graph.concepts
 WHERE embedding IS NOT NULL AND embedding_model = %(model)s::text ORDER BY dimension LIMIT 1;

-- name: lock_model
-- Who embeds with a model first says how long its vectors are. The number has no meaning; it must only never change.
SELECT kappa_graph.lock_embeddings(%(model)s::text);

-- name: bounds
SELECT min(id), max(id), count(*) FROM kappa_graph.concepts
 WHERE embedding IS NOT NULL AND embedding_model = %(model)s::text AND dimension = %(dimension)s::int;

-- name: block
-- Packed by the server: nodes, ontologies, and the vectors one behind the other in PostgreSQL's binary format.
SELECT array_agg(b.id), array_agg(b.ontology_id), string_agg(array_send(b.embedding), ''::bytea)
  FROM (SELECT id, ontology_id, embedding FROM kappa_graph.concepts
         WHERE embedding IS NOT NULL AND embedding_model = %(model)s::text AND dimension = %(dimension)s::int
           AND id >= %(low)s::bigint AND id < %(high)s::bigint
           AND (%(ontologies)s::int[] IS NULL OR ontology_id = ANY (%(ontologies)s::int[]))
         ORDER BY id) AS b;

-- name: some
-- The same of some nodes.
SELECT array_agg(b.id), array_agg(b.ontology_id), string_agg(array_send(b.embedding), ''::bytea)
  FROM (SELECT id, ontology_id, embedding FROM kappa_graph.concepts
         WHERE embedding IS NOT NULL AND embedding_model = %(model)s::text AND dimension = %(dimension)s::int
           AND id = ANY (%(nodes)s::bigint[])
         ORDER BY id) AS b;

-- name: having
-- Those of some nodes that have a vector, without reading it.
SELECT array_agg(id) FROM kappa_graph.concepts
 WHERE embedding IS NOT NULL AND embedding_model = %(model)s::text AND dimension = %(dimension)s::int
   AND id = ANY (%(nodes)s::bigint[]);

-- name: best_connected
-- Those with a vector that have the most relations, in and out, then the lowest. All relations are counted in the order
-- of their indexes: to look them up for each concept takes longer.
SELECT c.id, coalesce(d.degree, 0)
  FROM kappa_graph.concepts AS c
  LEFT JOIN (SELECT e.id, sum(e.count)::bigint AS degree
               FROM (SELECT from_id AS id, count(*) FROM kappa_graph.relations GROUP BY from_id
                      UNION ALL
                     SELECT to_id, count(*) FROM kappa_graph.relations GROUP BY to_id) AS e
              GROUP BY e.id) AS d USING (id)
 WHERE c.embedding IS NOT NULL AND c.embedding_model = %(model)s::text AND c.dimension = %(dimension)s::int
 ORDER BY 2 DESC, c.id
 LIMIT %(most)s::int;

-- name: best_connected_of
-- The same of one ontology, which may be a small part of the graph: only its relations are looked at.
SELECT c.id, r.degree
  FROM kappa_graph.concepts AS c
 CROSS JOIN LATERAL (
        SELECT (SELECT count(*) FROM kappa_graph.relations WHERE from_id = c.id)
             + (SELECT count(*) FROM kappa_graph.relations WHERE to_id = c.id) AS degree) AS r
 WHERE c.embedding IS NOT NULL AND c.embedding_model = %(model)s::text AND c.dimension = %(dimension)s::int
   AND c.ontology_id = %(ontology)s::int
 ORDER BY r.degree DESC, c.id
 LIMIT %(most)s::int;
