-- name: leaving
-- What goes: into something that is there already (`kept`), or for good.
CREATE TEMPORARY TABLE leaving (
    what text NOT NULL, gone bigint NOT NULL, kept bigint, PRIMARY KEY (what, gone)
) ON COMMIT DROP;

-- name: unite_documents
INSERT INTO pg_temp.leaving (what, gone, kept)
SELECT 'documents', a.id, b.id
  FROM kappa_graph.documents AS a JOIN kappa_graph.documents AS b ON b.content_hash = a.content_hash
 WHERE a.ontology_id = %(source)s::int AND b.ontology_id = %(target)s::int;

-- name: unite_sources
INSERT INTO pg_temp.leaving (what, gone, kept)
SELECT 'sources', a.id, b.id
  FROM pg_temp.leaving AS d
  JOIN kappa_graph.sources AS a ON a.document_id = d.gone
  JOIN kappa_graph.sources AS b
    ON b.document_id = d.kept AND b.start_offset = a.start_offset AND b.end_offset = a.end_offset
 WHERE d.what = 'documents';

-- name: unite_concepts
INSERT INTO pg_temp.leaving (what, gone, kept)
SELECT 'concepts', u.gone, u.kept FROM unnest(%(gone)s::bigint[], %(kept)s::bigint[]) AS u (gone, kept);

-- name: leave_whole
INSERT INTO pg_temp.leaving (what, gone)
SELECT 'documents', d.id FROM kappa_graph.documents AS d WHERE d.ontology_id = %(ontology)s::int
 UNION ALL
SELECT 'sources', s.id FROM kappa_graph.sources AS s JOIN kappa_graph.documents AS d ON d.id = s.document_id
 WHERE d.ontology_id = %(ontology)s::int
 UNION ALL
SELECT 'concepts', c.id FROM kappa_graph.concepts AS c WHERE c.ontology_id = %(ontology)s::int;

-- name: leave_relations
INSERT INTO pg_temp.leaving (what, gone, kept)
SELECT 'relations', r.id, k.id
  FROM kappa_graph.relations AS r
  LEFT JOIN pg_temp.leaving AS f ON f.what = 'concepts' AND f.gone = r.from_id
  LEFT JOIN pg_temp.leaving AS t ON t.what = 'concepts' AND t.gone = r.to_id
  LEFT JOIN kappa_graph.relations AS k
    ON k.from_id = coalesce(f.kept, r.from_id) AND k.to_id = coalesce(t.kept, r.to_id) AND k.type_id = r.type_id
   AND k.id <> r.id
 WHERE f.gone IS NOT NULL OR t.gone IS NOT NULL;

-- name: record_gone
-- Every row that will be deleted, whole.
INSERT INTO kappa_graph.undo_rows (proposal_id, what, content)
SELECT %(proposal)s::bigint, 'gone ' || g.what, g.content
  FROM (SELECT 1 AS place, 'ontologies' AS what, to_jsonb(o) AS content FROM kappa_graph.ontologies AS o
         WHERE o.id = %(ontology)s::int
         UNION ALL
        SELECT 2, 'documents', to_jsonb(d) FROM kappa_graph.documents AS d
         WHERE d.id IN (SELECT l.gone FROM pg_temp.leaving AS l WHERE l.what = 'documents')
         UNION ALL
        SELECT 3, 'sources', to_jsonb(s) FROM kappa_graph.sources AS s
         WHERE s.id IN (SELECT l.gone FROM pg_temp.leaving AS l WHERE l.what = 'sources')
         UNION ALL
        SELECT 4, 'concepts', to_jsonb(c) - 'words' - 'dimension' FROM kappa_graph.concepts AS c
         WHERE c.id IN (SELECT l.gone FROM pg_temp.leaving AS l WHERE l.what = 'concepts')
         UNION ALL
        SELECT 5, 'instances', to_jsonb(i) FROM kappa_graph.instances AS i
         WHERE i.concept_id IN (SELECT l.gone FROM pg_temp.leaving AS l WHERE l.what = 'concepts')
            OR i.source_id IN (SELECT l.gone FROM pg_temp.leaving AS l WHERE l.what = 'sources')
         UNION ALL
        SELECT 6, 'relations', to_jsonb(r) FROM kappa_graph.relations AS r
         WHERE r.id IN (SELECT l.gone FROM pg_temp.leaving AS l WHERE l.what = 'relations')
         UNION ALL
        SELECT 7, 'relation_sources', to_jsonb(x) FROM kappa_graph.relation_sources AS x
         WHERE x.relation_id IN (SELECT l.gone FROM pg_temp.leaving AS l WHERE l.what = 'relations')
            OR x.source_id IN (SELECT l.gone FROM pg_temp.leaving AS l WHERE l.what = 'sources')
         UNION ALL
        SELECT 8, 'artifacts', to_jsonb(a) FROM kappa_graph.artifacts AS a WHERE a.ontology_id = %(ontology)s::int
         UNION ALL
        SELECT 9, 'proposals', jsonb_build_object('id', p.id, 'ontology_id', p.ontology_id)
          FROM kappa_graph.proposals AS p WHERE p.ontology_id = %(ontology)s::int
         UNION ALL
        SELECT 10, 'chunk_plan', to_jsonb(p) FROM kappa_graph.chunk_plan AS p
         WHERE p.document_id IN (SELECT l.gone FROM pg_temp.leaving AS l WHERE l.what = 'documents')) AS g
 ORDER BY g.place;

