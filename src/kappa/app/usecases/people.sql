-- name: put_builtin_role
INSERT INTO kappa.roles (name, permissions, builtin) VALUES (%(name)s, %(permissions)s, true)
ON CONFLICT (name) DO UPDATE SET permissions = EXCLUDED.permissions, builtin = true
 WHERE roles.permissions <> EXCLUDED.permissions OR NOT roles.builtin;

-- name: read_roles
SELECT r.name, r.permissions, r.builtin, (SELECT count(*) FROM kappa.user_roles AS u WHERE u.role = r.name)
  FROM kappa.roles AS r ORDER BY r.builtin DESC, cardinality(r.permissions), r.name;

-- name: put_role
INSERT INTO kappa.roles (name, permissions) VALUES (%(name)s, %(permissions)s)
ON CONFLICT (name) DO UPDATE SET permissions = EXCLUDED.permissions WHERE NOT roles.builtin
RETURNING name;

-- name: lock_role
SELECT permissions, builtin, (SELECT count(*) FROM kappa.user_roles AS u WHERE u.role = r.name)
  FROM kappa.roles AS r WHERE name = %(name)s FOR UPDATE;

-- name: drop_role
DELETE FROM kappa.roles WHERE name = %(name)s;

-- name: permissions_of_roles
SELECT name, permissions FROM kappa.roles WHERE name = ANY (%(names)s::text[]) FOR SHARE;

-- name: read_users
SELECT u.id, u.name, u.enabled, u.password IS NOT NULL, u.created_at,
       coalesce((SELECT array_agg(r.role ORDER BY r.role) FROM kappa.user_roles AS r WHERE r.user_id = u.id), '{}'),
       kappa.permissions_of(u.id)
  FROM kappa.users AS u
 WHERE %(name)s::text IS NULL OR u.name = %(name)s::text
 ORDER BY u.name;

-- name: lock_user
SELECT id FROM kappa.users WHERE name = %(name)s FOR UPDATE;

-- name: lock_users
-- Whoever may take the last administrator away waits here for whoever does so at the same time.
SELECT kappa.lock_users();

-- name: make_user
INSERT INTO kappa.users (name, password) VALUES (%(name)s, %(password)s) ON CONFLICT (name) DO NOTHING RETURNING id;

-- name: change_user
UPDATE kappa.users
   SET enabled = coalesce(%(enabled)s::boolean, enabled), password = coalesce(%(password)s::text, password)
 WHERE id = %(id)s;

-- name: drop_user
DELETE FROM kappa.users WHERE id = %(id)s;

-- name: set_roles
WITH wanted AS (
    SELECT unnest(%(roles)s::text[]) AS role
), gone AS (
    DELETE FROM kappa.user_roles WHERE user_id = %(id)s AND role NOT IN (SELECT role FROM wanted)
)
INSERT INTO kappa.user_roles (user_id, role) SELECT %(id)s, role FROM wanted ON CONFLICT DO NOTHING;

-- name: end_sessions
DELETE FROM kappa.sessions WHERE user_id = %(id)s;

-- name: administrators
SELECT count(*) FROM kappa.users AS u
  JOIN kappa.user_roles AS r ON r.user_id = u.id AND r.role = 'platform_admin'
 WHERE u.enabled;
