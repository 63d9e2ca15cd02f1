with settled as (
    delete from hot where id = any (%(ids)s) and lease_token = %(token)s
    returning id, lane, kind, priority, attempt, payload, created_at, started_at)
insert into history (id, lane, kind, state, priority, attempt, payload, created_at, started_at, finished_at)
select id, lane, kind, 'succeeded', priority, attempt, payload, created_at, started_at, now() from settled
