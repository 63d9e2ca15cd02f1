-- name: size
SELECT (SELECT count(*) FROM kappa_graph.concepts), (SELECT count(*) FROM kappa_graph.relations);

-- name: copy_nodes
-- Packed into arrays by the server: a message for each row would cost the client more than everything else.
COPY (SELECT b.*
        FROM generate_series((SELECT min(id) FROM kappa_graph.concepts), (SELECT max(id) FROM kappa_graph.concepts),
                             65536) AS low
       CROSS JOIN LATERAL (SELECT array_agg(id), array_agg(ontology_id) FROM kappa_graph.concepts
                            WHERE id >= low AND id < low + 65536 OFFSET 0) AS b)
TO STDOUT (FORMAT binary);

-- name: copy_relations
COPY (SELECT b.*
        FROM generate_series((SELECT min(id) FROM kappa_graph.relations), (SELECT max(id) FROM kappa_graph.relations),
                             65536) AS low
       CROSS JOIN LATERAL (SELECT array_agg(from_id), array_agg(to_id), array_agg(type_id), array_agg(confidence)
                             FROM kappa_graph.relations WHERE id >= low AND id < low + 65536 OFFSET 0) AS b)
TO STDOUT (FORMAT binary);

-- name: relations_now
SELECT array_agg(r.from_id), array_agg(r.to_id), array_agg(r.type_id), array_agg(r.confidence)
  FROM unnest(%(from_ids)s::bigint[], %(to_ids)s::bigint[], %(types)s::int[]) AS k (from_id, to_id, type_id)
  JOIN kappa_graph.relations AS r USING (from_id, to_id, type_id);

-- name: concepts_now
SELECT array_agg(id), array_agg(ontology_id) FROM kappa_graph.concepts WHERE id = ANY (%(ids)s::bigint[]);

-- name: expand_out
-- One hop from a part of a frontier, each node once. Reads relations_out alone unless ontologies are asked for. They are
-- looked up for what was found, by one pass over the concepts' key: planned as a join, all concepts would be read.
SELECT CASE WHEN %(ontologies)s::int[] IS NULL THEN f.nodes
            ELSE ARRAY(SELECT c.id FROM kappa_graph.concepts AS c
                        WHERE c.id = ANY (f.nodes) AND c.ontology_id = ANY (%(ontologies)s::int[])
                        LIMIT %(most)s::bigint) END
  FROM (SELECT ARRAY(
            SELECT DISTINCT r.to_id FROM kappa_graph.relations AS r
             WHERE r.from_id = ANY (%(nodes)s::bigint[]) AND r.confidence >= %(min_confidence)s::smallint
               AND (%(types)s::int[] IS NULL OR r.type_id = ANY (%(types)s::int[]))
             LIMIT CASE WHEN %(ontologies)s::int[] IS NULL THEN %(most)s::bigint END) AS nodes OFFSET 0) AS f;

-- name: expand_in
SELECT CASE WHEN %(ontologies)s::int[] IS NULL THEN f.nodes
            ELSE ARRAY(SELECT c.id FROM kappa_graph.concepts AS c
                        WHERE c.id = ANY (f.nodes) AND c.ontology_id = ANY (%(ontologies)s::int[])
                        LIMIT %(most)s::bigint) END
  FROM (SELECT ARRAY(
            SELECT DISTINCT r.from_id FROM kappa_graph.relations AS r
             WHERE r.to_id = ANY (%(nodes)s::bigint[]) AND r.confidence >= %(min_confidence)s::smallint
               AND (%(types)s::int[] IS NULL OR r.type_id = ANY (%(types)s::int[]))
             LIMIT CASE WHEN %(ontologies)s::int[] IS NULL THEN %(most)s::bigint END) AS nodes OFFSET 0) AS f;

-- name: edges_out
WITH near AS MATERIALIZED (
    SELECT r.from_id, r.to_id, r.type_id FROM kappa_graph.relations AS r
     WHERE r.from_id = ANY (%(nodes)s::bigint[]) AND r.confidence >= %(min_confidence)s::smallint
       AND (%(types)s::int[] IS NULL OR r.type_id = ANY (%(types)s::int[]))
     LIMIT CASE WHEN %(ontologies)s::int[] IS NULL THEN %(most)s::bigint END
), passing AS MATERIALIZED (
    SELECT c.id FROM kappa_graph.concepts AS c
     WHERE c.id = ANY (ARRAY(SELECT DISTINCT to_id FROM near)) AND c.ontology_id = ANY (%(ontologies)s::int[])
)
SELECT array_agg(from_id), array_agg(to_id), array_agg(type_id) FROM (
    SELECT * FROM near
     WHERE %(ontologies)s::int[] IS NULL OR to_id = ANY (%(exempt)s::bigint[]) OR to_id IN (SELECT id FROM passing)
     LIMIT %(most)s::bigint) AS n;

-- name: edges_in
WITH near AS MATERIALIZED (
    SELECT r.from_id, r.to_id, r.type_id FROM kappa_graph.relations AS r
     WHERE r.to_id = ANY (%(nodes)s::bigint[]) AND r.confidence >= %(min_confidence)s::smallint
       AND (%(types)s::int[] IS NULL OR r.type_id = ANY (%(types)s::int[]))
     LIMIT CASE WHEN %(ontologies)s::int[] IS NULL THEN %(most)s::bigint END
), passing AS MATERIALIZED (
    SELECT c.id FROM kappa_graph.concepts AS c
     WHERE c.id = ANY (ARRAY(SELECT DISTINCT from_id FROM near)) AND c.ontology_id = ANY (%(ontologies)s::int[])
)
SELECT array_agg(to_id), array_agg(from_id), array_agg(type_id) FROM (
    SELECT * FROM near
     WHERE %(ontologies)s::int[] IS NULL OR from_id = ANY (%(exempt)s::bigint[]) OR from_id IN (SELECT id FROM passing)
     LIMIT %(most)s::bigint) AS n;

-- name: edges_among
SELECT array_agg(from_id), array_agg(to_id), array_agg(type_id) FROM (
    SELECT r.from_id, r.to_id, r.type_id FROM kappa_graph.relations AS r
     WHERE r.from_id = ANY (%(nodes)s::bigint[]) AND r.to_id = ANY (%(nodes)s::bigint[])
       AND r.confidence >= %(min_confidence)s::smallint
       AND (%(types)s::int[] IS NULL OR r.type_id = ANY (%(types)s::int[]))
     ORDER BY r.from_id, r.to_id, r.type_id
     LIMIT %(most)s::bigint) AS n;

-- name: degrees
SELECT array_agg(node), array_agg(degree) FROM (
    SELECT node, sum(n)::bigint AS degree FROM (
        SELECT from_id AS node, count(*) AS n FROM kappa_graph.relations
         WHERE from_id = ANY (%(nodes)s::bigint[]) GROUP BY from_id
        UNION ALL
        SELECT to_id, count(*) FROM kappa_graph.relations
         WHERE to_id = ANY (%(nodes)s::bigint[]) GROUP BY to_id) AS sides
     GROUP BY node) AS d;
