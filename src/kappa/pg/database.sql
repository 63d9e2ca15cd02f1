-- name: capacity
-- reserved_connections came with PostgreSQL 16. Background workers and the like hold no client's place.
SELECT current_setting('server_version_num')::int,
       current_setting('max_connections')::int,
       current_setting('superuser_reserved_connections')::int
           + coalesce(current_setting('reserved_connections', true)::int, 0),
       (SELECT count(*)::int FROM pg_stat_activity
         WHERE backend_type = 'client backend' AND pid <> pg_backend_pid());
