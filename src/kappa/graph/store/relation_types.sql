-- name: ensure
-- In the order of the names. Those that are there are left alone, and no number is spent on them.
INSERT INTO kappa_graph.relation_types (name, category)
SELECT n.name, n.category
  FROM unnest(%(names)s::text[], %(categories)s::text[]) AS n (name, category)
 WHERE NOT EXISTS (SELECT FROM kappa_graph.relation_types AS t WHERE t.name = n.name)
 ORDER BY n.name
ON CONFLICT (name) DO NOTHING;

-- name: hold
-- Nothing is merged and no merge is undone until the transaction ends. Writers hold it together.
SELECT kappa_graph.share_merges();

-- name: find
-- The type of each name, or what it was merged into.
SELECT t.name, coalesce(t.merged_into, t.id) FROM kappa_graph.relation_types AS t
 WHERE t.name = ANY (%(names)s::text[]);

-- name: find_all
SELECT t.id, t.name, t.category, t.active, m.name
  FROM kappa_graph.relation_types AS t LEFT JOIN kappa_graph.relation_types AS m ON m.id = t.merged_into
 ORDER BY t.id;
