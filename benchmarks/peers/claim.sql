update hot
set state = 'running', lease_owner = %(owner)s, lease_token = %(token)s,
    lease_until = now() + interval '60 s', started_at = coalesce(started_at, now()), attempt = attempt + 1
where ctid = any (array (
    select ctid from hot
    where state = 'queued' and lane = 'default'
    order by priority desc, id
    limit %(batch)s
    for update skip locked))
returning id, kind, attempt, payload::text
