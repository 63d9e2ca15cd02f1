-- name: find_passes
-- Many at once. When they were last used is noted to the minute, as for any token.
WITH found AS (
    SELECT t.id, t.hash, t.scopes, t.user_id, t.kinds, t.machines, t.requests_per_minute, t.expires_at, t.last_used_at
      FROM kappa.tokens AS t JOIN kappa.users AS u ON u.id = t.user_id
     WHERE t.hash = ANY (%(hashes)s::bytea[]) AND t.revoked_at IS NULL
       AND (t.expires_at IS NULL OR t.expires_at > now()) AND u.enabled
), used AS (
    UPDATE kappa.tokens AS t SET last_used_at = now()
      FROM found AS f
     WHERE t.id = f.id AND (f.last_used_at IS NULL OR f.last_used_at < now() - interval '1 minute')
), allowed AS (
    SELECT u.user_id, kappa.permissions_of(u.user_id) AS permissions FROM (SELECT DISTINCT user_id FROM found) AS u
)
SELECT f.hash, f.id, f.kinds, f.machines, f.requests_per_minute,
       extract(epoch FROM f.expires_at - now())::double precision,
       'fleet:work' = ANY (a.permissions) AND (f.scopes IS NULL OR 'fleet:work' = ANY (f.scopes))
  FROM found AS f JOIN allowed AS a ON a.user_id = f.user_id;
