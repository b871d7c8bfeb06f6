-- :name item_columns
:rank::text::int[], :owner::text::int[], treadle.names(:id), treadle.names(:tenant), treadle.names(:type),
treadle.names(:queue), treadle.names(:lane), :priority::text::int[], :attempts::text::int[],
:run_at::text::float8[], :delay::text::float8[], :deadline::text::float8[], :expires_in::text::float8[],
treadle.names(:parent), treadle.names(:workflow), treadle.names(:workflow_type), treadle.names(:after),
:need::text::int[], :counting::text::smallint[], treadle.names(:key), :key_scope::text::float8[],
:keep::text::float8[], :keep_dead::text::float8[], :input::bytea[], :options::bytea[]

-- :name policy_columns
:key_policy::text::smallint[], :debounce_max::text::float8[]

-- :name new_items
row({item_columns}, :nonce::text::bigint[], treadle.names(:lease_to), null, null, null,
  :contributes::text::boolean[], null, {policy_columns})::treadle.new_items

-- :name store
select * from treadle.store_items({new_items}, :plain::boolean, :cycles::boolean)

-- :name fire
select f.fired, (f.stored).*
from treadle.fire(:name::text, :at::float8, :next_at::float8, {new_items}, :plain::boolean, :cycles::boolean,
  :first::int, :error::text) f

-- The condition is checked once, before the function is called: in another store nothing is done, and no row
-- is the answer.
-- :name submit_in_transaction
select s.refused, s.detail, (s.stored).*
from treadle.submit_in_transaction({new_items}, :plain::boolean, :cycles::boolean, :channel::text) s
where {store_identity} = :store::text

-- With an audit entry, unless nothing was stored or changed. Of the items that exist, `own` is null for those that
-- took over what new ones have.
-- :name noted_store
with changed as materialized (select * from treadle.store_items({new_items}, :plain::boolean, :cycles::boolean)),
counted as ({counted} from changed s),
{noted}
select * from changed

-- :name noted_submit
with changed as materialized (
  select s.refused, s.detail, (s.stored).*
  from treadle.submit_in_transaction({new_items}, :plain::boolean, :cycles::boolean, :channel::text) s
  where {store_identity} = :store::text),
counted as ({counted} from changed s where s.refused is null),
{noted}
select * from changed

-- :name counted
select s.now, :count::int - (select pg_catalog.count(own)::int from pg_catalog.unnest(s.existing_own) own) as count

-- Which store this is: this schema of this database. A copy of a database has the same key.
-- :name store_identity
(select pg_catalog.md5(m.value) || '/' || d.oid from treadle.meta m, pg_catalog.pg_database d
  where m.name = 'wake_key' and d.datname = pg_catalog.current_database())

-- :name identity
select {store_identity}

-- SQLAlchemy begins asyncpg's transaction with the first statement that goes through it.
-- :name begin
select 1

-- A new item, in one plain statement. It stores it, or raises a unique violation if the id is taken. The function
-- that handles that case, `store_items`, takes a quarter longer.
-- :name store_one
with moment as materialized (
  select treadle.clock() as now, pg_catalog.set_config('lock_timeout', '200ms', true)
),
stored as (
  insert into treadle.item (no, nonce, id, input, queued, due, deadline, keep, keep_dead, priority, attempts,
      need, tenant, type, queue, lane, parent, workflow, workflow_type, options)
    select u.no, u.nonce, u.id, u.input, m.now, coalesce(:run_at::float8, m.now + :delay::float8),
      coalesce(:deadline::float8, m.now + :expires_in::float8), :keep::float8, :keep_dead::float8,
      :priority::int, :attempts::int, :need::int, :tenant::text, :type::text, :queue::text, :lane::text,
      :parent::text, :workflow::text, :workflow_type::text, :options::bytea
    from moment m, (values (pg_catalog.nextval('treadle.number'), :nonce::bigint, :id::text, :input::bytea))
      u (no, nonce, id, input)
    returning no, queued, due, deadline
),
opened as (
  insert into treadle.open_item (no, seq, due, ready_since, deadline, keep, keep_dead, status, priority,
      tenant, type, queue, lane)
    select no, no, due, queued, deadline,
      case when :keep::float8 = 86400::float8 then null else :keep::float8 end, :keep_dead::float8,
      case when due > queued then 1 else 2 end, :priority::int, :tenant::text, :type::text,
      :queue::text, :lane::text
    from stored
)
select case when coalesce(:run_at::float8, m.now + :delay::float8) > m.now then 1 else 2 end as state, m.now
from moment m

-- Many that differ only in their ids and inputs, as almost all do: all are stored, or none. They are inserted in the order
-- of their ids, and numbered in that of submission. What they share is in subselects, which are evaluated once: for many
-- items that takes less, and for one item a tenth more.
-- :name store_alike
with new as materialized (
  select pg_catalog.nextval('treadle.number') as no, r.*
  from (select pg_catalog.unnest(treadle.spread(:nonce::text::bigint[], :count::int)) as nonce,
    pg_catalog.unnest(treadle.names(:id)) as id,
    pg_catalog.unnest(treadle.spread(:input::bytea[], :count::int)) as input) as r
),
began as materialized (
  select treadle.clock() as now, pg_catalog.set_config('lock_timeout', '200ms', true)
),
moment as materialized (
  select b.now, coalesce(:run_at::float8, b.now + :delay::float8) as due,
    coalesce(:deadline::float8, b.now + :expires_in::float8) as deadline
  from began b
),
stored as (
  insert into treadle.item (no, nonce, id, input, queued, due, deadline, keep, keep_dead, priority, attempts,
      need, tenant, type, queue, lane, parent, workflow, workflow_type, options)
    select n.no, n.nonce, n.id, n.input, (select now from moment), (select due from moment),
      (select deadline from moment), :keep::float8, :keep_dead::float8,
      :priority::int, :attempts::int, :need::int, :tenant::text, :type::text, :queue::text, :lane::text,
      :parent::text, :workflow::text, :workflow_type::text, :options::bytea
    from new n order by n.id collate pg_catalog."C"
),
opened as (
  insert into treadle.open_item (no, seq, due, ready_since, deadline, keep, keep_dead, status, priority,
      tenant, type, queue, lane)
    select n.no, n.no, (select due from moment), (select now from moment), (select deadline from moment),
      case when :keep::float8 = 86400::float8 then null else :keep::float8 end, :keep_dead::float8,
      (select case when due > now then 1 else 2 end from moment), :priority::int, :tenant::text, :type::text,
      :queue::text, :lane::text
    from new n
)
select case when m.due > m.now then 1 else 2 end as state, m.now
from moment m
