-- name: add
-- The same file again only lives longer.
INSERT INTO kappa_graph.uploads (key, owner, name, sha256, size, media_type, bytes, words, chunks, ocr_pages, expires_at)
VALUES (%(key)s::uuid, %(owner)s::text, %(name)s::text, %(sha256)s::bytea, length(%(bytes)s::bytea),
        %(media_type)s::text, %(bytes)s::bytea, %(words)s::int, %(chunks)s::int, %(ocr_pages)s::int,
        now() + %(keep)s::interval)
ON CONFLICT (key) DO UPDATE SET expires_at = excluded.expires_at, words = excluded.words, chunks = excluded.chunks,
       ocr_pages = excluded.ocr_pages, media_type = excluded.media_type;

-- name: keep
-- Those that are there, each kept for a while from now on.
UPDATE kappa_graph.uploads SET expires_at = greatest(expires_at, now() + %(keep)s::interval)
 WHERE key = ANY (%(keys)s::uuid[])
RETURNING key, owner, name, sha256, size, media_type, words, chunks, ocr_pages;

-- name: find
SELECT key, owner, name, sha256, size, media_type, words, chunks, ocr_pages
  FROM kappa_graph.uploads WHERE key = ANY (%(keys)s::uuid[]);

-- name: bytes
SELECT bytes FROM kappa_graph.uploads WHERE key = %(key)s::uuid;

-- name: kept_bytes
SELECT coalesce(sum(size), 0)::bigint FROM kappa_graph.uploads
 WHERE owner = %(owner)s::text AND key IS DISTINCT FROM %(but)s::uuid;
