-- name: upload_owners
SELECT key, owner FROM kappa_graph.uploads WHERE key = ANY (%(keys)s::uuid[]);
