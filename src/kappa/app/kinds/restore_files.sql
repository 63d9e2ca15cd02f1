-- name: begin
INSERT INTO kappa.restore_files (uploaded_by) VALUES (%(who)s::text) RETURNING id;

-- name: add
INSERT INTO kappa.restore_pieces (file_id, position, content) VALUES (%(file)s::bigint, %(position)s::int, %(content)s::bytea);

-- name: tie
UPDATE kappa.restore_files SET job_id = %(job)s::bigint WHERE id = %(file)s::bigint;

-- name: drop
DELETE FROM kappa.restore_files WHERE id = %(file)s::bigint;

-- name: size
SELECT coalesce(sum(length(p.content)), 0)::bigint
  FROM kappa.restore_files AS f LEFT JOIN kappa.restore_pieces AS p ON p.file_id = f.id
 WHERE f.id = %(file)s::bigint AND f.job_id = %(job)s::bigint
 GROUP BY f.id;

-- name: piece
SELECT content FROM kappa.restore_pieces WHERE file_id = %(file)s::bigint AND position = %(position)s::int;

-- name: forget
-- What no job will ask for again.
DELETE FROM kappa.restore_files AS f
 WHERE f.uploaded_at < coalesce(%(now)s::timestamptz, now()) - interval '1 day'
   AND NOT EXISTS (SELECT FROM kappa.jobs AS j WHERE j.id = f.job_id)
RETURNING f.id;
