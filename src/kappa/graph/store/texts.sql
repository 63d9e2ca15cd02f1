-- name: words
-- A text as two queries: what has every word of it, and what has any.
SELECT kappa_graph.every_word(%(said)s::text, %(plain)s::boolean)::text, kappa_graph.some_word(%(said)s::text)::text;

-- name: named
-- Labels that are the text, or begin with it: the less there is beyond it, the better.
SELECT h.id, h.score, true,
       ts_filter(c.words, '{b}') @@ %(some)s::tsquery, ts_filter(c.words, '{c}') @@ %(some)s::tsquery
  FROM (SELECT n.id,
               CASE WHEN lower(n.label) = lower(%(said)s::text) THEN 1.0::float8
                    ELSE 0.75 + 0.2 * least(1.0, char_length(%(said)s::text)::float8 / char_length(n.label)) END AS score
          FROM kappa_graph.concepts AS n
         WHERE lower(left(n.label, 500)) ~>=~ lower(left(%(said)s::text, 500))
           AND lower(left(n.label, 500)) ~<~ (lower(left(%(said)s::text, 500)) || %(last)s::text)
           AND (%(ontologies)s::int[] IS NULL OR n.ontology_id = ANY (%(ontologies)s::int[]))
           AND n.id <> %(never)s::bigint
         ORDER BY score DESC, n.id LIMIT %(most)s::int) AS h
  JOIN kappa_graph.concepts AS c USING (id);

-- name: every_word
SELECT h.id, h.score, ts_filter(c.words, '{a}') @@ q.any_of, ts_filter(c.words, '{b}') @@ q.any_of,
       ts_filter(c.words, '{c}') @@ q.any_of
  FROM (SELECT n.id, 0.5 + 0.25 * ts_rank(n.words, %(every)s::tsquery, 32) AS score
          FROM kappa_graph.concepts AS n
         WHERE n.words @@ %(every)s::tsquery
           AND (%(ontologies)s::int[] IS NULL OR n.ontology_id = ANY (%(ontologies)s::int[]))
           AND n.id <> %(never)s::bigint
         ORDER BY score DESC, n.id LIMIT %(most)s::int) AS h
  JOIN kappa_graph.concepts AS c USING (id)
 CROSS JOIN (SELECT %(every)s::tsquery || %(some)s::tsquery AS any_of) AS q;

-- name: some_word
SELECT h.id, h.score, ts_filter(c.words, '{a}') @@ %(some)s::tsquery, ts_filter(c.words, '{b}') @@ %(some)s::tsquery,
       ts_filter(c.words, '{c}') @@ %(some)s::tsquery
  FROM (SELECT n.id, 0.5 * ts_rank(n.words, %(some)s::tsquery, 32) AS score
          FROM kappa_graph.concepts AS n
         WHERE n.words @@ %(some)s::tsquery
           AND (%(ontologies)s::int[] IS NULL OR n.ontology_id = ANY (%(ontologies)s::int[]))
           AND n.id <> %(never)s::bigint
         ORDER BY score DESC, n.id LIMIT %(most)s::int) AS h
  JOIN kappa_graph.concepts AS c USING (id);

-- name: spelled_like
SELECT s.node, 0.49 * s.likeness, true, false, false
  FROM kappa_graph.spelled_like(%(said)s::text, %(ontologies)s::int[], %(never)s::bigint, %(most)s::int) AS s;
