-- name: record
INSERT INTO kappa.audit (who, action, target, detail, request_id)
VALUES (%(who)s, %(action)s, %(target)s, %(detail)s::jsonb, %(request_id)s::text);

-- name: read
SELECT id, at, who, action, target, detail, request_id FROM kappa.audit
 WHERE id < coalesce(%(before)s::bigint, 9223372036854775807)
 ORDER BY id DESC LIMIT %(limit)s::int;
