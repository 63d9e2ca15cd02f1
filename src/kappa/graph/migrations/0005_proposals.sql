-- What was proposed, decided and done outlives the ontology it is about; and what was done can be undone.
ALTER TABLE kappa_graph.proposals
    ALTER COLUMN ontology_id DROP NOT NULL,
    DROP CONSTRAINT proposals_ontology_id_fkey,
    ADD CONSTRAINT proposals_ontology_id_fkey
        FOREIGN KEY (ontology_id) REFERENCES kappa_graph.ontologies ON DELETE SET NULL,
    DROP CONSTRAINT proposals_state_check,
    ADD CONSTRAINT proposals_state_check
        CHECK (state IN ('pending', 'approved', 'rejected', 'executed', 'failed', 'undone')),
    DROP CONSTRAINT proposals_execution,
    ADD CONSTRAINT proposals_execution CHECK ((state IN ('executed', 'failed', 'undone')) = (executed_at IS NOT NULL)),
    ADD COLUMN error             text,
    ADD COLUMN undo_requested_by text,
    ADD COLUMN undone_at         timestamptz,
    ADD CONSTRAINT proposals_undone CHECK ((state = 'undone') = (undone_at IS NOT NULL));
CREATE INDEX proposals_ontology ON kappa_graph.proposals (ontology_id);

-- What an execution changed, as it was before, in the order in which it was written down.
CREATE TABLE kappa_graph.undo_rows (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    proposal_id bigint NOT NULL REFERENCES kappa_graph.proposals ON DELETE CASCADE,
    what        text   NOT NULL,
    content     jsonb  NOT NULL
);
CREATE INDEX undo_rows_proposal ON kappa_graph.undo_rows (proposal_id, what);
