-- Version 9: orders of operators, releases of workers, lists of groups and of workflows, logs.

-- subject        item.Order.subject. Empty: the row has the version of the orders in `at`
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

insert into treadle.orders (subject, at, body) select '', count(*), '' from treadle.orders;

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

-- What attempts have logged, by the tokens of their leases. Rows go with the item.
create table treadle.log (
  no    bigint not null,
  token bigint not null,
  at    float8 not null,
  value bytea not null,
  primary key (no, token)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,
  autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Logs to write.
-- owner  the record or the settlement that each belongs to
-- trim   some of their items have had attempts before
create type treadle.new_logs as (owner int[], value bytea[], trim boolean);

-- As above.
drop function if exists treadle.settle(
  treadle.settlements, treadle.new_items, boolean, boolean, boolean, boolean, text[], treadle.new_steps);
drop function if exists treadle.record(
  bigint[], bigint[], text[], treadle.new_steps, int[], bytea[], int[], int[], bytea[], boolean);

-- total    members that it has had
-- outcome  0 running  1 succeeded  2 failed  3 cancelled: `outcome_of` in treadle.store.rules. Null: lists of groups leave
--          it out
alter table treadle.item_group add column total int not null default 1;
update treadle.item_group g set total = (g.outermost is null)::int
  + (select count(*) from treadle.item i where i.group_no = g.no and i.type is not null);
alter table treadle.item_group add column outcome smallint generated always as (case
  when outermost is not null or total < 2 then null
  when ended is null then 0
  when final and contributed then 1
  when failed > 0 then 2
  when cancelled > 0 and not contributed then 3
  else 1 end) stored;
create index item_group_outcome on treadle.item_group (outcome, no) where outcome is not null;

-- group_no  of a dead item: its group, if that has a row; else null
alter table treadle.ended_item add column group_no bigint;
update treadle.ended_item e set group_no = g.no
  from treadle.item i join treadle.item_group g on g.no = coalesce(i.group_no, i.no)
  where i.no = e.no and e.outcome = 7;
create index ended_item_group on treadle.ended_item (group_no, ended, no) where group_no is not null;

-- The roots of workflows, in the order of submission; those of each workflow; its items.
create index item_workflow_roots on treadle.item (no) where workflow is not null and group_no is null;
create index item_workflow_root on treadle.item (workflow, tenant, no) where workflow is not null and group_no is null;
create index item_workflow_tenant on treadle.item (workflow, tenant, no) where workflow is not null;

-- Samples of the backlog, by minute, quarter and hour: records.BacklogSample.
create table treadle.sample (
  step      int not null,
  at        float8 not null,
  queue     text collate "C" not null,
  samples   int not null,
  ready     float8 not null,
  running   float8 not null,
  oldest    float8 not null,
  estimated boolean not null,
  primary key (step, at, queue)
);
