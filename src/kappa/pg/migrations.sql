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
    PRIMARY KEY (component, number)
);

-- name: lock
-- The number has no meaning; it must only never change.
SELECT pg_advisory_xact_lock(7165920146038241);

-- name: applied
SELECT number, name, checksum
  FROM kappa.migrations
 WHERE component = %(component)s
 ORDER BY number;

-- name: record
INSERT INTO kappa.migrations (component, number, name, checksum)
VALUES (%(component)s, %(number)s, %(name)s, %(checksum)s);
