-- Where somebody signed in with their password: failures of others, there or elsewhere, don't shut them out from here.
CREATE TABLE kappa.sign_in_places (
    user_id bigint      NOT NULL REFERENCES kappa.users ON DELETE CASCADE,
    place   text        NOT NULL,
    last_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (user_id, place)
);
CREATE INDEX sign_in_places_age ON kappa.sign_in_places (last_at);
