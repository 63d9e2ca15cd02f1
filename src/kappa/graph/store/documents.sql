-- name: add
INSERT INTO kappa_graph.documents (key, ontology_id, name, content_hash, media_type, text, original)
VALUES (%(key)s::uuid, %(ontology)s::int, %(name)s::text, %(content_hash)s::bytea, %(media_type)s::text,
        %(text)s::text, %(original)s::bytea)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: find
SELECT d.id, d.key, o.name, d.name, d.media_type, char_length(d.text), o.id, o.key
  FROM kappa_graph.documents AS d JOIN kappa_graph.ontologies AS o ON o.id = d.ontology_id
 WHERE d.key = %(key)s::uuid;

-- name: text
SELECT text FROM kappa_graph.documents WHERE id = %(document)s::bigint;

-- name: hold
-- It stays until the transaction ends.
SELECT id FROM kappa_graph.documents WHERE id = %(document)s::bigint FOR KEY SHARE;

-- name: stretch
SELECT substr(d.text, %(start)s::int + 1, %(end)s::int - %(start)s::int)
  FROM kappa_graph.documents AS d WHERE d.id = %(document)s::bigint;

-- name: add_source
-- With what was embedded: a source whose text is another one by then is found again.
INSERT INTO kappa_graph.sources AS s (key, document_id, ordinal, start_offset, end_offset, text, embedding,
                                      embedding_model, embedded_hash)
VALUES (%(key)s::uuid, %(document)s::bigint, %(ordinal)s::int, %(start)s::int, %(end)s::int, %(text)s::text,
        %(embedding)s::real[], %(model)s::text, %(hash)s::bytea)
ON CONFLICT (key) DO UPDATE
   SET embedding = excluded.embedding, embedding_model = excluded.embedding_model, embedded_hash = excluded.embedded_hash
 WHERE excluded.embedding IS NOT NULL
   AND (s.embedding_model, s.dimension, s.embedded_hash)
       IS DISTINCT FROM (excluded.embedding_model, cardinality(excluded.embedding), excluded.embedded_hash);

-- name: find_source
SELECT id FROM kappa_graph.sources WHERE key = %(key)s::uuid;

-- name: add_instances
INSERT INTO kappa_graph.instances (concept_id, source_id, quote, start_offset, end_offset)
SELECT i.concept, %(source)s::bigint, i.quote, i.start, i.start + char_length(i.quote)
  FROM unnest(%(concepts)s::bigint[], %(quotes)s::text[], %(starts)s::int[]) AS i (concept, quote, start)
 ORDER BY i.concept, i.start
ON CONFLICT DO NOTHING
RETURNING id;

-- name: instances_of
SELECT i.quote, d.key, d.name, s.ordinal, i.start_offset, i.end_offset
  FROM kappa_graph.instances AS i
  JOIN kappa_graph.sources AS s ON s.id = i.source_id
  JOIN kappa_graph.documents AS d ON d.id = s.document_id
 WHERE i.concept_id = (SELECT c.id FROM kappa_graph.concepts AS c WHERE c.key = %(concept)s::uuid)
 ORDER BY d.id, i.start_offset, i.end_offset
 LIMIT %(limit)s::int;

-- name: delete
DELETE FROM kappa_graph.documents WHERE key = %(key)s::uuid RETURNING id;
