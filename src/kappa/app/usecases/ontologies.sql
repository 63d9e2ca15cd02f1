-- name: masses
SELECT o.name, o.description,
       (SELECT count(*) FROM kappa_graph.documents AS d WHERE d.ontology_id = o.id),
       (SELECT count(*) FROM kappa_graph.concepts AS c WHERE c.ontology_id = o.id),
       (SELECT count(*) FROM kappa_graph.instances AS i JOIN kappa_graph.concepts AS c ON c.id = i.concept_id
         WHERE c.ontology_id = o.id),
       (SELECT count(*) FROM kappa_graph.relations AS r JOIN kappa_graph.concepts AS c ON c.id = r.from_id
         WHERE c.ontology_id = o.id)
  FROM kappa_graph.ontologies AS o
 WHERE o.name = %(name)s::text;

-- name: all_masses
-- Of all, each table is read once; one by one, each would be read through an index from end to end.
SELECT o.name, o.description, coalesce(d.documents, 0), coalesce(c.concepts, 0), coalesce(i.evidence, 0),
       coalesce(r.relations, 0)
  FROM kappa_graph.ontologies AS o
  LEFT JOIN (SELECT ontology_id, count(*) AS documents FROM kappa_graph.documents GROUP BY ontology_id) AS d
         ON d.ontology_id = o.id
  LEFT JOIN (SELECT ontology_id, count(*) AS concepts FROM kappa_graph.concepts GROUP BY ontology_id) AS c
         ON c.ontology_id = o.id
  LEFT JOIN (SELECT c.ontology_id, count(*) AS evidence
               FROM kappa_graph.instances AS i JOIN kappa_graph.concepts AS c ON c.id = i.concept_id
              GROUP BY c.ontology_id) AS i ON i.ontology_id = o.id
  LEFT JOIN (SELECT c.ontology_id, count(*) AS relations
               FROM kappa_graph.relations AS r JOIN kappa_graph.concepts AS c ON c.id = r.from_id
              GROUP BY c.ontology_id) AS r ON r.ontology_id = o.id
 ORDER BY o.name;
