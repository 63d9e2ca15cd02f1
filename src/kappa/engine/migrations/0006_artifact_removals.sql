-- Bytes in the store of artifacts that are to be removed: written down before, forgotten after. No row of tool_artifacts
-- refers to them.
CREATE TABLE kappa.artifact_removals (
    sha256      text        PRIMARY KEY,
    recorded_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX tool_artifacts_content ON kappa.tool_artifacts (sha256);
