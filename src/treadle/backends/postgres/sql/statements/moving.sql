-- Export and import. These statements run on a connection of their own, whose search path is pinned.

-- -- marks -----------------------------------------------------------------------------------------------

-- :name mark
select state, move, other, content from treadle.part where part = '*'

-- :name oids
select d.oid || ':' || pg_catalog.to_regnamespace(:name)::oid from pg_catalog.pg_database d
where d.datname = pg_catalog.current_database()

-- A freeze: others may read, and wait before they write, or lock a row. A transaction that has done so ends first. The tables
-- come in the order in which a claim locks them.
-- :name freeze
lock table treadle.orders, treadle.worker, treadle.item, treadle.open_item, treadle.ended_item, treadle.attempt,
  treadle.dependency, treadle.item_group, treadle.key, treadle.lost_type, treadle.claimed_key, treadle.limit_state, treadle.permit,
  treadle.lease_permit, treadle.schedule, treadle.removed_schedule, treadle.schedule_run, treadle.stat, treadle.sample,
  treadle.audit, treadle.step, treadle.mail, treadle.progress, treadle.chunk, treadle.log, treadle.release
  in exclusive mode

-- :name lock_wait
set local lock_timeout to '{seconds}s'

-- Of the session: a SELECT within the transaction would take its snapshot. The last one is new in version 17.
-- :name no_timeouts
select pg_catalog.set_config(s.name, '0', false) from pg_catalog.pg_settings s
where s.name in ('lock_timeout', 'statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')

-- Also of the session.
-- :name durable
select pg_catalog.set_config('synchronous_commit', 'on', false)
where pg_catalog.current_setting('synchronous_commit') in ('off', 'local', 'remote_write')

-- :name rename
alter schema "{before}" rename to "{after}"

-- What processes that have the store open, or open it, find in place of the schema.
-- state: 2 moved  3 importing
-- :name create_stub
create schema "{schema}";
create table "{schema}".meta as table "{parked}".meta;
create table "{schema}".part (part text primary key, state smallint not null, move text not null, other text not null,
  content text not null);

-- Roles that could use the schema can read why they cannot.
-- :name users
select distinct a.grantee::pg_catalog.regrole::text as role
from pg_catalog.pg_namespace n, pg_catalog.aclexplode(n.nspacl) a
where n.nspname = :schema::text and a.privilege_type = 'USAGE' and a.grantee <> n.nspowner and a.grantee <> 0

-- :name let_read
grant usage on schema "{schema}" to {role};
grant select on "{schema}".meta, "{schema}".part to {role};

-- :name set_mark
insert into treadle.part (part, state, move, other, content) values ('*', :state, :move, :other, :content)

-- :name drop_schema
drop schema if exists "{schema}" cascade

-- -- what is in the way of an import ---------------------------------------------------------------------

-- :name in_the_way
select case
  when exists (select 1 from treadle.item where type is not null) or exists (select 1 from treadle.item_group) then 'items'
  when exists (select 1 from treadle.worker where until > treadle.clock() and not gone) then 'live workers'
  when exists (select 1 from treadle.schedule) or exists (select 1 from treadle.removed_schedule) then 'schedules'
  when exists (select 1 from treadle.orders where subject <> '') then 'orders'
  when exists (select 1 from treadle.audit) then 'audit entries'
  when exists (select 1 from treadle.stat) then 'statistics'
  when exists (select 1 from treadle.claimed_key) then 'claimed keys'
  end

-- :name tenant_in_the_way
select case
  when exists (select 1 from treadle.item where tenant = :tenant::text and type is not null)
    or exists (select 1 from treadle.item_group where tenant = :tenant) then 'items'
  when exists (select 1 from treadle.claimed_key where tenant = :tenant) then 'claimed keys'
  end

-- What a store that was used, and is empty again, has left.
-- :name clear
truncate treadle.item, treadle.worker, treadle.lost_type, treadle.orders, treadle.limit_state, treadle.permit,
  treadle.lease_permit, treadle.sample, treadle.release

-- What an import has stored.
-- :name empty
truncate treadle.item, treadle.open_item, treadle.ended_item, treadle.attempt, treadle.dependency, treadle.item_group,
  treadle.key, treadle.worker, treadle.lost_type, treadle.orders, treadle.claimed_key, treadle.limit_state, treadle.permit,
  treadle.lease_permit, treadle.schedule, treadle.removed_schedule, treadle.schedule_run, treadle.stat, treadle.sample,
  treadle.audit, treadle.step, treadle.mail, treadle.progress, treadle.chunk, treadle.log, treadle.release

-- -- reading ---------------------------------------------------------------------------------------------

-- :name head
select treadle.clock() as now, (select last_value from treadle.number) as number,
  (select last_value from treadle.token) as token,
  (select o.at::bigint from treadle.orders o where o.subject = '') as orders,
  array(select w.id from treadle.worker w where w.until > treadle.clock() and not w.gone) as workers

