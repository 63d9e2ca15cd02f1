-- name: clients
SELECT coalesce(nullif(application_name, ''), 'a client'), datname
  FROM pg_stat_activity
 WHERE backend_type = 'client backend' AND application_name <> %(ours)s
 ORDER BY backend_start;

-- name: database_exists
SELECT 1 FROM pg_database WHERE datname = %(name)s;

-- name: create_database
CREATE DATABASE kappa;
