-- name: masses
-- Each table is read through once.
SELECT o.id, o.key, o.name, coalesce(d.count, 0), coalesce(c.count, 0), coalesce(i.count, 0), coalesce(r.count, 0)
  FROM kappa_graph.ontologies AS o
  LEFT JOIN (SELECT ontology_id, count(*) FROM kappa_graph.documents GROUP BY 1) AS d ON d.ontology_id = o.id
  LEFT JOIN (SELECT ontology_id, count(*) FROM kappa_graph.concepts GROUP BY 1) AS c ON c.ontology_id = o.id
  LEFT JOIN (SELECT c.ontology_id, sum(n.count)::bigint AS count
               FROM (SELECT concept_id, count(*) FROM kappa_graph.instances GROUP BY 1) AS n
               JOIN kappa_graph.concepts AS c ON c.id = n.concept_id GROUP BY 1) AS i ON i.ontology_id = o.id
  LEFT JOIN (SELECT c.ontology_id, sum(n.count)::bigint AS count
               FROM (SELECT from_id, count(*) FROM kappa_graph.relations GROUP BY 1) AS n
               JOIN kappa_graph.concepts AS c ON c.id = n.from_id GROUP BY 1) AS r ON r.ontology_id = o.id
 ORDER BY o.id;

-- name: labels
SELECT id, ontology_id, label FROM kappa_graph.concepts
 WHERE id > %(after)s::bigint ORDER BY id LIMIT %(limit)s::int;

-- name: models
-- For each ontology the model that most of its concepts have an embedding of.
SELECT DISTINCT ON (ontology_id) ontology_id, embedding_model, dimension
  FROM (SELECT ontology_id, embedding_model, dimension, count(*) FROM kappa_graph.concepts
         WHERE embedding IS NOT NULL GROUP BY 1, 2, 3) AS m
 ORDER BY ontology_id, count DESC, embedding_model, dimension;

-- name: oldest
-- Concepts that have an embedding of this kind.
SELECT id, key, label FROM kappa_graph.concepts
 WHERE ontology_id = %(ontology)s::int AND embedding IS NOT NULL
   AND embedding_model = %(model)s::text AND dimension = %(dimension)s::int
 ORDER BY id LIMIT %(limit)s::int;

-- name: leading_labels
-- Those that most relations lead to and from.
SELECT c.label
  FROM kappa_graph.concepts AS c
 WHERE c.ontology_id = %(ontology)s::int
 ORDER BY (SELECT count(*) FROM kappa_graph.relations AS r WHERE r.from_id = c.id)
        + (SELECT count(*) FROM kappa_graph.relations AS r WHERE r.to_id = c.id) DESC, c.id
 LIMIT %(limit)s::int;
