-- As `kappa.engine.attempt.backoff`: the cap comes before the jitter as well as after it, else every wait beyond the
-- seventh attempt is the same, and those who failed together come back together.
CREATE OR REPLACE FUNCTION kappa.backoff(attempt int) RETURNS double precision LANGUAGE sql VOLATILE AS $$
    SELECT least(60, least(60, power(2, least(greatest(attempt - 1, 0), 30))) * (0.8 + 0.4 * random()))
$$;
