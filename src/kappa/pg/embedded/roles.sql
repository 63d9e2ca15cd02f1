-- name: what_is_there
SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = %(role)s),
       EXISTS (SELECT FROM pg_database WHERE datname = %(database)s);

-- name: is_first_superuser
-- Whether this session is that of the role which initdb made.
SELECT oid = 10 FROM pg_roles WHERE rolname = session_user;

-- name: other_sessions
-- Of the first superuser, beside this one. What a session may do stays as it is when its role gets another name.
SELECT coalesce(nullif(application_name, ''), 'a client')
  FROM pg_stat_activity
 WHERE usesysid = 10 AND backend_type = 'client backend' AND pid <> pg_backend_pid()
 ORDER BY backend_start;

-- name: end_other_sessions
SELECT pg_terminate_backend(pid)
  FROM pg_stat_activity
 WHERE usesysid = 10 AND backend_type = 'client backend' AND pid <> pg_backend_pid();

-- name: databases
-- All that can be connected to, with whether they are the first superuser's to give away.
SELECT datname, datdba = 10 AND datname <> 'postgres'
  FROM pg_database
 WHERE datallowconn AND NOT datistemplate
 ORDER BY datname;

-- name: owned_by_first_superuser
-- What this database has of the first superuser's, as statements that give it to a role. What initdb and extensions
-- made stays, and so does what only a superuser may own. What belongs to a table (indexes, its sequences, its row type)
-- goes with it. REASSIGN OWNED can't do it: it refuses the first superuser.
WITH owned (catalog, id) AS (
    SELECT 'pg_namespace'::regclass, oid FROM pg_namespace WHERE nspowner = 10
    UNION ALL
    SELECT 'pg_class'::regclass, c.oid FROM pg_class AS c
     WHERE c.relowner = 10
       AND (c.relkind IN ('r', 'p', 'v', 'm', 'f')
            OR c.relkind = 'S' AND NOT EXISTS (SELECT FROM pg_depend AS d
                                                WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                                                  AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')))
    UNION ALL
    SELECT 'pg_proc'::regclass, oid FROM pg_proc WHERE proowner = 10
    UNION ALL
    SELECT 'pg_type'::regclass, t.oid FROM pg_type AS t
     WHERE t.typowner = 10
       AND (t.typtype IN ('d', 'e', 'r')
            OR t.typtype = 'c' AND EXISTS (SELECT FROM pg_class AS c WHERE c.oid = t.typrelid AND c.relkind = 'c'))
    UNION ALL
    SELECT 'pg_operator'::regclass, oid FROM pg_operator WHERE oprowner = 10
    UNION ALL
    SELECT 'pg_opclass'::regclass, oid FROM pg_opclass WHERE opcowner = 10
    UNION ALL
    SELECT 'pg_opfamily'::regclass, oid FROM pg_opfamily WHERE opfowner = 10
    UNION ALL
    SELECT 'pg_collation'::regclass, oid FROM pg_collation WHERE collowner = 10
    UNION ALL
    SELECT 'pg_conversion'::regclass, oid FROM pg_conversion WHERE conowner = 10
    UNION ALL
    SELECT 'pg_ts_config'::regclass, oid FROM pg_ts_config WHERE cfgowner = 10
    UNION ALL
    SELECT 'pg_ts_dict'::regclass, oid FROM pg_ts_dict WHERE dictowner = 10
    UNION ALL
    SELECT 'pg_statistic_ext'::regclass, oid FROM pg_statistic_ext WHERE stxowner = 10
    UNION ALL
    SELECT 'pg_largeobject'::regclass, oid FROM pg_largeobject_metadata WHERE lomowner = 10
)
SELECT 'ALTER ' || CASE found.type WHEN 'statistics object' THEN 'statistics' ELSE found.type END
       || ' ' || found.identity || ' OWNER TO ' || quote_ident(%(role)s)
  FROM owned AS o, pg_identify_object(o.catalog, o.id, 0) AS found
 WHERE o.id >= 16384
   AND NOT EXISTS (SELECT FROM pg_depend AS d
                    WHERE d.classid = o.catalog AND d.objid = o.id AND d.deptype = 'e')
 ORDER BY o.catalog, o.id;
