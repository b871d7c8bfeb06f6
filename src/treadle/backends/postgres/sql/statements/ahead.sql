-- What has ended of a tenant that moves, copied before the freeze. These statements run on a connection of their own, whose
-- search path is pinned.

-- -- the old store ---------------------------------------------------------------------------------------

-- Tenants that are read ahead; what was read of them; what has changed since. digest: null until it is known what was read.
-- :name create
create table if not exists treadle.ahead (tenant text collate "C" primary key);
create table if not exists treadle.read_ahead (no bigint primary key, tenant text collate "C" not null, items int, records int,
  digest bigint);
create table if not exists treadle.changed_ahead (no bigint not null, tenant text collate "C" not null);
create index if not exists changed_ahead_no on treadle.changed_ahead (no)

-- :name is_noted
select exists (select 1 from treadle.ahead where tenant = :tenant)

-- :name add_tenant
insert into treadle.ahead (tenant) values (:tenant) on conflict (tenant) do nothing

-- :name any_tenant
select exists (select 1 from treadle.ahead)

-- The tenants are written into the function: a transaction whose snapshot is older sees the function as it is now. A row of
-- what has not ended is not noted: it was not read.
-- :name note
select format($f$
create or replace function treadle.note_change() returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp as $t$
declare
  tenants constant text[] := %L;
begin
  if tg_table_name = 'item' then
    insert into treadle.changed_ahead (no, tenant) select old.no, old.tenant where old.tenant = any(tenants);
  elsif tg_table_name = 'item_group' then
    if tg_op <> 'INSERT' then
      insert into treadle.changed_ahead (no, tenant) select old.no, x.tenant
        from (select coalesce(old.tenant, (select i.tenant from treadle.item i where i.no = old.no)) as tenant) x
        where old.ended is not null and x.tenant = any(tenants);
    else
      insert into treadle.changed_ahead (no, tenant) select i.no, i.tenant
        from treadle.item i join treadle.ended_item e on e.no = i.no where i.no = new.no and i.tenant = any(tenants);
    end if;
  else
    if tg_op <> 'INSERT' then
      insert into treadle.changed_ahead (no, tenant) select i.no, i.tenant from treadle.item i
        where i.no = old.no and i.tenant = any(tenants)
          and (tg_table_name in ('key', 'ended_item') or exists (select 1 from treadle.ended_item e where e.no = i.no));
    end if;
    if tg_op <> 'DELETE' then
      insert into treadle.changed_ahead (no, tenant) select i.no, i.tenant
        from treadle.item i join treadle.ended_item e on e.no = i.no where i.no = new.no and i.tenant = any(tenants);
    end if;
  end if;
  return null;
end $t$ $f$, coalesce(array_agg(tenant order by tenant), '{}')::text)
from treadle.ahead

-- :name has_notes
select exists (select 1 from pg_catalog.pg_trigger t where t.tgname = 'note' and t.tgrelid = pg_catalog.to_regclass('treadle.item'))

-- :name add_notes
create trigger note after update or delete on treadle.item for each row execute function treadle.note_change();
create trigger note after update or delete on treadle.ended_item for each row execute function treadle.note_change();
create trigger note after insert or update or delete on treadle.item_group for each row execute function treadle.note_change();
create trigger note after insert or update or delete on treadle.key for each row execute function treadle.note_change();
create trigger note after insert or update or delete on treadle.attempt for each row execute function treadle.note_change();
create trigger note after insert or update or delete on treadle.step for each row execute function treadle.note_change();
create trigger note after insert or update or delete on treadle.mail for each row execute function treadle.note_change();
create trigger note after insert or update or delete on treadle.progress for each row execute function treadle.note_change();
create trigger note after insert or update or delete on treadle.chunk for each row execute function treadle.note_change();
create trigger note after insert or update or delete on treadle.log for each row execute function treadle.note_change()

-- A trigger that is not enabled costs nothing. To drop it would wait for readers.
-- :name enable_notes
alter table treadle.item {able} trigger note;
alter table treadle.ended_item {able} trigger note;
alter table treadle.item_group {able} trigger note;
alter table treadle.key {able} trigger note;
alter table treadle.attempt {able} trigger note;
alter table treadle.step {able} trigger note;
alter table treadle.mail {able} trigger note;
alter table treadle.progress {able} trigger note;
alter table treadle.chunk {able} trigger note;
alter table treadle.log {able} trigger note

