-- The advisory locks of the graph by name: the numbers stand here and nowhere else.
--
-- 4406317785922603  take_epoch (0001_graph.sql)
-- 4406317785922604  lock_bulk_writes    bulk writes
-- 440631778         lock_embeddings     a model's embeddings, by the hash of its name
-- 440631780         lock_document       a document's plan, by the hash of its id
-- 440631781         lock_ontology       what is matched in an ontology, by its number
-- 440631782         lock_vocabulary     relation types that ingestions bring
-- 440631783         lock_merges         merges of relation types, which writers of relations share
-- 440631784         lock_ingestion      uploads to an ontology, by the hash of its name
CREATE FUNCTION kappa_graph.lock_bulk_writes() RETURNS void LANGUAGE sql
BEGIN ATOMIC SELECT pg_advisory_xact_lock(4406317785922604); END;

CREATE FUNCTION kappa_graph.lock_embeddings(model text) RETURNS void LANGUAGE sql
BEGIN ATOMIC SELECT pg_advisory_xact_lock(440631778, hashtext(model)); END;

CREATE FUNCTION kappa_graph.lock_document(document uuid) RETURNS void LANGUAGE sql
BEGIN ATOMIC SELECT pg_advisory_xact_lock(440631780, hashtext(document::text)); END;

CREATE FUNCTION kappa_graph.lock_ontology(ontology int) RETURNS void LANGUAGE sql
BEGIN ATOMIC SELECT pg_advisory_xact_lock(440631781, ontology); END;

CREATE FUNCTION kappa_graph.lock_vocabulary() RETURNS void LANGUAGE sql
BEGIN ATOMIC SELECT pg_advisory_xact_lock(440631782, 0); END;

CREATE FUNCTION kappa_graph.lock_merges() RETURNS void LANGUAGE sql
BEGIN ATOMIC SELECT pg_advisory_xact_lock(440631783, 0); END;

CREATE FUNCTION kappa_graph.share_merges() RETURNS void LANGUAGE sql
BEGIN ATOMIC SELECT pg_advisory_xact_lock_shared(440631783, 0); END;

CREATE FUNCTION kappa_graph.lock_ingestion(ontology text) RETURNS void LANGUAGE sql
BEGIN ATOMIC SELECT pg_advisory_xact_lock(440631784, hashtext(ontology)); END;
