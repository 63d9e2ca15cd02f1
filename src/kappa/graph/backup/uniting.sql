-- name: types
-- A type that was merged here is what it was merged into.
UPDATE pg_temp.staged_relation_types AS s SET here_id = coalesce(t.merged_into, t.id)
  FROM kappa_graph.relation_types AS t WHERE t.name = s.name;

-- name: staged_ontologies
SELECT s.id, s.key, s.name, s.description, EXISTS (SELECT FROM kappa_graph.ontologies AS o WHERE o.key = s.key)
  FROM pg_temp.staged_ontologies AS s ORDER BY s.id;

-- name: place_ontology
UPDATE pg_temp.staged_ontologies SET here_id = %(number)s::int, here_key = %(key)s::uuid WHERE id = %(id)s::int;

-- name: staged_documents
SELECT s.id, o.here_key, s.content_hash
  FROM pg_temp.staged_documents AS s JOIN pg_temp.staged_ontologies AS o ON o.id = s.ontology_id
 WHERE o.here_key <> o.key AND s.id > %(after)s::bigint ORDER BY s.id LIMIT %(limit)s::int;

-- name: want_documents
UPDATE pg_temp.staged_documents AS s SET here_key = w.key
  FROM unnest(%(ids)s::bigint[], %(keys)s::uuid[]) AS w (id, key) WHERE s.id = w.id;

-- name: find_documents
-- By its content where it belongs, or by its id wherever it is.
UPDATE pg_temp.staged_documents AS s SET here_id = f.id, here_key = f.key
  FROM (SELECT DISTINCT ON (s.id) s.id AS staged, d.id, d.key
          FROM pg_temp.staged_documents AS s
          JOIN pg_temp.staged_ontologies AS o ON o.id = s.ontology_id
          JOIN kappa_graph.documents AS d
            ON d.key = s.here_key OR (d.ontology_id = o.here_id AND d.content_hash = s.content_hash)
         ORDER BY s.id, d.key = s.here_key, d.id) AS f
 WHERE s.id = f.staged;

-- name: staged_sources
SELECT s.id, d.here_key, s.start_offset, s.end_offset
  FROM pg_temp.staged_sources AS s JOIN pg_temp.staged_documents AS d ON d.id = s.document_id
 WHERE d.here_key <> d.key AND s.id > %(after)s::bigint ORDER BY s.id LIMIT %(limit)s::int;

-- name: want_sources
UPDATE pg_temp.staged_sources AS s SET here_key = w.key
  FROM unnest(%(ids)s::bigint[], %(keys)s::uuid[]) AS w (id, key) WHERE s.id = w.id;

-- name: find_sources
UPDATE pg_temp.staged_sources AS s SET here_id = f.id, here_key = f.key
  FROM (SELECT DISTINCT ON (s.id) s.id AS staged, t.id, t.key
          FROM pg_temp.staged_sources AS s
          JOIN pg_temp.staged_documents AS d ON d.id = s.document_id
          JOIN kappa_graph.sources AS t
            ON t.key = s.here_key
            OR (t.document_id = d.here_id AND t.start_offset = s.start_offset AND t.end_offset = s.end_offset)
         ORDER BY s.id, t.key = s.here_key, t.id) AS f
 WHERE s.id = f.staged;

-- name: labels
-- What a label is the same as, in its ontology, on either side.
CREATE TEMPORARY TABLE staged_labels (id bigint NOT NULL, said uuid NOT NULL, ours boolean NOT NULL) ON COMMIT DROP;

-- name: staged_concepts
SELECT s.id, o.here_key, s.label, o.here_key <> o.key
  FROM pg_temp.staged_concepts AS s JOIN pg_temp.staged_ontologies AS o ON o.id = s.ontology_id
 WHERE s.id > %(after)s::bigint ORDER BY s.id LIMIT %(limit)s::int;

-- name: concepts_here
SELECT c.id, o.here_key, c.label
  FROM kappa_graph.concepts AS c JOIN pg_temp.staged_ontologies AS o ON o.here_id = c.ontology_id
 WHERE c.id > %(after)s::bigint ORDER BY c.id LIMIT %(limit)s::int;

-- name: add_labels
INSERT INTO pg_temp.staged_labels (id, said, ours)
SELECT l.id, l.said, %(ours)s::boolean FROM unnest(%(ids)s::bigint[], %(keys)s::uuid[]) AS l (id, said);

-- name: want_concepts
UPDATE pg_temp.staged_concepts AS s SET here_key = l.said
  FROM pg_temp.staged_labels AS l, pg_temp.staged_ontologies AS o
 WHERE l.id = s.id AND NOT l.ours AND o.id = s.ontology_id AND o.here_key <> o.key;

-- name: index_labels
CREATE INDEX ON pg_temp.staged_labels (said);

-- name: find_concepts
-- By its label where it belongs, or by its id wherever it is.
UPDATE pg_temp.staged_concepts AS s SET here_id = f.id
  FROM (SELECT DISTINCT ON (m.staged) m.staged, m.id
          FROM (SELECT l.id AS staged, h.id, 1 AS rank
                  FROM pg_temp.staged_labels AS l JOIN pg_temp.staged_labels AS h ON h.said = l.said AND h.ours
                 WHERE NOT l.ours
                 UNION ALL
                SELECT s.id, c.id, 2 FROM pg_temp.staged_concepts AS s JOIN kappa_graph.concepts AS c ON c.key = s.here_key
               ) AS m
         ORDER BY m.staged, m.rank, m.id) AS f
 WHERE s.id = f.staged;

