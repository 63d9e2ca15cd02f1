-- name: lock_document
-- One writer at a time for a document and its plan.
SELECT kappa_graph.lock_document(%(document)s::uuid);

-- name: lock_ontology
-- Chunks are held against an ontology's concepts one after the other: of two that bring the same concept under two
-- labels, the second must see what the first made of it.
SELECT kappa_graph.lock_ontology(%(ontology)s::int);

-- name: lock_vocabulary
-- The same for new relation types, which belong to no ontology.
SELECT kappa_graph.lock_vocabulary();

-- name: add
INSERT INTO kappa_graph.chunk_plan (document_id, ordinal, start_offset, end_offset, words, run)
SELECT %(document)s::bigint, p.ordinal, p.start, p."end", p.words, %(run)s::text
  FROM unnest(%(ordinals)s::int[], %(starts)s::int[], %(ends)s::int[], %(words)s::int[])
       AS p (ordinal, start, "end", words)
ON CONFLICT DO NOTHING;

-- name: again
-- Another run takes over what is open, tries again what failed and, if it should, what is done.
UPDATE kappa_graph.chunk_plan
   SET run = %(run)s::text,
       state = CASE WHEN state = 'failed' OR %(all)s::boolean THEN 'pending' ELSE state END,
       finished_at = CASE WHEN state = 'failed' OR %(all)s::boolean THEN NULL ELSE finished_at END,
       error = NULL
 WHERE document_id = %(document)s::bigint AND run <> %(run)s::text;

-- name: read
SELECT ordinal, start_offset, end_offset, words, state, concepts, instances, relations, matched, dropped, error
  FROM kappa_graph.chunk_plan WHERE document_id = %(document)s::bigint ORDER BY ordinal;

-- name: first_open
SELECT min(ordinal) FROM kappa_graph.chunk_plan WHERE document_id = %(document)s::bigint AND state = 'pending';

-- name: finish
-- What is new is known by when it was made: now() is when this transaction began.
UPDATE kappa_graph.chunk_plan
   SET state = 'done', extractor = %(extractor)s::text, concepts = %(concepts)s::int, matched = %(matched)s::int,
       dropped = %(dropped)s::int, error = NULL, finished_at = now(),
       instances = (SELECT count(*) FROM kappa_graph.instances AS i
                     WHERE i.source_id = %(source)s::bigint AND i.created_at = now()),
       relations = (SELECT count(*) FROM kappa_graph.relation_sources AS s
                      JOIN kappa_graph.relations AS r ON r.id = s.relation_id
                     WHERE s.source_id = %(source)s::bigint AND r.created_at = now())
 WHERE document_id = %(document)s::bigint AND ordinal = %(ordinal)s::int AND state = 'pending';

-- name: fail
UPDATE kappa_graph.chunk_plan
   SET state = 'failed', extractor = %(extractor)s::text, concepts = 0, instances = 0, relations = 0, matched = 0,
       dropped = 0, error = %(error)s::text, finished_at = now()
 WHERE document_id = %(document)s::bigint AND ordinal = %(ordinal)s::int AND state = 'pending';

-- name: in_ontology
-- Which of some contents an ontology has, and how many of their chunks are open or failed. Without a plan, as backups of
-- format 1 left them, something is open where the sources don't reach the end of the text.
SELECT d.content_hash, d.key,
       CASE WHEN EXISTS (SELECT FROM kappa_graph.chunk_plan AS p WHERE p.document_id = d.id)
            THEN (SELECT count(*) FROM kappa_graph.chunk_plan AS p WHERE p.document_id = d.id AND p.state <> 'done')
            ELSE (SELECT (coalesce(max(s.end_offset), 0) < length(d.text))::int
                    FROM kappa_graph.sources AS s WHERE s.document_id = d.id) END
  FROM kappa_graph.documents AS d JOIN kappa_graph.ontologies AS o ON o.id = d.ontology_id
 WHERE o.name = %(ontology)s::text AND d.content_hash = ANY (%(hashes)s::bytea[]);

-- name: counts
-- How far some contents are: chunks, and those that are no longer open. A document without a plan is not listed.
SELECT d.content_hash, count(*), count(*) FILTER (WHERE p.state <> 'pending')
  FROM kappa_graph.documents AS d JOIN kappa_graph.ontologies AS o ON o.id = d.ontology_id
  JOIN kappa_graph.chunk_plan AS p ON p.document_id = d.id
 WHERE o.name = %(ontology)s::text AND d.content_hash = ANY (%(hashes)s::bytea[])
 GROUP BY d.content_hash;
