-- name: permissions_of_user
SELECT unnest(kappa.permissions_of(id)) FROM kappa.users WHERE name = %(name)s::text;

-- name: permissions_of_holders
SELECT DISTINCT p FROM kappa.user_roles AS r, unnest(kappa.permissions_of(r.user_id)) AS p WHERE r.role = %(role)s::text;
