-- name: masses
SELECT o.id, o.key, o.name,
       (SELECT count(*) FROM kappa_graph.documents AS d WHERE d.ontology_id = o.id),
       (SELECT count(*) FROM kappa_graph.concepts AS c WHERE c.ontology_id = o.id),
       (SELECT count(*) FROM kappa_graph.instances AS i JOIN kappa_graph.concepts AS c ON c.id = i.concept_id
         WHERE c.ontology_id = o.id),
       (SELECT count(*) FROM kappa_graph.relations AS r JOIN kappa_graph.concepts AS c ON c.id = r.from_id
         WHERE c.ontology_id = o.id)
  FROM kappa_graph.ontologies AS o ORDER BY o.id;

-- name: labels
SELECT id, key, label FROM kappa_graph.concepts
 WHERE ontology_id = %(ontology)s::int AND id > %(after)s::bigint ORDER BY id LIMIT %(limit)s::int;

-- name: embeddings
-- Of the model that most of its concepts have.
SELECT c.id, c.key, c.label, c.embedding
  FROM kappa_graph.concepts AS c
 WHERE c.ontology_id = %(ontology)s::int AND c.embedding IS NOT NULL
   AND (c.embedding_model, c.dimension) = (
        SELECT m.embedding_model, m.dimension FROM kappa_graph.concepts AS m
         WHERE m.ontology_id = %(ontology)s::int AND m.embedding IS NOT NULL
         GROUP BY 1, 2 ORDER BY count(*) DESC, 1, 2 LIMIT 1)
 ORDER BY c.id LIMIT %(limit)s::int;

-- name: model
SELECT m.embedding_model, m.dimension FROM kappa_graph.concepts AS m
 WHERE m.ontology_id = %(ontology)s::int AND m.embedding IS NOT NULL
 GROUP BY 1, 2 ORDER BY count(*) DESC, 1, 2 LIMIT 1;

-- name: leading_labels
-- Those that most relations lead to and from.
SELECT c.label
  FROM kappa_graph.concepts AS c
 WHERE c.ontology_id = %(ontology)s::int
 ORDER BY (SELECT count(*) FROM kappa_graph.relations AS r WHERE r.from_id = c.id)
        + (SELECT count(*) FROM kappa_graph.relations AS r WHERE r.to_id = c.id) DESC, c.id
 LIMIT %(limit)s::int;
