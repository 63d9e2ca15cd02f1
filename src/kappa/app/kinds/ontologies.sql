-- name: lock_lanes
-- The lock under which every claim of these lanes is made: until the transaction ends no ingestion begins.
SELECT kappa.lock_lane_in_transaction(l.lane)
  FROM (SELECT DISTINCT k.lane FROM kappa.lane_kinds AS k WHERE k.kind = ANY (%(kinds)s::text[]) ORDER BY 1) AS l;

-- name: ingesting
-- One that works on any of these ontologies, or is about to.
SELECT j.id FROM kappa.jobs AS j
 WHERE j.kind = ANY (%(kinds)s::text[]) AND j.state IN ('queued', 'scheduled', 'running')
   AND j.payload->>'ontology' = ANY (%(names)s::text[])
 ORDER BY j.id LIMIT 1;
