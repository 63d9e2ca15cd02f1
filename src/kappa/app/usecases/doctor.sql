-- name: server
SELECT current_setting('server_version'),
       coalesce(host(inet_server_addr()) || ':' || inet_server_port(), 'a unix socket'),
       current_setting('server_encoding'),
       session_user::text,
       current_setting('is_superuser') = 'on';

-- name: extensions
SELECT wanted.name, installed.extversion, available.default_version
  FROM unnest(%(names)s::text[]) WITH ORDINALITY AS wanted (name, place)
  LEFT JOIN pg_extension AS installed ON installed.extname = wanted.name
  LEFT JOIN pg_available_extensions AS available ON available.name = wanted.name
 ORDER BY wanted.place;
