-- name: types
-- The vocabulary with all that is known of it. Relations are counted by their index.
SELECT t.id, t.name, t.category, t.active, n.name, coalesce(r.relations, 0), m.stance, t.embedding_model, m.scores, m.best,
       coalesce(m.ambiguous, false), m.epistemic, m.grounding, m.sampled
  FROM kappa_graph.relation_types AS t
  LEFT JOIN kappa_graph.relation_types AS n ON n.id = t.merged_into
  LEFT JOIN kappa_graph.type_measures AS m ON m.type_id = t.id
  LEFT JOIN (SELECT type_id, count(*) AS relations FROM kappa_graph.relations GROUP BY type_id) AS r ON r.type_id = t.id
 ORDER BY t.name;

-- name: embeddings
-- Of active types, by this model.
SELECT t.id, t.name, t.category, t.embedding
  FROM kappa_graph.relation_types AS t
 WHERE t.active AND t.embedding IS NOT NULL AND t.embedding_model = %(model)s::text
 ORDER BY t.name;

-- name: used
SELECT t.name, (SELECT count(*) FROM kappa_graph.relations AS r WHERE r.type_id = t.id)
  FROM kappa_graph.relation_types AS t WHERE t.name = ANY (%(names)s::text[]);

-- name: lacking
-- Active types without an embedding by this model.
SELECT t.name FROM kappa_graph.relation_types AS t
 WHERE t.active AND t.embedding_model IS DISTINCT FROM %(model)s::text
 ORDER BY t.name;

-- name: models
SELECT embedding_model, count(*) FROM kappa_graph.relation_types
 WHERE active AND embedding IS NOT NULL GROUP BY 1 ORDER BY 2 DESC, 1;

-- name: set_embeddings
UPDATE kappa_graph.relation_types AS t
   SET embedding = e.embedding::real[], embedding_model = %(model)s::text
  FROM unnest(%(names)s::text[], %(embeddings)s::text[]) AS e (name, embedding)
 WHERE t.name = e.name AND t.embedding_model IS DISTINCT FROM %(model)s::text
RETURNING t.id;

-- name: seeds
SELECT name, embedding FROM kappa_graph.seed_types WHERE model = %(model)s::text ORDER BY name;

-- name: add_seeds
INSERT INTO kappa_graph.seed_types (name, model, embedding)
SELECT e.name, %(model)s::text, e.embedding::real[]
  FROM unnest(%(names)s::text[], %(embeddings)s::text[]) AS e (name, embedding)
 ORDER BY e.name
ON CONFLICT DO NOTHING;

-- name: set_measures
INSERT INTO kappa_graph.type_measures AS m (type_id, stance, model, scores, best, ambiguous)
SELECT n.type_id, n.stance, %(model)s::text, n.scores::jsonb, n.best, n.ambiguous
  FROM unnest(%(numbers)s::int[], %(stances)s::real[], %(scores)s::text[], %(bests)s::text[], %(ambiguous)s::boolean[])
       AS n (type_id, stance, scores, best, ambiguous)
 ORDER BY n.type_id
ON CONFLICT (type_id) DO UPDATE
   SET stance = excluded.stance, model = excluded.model, scores = excluded.scores, best = excluded.best,
       ambiguous = excluded.ambiguous
 WHERE (m.stance, m.model, m.scores, m.best, m.ambiguous)
       IS DISTINCT FROM (excluded.stance, excluded.model, excluded.scores, excluded.best, excluded.ambiguous)
RETURNING type_id;

-- name: set_categories
-- Of types that have none.
UPDATE kappa_graph.relation_types AS t SET category = c.category
  FROM unnest(%(numbers)s::int[], %(categories)s::text[]) AS c (type_id, category)
 WHERE t.id = c.type_id AND t.category = ''
RETURNING t.id;

-- name: active
SELECT id, name FROM kappa_graph.relation_types WHERE active ORDER BY name;

-- name: sample
-- Some relations of a type, always the same for a seed: their targets.
SELECT r.to_id FROM kappa_graph.relations AS r
 WHERE r.type_id = %(type)s::int
 ORDER BY hashint8extended(r.id, %(seed)s::bigint), r.id
 LIMIT %(most)s::int;

-- name: set_epistemic
INSERT INTO kappa_graph.type_measures AS m (type_id, epistemic, grounding, sampled, grounded)
VALUES (%(type)s::int, %(epistemic)s::text, %(grounding)s::real, %(sampled)s::int, %(grounded)s::int)
ON CONFLICT (type_id) DO UPDATE
   SET epistemic = excluded.epistemic, grounding = excluded.grounding, sampled = excluded.sampled,
       grounded = excluded.grounded
 WHERE (m.epistemic, m.grounding, m.sampled, m.grounded)
       IS DISTINCT FROM (excluded.epistemic, excluded.grounding, excluded.sampled, excluded.grounded)
RETURNING type_id;

-- name: last_measured
SELECT parameters, as_of_epoch, result FROM kappa_graph.measured WHERE kind = %(kind)s::text;

-- name: changed
-- Whether there is a graph that the kind has not measured as it is, with these parameters.
SELECT EXISTS (SELECT FROM kappa_graph.ontologies)
   AND NOT EXISTS (SELECT FROM kappa_graph.measured
                    WHERE kind = %(kind)s::text AND parameters = %(parameters)s::jsonb
                      AND as_of_epoch = (SELECT max(epoch) FROM kappa_graph.epochs));

-- name: set_measured
INSERT INTO kappa_graph.measured AS m (kind, parameters, as_of_epoch, result)
VALUES (%(kind)s::text, %(parameters)s::jsonb, %(epoch)s::bigint, %(result)s::jsonb)
ON CONFLICT (kind) DO UPDATE
   SET parameters = excluded.parameters, as_of_epoch = excluded.as_of_epoch, result = excluded.result, at = now()
 WHERE (m.parameters, m.as_of_epoch, m.result)
       IS DISTINCT FROM (excluded.parameters, excluded.as_of_epoch, excluded.result);