-- name: record_before
-- What is united with something is changed by it.
INSERT INTO kappa_graph.undo_rows (proposal_id, what, content)
SELECT %(proposal)s::bigint, 'before concepts', to_jsonb(c) - 'words' - 'dimension'
  FROM kappa_graph.concepts AS c
 WHERE c.id IN (SELECT l.kept FROM pg_temp.leaving AS l WHERE l.what = 'concepts')
 UNION ALL
SELECT %(proposal)s::bigint, 'before relations',
       jsonb_build_object('id', k.id, 'confidence', k.confidence, 'after', greatest(k.confidence, max(r.confidence)))
  FROM pg_temp.leaving AS l
  JOIN kappa_graph.relations AS r ON r.id = l.gone
  JOIN kappa_graph.relations AS k ON k.id = l.kept
 WHERE l.what = 'relations'
   AND NOT EXISTS (SELECT FROM pg_temp.leaving AS o WHERE o.what = 'relations' AND o.gone = k.id)
 GROUP BY k.id;

-- name: carry_relations
-- To the concepts that stay. What related the two that become one says nothing any more.
WITH made AS (
    INSERT INTO kappa_graph.relations AS r (from_id, to_id, type_id, confidence, category, provenance, created_at)
    SELECT DISTINCT ON (1, 2, 3) coalesce(f.kept, o.from_id), coalesce(t.kept, o.to_id), o.type_id, o.confidence,
           o.category, o.provenance, o.created_at
      FROM pg_temp.leaving AS l
      JOIN kappa_graph.relations AS o ON o.id = l.gone
      LEFT JOIN pg_temp.leaving AS f ON f.what = 'concepts' AND f.gone = o.from_id
      LEFT JOIN pg_temp.leaving AS t ON t.what = 'concepts' AND t.gone = o.to_id
     WHERE l.what = 'relations' AND (f.gone IS NULL OR f.kept IS NOT NULL) AND (t.gone IS NULL OR t.kept IS NOT NULL)
       AND (coalesce(f.kept, o.from_id) <> coalesce(t.kept, o.to_id) OR o.from_id = o.to_id)
     ORDER BY 1, 2, 3, o.confidence DESC, o.id
    ON CONFLICT (from_id, to_id, type_id) DO UPDATE SET confidence = greatest(r.confidence, excluded.confidence)
    RETURNING r.id, r.xmax = 0 AS fresh
)
INSERT INTO kappa_graph.undo_rows (proposal_id, what, content)
SELECT %(proposal)s::bigint, 'made relations', jsonb_build_object('id', m.id) FROM made AS m WHERE m.fresh;

