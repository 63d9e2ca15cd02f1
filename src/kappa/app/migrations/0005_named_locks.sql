-- compatible: yes
-- The advisory locks of the application by name: the numbers stand here and nowhere else.
--
-- 1262568292  lock_sign_in  tries to sign in, by the hash of a name or an address
-- 1262568296  lock_users    who is an administrator
CREATE FUNCTION kappa.lock_sign_in(hash int) RETURNS void LANGUAGE sql
BEGIN ATOMIC SELECT pg_advisory_xact_lock(1262568292, hash); END;

CREATE FUNCTION kappa.lock_users() RETURNS void LANGUAGE sql
BEGIN ATOMIC SELECT pg_advisory_xact_lock(1262568296, 0); END;
