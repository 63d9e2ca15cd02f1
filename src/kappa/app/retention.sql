-- name: forget_audit
-- Of the oldest entries, which have the lowest numbers: nothing else is looked at.
DELETE FROM kappa.audit
 WHERE id IN (SELECT o.id FROM (SELECT id, at FROM kappa.audit ORDER BY id LIMIT %(limit)s::int) AS o
               WHERE o.at < coalesce(%(now)s::timestamptz, now()) - %(keep)s::interval)
RETURNING id;