-- Those that have leases of a tenant, as they are here.
-- :name workers_of
select w.id, w.until, w.lease, w.types, w.info, w.release from treadle.worker w
where w.no in (select o.worker from treadle.open_item o where o.status = 5 and o.tenant = :tenant::text)

-- :name next_items
select array(select i.no from treadle.item i where i.no > :after::bigint and i.type is not null
  and (:tenant::text is null or i.tenant = :tenant) order by i.no
  limit :limit::int) as nos

-- :name items
select * from treadle.read_items(:nos::bigint[], true)

-- What `read_items` does not say. The columns are read by moving._PostgresFields.
-- :name more
select i.no, coalesce(i.group_no, i.no), i.keep, i.keep_dead, i.contributes is not false, coalesce(i.need, 0),
  coalesce(i.counting, 0) = 1, o.met, o.status, o.shown_status, o.seq, coalesce(o.due, e.due), o.ready_since,
  coalesce(o.redrives, e.redrives), coalesce(o.holds_lane, false), o.verdict, w.id, w.release, coalesce(o.begun, true), o.began,
  coalesce(e.flags, 0), e.outcome, k.no is not null, k.changed_by, g.no is not null,
  g.outermost is not null, coalesce(o.recorded, e.flags >> 5), o.suspended, o.token
from unnest(:nos::bigint[]) with ordinality n(no, place)
join treadle.item i on i.no = n.no
left join treadle.open_item o on o.no = n.no
left join treadle.ended_item e on e.no = n.no
left join treadle.worker w on w.no = o.worker
left join treadle.key k on k.key = i.key and k.type = i.type and k.tenant = i.tenant and k.no = i.no
left join treadle.item_group g on g.no = i.no
order by n.place

-- The names that blocked items still wait for.
-- :name pending
select d.dependent, case when d.of_group then chr(30) || coalesce(g.id, p.id) else p.id end
from treadle.dependency d
join treadle.open_item o on o.no = d.dependent and o.status = 0
left join treadle.item p on p.no = d.prerequisite
left join treadle.item_group g on g.no = d.prerequisite
where d.dependent = any(:nos::bigint[])

-- :name steps
select no, name, kind, value, took, undo, signal, over, until, at, attempt, times
from treadle.step where no = any(:nos::bigint[]) order by no, seq

-- :name mail
select no, name, key, taken, value from treadle.mail where no = any(:nos::bigint[]) order by no, seq

-- :name progress
select no, value, at from treadle.progress where no = any(:nos::bigint[])

-- :name chunks
select no, number, at, value from treadle.chunk where no = any(:nos::bigint[]) order by no, number

-- :name logs
select no, value from treadle.log where no = any(:nos::bigint[]) order by no, at, token

-- Groups with a row. And roots that are alone, and whose final value is that of their group: other stores have a row for
-- these.
-- :name groups
select * from (
  select g.no, coalesce(g.id, i.id) as id, coalesce(g.tenant, i.tenant), coalesce(g.type, i.type), g.open, g.total, g.failed,
    g.cancelled, g.version, g.final, g.keep, g.ended, case when g.outermost is not null then coalesce(i.group_no, g.outermost) end,
    g.value
  from treadle.item_group g left join treadle.item i on i.no = g.no
  where g.no > :after::bigint
  union all
  select i.no, i.id, i.tenant, i.type, 0, 1, 0, 0, 1, true, least(i.keep, i.keep_dead), e.ended, null, e.result
  from treadle.ended_item e join treadle.item i on i.no = e.no
  where e.no > :after::bigint and e.flags & 3 = 3 and i.group_no is null
    and not exists (select 1 from treadle.item_group g where g.no = e.no)
) x order by x.no limit :limit::int

-- :name orders
select body, at from treadle.orders where subject <> '' and (until is null or until > :now::float8)

-- :name schedules
select name, next_at, spec, paused, last_at, seen_at from treadle.schedule

-- :name removals
select name, at from treadle.removed_schedule

-- :name runs
select name, at, fired_at, id, tenant, coalesce(error, '') from treadle.schedule_run

-- :name limits
select name, at, used, before, limit_, window_ from treadle.limit_state where until < 'infinity' and name !~ '^3:'

-- :name claimed_keys
select key, tenant, owner, until from treadle.claimed_key where until > :now::float8

-- :name releases
select name, began from treadle.release order by began

-- :name stats
select step, at, type, queue, started, succeeded, failed, retried, dead, cancelled, lost, wait::text, run::text from treadle.stat

-- :name samples
select step, at, queue, samples, ready, running, oldest, estimated from treadle.sample

-- :name audits
select no, at, actor, verb, tenant, ids, count, about, reason, address, bulk from treadle.audit where no > :after::bigint
order by no limit :limit::int

-- -- writing ---------------------------------------------------------------------------------------------