-- name: carry_relation_sources
WITH made AS (
    INSERT INTO kappa_graph.relation_sources AS x (relation_id, source_id)
    SELECT DISTINCT k.id, coalesce(s.kept, o.source_id)
      FROM kappa_graph.relation_sources AS o
      JOIN kappa_graph.relations AS r ON r.id = o.relation_id
      LEFT JOIN pg_temp.leaving AS f ON f.what = 'concepts' AND f.gone = r.from_id
      LEFT JOIN pg_temp.leaving AS t ON t.what = 'concepts' AND t.gone = r.to_id
      LEFT JOIN pg_temp.leaving AS s ON s.what = 'sources' AND s.gone = o.source_id
      JOIN kappa_graph.relations AS k
        ON k.from_id = coalesce(f.kept, r.from_id) AND k.to_id = coalesce(t.kept, r.to_id) AND k.type_id = r.type_id
     WHERE (f.gone IS NOT NULL OR t.gone IS NOT NULL OR s.gone IS NOT NULL) AND (s.gone IS NULL OR s.kept IS NOT NULL)
    ON CONFLICT DO NOTHING
    RETURNING x.relation_id, x.source_id
)
INSERT INTO kappa_graph.undo_rows (proposal_id, what, content)
SELECT %(proposal)s::bigint, 'made relation_sources', to_jsonb(m) FROM made AS m;

-- name: carry_instances
WITH made AS (
    INSERT INTO kappa_graph.instances AS i (concept_id, source_id, quote, start_offset, end_offset, created_at)
    SELECT coalesce(c.kept, o.concept_id), coalesce(s.kept, o.source_id), o.quote, o.start_offset, o.end_offset,
           o.created_at
      FROM kappa_graph.instances AS o
      LEFT JOIN pg_temp.leaving AS c ON c.what = 'concepts' AND c.gone = o.concept_id
      LEFT JOIN pg_temp.leaving AS s ON s.what = 'sources' AND s.gone = o.source_id
     WHERE (c.gone IS NOT NULL OR s.gone IS NOT NULL)
       AND (c.gone IS NULL OR c.kept IS NOT NULL) AND (s.gone IS NULL OR s.kept IS NOT NULL)
     ORDER BY o.id
    ON CONFLICT DO NOTHING
    RETURNING i.id
)
INSERT INTO kappa_graph.undo_rows (proposal_id, what, content)
SELECT %(proposal)s::bigint, 'made instances', jsonb_build_object('id', m.id) FROM made AS m;

-- name: carry_concepts
-- As when a concept is written twice: the first description, all search terms, an embedding if there is none.
UPDATE kappa_graph.concepts AS c
   SET description     = CASE WHEN c.description = '' THEN g.description ELSE c.description END,
       search_terms    = ARRAY(SELECT DISTINCT t FROM unnest(c.search_terms || g.search_terms) AS t ORDER BY t),
       embedding       = coalesce(c.embedding, g.embedding),
       embedding_model = CASE WHEN c.embedding IS NULL THEN g.embedding_model ELSE c.embedding_model END,
       updated_at      = now()
  FROM pg_temp.leaving AS l JOIN kappa_graph.concepts AS g ON g.id = l.gone
 WHERE l.what = 'concepts' AND c.id = l.kept;

-- name: place_sources
-- Of a document that is united with another: what that one doesn't have.
WITH moved AS (
    SELECT s.id, s.key, s.document_id, l.kept
      FROM kappa_graph.sources AS s JOIN pg_temp.leaving AS l ON l.what = 'documents' AND l.gone = s.document_id
     WHERE l.kept IS NOT NULL
       AND NOT EXISTS (SELECT FROM pg_temp.leaving AS o WHERE o.what = 'sources' AND o.gone = s.id)
), recorded AS (
    INSERT INTO kappa_graph.undo_rows (proposal_id, what, content)
    SELECT %(proposal)s::bigint, 'moved sources',
           jsonb_build_object('id', m.id, 'key', m.key, 'document_id', m.document_id) FROM moved AS m
)
UPDATE kappa_graph.sources AS s SET document_id = m.kept FROM moved AS m WHERE s.id = m.id;

-- name: delete_concepts
DELETE FROM kappa_graph.concepts
 WHERE id IN (SELECT l.gone FROM pg_temp.leaving AS l WHERE l.what = 'concepts');

