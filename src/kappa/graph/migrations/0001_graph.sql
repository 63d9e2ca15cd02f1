CREATE SCHEMA kappa_graph;

-- Empty columns mean: as the process's own configuration says.
CREATE TABLE kappa_graph.graph_settings (
    only_row   boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    workers    int         CHECK (workers BETWEEN 1 AND 32),
    timeout    interval    CHECK (timeout BETWEEN '5 seconds' AND '120 seconds'),
    updated_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO kappa_graph.graph_settings DEFAULT VALUES;

-- The key is made of the first name and stays when the ontology is renamed, and so do the keys of its concepts.
-- Ids of ontologies and types fit into sixteen bits, which is what the snapshot spends on them.
CREATE TABLE kappa_graph.ontologies (
    id          int         GENERATED ALWAYS AS IDENTITY PRIMARY KEY CHECK (id BETWEEN 1 AND 65535),
    key         uuid        NOT NULL UNIQUE,
    name        text        NOT NULL UNIQUE CHECK (name <> ''),
    description text        NOT NULL DEFAULT '',
    created_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE kappa_graph.documents (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key          uuid        NOT NULL UNIQUE,
    ontology_id  int         NOT NULL REFERENCES kappa_graph.ontologies ON DELETE CASCADE,
    name         text        NOT NULL,
    content_hash bytea       NOT NULL CHECK (length(content_hash) = 32),
    media_type   text        NOT NULL DEFAULT 'text/plain',
    text         text        NOT NULL,
    original     bytea,
    created_at   timestamptz NOT NULL DEFAULT now(),
    UNIQUE (ontology_id, content_hash)
);

-- A chunk of a document: characters start_offset up to end_offset of its text.
CREATE TABLE kappa_graph.sources (
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key             uuid        NOT NULL UNIQUE,
    document_id     bigint      NOT NULL REFERENCES kappa_graph.documents ON DELETE CASCADE,
    ordinal         int         NOT NULL CHECK (ordinal >= 0),
    start_offset    int         NOT NULL CHECK (start_offset >= 0),
    end_offset      int         NOT NULL,
    text            text        NOT NULL,
    embedding       real[],
    embedding_model text,
    embedded_hash   bytea,
    created_at      timestamptz NOT NULL DEFAULT now(),
    UNIQUE (document_id, start_offset, end_offset),
    CONSTRAINT sources_offsets CHECK (end_offset - start_offset = char_length(text)),
    CONSTRAINT sources_embedding CHECK ((embedding IS NULL) = (embedding_model IS NULL))
);

CREATE TABLE kappa_graph.concepts (
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key             uuid        NOT NULL UNIQUE,
    ontology_id     int         NOT NULL REFERENCES kappa_graph.ontologies ON DELETE CASCADE,
    label           text        NOT NULL CHECK (label <> ''),
    description     text        NOT NULL DEFAULT '',
    search_terms    text[]      NOT NULL DEFAULT '{}',
    embedding       real[],
    embedding_model text,
    dimension       int         GENERATED ALWAYS AS (cardinality(embedding)) STORED,
    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT concepts_embedding CHECK ((embedding IS NULL) = (embedding_model IS NULL))
) WITH (toast_tuple_target = 512);
-- An embedding is longer than all the rest of its row. Out of line, the rest is read without it.
ALTER TABLE kappa_graph.concepts ALTER COLUMN embedding SET STORAGE EXTERNAL;
CREATE INDEX concepts_ontology ON kappa_graph.concepts (ontology_id);

-- An evidence quote: characters of the document's text, inside of its source.
CREATE TABLE kappa_graph.instances (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    concept_id   bigint      NOT NULL REFERENCES kappa_graph.concepts ON DELETE CASCADE,
    source_id    bigint      NOT NULL REFERENCES kappa_graph.sources ON DELETE CASCADE,
    quote        text        NOT NULL CHECK (quote <> ''),
    start_offset int         NOT NULL CHECK (start_offset >= 0),
    end_offset   int         NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    UNIQUE (concept_id, source_id, start_offset, end_offset),
    CONSTRAINT instances_offsets CHECK (end_offset - start_offset = char_length(quote))
);
CREATE INDEX instances_source ON kappa_graph.instances (source_id);

CREATE TABLE kappa_graph.relation_types (
    id              int         GENERATED ALWAYS AS IDENTITY PRIMARY KEY CHECK (id BETWEEN 1 AND 65535),
    name            text        NOT NULL UNIQUE CHECK (name <> ''),
    category        text        NOT NULL DEFAULT '',
    description     text        NOT NULL DEFAULT '',
    embedding       real[],
    embedding_model text,
    active          boolean     NOT NULL DEFAULT true,
    merged_into     int         REFERENCES kappa_graph.relation_types,
    created_at      timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT relation_types_embedding CHECK ((embedding IS NULL) = (embedding_model IS NULL)),
    CONSTRAINT relation_types_merged CHECK (merged_into IS NULL OR (merged_into <> id AND NOT active))
);

-- Confidence is in hundredths: one byte in the snapshot, and the same in every comparison.
CREATE TABLE kappa_graph.relations (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    from_id    bigint      NOT NULL REFERENCES kappa_graph.concepts ON DELETE CASCADE,
    to_id      bigint      NOT NULL REFERENCES kappa_graph.concepts ON DELETE CASCADE,
    type_id    int         NOT NULL REFERENCES kappa_graph.relation_types,
    confidence smallint    NOT NULL DEFAULT 100 CHECK (confidence BETWEEN 0 AND 100),
    category   text        NOT NULL DEFAULT '',
    provenance text        NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now()
);
-- One hop in either direction reads nothing but its index.
CREATE UNIQUE INDEX relations_out ON kappa_graph.relations (from_id, to_id, type_id) INCLUDE (confidence);
CREATE INDEX relations_in ON kappa_graph.relations (to_id, from_id, type_id) INCLUDE (confidence);
CREATE INDEX relations_type ON kappa_graph.relations (type_id);

-- Which sources support a relation.
CREATE TABLE kappa_graph.relation_sources (
    relation_id bigint NOT NULL REFERENCES kappa_graph.relations ON DELETE CASCADE,
    source_id   bigint NOT NULL REFERENCES kappa_graph.sources ON DELETE CASCADE,
    PRIMARY KEY (relation_id, source_id)
);
CREATE INDEX relation_sources_source ON kappa_graph.relation_sources (source_id);

CREATE TABLE kappa_graph.artifacts (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key         uuid        NOT NULL UNIQUE,
    kind        text        NOT NULL CHECK (kind <> ''),
    name        text        NOT NULL DEFAULT '',
    ontology_id int         REFERENCES kappa_graph.ontologies ON DELETE CASCADE,
    parameters  jsonb       NOT NULL DEFAULT '{}',
    as_of_epoch bigint      NOT NULL,
    content     jsonb,
    bytes       bytea,
    media_type  text        NOT NULL DEFAULT 'application/json',
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz
);
CREATE INDEX artifacts_expiry ON kappa_graph.artifacts (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE kappa_graph.proposals (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key         uuid        NOT NULL UNIQUE,
    kind        text        NOT NULL CHECK (kind IN ('merge', 'split', 'rename', 'dissolve')),
    ontology_id int         NOT NULL REFERENCES kappa_graph.ontologies ON DELETE CASCADE,
    body        jsonb       NOT NULL,
    scores      jsonb       NOT NULL DEFAULT '{}',
    state       text        NOT NULL DEFAULT 'pending'
                            CHECK (state IN ('pending', 'approved', 'rejected', 'executed', 'failed')),
    as_of_epoch bigint      NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    decided_by  text,
    decided_at  timestamptz,
    executed_at timestamptz,
    CONSTRAINT proposals_decision CHECK ((state = 'pending') = (decided_at IS NULL)),
    CONSTRAINT proposals_execution CHECK ((state IN ('executed', 'failed')) = (executed_at IS NOT NULL))
);

-- Where a bulk load puts its rows before they are merged. One load at a time holds them, and leaves them empty.
CREATE UNLOGGED TABLE kappa_graph.incoming_concepts (
    key uuid NOT NULL, label text NOT NULL, description text NOT NULL, search_terms text[] NOT NULL
) WITH (autovacuum_enabled = off);
CREATE UNLOGGED TABLE kappa_graph.incoming_relations (
    from_key uuid NOT NULL, to_key uuid NOT NULL, type text NOT NULL,
    confidence smallint NOT NULL, category text NOT NULL, provenance text NOT NULL
) WITH (autovacuum_enabled = off);


-- The change clock. Every transaction that changes the graph has one epoch, taken as the last thing before its commit
-- under a lock that is held until others see the commit. So epochs become visible in their order, and who has
-- seen epoch N has nothing at or below N still to come.
--
-- A transaction is known by its number and by when it began: numbers begin anew in a cluster that a dump is restored to.
CREATE SEQUENCE kappa_graph.epoch_numbers;

CREATE TABLE kappa_graph.epochs (
    epoch bigint      PRIMARY KEY,
    xid   xid8        NOT NULL DEFAULT pg_current_xact_id(),
    began timestamptz NOT NULL DEFAULT now(),
    at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (xid, began)
);
INSERT INTO kappa_graph.epochs (epoch) VALUES (0);

-- What each statement touched, one row for all of it. Of concepts their ids; of relations their ends and types, before and
-- after; 'reload' where that would be too much to list.
CREATE TABLE kappa_graph.changes (
    id    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid   xid8        NOT NULL DEFAULT pg_current_xact_id(),
    began timestamptz NOT NULL DEFAULT now(),
    kind  text        NOT NULL
                      CHECK (kind IN ('concepts', 'relations', 'relation_types', 'ontologies', 'evidence', 'reload')),
    nodes bigint[],
    ends  bigint[],
    types int[]
);
CREATE INDEX changes_transaction ON kappa_graph.changes (xid, began);

CREATE FUNCTION kappa_graph.take_epoch() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    mine  xid8 := pg_current_xact_id_if_assigned();
    taken bigint;
BEGIN
    SELECT e.epoch INTO taken FROM kappa_graph.epochs AS e WHERE e.xid = mine AND e.began = now();
    IF FOUND THEN
        RETURN taken;
    END IF;
    IF NOT EXISTS (SELECT FROM kappa_graph.changes AS c WHERE c.xid = mine AND c.began = now()) THEN
        RETURN (SELECT max(e.epoch) FROM kappa_graph.epochs AS e);
    END IF;
    -- The number has no meaning; it must only never change.
    PERFORM pg_advisory_xact_lock(4406317785922603);
    INSERT INTO kappa_graph.epochs (epoch) VALUES (nextval('kappa_graph.epoch_numbers')) RETURNING epoch INTO taken;
    PERFORM pg_notify('kappa_graph', taken::text);
    RETURN taken;
END $$;

CREATE FUNCTION kappa_graph.on_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM kappa_graph.take_epoch();
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER take_epoch AFTER INSERT ON kappa_graph.changes
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION kappa_graph.on_change();

CREATE FUNCTION kappa_graph.log_relations() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    listed constant int := 500000;
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO kappa_graph.changes (kind, nodes, ends, types)
        SELECT 'relations', array_agg(from_id), array_agg(to_id), array_agg(type_id)
          FROM (SELECT * FROM new_rows LIMIT listed + 1) AS n HAVING count(*) BETWEEN 1 AND listed;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO kappa_graph.changes (kind, nodes, ends, types)
        SELECT 'relations', array_agg(from_id), array_agg(to_id), array_agg(type_id)
          FROM (SELECT * FROM old_rows LIMIT listed + 1) AS o HAVING count(*) BETWEEN 1 AND listed;
    ELSE
        INSERT INTO kappa_graph.changes (kind, nodes, ends, types)
        SELECT 'relations', array_agg(from_id), array_agg(to_id), array_agg(type_id)
          FROM (SELECT from_id, to_id, type_id FROM old_rows UNION SELECT from_id, to_id, type_id FROM new_rows
                LIMIT listed + 1) AS u
        HAVING count(*) BETWEEN 1 AND listed;
    END IF;
    IF FOUND THEN
        RETURN NULL;
    END IF;
    -- Nothing was touched, or more than is listed.
    IF TG_OP = 'DELETE' THEN
        INSERT INTO kappa_graph.changes (kind) SELECT 'reload' WHERE EXISTS (SELECT FROM old_rows);
    ELSE
        INSERT INTO kappa_graph.changes (kind) SELECT 'reload' WHERE EXISTS (SELECT FROM new_rows);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION kappa_graph.log_concepts() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    listed constant int := 500000;
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO kappa_graph.changes (kind, nodes)
        SELECT 'concepts', array_agg(id) FROM (SELECT id FROM old_rows LIMIT listed + 1) AS o
        HAVING count(*) BETWEEN 1 AND listed;
        IF NOT FOUND THEN
            INSERT INTO kappa_graph.changes (kind) SELECT 'reload' WHERE EXISTS (SELECT FROM old_rows);
        END IF;
    ELSE
        INSERT INTO kappa_graph.changes (kind, nodes)
        SELECT 'concepts', array_agg(id) FROM (SELECT id FROM new_rows LIMIT listed + 1) AS n
        HAVING count(*) BETWEEN 1 AND listed;
        IF NOT FOUND THEN
            INSERT INTO kappa_graph.changes (kind) SELECT 'reload' WHERE EXISTS (SELECT FROM new_rows);
        END IF;
    END IF;
    RETURN NULL;
END $$;

-- Small tables, which are read whole again, and evidence, of which the snapshot holds nothing. Once for a transaction.
CREATE FUNCTION kappa_graph.log_kind() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    what constant text := TG_ARGV[0];
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF NOT EXISTS (SELECT FROM old_rows) THEN RETURN NULL; END IF;
    ELSE
        IF NOT EXISTS (SELECT FROM new_rows) THEN RETURN NULL; END IF;
    END IF;
    INSERT INTO kappa_graph.changes (kind)
    SELECT what WHERE NOT EXISTS (
        SELECT FROM kappa_graph.changes AS c
         WHERE c.xid = pg_current_xact_id() AND c.began = now() AND c.kind = what);
    RETURN NULL;
END $$;

CREATE FUNCTION kappa_graph.log_truncation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO kappa_graph.changes (kind) VALUES ('reload');
    RETURN NULL;
END $$;

DO $$
DECLARE
    t record;
BEGIN
    FOR t IN SELECT * FROM (VALUES
        ('concepts', 'log_concepts()'), ('relations', 'log_relations()'),
        ('relation_types', 'log_kind(relation_types)'), ('ontologies', 'log_kind(ontologies)'),
        ('documents', 'log_kind(evidence)'), ('sources', 'log_kind(evidence)'),
        ('instances', 'log_kind(evidence)'), ('relation_sources', 'log_kind(evidence)')
    ) AS logged (name, act)
    LOOP
        EXECUTE format('CREATE TRIGGER log_insert AFTER INSERT ON kappa_graph.%I REFERENCING NEW TABLE AS new_rows '
                       'FOR EACH STATEMENT EXECUTE FUNCTION kappa_graph.%s', t.name, t.act);
        EXECUTE format('CREATE TRIGGER log_update AFTER UPDATE ON kappa_graph.%I REFERENCING OLD TABLE AS old_rows '
                       'NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION kappa_graph.%s', t.name, t.act);
        EXECUTE format('CREATE TRIGGER log_delete AFTER DELETE ON kappa_graph.%I REFERENCING OLD TABLE AS old_rows '
                       'FOR EACH STATEMENT EXECUTE FUNCTION kappa_graph.%s', t.name, t.act);
        EXECUTE format('CREATE TRIGGER log_truncate AFTER TRUNCATE ON kappa_graph.%I '
                       'FOR EACH STATEMENT EXECUTE FUNCTION kappa_graph.log_truncation()', t.name);
    END LOOP;
END $$;
