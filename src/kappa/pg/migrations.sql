-- name: ledger_exists
SELECT to_regclass('kappa.migrations') IS NOT NULL;

-- name: create_schema
CREATE SCHEMA IF NOT EXISTS kappa;

-- name: create_ledger
CREATE TABLE kappa.migrations (
    component  text        NOT NULL,
    number     int         NOT NULL,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    compatible boolean     NOT NULL DEFAULT false,
    PRIMARY KEY (component, number)
);

-- name: ledger_knows_compatible
SELECT EXISTS (SELECT FROM pg_attribute
                WHERE attrelid = 'kappa.migrations'::regclass AND attname = 'compatible' AND NOT attisdropped);

-- name: upgrade_ledger
-- What is in it was recorded by versions that knew no marks: none of it is compatible.
ALTER TABLE IF EXISTS kappa.migrations ADD COLUMN IF NOT EXISTS compatible boolean NOT NULL DEFAULT false;

-- name: lock
-- The number has no meaning; it must only never change.
SELECT pg_advisory_xact_lock(7165920146038241);

-- name: applied
-- Also from a ledger of an earlier version, which has no such column.
SELECT number, name, checksum, coalesce((to_jsonb(m) ->> 'compatible')::boolean, false)
  FROM kappa.migrations AS m
 WHERE component = %(component)s
 ORDER BY number;

-- name: record
INSERT INTO kappa.migrations (component, number, name, checksum, compatible)
VALUES (%(component)s, %(number)s, %(name)s, %(checksum)s, %(compatible)s);