-- :name set_counters
select pg_catalog.setval('treadle.number', greatest(:number::bigint, 1)), pg_catalog.setval('treadle.token', :token::bigint)

-- Numbers for a tenant that comes in: the one before the first.
-- :name take_numbers
select pg_catalog.setval('treadle.number', pg_catalog.nextval('treadle.number') + :span::bigint + 200000)
  - :span - 100000

-- :name raise_token
select pg_catalog.setval('treadle.token', :token::bigint + 100000)
where (select last_value from treadle.token) < :token

-- :name take_audit
select pg_catalog.nextval(pg_catalog.pg_get_serial_sequence('treadle.audit', 'no'))

-- :name orders_version
insert into treadle.orders (subject, at, body) values ('', :version::bigint, '')

-- :name raise_number
select pg_catalog.setval('treadle.number', greatest((select last_value from treadle.number),
  coalesce((select max(no) from treadle.item), 0), coalesce((select max(no) from treadle.item_group), 0),
  coalesce((select max(abs(seq)) from treadle.open_item), 0)))

-- What items wait for is written when all of them are here: an item may wait for a later one.
-- :name create_waiting
create temp table treadle_waiting (no bigint, tenant text collate "C", name text collate "C", times int) on commit drop

-- Ids that do not exist yet.
-- :name placeholders
insert into treadle.item (no, id, tenant)
  select pg_catalog.nextval('treadle.number'), m.id, m.tenant from (
    select distinct ltrim(w.name, chr(30)) as id, w.tenant from pg_temp.treadle_waiting w) m
  where not exists (select 1 from treadle.item i where i.id = m.id and i.tenant = m.tenant)
    and not exists (select 1 from treadle.item_group g where g.id = m.id and g.tenant = m.tenant)

-- A group whose root is gone is found by its own name, unless the id is in use again.
-- :name dependencies
insert into treadle.dependency (prerequisite, dependent, times, of_group)
  select coalesce(case when w.name like chr(30) || '%' and i.type is null then
      (select max(g.no) from treadle.item_group g where g.id = ltrim(w.name, chr(30)) and g.tenant = w.tenant) end, i.no),
    w.no, w.times, w.name like chr(30) || '%'
  from pg_temp.treadle_waiting w
  left join treadle.item i on i.id = ltrim(w.name, chr(30)) and i.tenant = w.tenant

-- From here on: only what has come in, which has higher numbers than :before.

-- Roots that are not alone.
-- :name open_roots
update treadle.open_item o set group_no = o.no from treadle.item_group g
where g.no = o.no and o.no > :before::bigint and g.outermost is null and o.group_no is null

-- :name ended_roots
update treadle.ended_item e set (prune_at, group_no)=(
    select null::float8, case when e.outcome = 7 then e.no end)
from treadle.item_group g where g.no = e.no and e.no > :before::bigint and g.outermost is null

-- :name dead_members
update treadle.item_group g set dead = x.dead
from (select coalesce(i.group_no, i.no) as no, count(*)::int as dead
      from treadle.ended_item e join treadle.item i on i.no = e.no
      where e.outcome = 7 and e.no > :before::bigint group by 1) x
where x.no = g.no

-- :name group_keeps
update treadle.item_group g set keep = coalesce((select least(i.keep, i.keep_dead) from treadle.item i where i.no = g.no), 86400)
where g.keep = 'infinity'

-- :name outermost
with recursive around (no, outermost) as (
  select g.no, g.outermost from treadle.item_group g where g.no > :before::bigint and g.outermost is not null
  union all
  select a.no, g.outermost from around a join treadle.item_group g on g.no = a.outermost where g.outermost is not null
)
update treadle.item_group g set outermost = a.outermost
from around a join treadle.item_group o on o.no = a.outermost and o.outermost is null
where g.no = a.no

-- When a member may be pruned: what is in nested groups goes with the outermost one.
-- :name group_ends
update treadle.item_group g set prune_at = g.ended + least(g.keep,
  (select min(x.keep) from treadle.item_group x where x.outermost = g.no))
where g.no > :before::bigint and g.ended is not null and g.outermost is null

-- :name names_of_groups
update treadle.item_group g set (id, tenant, type)=(select null::text, null::text, null::text)
where g.no > :before::bigint and exists (select 1 from treadle.item i where i.no = g.no)

-- :name no_types
insert into treadle.lost_type (type, lost) values ('', treadle.clock()) on conflict (type) do update set lost = excluded.lost

-- :name audit_number
select pg_catalog.setval(pg_catalog.pg_get_serial_sequence('treadle.audit', 'no'),
  greatest((select max(no) from treadle.audit), 1), exists (select 1 from treadle.audit))

-- :name analyze
analyze treadle.item, treadle.open_item, treadle.ended_item, treadle.item_group, treadle.dependency, treadle.key,
  treadle.attempt, treadle.step, treadle.audit, treadle.stat
