-- Tenants that move while they are in use. These statements run on a connection of their own, whose search path is pinned.

-- :name mark
select owner from treadle.claimed_key where key = :key and tenant = :tenant

-- :name lock_mark
select owner from treadle.claimed_key where key = :key and tenant = :tenant for share

-- One mover at a time. A trigger is made under the same lock.
-- :name lock
lock table treadle.item, treadle.claimed_key in exclusive mode

-- :name any_mark
select exists (select 1 from treadle.claimed_key k where k.tenant = :marks and starts_with(k.key, :prefix::text))

-- :name set_mark
insert into treadle.claimed_key (key, tenant, owner, until) values (:key, :tenant, :owner, :until)
on conflict (key, tenant) do update set (owner, until)=(select excluded.owner, excluded.until)

-- The tenants that are not here. They are written into the function: a transaction whose snapshot is older than a mark sees
-- the function as it is now.
-- :name fence
select format($f$
create or replace function treadle.elsewhere() returns trigger language plpgsql set search_path = pg_catalog, pg_temp as $t$
begin
  if new.tenant = any(%L::text[]) then
    raise exception 'the tenant is elsewhere' using errcode='TM001';
  end if;
  return new;
end $t$ $f$, coalesce(array_agg(substr(k.key, 6) order by k.key), '{}')::text)
from treadle.claimed_key k
where k.tenant = :marks and k.key like 'mark.%'
  and k.owner::json ->> 'state' in ('away', 'importing')

-- :name has_fence
select exists (select 1 from pg_catalog.pg_trigger t where t.tgname = 'fence' and t.tgrelid = pg_catalog.to_regclass('treadle.item'))

-- :name add_fence
create trigger fence before insert on treadle.item for each row execute function treadle.elsewhere();
create trigger fence before insert on treadle.claimed_key for each row execute function treadle.elsewhere()

-- number: of what was copied before the freeze; null for the rest.
-- :name create_arriving
create table if not exists treadle.arriving (no bigint generated always as identity primary key,
  tenant text collate "C" not null, number bigint, data bytea not null);
create index if not exists arriving_number on treadle.arriving (tenant, number)

-- :name drop_arriving
delete from treadle.arriving where tenant = :tenant

-- :name drop_arriving_last
delete from treadle.arriving where tenant = :tenant and number is null

-- :name stage
insert into treadle.arriving (tenant, data) select :tenant, d from unnest(:data::bytea[]) with ordinality u(d, place) order by u.place

-- :name staged
select no, data from treadle.arriving where tenant = :tenant and no > :after::bigint order by no limit :limit::int

-- The checksum is that of `record_digest`.
-- :name staged_sum
select count(*), coalesce(sum(('x' || encode(substr(sha256(a.data), 1, 7), 'hex'))::bit(56)::bigint), 0)
from treadle.arriving a where a.tenant = :tenant

-- :name arriving_tenant
select tenant from treadle.arriving limit 1

-- -- a tenant leaves -------------------------------------------------------------------------------------

-- :name numbers
select array(select i.no from treadle.item i where i.tenant = :tenant) as nos

-- :name leave
select treadle.remove_items(:nos::bigint[])

-- What `remove_items` leaves: names that do not exist.
-- :name delete_dependencies
delete from treadle.dependency where prerequisite = any(:nos::bigint[]) or dependent = any(:nos)

-- :name delete_items
delete from treadle.item where tenant = :tenant

-- :name delete_groups
delete from treadle.item_group where no = any(:nos::bigint[]) or tenant = :tenant

-- :name delete_permits
delete from treadle.lease_permit where no = any(:nos::bigint[])

-- :name delete_keys
delete from treadle.claimed_key where tenant = :tenant

-- -- a tenant comes --------------------------------------------------------------------------------------

-- :name tokens_in_use
select token from treadle.open_item where status = 5 and token = any(:tokens::bigint[])

-- :name add_worker
insert into treadle.worker (id, until, lease, types, info, release)
values (:id, :until, :lease, :types, :info, :release) on conflict (id) where not gone do nothing

-- :name lease
update treadle.open_item o set (status, token, worker, begun, began, suspended)=(
  select 5::smallint, :token::bigint, w.no, :begun::boolean, :began::float8, :resumes::boolean
  from treadle.worker w where w.id = :worker and not w.gone)
where o.no = :no
