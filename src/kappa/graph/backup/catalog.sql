-- name: columns
-- Those that are written, in their order, each with the table that it refers to.
SELECT a.attname::text, r.relname::text
  FROM pg_attribute AS a
  LEFT JOIN pg_constraint AS c ON c.conrelid = a.attrelid AND c.contype = 'f' AND c.conkey = ARRAY[a.attnum]
  LEFT JOIN pg_class AS r ON r.oid = c.confrelid
 WHERE a.attrelid = ('kappa_graph.' || quote_ident(%(table)s::text))::regclass
   AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
 ORDER BY a.attnum;

-- name: tables
SELECT c.relname::text FROM pg_class AS c
 WHERE c.relnamespace = 'kappa_graph'::regnamespace AND c.relkind IN ('r', 'p') ORDER BY c.relname;

-- name: plain_values
-- What COPY writes doesn't depend on anybody's settings.
SELECT set_config('datestyle', 'ISO, YMD', true), set_config('intervalstyle', 'postgres', true),
       set_config('timezone', 'UTC', true), set_config('bytea_output', 'hex', true),
       set_config('extra_float_digits', '1', true), set_config('client_encoding', 'UTF8', true);

-- name: moment
SELECT now(), coalesce((SELECT max(epoch) FROM kappa_graph.epochs), 0);

-- name: reload
-- Snapshots are built anew: more has changed than the log should list.
INSERT INTO kappa_graph.changes (kind) VALUES ('reload');

-- name: raise_epoch
-- No artifact is as of a time that is still to come.
SELECT setval('kappa_graph.epoch_numbers', %(epoch)s::bigint)
 WHERE %(epoch)s::bigint > (SELECT last_value FROM kappa_graph.epoch_numbers);

-- name: raise_numbers
-- The next id is none that was given; ids are never given twice.
SELECT setval(pg_get_serial_sequence('kappa_graph.' || %(table)s::text, 'id'), %(most)s::bigint)
 WHERE %(most)s::bigint > coalesce(pg_sequence_last_value(
           pg_get_serial_sequence('kappa_graph.' || %(table)s::text, 'id')::regclass), 0);

-- name: forget_runs
-- They are the numbers of jobs, which are others where the file is restored.
UPDATE pg_temp.staged_chunk_plan SET run = '';
