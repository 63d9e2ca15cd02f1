-- The tables of the ceiling: what leases, fencing and a kept history need, and nothing else.
drop table if exists hot, history;

create table hot (
    id bigint generated always as identity primary key,
    lane text not null default 'default',
    kind text not null default 'noop',
    state text not null default 'queued',
    priority smallint not null default 0,
    attempt smallint not null default 0,
    payload jsonb not null default '{"n": 1}',
    created_at timestamptz not null default now(),
    started_at timestamptz,
    lease_owner text,
    lease_token uuid,
    lease_until timestamptz
) with (fillfactor = 90);
create index hot_queued on hot (lane, priority desc, id) where state = 'queued';
create index hot_leases on hot (lease_until) where state = 'running';

create table history (
    id bigint not null,
    lane text not null,
    kind text not null,
    state text not null,
    priority smallint not null,
    attempt smallint not null,
    payload jsonb not null,
    created_at timestamptz not null,
    started_at timestamptz not null,
    finished_at timestamptz not null
) partition by range (finished_at);
create table history_past partition of history for values from (minvalue) to ('2020-01-01');
create table history_now partition of history for values from ('2020-01-01') to (maxvalue);
create index history_id on history (id);
