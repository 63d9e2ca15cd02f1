-- name: ensure
-- In the order of the names. Those that are there are left alone, and no number is spent on them.
INSERT INTO kappa_graph.relation_types (name, category)
SELECT n.name, n.category
  FROM unnest(%(names)s::text[], %(categories)s::text[]) AS n (name, category)
 WHERE NOT EXISTS (SELECT FROM kappa_graph.relation_types AS t WHERE t.name = n.name)
 ORDER BY n.name
ON CONFLICT (name) DO NOTHING;

-- name: find
-- The type of each name, or what it was merged into, and whether that still stands. Both are held until the transaction
-- ends, as a relation's reference to them will be: a merge waits for who holds them, and who waits for a merge sees it.
SELECT t.name, coalesce(e.merged_into, e.id), e.merged_into IS NULL
  FROM kappa_graph.relation_types AS t JOIN kappa_graph.relation_types AS e ON e.id = coalesce(t.merged_into, t.id)
 WHERE t.name = ANY (%(names)s::text[]) ORDER BY e.name, t.name FOR KEY SHARE;

-- name: find_all
SELECT t.id, t.name, t.category, t.active, m.name
  FROM kappa_graph.relation_types AS t LEFT JOIN kappa_graph.relation_types AS m ON m.id = t.merged_into
 ORDER BY t.id;
