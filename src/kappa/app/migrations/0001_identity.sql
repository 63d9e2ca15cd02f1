CREATE TABLE kappa.roles (
    name        text    PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_-]{0,62}$'),
    permissions text[]  NOT NULL,
    builtin     boolean NOT NULL DEFAULT false
);

CREATE TABLE kappa.users (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text        NOT NULL UNIQUE CHECK (name ~ '^[a-z0-9][a-z0-9._@-]{0,62}$'),
    password   text,  -- Argon2id; without one nobody signs in by password
    enabled    boolean     NOT NULL DEFAULT true,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE kappa.user_roles (
    user_id bigint NOT NULL REFERENCES kappa.users ON DELETE CASCADE,
    role    text   NOT NULL REFERENCES kappa.roles,
    PRIMARY KEY (user_id, role)
);

-- A token is 256 random bits: SHA-256 is enough to keep it, and only the hash is kept.
CREATE TABLE kappa.tokens (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    user_id      bigint      NOT NULL REFERENCES kappa.users ON DELETE CASCADE,
    name         text        NOT NULL CHECK (name <> ''),
    hash         bytea       NOT NULL UNIQUE,
    scopes       text[],  -- NULL: all that its user may
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz
);
CREATE INDEX tokens_user ON kappa.tokens (user_id);

CREATE TABLE kappa.sessions (
    hash       bytea       PRIMARY KEY,
    user_id    bigint      NOT NULL REFERENCES kappa.users ON DELETE CASCADE,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL
);
CREATE INDEX sessions_user ON kappa.sessions (user_id);
CREATE INDEX sessions_expiry ON kappa.sessions (expires_at);

-- Sign-ins that failed, by name and by address.
CREATE TABLE kappa.sign_in_failures (
    key text        NOT NULL,
    at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX sign_in_failures_key ON kappa.sign_in_failures (key, at);

CREATE TABLE kappa.audit (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT now(),
    who        text        NOT NULL,
    action     text        NOT NULL,
    target     text        NOT NULL,
    detail     jsonb       NOT NULL DEFAULT '{}',
    request_id text
);

CREATE TABLE kappa.server_secrets (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    signing_key bytea   NOT NULL
);
-- Two random UUIDs make 244 bits.
INSERT INTO kappa.server_secrets (signing_key)
VALUES (sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8')));

CREATE FUNCTION kappa.permissions_of(wanted bigint) RETURNS text[] LANGUAGE sql STABLE AS $$
    SELECT coalesce(array_agg(DISTINCT p), '{}')
      FROM kappa.user_roles AS u JOIN kappa.roles AS r ON r.name = u.role, unnest(r.permissions) AS p
     WHERE u.user_id = wanted
$$;
