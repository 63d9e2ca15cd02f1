-- name: clients
SELECT coalesce(nullif(application_name, ''), 'a client'), datname
  FROM pg_stat_activity
 WHERE backend_type = 'client backend' AND application_name <> %(ours)s
 ORDER BY backend_start;
