-- What a token is good for as a fleet worker's; NULL is no limit.
ALTER TABLE kappa.tokens
    ADD COLUMN kinds               text[],
    ADD COLUMN machines            int CHECK (machines >= 1),
    ADD COLUMN requests_per_minute int CHECK (requests_per_minute >= 1);

-- Servers remember for a while what a token is good for; they forget at once when anything about it changes.
CREATE FUNCTION kappa.forget_passes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('kappa_passes', '');
    RETURN NULL;
END $$;

CREATE TRIGGER tokens_forget_passes
    AFTER UPDATE OF revoked_at, expires_at, scopes, kinds, machines, requests_per_minute OR DELETE ON kappa.tokens
    FOR EACH STATEMENT EXECUTE FUNCTION kappa.forget_passes();
CREATE TRIGGER users_forget_passes AFTER UPDATE OF enabled OR DELETE ON kappa.users
    FOR EACH STATEMENT EXECUTE FUNCTION kappa.forget_passes();
CREATE TRIGGER user_roles_forget_passes AFTER INSERT OR UPDATE OR DELETE ON kappa.user_roles
    FOR EACH STATEMENT EXECUTE FUNCTION kappa.forget_passes();
CREATE TRIGGER roles_forget_passes AFTER UPDATE OR DELETE ON kappa.roles
    FOR EACH STATEMENT EXECUTE FUNCTION kappa.forget_passes();