-- :name forget
delete from treadle.ahead where tenant = :tenant;

-- :name forget_read
delete from treadle.read_ahead where tenant = :tenant

-- :name forget_changed
delete from treadle.changed_ahead where tenant = :tenant

-- Other plans would read all for each portion.
-- :name by_index
select pg_catalog.set_config(s.name, 'off', true)
from (values ('enable_hashjoin'), ('enable_seqscan'), ('enable_bitmapscan'), ('enable_sort')) s(name)

-- Items that have ended, and whose group of the same number has ended too.
-- :name next_ended
select array(select e.no from treadle.ended_item e
  join treadle.item i on i.no = e.no and i.tenant = :tenant::text
  left join treadle.item_group g on g.no = e.no
  where e.no > :after::bigint and (g.no is null or g.ended is not null)
    and not exists (select 1 from treadle.changed_ahead c where c.no = e.no)
  order by e.no limit :limit::int) as nos

-- Ended groups without an item of their number.
-- :name next_rootless
select array(select g.no from treadle.item_group g
  where g.no > :after::bigint and g.no <= :last::bigint and g.tenant = :tenant::text and g.ended is not null
    and not exists (select 1 from treadle.item i where i.no = g.no)
    and not exists (select 1 from treadle.changed_ahead c where c.no = g.no)) as nos

-- :name note_read
insert into treadle.read_ahead (no, tenant, items, records, digest)
select u.no, :tenant::text, u.items, u.records, u.digest
from unnest(:nos::bigint[], :items::int[], :records::int[], :digests::bigint[]) u(no, items, records, digest)
on conflict (no) do update set (items, records, digest)=(select excluded.items, excluded.records, excluded.digest)

-- :name drop_changed
delete from treadle.read_ahead r where r.tenant = :tenant and exists (select 1 from treadle.changed_ahead c where c.no = r.no)

-- :name unchanged
select coalesce(sum(r.items), 0)::bigint, coalesce(sum(r.records), 0)::bigint, coalesce(sum(r.digest), 0)::numeric
from treadle.read_ahead r where r.tenant = :tenant

-- :name changed
select array(select distinct c.no from treadle.changed_ahead c where c.tenant = :tenant) as nos

-- :name rest_items
select array(select i.no from treadle.item i where i.no > :after::bigint and i.type is not null and i.tenant = :tenant::text
  and not exists (select 1 from treadle.read_ahead r where r.no = i.no) order by i.no limit 1000) as nos

-- The same columns as `groups` in moving.sql.
-- :name groups_of
select * from (
  select g.no, coalesce(g.id, i.id) as id, coalesce(g.tenant, i.tenant), coalesce(g.type, i.type), g.open, g.total, g.failed,
    g.cancelled, g.version, g.final, g.keep, g.ended, case when g.outermost is not null then coalesce(i.group_no, g.outermost) end,
    g.value
  from treadle.item_group g left join treadle.item i on i.no = g.no
  where g.no = any(:nos::bigint[])
  union all
  select i.no, i.id, i.tenant, i.type, 0, 1, 0, 0, 1, true, least(i.keep, i.keep_dead), e.ended, null, e.result
  from treadle.ended_item e join treadle.item i on i.no = e.no
  where e.no = any(:nos) and e.flags & 3 = 3 and i.group_no is null
    and not exists (select 1 from treadle.item_group g where g.no = e.no)
) x order by x.no

-- :name rest_groups
select array(select x.no from (
  select g.no from treadle.item_group g left join treadle.item i on i.no = g.no
  where g.no > :after::bigint and coalesce(g.tenant, i.tenant) = :tenant::text
  union all
  select e.no from treadle.ended_item e join treadle.item i on i.no = e.no
  where e.no > :after and e.flags & 3 = 3 and i.group_no is null and i.tenant = :tenant
    and not exists (select 1 from treadle.item_group g where g.no = e.no)
) x where not exists (select 1 from treadle.read_ahead r where r.no = x.no)
order by x.no limit 1000) as nos

-- -- the new store ---------------------------------------------------------------------------------------

-- :name stage
insert into treadle.arriving (tenant, number, data)
select :tenant, u.number, u.data from unnest(:numbers::bigint[], :data::bytea[]) with ordinality u(number, data, place)
order by u.place

-- :name unstage
delete from treadle.arriving where tenant = :tenant and number = any(:numbers::bigint[])

-- :name last_staged
select coalesce(max(number), -1) from treadle.arriving where tenant = :tenant
