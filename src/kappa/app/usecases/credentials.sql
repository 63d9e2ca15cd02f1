-- name: find_token
-- When it was last used is noted to the minute: a row is not written for every request.
WITH found AS (
    SELECT t.id, t.hash, u.id AS user_id, u.name, t.scopes, t.last_used_at
      FROM kappa.tokens AS t JOIN kappa.users AS u ON u.id = t.user_id
     WHERE t.hash = %(hash)s AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > now()) AND u.enabled
), used AS (
    UPDATE kappa.tokens AS t SET last_used_at = now()
      FROM found AS f
     WHERE t.id = f.id AND (f.last_used_at IS NULL OR f.last_used_at < now() - interval '1 minute')
)
SELECT id, hash, user_id, name, scopes, kappa.permissions_of(user_id) FROM found;

-- name: find_session
SELECT u.id, u.name, kappa.permissions_of(u.id), s.expires_at, s.token_id, t.scopes
  FROM kappa.sessions AS s JOIN kappa.users AS u ON u.id = s.user_id LEFT JOIN kappa.tokens AS t ON t.id = s.token_id
 WHERE s.hash = %(hash)s AND s.expires_at > now() AND u.enabled
   AND (t.id IS NULL OR (t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > now())));

-- name: make_token
INSERT INTO kappa.tokens (user_id, name, hash, scopes, expires_at, kinds, machines, requests_per_minute)
SELECT u.id, %(name)s, %(hash)s, %(scopes)s::text[], now() + %(lasts)s::interval, %(kinds)s::text[], %(machines)s,
       %(requests_per_minute)s
  FROM kappa.users AS u WHERE u.name = %(user)s
RETURNING id, expires_at;

-- name: read_tokens
SELECT t.id, u.name, t.name, t.scopes, t.kinds, t.machines, t.requests_per_minute, t.created_at, t.expires_at, t.revoked_at, t.last_used_at
  FROM kappa.tokens AS t JOIN kappa.users AS u ON u.id = t.user_id
 WHERE (%(user)s::text IS NULL OR u.name = %(user)s::text) AND (%(id)s::bigint IS NULL OR t.id = %(id)s::bigint)
 ORDER BY t.id DESC;

-- name: revoke_token
UPDATE kappa.tokens SET revoked_at = now() WHERE id = %(id)s AND revoked_at IS NULL RETURNING id;

-- name: password_of
SELECT id, name, password FROM kappa.users WHERE name = %(name)s AND enabled;

-- name: still_fits
-- The password may have been changed, or its user switched off, while it was looked at. Holds either off until the commit.
SELECT id FROM kappa.users WHERE id = %(id)s AND enabled AND password = %(password)s FOR SHARE;

-- name: make_session
INSERT INTO kappa.sessions (hash, user_id, expires_at, token_id)
VALUES (%(hash)s, %(user_id)s, now() + %(lasts)s::interval, %(token_id)s::bigint)
RETURNING expires_at, kappa.permissions_of(user_id);

-- name: end_session
DELETE FROM kappa.sessions WHERE hash = %(hash)s;

-- name: forget_sessions
DELETE FROM kappa.sessions WHERE expires_at <= now();

-- name: lock_sign_in
-- One try at a time for a name and for an address: many at once would all see the same count. In one order for all.
SELECT kappa.lock_sign_in(key)
  FROM (SELECT DISTINCT hashtext(k) AS key FROM unnest(%(keys)s::text[]) AS k ORDER BY 1 OFFSET 0) AS ordered;

-- name: failures
-- How many failures there were lately, and the seconds until the oldest of them counts no more.
SELECT count(*), extract(epoch FROM min(at) + %(within)s::interval - now())::double precision
  FROM kappa.sign_in_failures WHERE key = %(key)s AND at > now() - %(within)s::interval;

-- name: note_failure
INSERT INTO kappa.sign_in_failures (key) SELECT unnest(%(keys)s::text[]);

-- name: forget_failures
-- All of the name's from this place, and of the others' the one that was noted for this try.
DELETE FROM kappa.sign_in_failures
 WHERE key = %(own)s::text
    OR ctid = ANY (ARRAY(SELECT (SELECT f.ctid FROM kappa.sign_in_failures AS f WHERE f.key = k ORDER BY f.at DESC LIMIT 1)
                           FROM unnest(%(others)s::text[]) AS k));

-- name: known_place
SELECT 1 FROM kappa.sign_in_places AS p JOIN kappa.users AS u ON u.id = p.user_id
 WHERE u.name = %(name)s::text AND p.place = %(place)s::text;

-- name: keep_place
INSERT INTO kappa.sign_in_places AS p (user_id, place) VALUES (%(user_id)s, %(place)s::text)
ON CONFLICT (user_id, place) DO UPDATE SET last_at = now();

-- name: forget_old_places
DELETE FROM kappa.sign_in_places WHERE last_at < now() - %(within)s::interval;

-- name: forget_old_failures
DELETE FROM kappa.sign_in_failures WHERE at < now() - %(within)s::interval;

-- name: signing_key
SELECT signing_key FROM kappa.server_secrets;