-- name: delete_documents
DELETE FROM kappa_graph.documents
 WHERE id IN (SELECT l.gone FROM pg_temp.leaving AS l WHERE l.what = 'documents');

-- name: delete_ontology
DELETE FROM kappa_graph.ontologies WHERE id = %(ontology)s::int;

-- name: labels
SELECT id, label FROM kappa_graph.concepts WHERE ontology_id = %(ontology)s::int ORDER BY id;

-- name: concepts_by_key
SELECT id, label FROM kappa_graph.concepts
 WHERE ontology_id = %(ontology)s::int AND key = ANY (%(keys)s::uuid[]) ORDER BY id;

-- name: record_concepts
INSERT INTO kappa_graph.undo_rows (proposal_id, what, content)
SELECT %(proposal)s::bigint, 'moved concepts',
       jsonb_build_object('id', c.id, 'key', c.key, 'ontology_id', c.ontology_id)
  FROM kappa_graph.concepts AS c WHERE c.id = ANY (%(ids)s::bigint[]);

-- name: move_concepts
UPDATE kappa_graph.concepts AS c SET ontology_id = %(target)s::int, key = n.key, updated_at = now()
  FROM unnest(%(ids)s::bigint[], %(keys)s::uuid[]) AS n (id, key) WHERE c.id = n.id;

-- name: documents_of
SELECT id, content_hash FROM kappa_graph.documents WHERE ontology_id = %(ontology)s::int ORDER BY id;

-- name: record_documents
INSERT INTO kappa_graph.undo_rows (proposal_id, what, content)
SELECT %(proposal)s::bigint, 'moved documents',
       jsonb_build_object('id', d.id, 'key', d.key, 'ontology_id', d.ontology_id)
  FROM kappa_graph.documents AS d WHERE d.ontology_id = %(ontology)s::int
 UNION ALL
SELECT %(proposal)s::bigint, 'moved sources',
       jsonb_build_object('id', s.id, 'key', s.key, 'document_id', s.document_id)
  FROM kappa_graph.sources AS s JOIN kappa_graph.documents AS d ON d.id = s.document_id
 WHERE d.ontology_id = %(ontology)s::int;

-- name: move_documents
UPDATE kappa_graph.documents AS d SET ontology_id = %(target)s::int, key = n.key
  FROM unnest(%(ids)s::bigint[], %(keys)s::uuid[]) AS n (id, key) WHERE d.id = n.id;

-- name: wrong_sources
-- Sources whose document has come to another id, or that came to another document.
SELECT s.id, d.key, s.start_offset, s.end_offset
  FROM kappa_graph.undo_rows AS u
  JOIN kappa_graph.sources AS s ON s.id = (u.content->>'id')::bigint
  JOIN kappa_graph.documents AS d ON d.id = s.document_id
 WHERE u.proposal_id = %(proposal)s::bigint AND u.what = 'moved sources' ORDER BY s.id;

-- name: rekey_sources
UPDATE kappa_graph.sources AS s SET key = n.key
  FROM unnest(%(ids)s::bigint[], %(keys)s::uuid[]) AS n (id, key) WHERE s.id = n.id;

-- name: record
INSERT INTO kappa_graph.undo_rows (proposal_id, what, content)
VALUES (%(proposal)s::bigint, %(what)s::text, %(content)s::jsonb);

-- name: ontology_by_key
SELECT id, key, name, description FROM kappa_graph.ontologies WHERE key = %(key)s::uuid FOR UPDATE;

-- name: rename
UPDATE kappa_graph.ontologies SET name = %(name)s::text WHERE id = %(ontology)s::int;

-- name: documents_in
SELECT count(*) FROM kappa_graph.documents WHERE ontology_id = %(ontology)s::int;

-- name: names
-- Of these ontologies, and of those that the execution made.
SELECT o.name FROM kappa_graph.ontologies AS o
 WHERE o.key = ANY (%(keys)s::uuid[])
    OR o.id IN (SELECT (u.content->>'id')::int FROM kappa_graph.undo_rows AS u
                 WHERE u.proposal_id = %(proposal)s::bigint AND u.what = 'made ontologies');
