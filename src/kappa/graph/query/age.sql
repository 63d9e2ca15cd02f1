-- What stands in braces is put in by age.py: tables and columns of one graph, quoted; nothing that a question says.
-- Operators are named with their schema, since a connection's search path doesn't have AGE's.

-- name: labels
SELECT l.id::int, l.name::text, l.kind::text, c.relname::text
  FROM ag_catalog.ag_graph AS g
  JOIN ag_catalog.ag_label AS l ON l.graph = g.graphid
  JOIN pg_catalog.pg_class AS c ON c.oid = l.relation
 WHERE g.name = %(graph)s::name;

-- name: ontologies
-- Places of those names that some vertex has. The first one is enough; EXISTS might be planned to read them all.
SELECT n.place
  FROM unnest(%(names)s::ag_catalog.agtype[]) WITH ORDINALITY AS n (name, place)
 WHERE (SELECT true FROM {vertices} AS v WHERE {ontology} OPERATOR(ag_catalog.=) n.name LIMIT 1);

-- name: numbers
SELECT v.id, {id}
  FROM {vertices} AS v
 WHERE {id} OPERATOR(ag_catalog.=) ANY (%(ids)s::ag_catalog.agtype[])
 ORDER BY v.id DESC;

-- name: ids
SELECT v.id, {id} FROM {vertices} AS v WHERE v.id OPERATOR(ag_catalog.=) ANY (%(nodes)s::ag_catalog.graphid[]);

-- name: rows
SELECT v.id, {id}, {label}, {description}, {ontology}, {search_terms}
  FROM {vertices} AS v
 WHERE v.id OPERATOR(ag_catalog.=) ANY (%(nodes)s::ag_catalog.graphid[]);

-- name: embeddings
SELECT v.id, {embedding_model}, {embedding}
  FROM {vertices} AS v
 WHERE v.id OPERATOR(ag_catalog.=) ANY (%(nodes)s::ag_catalog.graphid[]) AND {embedding} IS NOT NULL;

-- name: expand_out
-- A confidence that is no number is none: of all that can be compared, numbers are what is not below -Infinity.
SELECT array_agg(node) FROM (
    SELECT DISTINCT e.end_id AS node FROM {edges} AS e
     WHERE e.start_id OPERATOR(ag_catalog.=) ANY (%(nodes)s::ag_catalog.graphid[])
       AND (%(least)s::ag_catalog.agtype IS NULL OR coalesce(NOT (
            {confidence} OPERATOR(ag_catalog.<) %(least)s::ag_catalog.agtype
            AND {confidence} OPERATOR(ag_catalog.>=) '-Infinity'::ag_catalog.agtype), true))
       AND (%(ontologies)s::ag_catalog.agtype[] IS NULL OR EXISTS (
            SELECT FROM {vertices} AS v
             WHERE v.id OPERATOR(ag_catalog.=) e.end_id
               AND {ontology} OPERATOR(ag_catalog.=) ANY (%(ontologies)s::ag_catalog.agtype[])))
     LIMIT %(most)s::bigint) AS n;

-- name: expand_in
SELECT array_agg(node) FROM (
    SELECT DISTINCT e.start_id AS node FROM {edges} AS e
     WHERE e.end_id OPERATOR(ag_catalog.=) ANY (%(nodes)s::ag_catalog.graphid[])
       AND (%(least)s::ag_catalog.agtype IS NULL OR coalesce(NOT (
            {confidence} OPERATOR(ag_catalog.<) %(least)s::ag_catalog.agtype
            AND {confidence} OPERATOR(ag_catalog.>=) '-Infinity'::ag_catalog.agtype), true))
       AND (%(ontologies)s::ag_catalog.agtype[] IS NULL OR EXISTS (
            SELECT FROM {vertices} AS v
             WHERE v.id OPERATOR(ag_catalog.=) e.start_id
               AND {ontology} OPERATOR(ag_catalog.=) ANY (%(ontologies)s::ag_catalog.agtype[])))
     LIMIT %(most)s::bigint) AS n;

