-- name: read
SELECT workers, extract(epoch FROM timeout)::double precision FROM kappa_graph.graph_settings;

-- name: edit
UPDATE kappa_graph.graph_settings
   SET workers = %(workers)s::int, timeout = make_interval(secs => %(timeout)s::double precision), updated_at = now();
