-- name: masses
SELECT o.name, o.description,
       (SELECT count(*) FROM kappa_graph.documents AS d WHERE d.ontology_id = o.id),
       (SELECT count(*) FROM kappa_graph.concepts AS c WHERE c.ontology_id = o.id),
       (SELECT count(*) FROM kappa_graph.instances AS i JOIN kappa_graph.concepts AS c ON c.id = i.concept_id
         WHERE c.ontology_id = o.id),
       (SELECT count(*) FROM kappa_graph.relations AS r JOIN kappa_graph.concepts AS c ON c.id = r.from_id
         WHERE c.ontology_id = o.id)
  FROM kappa_graph.ontologies AS o
 WHERE %(name)s::text IS NULL OR o.name = %(name)s::text
 ORDER BY o.name;
