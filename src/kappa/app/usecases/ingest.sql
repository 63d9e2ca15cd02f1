-- name: lock_submissions
-- One submission to an ontology at a time. The number has no meaning; it must only never change.
SELECT pg_advisory_xact_lock(440631783, hashtext(%(ontology)s::text));
