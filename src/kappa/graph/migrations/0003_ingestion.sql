-- Files that were handed in, as they came, until they are in the graph or nobody wants them any more. What was counted
-- in them stands beside them, so that whoever submits them need not read them again.
CREATE TABLE kappa_graph.uploads (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key        uuid        NOT NULL UNIQUE,
    owner      text        NOT NULL,
    name       text        NOT NULL CHECK (name <> ''),
    sha256     bytea       NOT NULL CHECK (length(sha256) = 32),
    size       bigint      NOT NULL,
    media_type text        NOT NULL,
    bytes      bytea       NOT NULL,
    words      int         NOT NULL CHECK (words >= 0),
    chunks     int         NOT NULL CHECK (chunks >= 0),
    ocr_pages  int         NOT NULL DEFAULT 0 CHECK (ocr_pages >= 0),
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    CONSTRAINT uploads_size CHECK (size = length(bytes))
);
-- Most formats are packed already; packing them once more would take seconds.
ALTER TABLE kappa_graph.uploads ALTER COLUMN bytes SET STORAGE EXTERNAL;
CREATE INDEX uploads_expiry ON kappa_graph.uploads (expires_at);

-- The chunks of a document, all of them before the first is looked at. A chunk is done in the transaction that wrote what
-- it says, and so is never looked at twice. `run` is who was asked to do it: another run may try again what failed.
CREATE TABLE kappa_graph.chunk_plan (
    document_id  bigint      NOT NULL REFERENCES kappa_graph.documents ON DELETE CASCADE,
    ordinal      int         NOT NULL CHECK (ordinal >= 0),
    start_offset int         NOT NULL CHECK (start_offset >= 0),
    end_offset   int         NOT NULL,
    words        int         NOT NULL,
    state        text        NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'done', 'failed')),
    run          text        NOT NULL,
    extractor    text,
    concepts     int         NOT NULL DEFAULT 0,
    instances    int         NOT NULL DEFAULT 0,
    relations    int         NOT NULL DEFAULT 0,
    matched      int         NOT NULL DEFAULT 0,
    dropped      int         NOT NULL DEFAULT 0,
    error        text,
    finished_at  timestamptz,
    PRIMARY KEY (document_id, ordinal),
    CONSTRAINT chunk_plan_offsets CHECK (end_offset > start_offset),
    CONSTRAINT chunk_plan_finished CHECK ((state = 'pending') = (finished_at IS NULL)),
    CONSTRAINT chunk_plan_failed CHECK ((state = 'failed') = (error IS NOT NULL))
);

-- Vectors are compared only with those of their model and length; concepts have had both since they have vectors.
ALTER TABLE kappa_graph.sources
    ADD COLUMN dimension int GENERATED ALWAYS AS (cardinality(embedding)) STORED;
ALTER TABLE kappa_graph.sources ALTER COLUMN embedding SET STORAGE EXTERNAL;
ALTER TABLE kappa_graph.relation_types
    ADD COLUMN dimension int GENERATED ALWAYS AS (cardinality(embedding)) STORED;
