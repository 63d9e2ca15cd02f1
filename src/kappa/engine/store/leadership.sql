-- name: try_lead
SELECT term, refused FROM kappa.try_lead(%(owner)s, %(ttl)s::interval);

-- name: share_term
SELECT kappa.share_term(%(term)s::bigint);

-- name: beat
UPDATE kappa.leadership SET heartbeat_at = clock_timestamp() WHERE term = %(term)s::bigint RETURNING term;
