-- What a concept says of itself, as words: its label (A), its search terms (B), its description (C), each as it is
-- written and by its English stem, so that neither a name made of stop words nor a plural is lost. What is longer is cut:
-- a tsvector holds a megabyte. Between any two there is a gap, which no phrase reaches over: a sign that is taken out again.
-- array_to_string is only called stable because of types whose output may change.
CREATE FUNCTION kappa_graph.search_words(label text, terms text[], description text) RETURNS tsvector
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ts_delete(
           setweight(to_tsvector('pg_catalog.simple', left(label, 2000)) || '¦:9'::tsvector
                     || to_tsvector('pg_catalog.english', left(label, 2000)) || '¦:9'::tsvector, 'A')
        || setweight(to_tsvector('pg_catalog.simple', left(array_to_string(terms, ' '), 20000)) || '¦:9'::tsvector
                     || to_tsvector('pg_catalog.english', left(array_to_string(terms, ' '), 20000)) || '¦:9'::tsvector, 'B')
        || setweight(to_tsvector('pg_catalog.simple', left(description, 20000)) || '¦:9'::tsvector
                     || to_tsvector('pg_catalog.english', left(description, 20000)), 'C'), '¦')
$$;

ALTER TABLE kappa_graph.concepts
    ADD COLUMN words tsvector GENERATED ALWAYS AS (kappa_graph.search_words(label, search_terms, description)) STORED,
    ADD CONSTRAINT concepts_embedding_plain
        CHECK (array_ndims(embedding) = 1 AND array_position(embedding, NULL) IS NULL);
CREATE INDEX concepts_words ON kappa_graph.concepts USING gin (words);
-- By label, and by how it begins. An index entry holds 2,700 bytes at most.
CREATE INDEX concepts_label ON kappa_graph.concepts (lower(left(label, 500)) text_pattern_ops);
-- The embeddings of a model, in the order of their nodes. Those of different lengths are never compared.
CREATE INDEX concepts_embedded ON kappa_graph.concepts (embedding_model, dimension, id) WHERE embedding IS NOT NULL;

-- A list of lexemes as a query: all of them, the last as the beginning of a word; or any of the first 32.
CREATE FUNCTION kappa_graph.lexemes_query(words tsvector, every boolean) RETURNS tsquery
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT coalesce(string_agg(q.word || CASE WHEN every AND q.back = 1 THEN ':*' ELSE '' END,
                               CASE WHEN every THEN ' & ' ELSE ' | ' END), '')::tsquery
      FROM (SELECT '''' || replace(replace(l.lexeme, '\', '\\'), '''', '''''') || '''' AS word,
                   row_number() OVER (ORDER BY l.positions[1], l.lexeme) AS place,
                   row_number() OVER (ORDER BY l.positions[array_upper(l.positions, 1)] DESC, l.lexeme DESC) AS back
              FROM unnest(words) AS l) AS q
     WHERE every OR q.place <= 32
$$;

-- What has every word of a text. A plain one, without quotes and minus signs, may end in the middle of a word.
CREATE FUNCTION kappa_graph.every_word(said text, plain boolean) RETURNS tsquery
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT websearch_to_tsquery('pg_catalog.english', said) || websearch_to_tsquery('pg_catalog.simple', said)
        || CASE WHEN plain THEN kappa_graph.lexemes_query(to_tsvector('pg_catalog.simple', said), true)
                ELSE ''::tsquery END
$$;

-- What has any word of a text, by its stem. Stop words count only where there is nothing else.
CREATE FUNCTION kappa_graph.some_word(said text) RETURNS tsquery
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT kappa_graph.lexemes_query(
        CASE WHEN to_tsvector('pg_catalog.english', said) = '' THEN to_tsvector('pg_catalog.simple', said)
             ELSE to_tsvector('pg_catalog.english', said) END, false)
$$;

-- Labels that have a stretch which is spelled much like a text, by pg_trgm; none where it is not installed.
CREATE FUNCTION kappa_graph.spelled_like(said text, only_in int[], never bigint, most int)
RETURNS TABLE (node bigint, likeness real) LANGUAGE plpgsql STABLE AS $$
DECLARE
    place text := (SELECT n.nspname FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace
                    WHERE e.extname = 'pg_trgm');
BEGIN
    IF place IS NULL THEN
        RETURN;
    END IF;
    -- Half of the letters, three at a time: one slip in a word of seven.
    PERFORM set_config('pg_trgm.word_similarity_threshold', '0.45', true);
    RETURN QUERY EXECUTE format(
        'SELECT c.id, %1$I.word_similarity($1, lower(c.label)) AS likeness FROM kappa_graph.concepts AS c '
        ' WHERE $1 OPERATOR(%1$I.<%%) lower(c.label) AND ($2 IS NULL OR c.ontology_id = ANY ($2)) AND c.id <> $3 '
        ' ORDER BY likeness DESC, c.id LIMIT $4', place)
    USING lower(said), only_in, never, most;
END $$;

-- Whether labels are found in spite of a slip of the pen. To be called again where pg_trgm is installed later.
CREATE FUNCTION kappa_graph.use_trigrams() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    place text;
BEGIN
    IF EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_trgm' AND installed_version IS NULL) THEN
        BEGIN
            CREATE EXTENSION IF NOT EXISTS pg_trgm;
        EXCEPTION WHEN insufficient_privilege OR invalid_schema_name THEN
            RAISE NOTICE 'pg_trgm may not be installed here: %', SQLERRM;
        END;
    END IF;
    SELECT n.nspname INTO place FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace
     WHERE e.extname = 'pg_trgm';
    IF place IS NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE INDEX IF NOT EXISTS concepts_label_trigrams ON kappa_graph.concepts '
                   'USING gin (lower(label) %I.gin_trgm_ops)', place);
    RETURN true;
END $$;

DO $$
BEGIN
    PERFORM kappa_graph.use_trigrams();
END $$;
