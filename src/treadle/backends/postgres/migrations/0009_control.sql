-- Version 9: orders of operators, releases of workers.

-- subject        item.Order.subject
-- queue, tenant  of pauses that claims obey (Order.paused_part), empty for all; null for all other orders
create table treadle.orders (
  subject text collate "C" primary key,
  queue   text collate "C",
  tenant  text collate "C",
  until   float8,
  at      float8 not null,
  body    bytea not null
);
create index orders_pause on treadle.orders (queue, tenant) where queue is not null;

insert into treadle.orders (subject, queue, tenant, at, body)
  select concat_ws(chr(10), 'pause', p.queue, '', p.tenant, '', ''), p.queue, p.tenant, 0,
    convert_to(jsonb_strip_nulls(jsonb_build_object(
      'kind', 'pause', 'queue', p.queue, 'tenant', nullif(p.tenant, '')))::text, 'UTF8')
  from treadle.pause p;

-- The version of the orders.
insert into treadle.meta (name, value) select 'orders', count(*)::text from treadle.orders;

-- Read for processes of version 8 that are still open, which cannot change it.
drop table treadle.pause;
create view treadle.pause as select o.queue, o.tenant from treadle.orders o where o.queue <> '';

-- This function has one more parameter, and answers one more column. Processes of version 8 that are still open call it
-- without the one, and do not read the other.
drop function if exists treadle.claim(text, int, treadle.demand, float8, treadle.last_served);

-- Releases of the code of workers. Null: the worker has none. Processes of version 8 write none.
--
--   release  when the first worker of each release began
alter table treadle.worker add column release text collate "C";
alter table treadle.attempt add column release text collate "C";
alter table treadle.ended_item add column release text collate "C";  -- null unless it is dead
alter type treadle.item_state
  add attribute release text,
  add attribute history_release text[];
create table treadle.release (
  name  text collate "C" primary key,
  began float8 not null
);

-- These functions have other parameters now, or answer other columns. Processes of version 8 that are still open call
-- the new ones without the new parameters, and do not read the new columns.
drop function if exists treadle.beat(text, float8, text[], boolean, bigint[], bigint[], text[], bytea);
drop function if exists treadle.overview(text, float8);
