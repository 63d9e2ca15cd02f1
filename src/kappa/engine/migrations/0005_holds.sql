-- Lanes that a job holds: they were enabled, are not for as long as it has its lease, and are again afterwards. The row
-- goes in the statement that switches the lane on, so whoever finds one whose lease is gone can make it good.
CREATE TABLE kappa.lane_holds (
    lane        text        PRIMARY KEY REFERENCES kappa.lanes ON DELETE CASCADE,
    job_id      bigint      NOT NULL,
    lease_token bigint      NOT NULL,
    since       timestamptz NOT NULL DEFAULT now()
);
