-- name: add
-- What is there is left alone; one whose time is over, which nobody has deleted yet, begins anew.
INSERT INTO kappa_graph.artifacts AS a (
       key, kind, name, ontology_id, parameters, as_of_epoch, content, bytes, media_type, expires_at)
VALUES (%(key)s::uuid, %(kind)s::text, %(name)s::text, %(ontology)s::int, %(parameters)s::jsonb,
        %(as_of_epoch)s::bigint, %(content)s::jsonb, %(data)s::bytea, %(media_type)s::text,
        now() + %(keep)s::interval)
ON CONFLICT (key) DO UPDATE
   SET name = excluded.name, content = excluded.content, bytes = excluded.bytes, media_type = excluded.media_type,
       created_at = now(), expires_at = excluded.expires_at
 WHERE a.expires_at <= now()
RETURNING a.id;

-- name: find
SELECT a.key, a.kind, a.name, o.name, a.parameters, a.as_of_epoch, a.media_type, a.content IS NOT NULL,
       octet_length(a.bytes), a.created_at, a.expires_at
  FROM kappa_graph.artifacts AS a LEFT JOIN kappa_graph.ontologies AS o ON o.id = a.ontology_id
 WHERE a.key = %(key)s::uuid AND (a.expires_at IS NULL OR a.expires_at > coalesce(%(now)s::timestamptz, now()));

-- name: find_all
-- The latest first.
SELECT a.key, a.kind, a.name, o.name, a.parameters, a.as_of_epoch, a.media_type, a.content IS NOT NULL,
       octet_length(a.bytes), a.created_at, a.expires_at
  FROM kappa_graph.artifacts AS a LEFT JOIN kappa_graph.ontologies AS o ON o.id = a.ontology_id
 WHERE (%(kind)s::text IS NULL OR a.kind = %(kind)s::text)
   AND (%(ontology)s::text IS NULL OR o.name = %(ontology)s::text)
   AND (a.expires_at IS NULL OR a.expires_at > coalesce(%(now)s::timestamptz, now()))
 ORDER BY a.id DESC
 LIMIT %(limit)s::int;

-- name: unmapped
-- Whether there are embeddings to map, and no map of them as they are that was asked for in this way.
SELECT EXISTS (SELECT FROM kappa_graph.concepts WHERE embedding IS NOT NULL)
   AND NOT EXISTS (SELECT FROM kappa_graph.artifacts AS a LEFT JOIN kappa_graph.ontologies AS o ON o.id = a.ontology_id
                    WHERE a.kind = 'projection' AND a.parameters @> %(parameters)s::jsonb
                      AND o.name IS NOT DISTINCT FROM %(ontology)s::text
                      AND a.as_of_epoch = (SELECT max(epoch) FROM kappa_graph.epochs)
                      AND (a.expires_at IS NULL OR a.expires_at > now()));

-- name: content
SELECT content FROM kappa_graph.artifacts
 WHERE key = %(key)s::uuid AND (expires_at IS NULL OR expires_at > coalesce(%(now)s::timestamptz, now()));

-- name: data
SELECT bytes FROM kappa_graph.artifacts
 WHERE key = %(key)s::uuid AND (expires_at IS NULL OR expires_at > coalesce(%(now)s::timestamptz, now()));

-- name: delete
DELETE FROM kappa_graph.artifacts WHERE key = %(key)s::uuid RETURNING id;
