-- What is measured of the vocabulary. None of it is logged as a change: it follows from the graph, and nothing that
-- is kept in memory holds it.

-- The types that say what a category means, and which way is for and which against, each by a model's embedding.
CREATE TABLE kappa_graph.seed_types (
    name      text   NOT NULL CHECK (name <> ''),
    model     text   NOT NULL CHECK (model <> ''),
    embedding real[] NOT NULL,
    PRIMARY KEY (model, name)
);

CREATE TABLE kappa_graph.type_measures (
    type_id   int     PRIMARY KEY REFERENCES kappa_graph.relation_types ON DELETE CASCADE,
    -- By vocab_refresh: 1 speaks for its target, -1 against it, empty where its embedding doesn't tell; the likeness to
    -- each category, and which is the best.
    stance    real    CHECK (stance BETWEEN -1 AND 1),
    model     text,
    scores    jsonb,
    best      text,
    ambiguous boolean NOT NULL DEFAULT false,
    -- By epistemic_remeasurement: what the targets of a sample of its relations rest on.
    epistemic text    CHECK (epistemic IN ('well', 'mixed', 'weak', 'poorly', 'contradicted', 'insufficient')),
    grounding real,
    sampled   int,
    grounded  int,
    CONSTRAINT type_measures_refreshed CHECK (stance IS NULL OR model IS NOT NULL),
    CONSTRAINT type_measures_sampled CHECK ((epistemic IS NULL) = (sampled IS NULL))
);

-- Up to which epoch a kind of measuring has seen the graph, and with what parameters: the same again finds nothing new.
CREATE TABLE kappa_graph.measured (
    kind        text        PRIMARY KEY,
    parameters  jsonb       NOT NULL,
    as_of_epoch bigint      NOT NULL,
    result      jsonb       NOT NULL,
    at          timestamptz NOT NULL DEFAULT now()
);

-- A merge of one type into another, with all it takes to undo it.
CREATE TABLE kappa_graph.type_merges (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    merged     int         NOT NULL REFERENCES kappa_graph.relation_types ON DELETE CASCADE,
    survivor   int         NOT NULL REFERENCES kappa_graph.relation_types ON DELETE CASCADE,
    similarity real,
    made_by    text        NOT NULL DEFAULT '',
    made_at    timestamptz NOT NULL DEFAULT now(),
    undone_by  text,
    undone_at  timestamptz,
    -- Relations that only changed their type, and types that had been merged into this one before.
    moved      bigint[]    NOT NULL,
    followers  int[]       NOT NULL,
    CONSTRAINT type_merges_ends CHECK (merged <> survivor),
    CONSTRAINT type_merges_undone CHECK ((undone_by IS NULL) = (undone_at IS NULL))
);
CREATE INDEX type_merges_survivor ON kappa_graph.type_merges (survivor) WHERE undone_at IS NULL;
CREATE INDEX type_merges_merged ON kappa_graph.type_merges (merged) WHERE undone_at IS NULL;

-- Relations that were there in both types: the merged one as it was, and what it gave to the one that stays.
CREATE TABLE kappa_graph.merged_relations (
    merge_id      bigint      NOT NULL REFERENCES kappa_graph.type_merges ON DELETE CASCADE,
    relation_id   bigint      NOT NULL,
    kept_id       bigint      NOT NULL,
    from_id       bigint      NOT NULL,
    to_id         bigint      NOT NULL,
    confidence    smallint    NOT NULL,
    category      text        NOT NULL,
    provenance    text        NOT NULL,
    created_at    timestamptz NOT NULL,
    sources       bigint[]    NOT NULL,
    given_sources bigint[]    NOT NULL,
    kept_before   smallint    NOT NULL,
    PRIMARY KEY (merge_id, relation_id)
);
