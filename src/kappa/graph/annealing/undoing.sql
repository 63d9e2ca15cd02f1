-- name: recorded
SELECT EXISTS (SELECT FROM kappa_graph.undo_rows WHERE proposal_id = %(proposal)s::bigint);

-- name: unmake_relations
DELETE FROM kappa_graph.relations AS r USING kappa_graph.undo_rows AS u
 WHERE u.proposal_id = %(proposal)s::bigint AND u.what = 'made relations' AND r.id = (u.content->>'id')::bigint;

-- name: unmake_relation_sources
DELETE FROM kappa_graph.relation_sources AS x USING kappa_graph.undo_rows AS u
 WHERE u.proposal_id = %(proposal)s::bigint AND u.what = 'made relation_sources'
   AND x.relation_id = (u.content->>'relation_id')::bigint AND x.source_id = (u.content->>'source_id')::bigint;

-- name: unmake_instances
DELETE FROM kappa_graph.instances AS i USING kappa_graph.undo_rows AS u
 WHERE u.proposal_id = %(proposal)s::bigint AND u.what = 'made instances' AND i.id = (u.content->>'id')::bigint;

-- name: move_documents_back
UPDATE kappa_graph.documents AS d SET key = (u.content->>'key')::uuid, ontology_id = (u.content->>'ontology_id')::int
  FROM kappa_graph.undo_rows AS u
 WHERE u.proposal_id = %(proposal)s::bigint AND u.what = 'moved documents' AND d.id = (u.content->>'id')::bigint;

-- name: move_sources_back
UPDATE kappa_graph.sources AS s SET key = (u.content->>'key')::uuid, document_id = (u.content->>'document_id')::bigint
  FROM kappa_graph.undo_rows AS u
 WHERE u.proposal_id = %(proposal)s::bigint AND u.what = 'moved sources' AND s.id = (u.content->>'id')::bigint;

-- name: move_concepts_back
UPDATE kappa_graph.concepts AS c SET key = (u.content->>'key')::uuid, ontology_id = (u.content->>'ontology_id')::int
  FROM kappa_graph.undo_rows AS u
 WHERE u.proposal_id = %(proposal)s::bigint AND u.what = 'moved concepts' AND c.id = (u.content->>'id')::bigint;

-- name: concepts_before
-- Only where nobody has written to them since.
UPDATE kappa_graph.concepts AS c
   SET description = b.description, search_terms = b.search_terms, embedding = b.embedding,
       embedding_model = b.embedding_model, updated_at = b.updated_at
  FROM kappa_graph.undo_rows AS u
  JOIN kappa_graph.proposals AS p ON p.id = u.proposal_id
 CROSS JOIN LATERAL jsonb_populate_record(NULL::kappa_graph.concepts, u.content) AS b
 WHERE u.proposal_id = %(proposal)s::bigint AND u.what = 'before concepts' AND c.id = b.id
   AND c.updated_at = p.executed_at;

-- name: relations_before
UPDATE kappa_graph.relations AS r SET confidence = (u.content->>'confidence')::smallint
  FROM kappa_graph.undo_rows AS u
 WHERE u.proposal_id = %(proposal)s::bigint AND u.what = 'before relations' AND r.id = (u.content->>'id')::bigint
   AND r.confidence = (u.content->>'after')::smallint;

-- name: name_back
UPDATE kappa_graph.ontologies AS o SET name = u.content->>'name'
  FROM kappa_graph.undo_rows AS u
 WHERE u.proposal_id = %(proposal)s::bigint AND u.what = 'renamed' AND o.id = (u.content->>'id')::int
RETURNING o.id;

-- name: unmake_ontology
-- Unless somebody has put something into it.
DELETE FROM kappa_graph.ontologies AS o USING kappa_graph.undo_rows AS u
 WHERE u.proposal_id = %(proposal)s::bigint AND u.what = 'made ontologies' AND o.id = (u.content->>'id')::int
   AND NOT EXISTS (SELECT FROM kappa_graph.concepts AS c WHERE c.ontology_id = o.id)
   AND NOT EXISTS (SELECT FROM kappa_graph.documents AS d WHERE d.ontology_id = o.id);

-- name: proposals_back
UPDATE kappa_graph.proposals AS p SET ontology_id = (u.content->>'ontology_id')::int
  FROM kappa_graph.undo_rows AS u
 WHERE u.proposal_id = %(proposal)s::bigint AND u.what = 'gone proposals' AND p.id = (u.content->>'id')::bigint
   AND p.ontology_id IS NULL;
