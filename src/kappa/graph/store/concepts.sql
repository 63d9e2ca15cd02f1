-- name: upsert
-- Nodes are numbered as they were given, and written in the order of the keys, so that two batches never wait for each
-- other in a circle. A concept that says nothing new is not touched. Vectors stand one behind the other in `flat`, each at
-- its place; one is kept where there is none of its model and length.
INSERT INTO kappa_graph.concepts AS c (id, key, ontology_id, label, description, search_terms, embedding, embedding_model)
OVERRIDING SYSTEM VALUE
SELECT n.id, n.key, %(ontology)s::int, n.label, n.description, n.terms::text[],
       (%(flat)s::real[])[(n.vector - 1) * %(dimension)s::int + 1 : n.vector * %(dimension)s::int],
       CASE WHEN n.vector IS NOT NULL THEN %(model)s::text END
  FROM (SELECT nextval('kappa_graph.concepts_id_seq') AS id, o.*
          FROM (SELECT g.*
                  FROM unnest(%(keys)s::uuid[], %(labels)s::text[], %(descriptions)s::text[], %(terms)s::text[],
                              %(places)s::int[])
                       WITH ORDINALITY AS g (key, label, description, terms, vector, place)
                 WHERE NOT EXISTS (
                        SELECT FROM kappa_graph.concepts AS c
                         WHERE c.key = g.key AND (g.description = '' OR c.description <> '')
                           AND g.terms::text[] <@ c.search_terms
                           AND (g.vector IS NULL
                                OR (c.embedding_model = %(model)s::text AND c.dimension = %(dimension)s::int)))
                 ORDER BY g.place) AS o) AS n
 ORDER BY n.key
ON CONFLICT (key) DO UPDATE
   SET description  = CASE WHEN c.description = '' THEN excluded.description ELSE c.description END,
       search_terms = ARRAY(SELECT DISTINCT t FROM unnest(c.search_terms || excluded.search_terms) AS t ORDER BY t),
       embedding    = CASE WHEN (c.embedding_model, c.dimension)
                                IS DISTINCT FROM (excluded.embedding_model, cardinality(excluded.embedding))
                           THEN coalesce(excluded.embedding, c.embedding) ELSE c.embedding END,
       embedding_model = coalesce(excluded.embedding_model, c.embedding_model),
       updated_at   = now()
 WHERE (c.description = '' AND excluded.description <> '') OR NOT excluded.search_terms <@ c.search_terms
    OR (excluded.embedding IS NOT NULL AND (c.embedding_model, c.dimension)
                                           IS DISTINCT FROM (excluded.embedding_model, cardinality(excluded.embedding)))
RETURNING (xmax = 0);

-- name: copy_in
COPY kappa_graph.incoming_concepts (key, label, description, search_terms) FROM STDIN (FORMAT binary);

-- name: merge_incoming
INSERT INTO kappa_graph.concepts AS c (key, ontology_id, label, description, search_terms)
SELECT DISTINCT ON (n.key) n.key, %(ontology)s::int, n.label, n.description, n.search_terms
  FROM kappa_graph.incoming_concepts AS n
 ORDER BY n.key
ON CONFLICT (key) DO UPDATE
   SET description  = CASE WHEN c.description = '' THEN excluded.description ELSE c.description END,
       search_terms = ARRAY(SELECT DISTINCT t FROM unnest(c.search_terms || excluded.search_terms) AS t ORDER BY t),
       updated_at   = now()
 WHERE (c.description = '' AND excluded.description <> '') OR NOT excluded.search_terms <@ c.search_terms;

-- name: numbers
SELECT key, id FROM kappa_graph.concepts WHERE key = ANY (%(keys)s::uuid[]);

-- name: lock_numbers
-- In the order of the keys; a concept that is about to be deleted is waited for, and is then not there.
SELECT key, id FROM kappa_graph.concepts WHERE key = ANY (%(keys)s::uuid[]) ORDER BY key FOR KEY SHARE;

-- name: rows
SELECT c.key, c.id, c.label, c.description, o.name, c.search_terms
  FROM kappa_graph.concepts AS c JOIN kappa_graph.ontologies AS o ON o.id = c.ontology_id
 WHERE c.id = ANY (%(nodes)s::bigint[]);

-- name: hubs
-- Of the first so many of an ontology: all of a small one, and of a large one enough to begin with.
SELECT c.key, c.id, c.label, c.description, o.name, c.search_terms
  FROM (SELECT f.id, (SELECT count(*) FROM kappa_graph.relations AS r WHERE r.from_id = f.id)
                   + (SELECT count(*) FROM kappa_graph.relations AS r WHERE r.to_id = f.id) AS degree
          FROM (SELECT c.id FROM kappa_graph.concepts AS c JOIN kappa_graph.ontologies AS o ON o.id = c.ontology_id
                 WHERE o.name = %(ontology)s::text ORDER BY c.id LIMIT %(most)s::int) AS f
         ORDER BY degree DESC, f.id LIMIT %(limit)s::int) AS h
  JOIN kappa_graph.concepts AS c ON c.id = h.id
  JOIN kappa_graph.ontologies AS o ON o.id = c.ontology_id
 ORDER BY h.degree DESC, c.id;

-- name: labelled
-- By the ids that a label has in the ontologies, and by its letters: a concept may have come from another ontology.
SELECT c.key, c.id, c.label, c.description, o.name, c.search_terms
  FROM kappa_graph.concepts AS c JOIN kappa_graph.ontologies AS o ON o.id = c.ontology_id
 WHERE (c.key = ANY (%(keys)s::uuid[]) OR lower(left(c.label, 500)) = lower(left(%(label)s::text, 500)))
   AND (%(ontology)s::int IS NULL OR c.ontology_id = %(ontology)s::int)
 ORDER BY c.id;

-- name: also_called
-- By a search term that is just this. Every label that was found to mean a concept which was there is one of its terms.
SELECT c.key, c.id, c.label, c.description, o.name, c.search_terms
  FROM kappa_graph.concepts AS c JOIN kappa_graph.ontologies AS o ON o.id = c.ontology_id
 WHERE c.words @@ phraseto_tsquery('pg_catalog.simple', left(%(label)s::text, 2000))
   AND EXISTS (SELECT FROM unnest(c.search_terms) AS t WHERE lower(t) = lower(%(label)s::text))
   AND (%(ontology)s::int IS NULL OR c.ontology_id = %(ontology)s::int)
 ORDER BY c.id LIMIT 20;

-- name: embeddings
SELECT c.id, c.embedding_model, c.embedding
  FROM kappa_graph.concepts AS c
 WHERE c.id = ANY (%(nodes)s::bigint[]) AND c.embedding IS NOT NULL;

-- name: set_embeddings
UPDATE kappa_graph.concepts AS c
   SET embedding = e.embedding::real[], embedding_model = %(model)s::text, updated_at = now()
  FROM (SELECT c.id, e.embedding
          FROM unnest(%(keys)s::uuid[], %(embeddings)s::text[]) AS e (key, embedding)
          JOIN kappa_graph.concepts AS c ON c.key = e.key ORDER BY c.key FOR NO KEY UPDATE OF c) AS e
 WHERE c.id = e.id
RETURNING c.id;

-- name: delete
WITH doomed AS (
    SELECT id FROM kappa_graph.concepts WHERE key = ANY (%(keys)s::uuid[]) ORDER BY key FOR UPDATE
)
DELETE FROM kappa_graph.concepts AS c USING doomed AS d WHERE c.id = d.id RETURNING c.id;
