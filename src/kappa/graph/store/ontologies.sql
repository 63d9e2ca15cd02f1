-- name: find
SELECT id, key, name, description FROM kappa_graph.ontologies WHERE name = %(name)s::text;

-- name: find_all
SELECT id, key, name, description FROM kappa_graph.ontologies ORDER BY name;

-- name: add
INSERT INTO kappa_graph.ontologies (key, name, description)
VALUES (%(key)s::uuid, %(name)s::text, %(description)s::text)
ON CONFLICT DO NOTHING;

-- name: rename
UPDATE kappa_graph.ontologies SET name = %(new_name)s::text WHERE name = %(name)s::text RETURNING id;

-- name: delete
DELETE FROM kappa_graph.ontologies WHERE name = %(name)s::text RETURNING id;