-- name: twins
-- Of those in the file that are the same, and new, the first is put in and stands for all.
UPDATE pg_temp.staged_concepts AS s SET here_id = first.here_id, is_new = false
  FROM (SELECT DISTINCT ON (l.said) l.said, s.id, s.here_id
          FROM pg_temp.staged_concepts AS s JOIN pg_temp.staged_labels AS l ON l.id = s.id AND NOT l.ours
         WHERE s.is_new ORDER BY l.said, s.id) AS first
  JOIN pg_temp.staged_labels AS l ON l.said = first.said AND NOT l.ours
 WHERE s.id = l.id AND s.is_new AND s.id <> first.id;

-- name: unite_concepts
-- As when a concept is written twice: the first description, all search terms, an embedding if there is none.
UPDATE kappa_graph.concepts AS c
   SET description     = CASE WHEN c.description = '' THEN n.description ELSE c.description END,
       search_terms    = ARRAY(SELECT DISTINCT t FROM unnest(c.search_terms || n.terms) AS t ORDER BY t),
       embedding       = coalesce(c.embedding, n.embedding),
       embedding_model = CASE WHEN c.embedding IS NULL THEN n.embedding_model ELSE c.embedding_model END,
       updated_at      = now()
  FROM (SELECT s.here_id,
               coalesce((array_agg(s.description ORDER BY s.id) FILTER (WHERE s.description <> ''))[1], '') AS description,
               ARRAY(SELECT DISTINCT t FROM pg_temp.staged_concepts AS a, unnest(a.search_terms) AS t
                      WHERE a.here_id = s.here_id AND NOT a.is_new) AS terms,
               e.embedding, e.embedding_model
          FROM pg_temp.staged_concepts AS s
          LEFT JOIN LATERAL (SELECT a.embedding, a.embedding_model FROM pg_temp.staged_concepts AS a
                              WHERE a.here_id = s.here_id AND NOT a.is_new AND a.embedding IS NOT NULL
                              ORDER BY a.id LIMIT 1) AS e ON true
         WHERE NOT s.is_new
         GROUP BY s.here_id, e.embedding, e.embedding_model) AS n
 WHERE c.id = n.here_id
   AND ((c.description = '' AND n.description <> '') OR NOT n.terms <@ c.search_terms
        OR (c.embedding IS NULL AND n.embedding IS NOT NULL));

-- name: index_places
CREATE INDEX ON pg_temp.staged_concepts (here_id);

-- name: enter_instances
INSERT INTO kappa_graph.instances (concept_id, source_id, quote, start_offset, end_offset, created_at)
SELECT c.here_id, o.here_id, s.quote, s.start_offset, s.end_offset, s.created_at
  FROM pg_temp.staged_instances AS s
  LEFT JOIN pg_temp.staged_concepts AS c ON c.id = s.concept_id
  LEFT JOIN pg_temp.staged_sources AS o ON o.id = s.source_id
 ORDER BY s.id
ON CONFLICT DO NOTHING;

-- name: place_relations
-- Where they were written by a chunk, their provenance names its source.
UPDATE pg_temp.staged_relations AS s SET provenance = 'source ' || o.here_key
  FROM pg_temp.staged_sources AS o
 WHERE s.provenance = 'source ' || o.key AND o.here_key <> o.key;

-- name: enter_relations
-- Of two words on one relation: the file's by `keep_ids`, the more certain one by `merge`.
INSERT INTO kappa_graph.relations AS r (from_id, to_id, type_id, confidence, category, provenance, created_at)
SELECT DISTINCT ON (f.here_id, t.here_id, y.here_id)
       f.here_id, t.here_id, y.here_id, s.confidence, s.category, s.provenance, s.created_at
  FROM pg_temp.staged_relations AS s
  LEFT JOIN pg_temp.staged_concepts AS f ON f.id = s.from_id
  LEFT JOIN pg_temp.staged_concepts AS t ON t.id = s.to_id
  LEFT JOIN pg_temp.staged_relation_types AS y ON y.id = s.type_id
 ORDER BY f.here_id, t.here_id, y.here_id, s.confidence DESC, s.id
ON CONFLICT (from_id, to_id, type_id) DO UPDATE
   SET confidence = excluded.confidence,
       category   = CASE WHEN %(file_wins)s::boolean THEN excluded.category ELSE r.category END,
       provenance = CASE WHEN %(file_wins)s::boolean THEN excluded.provenance ELSE r.provenance END
 WHERE CASE WHEN %(file_wins)s::boolean
            THEN (r.confidence, r.category, r.provenance) <> (excluded.confidence, excluded.category, excluded.provenance)
            ELSE r.confidence < excluded.confidence END;

-- name: find_relations
UPDATE pg_temp.staged_relations AS s SET here_id = r.id
  FROM pg_temp.staged_concepts AS f, pg_temp.staged_concepts AS t, pg_temp.staged_relation_types AS y,
       kappa_graph.relations AS r
 WHERE f.id = s.from_id AND t.id = s.to_id AND y.id = s.type_id
   AND r.from_id = f.here_id AND r.to_id = t.here_id AND r.type_id = y.here_id;

-- name: enter_relation_sources
INSERT INTO kappa_graph.relation_sources (relation_id, source_id)
SELECT r.here_id, o.here_id
  FROM pg_temp.staged_relation_sources AS s
  LEFT JOIN pg_temp.staged_relations AS r ON r.id = s.relation_id
  LEFT JOIN pg_temp.staged_sources AS o ON o.id = s.source_id
 ORDER BY 1, 2
ON CONFLICT DO NOTHING;

-- name: new_plans
UPDATE pg_temp.staged_chunk_plan AS s SET is_new = true
  FROM pg_temp.staged_documents AS d WHERE d.id = s.document_id AND d.is_new;
