-- Backups on their way to the worker that restores them, which may be on another machine than the server that took them
-- in. Packed already: to try to pack them again would be in vain.
CREATE TABLE kappa.restore_files (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id      bigint      UNIQUE,  -- the one job that may use it; none until it is whole
    uploaded_by text        NOT NULL,
    uploaded_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE kappa.restore_pieces (
    file_id  bigint NOT NULL REFERENCES kappa.restore_files ON DELETE CASCADE,
    position int    NOT NULL CHECK (position >= 0),
    content  bytea  NOT NULL,
    PRIMARY KEY (file_id, position)
);
ALTER TABLE kappa.restore_pieces ALTER COLUMN content SET STORAGE EXTERNAL;
