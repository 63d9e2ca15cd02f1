-- name: lock_submissions
-- One submission to an ontology at a time.
SELECT kappa_graph.lock_ingestion(%(ontology)s::text);