-- name: edges_out
-- An edge's own id tells its type.
SELECT array_agg(start_id), array_agg(end_id), array_agg(id) FROM (
    SELECT e.start_id, e.end_id, e.id FROM {edges} AS e
     WHERE e.start_id OPERATOR(ag_catalog.=) ANY (%(nodes)s::ag_catalog.graphid[])
       AND (%(least)s::ag_catalog.agtype IS NULL OR coalesce(NOT (
            {confidence} OPERATOR(ag_catalog.<) %(least)s::ag_catalog.agtype
            AND {confidence} OPERATOR(ag_catalog.>=) '-Infinity'::ag_catalog.agtype), true))
       AND (%(ontologies)s::ag_catalog.agtype[] IS NULL
            OR e.end_id OPERATOR(ag_catalog.=) ANY (%(exempt)s::ag_catalog.graphid[]) OR EXISTS (
            SELECT FROM {vertices} AS v
             WHERE v.id OPERATOR(ag_catalog.=) e.end_id
               AND {ontology} OPERATOR(ag_catalog.=) ANY (%(ontologies)s::ag_catalog.agtype[])))
     LIMIT %(most)s::bigint) AS n;

-- name: edges_in
SELECT array_agg(end_id), array_agg(start_id), array_agg(id) FROM (
    SELECT e.start_id, e.end_id, e.id FROM {edges} AS e
     WHERE e.end_id OPERATOR(ag_catalog.=) ANY (%(nodes)s::ag_catalog.graphid[])
       AND (%(least)s::ag_catalog.agtype IS NULL OR coalesce(NOT (
            {confidence} OPERATOR(ag_catalog.<) %(least)s::ag_catalog.agtype
            AND {confidence} OPERATOR(ag_catalog.>=) '-Infinity'::ag_catalog.agtype), true))
       AND (%(ontologies)s::ag_catalog.agtype[] IS NULL
            OR e.start_id OPERATOR(ag_catalog.=) ANY (%(exempt)s::ag_catalog.graphid[]) OR EXISTS (
            SELECT FROM {vertices} AS v
             WHERE v.id OPERATOR(ag_catalog.=) e.start_id
               AND {ontology} OPERATOR(ag_catalog.=) ANY (%(ontologies)s::ag_catalog.agtype[])))
     LIMIT %(most)s::bigint) AS n;

-- name: edges_among
SELECT array_agg(start_id), array_agg(end_id), array_agg(id) FROM (
    SELECT e.start_id, e.end_id, e.id FROM {edges} AS e
     WHERE e.start_id OPERATOR(ag_catalog.=) ANY (%(nodes)s::ag_catalog.graphid[])
       AND e.end_id OPERATOR(ag_catalog.=) ANY (%(nodes)s::ag_catalog.graphid[])
       AND (%(least)s::ag_catalog.agtype IS NULL OR coalesce(NOT (
            {confidence} OPERATOR(ag_catalog.<) %(least)s::ag_catalog.agtype
            AND {confidence} OPERATOR(ag_catalog.>=) '-Infinity'::ag_catalog.agtype), true))
     ORDER BY e.start_id, e.end_id, e.id
     LIMIT %(most)s::bigint) AS n;

-- name: degrees
SELECT array_agg(node), array_agg(degree) FROM (
    SELECT node, sum(n)::bigint AS degree FROM (
        SELECT e.start_id AS node, count(*) AS n FROM {edges} AS e
         WHERE e.start_id OPERATOR(ag_catalog.=) ANY (%(nodes)s::ag_catalog.graphid[]) GROUP BY e.start_id
        UNION ALL
        SELECT e.end_id, count(*) FROM {edges} AS e
         WHERE e.end_id OPERATOR(ag_catalog.=) ANY (%(nodes)s::ag_catalog.graphid[]) GROUP BY e.end_id) AS sides
     GROUP BY node) AS d;

-- name: between
SELECT e.start_id, e.end_id, e.id, {confidence}, {category}
  FROM unnest(%(from_nodes)s::ag_catalog.graphid[], %(to_nodes)s::ag_catalog.graphid[]) AS p (start_id, end_id)
  JOIN {edges} AS e
    ON e.start_id OPERATOR(ag_catalog.=) p.start_id AND e.end_id OPERATOR(ag_catalog.=) p.end_id
 WHERE %(least)s::ag_catalog.agtype IS NULL OR coalesce(NOT (
       {confidence} OPERATOR(ag_catalog.<) %(least)s::ag_catalog.agtype
       AND {confidence} OPERATOR(ag_catalog.>=) '-Infinity'::ag_catalog.agtype), true)
 ORDER BY e.start_id, e.end_id, e.id;
