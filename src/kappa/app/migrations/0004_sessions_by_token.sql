-- A session that was begun with a token may do what the token may, and for as long.
ALTER TABLE kappa.sessions ADD COLUMN token_id bigint REFERENCES kappa.tokens ON DELETE CASCADE;
CREATE INDEX sessions_token ON kappa.sessions (token_id) WHERE token_id IS NOT NULL;
