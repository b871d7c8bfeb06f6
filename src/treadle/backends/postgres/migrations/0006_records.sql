-- Version 6: what operators look back at. No item costs more than before.

-- What workers counted: each minute and quarter of an hour for a day, each hour for 90 days.
-- step       60, 900 or 3600
-- wait, run  the counts of a histogram, as one number: see stats.py
create table treadle.stat (
  step      int not null,
  at        float8 not null,
  type      text collate "C" not null,
  queue     text collate "C" not null,
  started   bigint not null,
  succeeded bigint not null,
  failed    bigint not null,
  retried   bigint not null,
  dead      bigint not null,
  cancelled bigint not null,
  wait      numeric not null,
  run       numeric not null,
  primary key (step, at, type, queue)
);

-- What people changed.
-- tenant  null: in all tenants
create table treadle.audit (
  no      bigint generated always as identity primary key,
  at      float8 not null,
  actor   text not null,
  verb    text not null,
  tenant  text collate "C",
  ids     text[] not null,
  count   int not null,
  about   text not null,
  reason  text not null,
  address text not null,
  bulk    text collate "C"
);
create index audit_bulk on treadle.audit (bulk, no);
create index audit_tenant on treadle.audit (tenant, bulk, no);
create index audit_portions on treadle.audit (tenant, no) where bulk is not null and about <> '';
create index audit_at on treadle.audit (at);

-- The last runs of schedules.
-- id  null: the occurrence was skipped, or submitted nothing
create table treadle.schedule_run (
  name     text collate "C" not null,
  at       float8 not null,
  fired_at float8 not null,
  id       text collate "C",
  tenant   text collate "C",
  primary key (name, at)
);

-- Cancelled items, to list them.
create index ended_item_cancelled on treadle.ended_item (no) where outcome = 8;

-- Open items that have lost three workers in a row, or more: there are few of them.
create index open_item_killing on treadle.open_item (no) where losses >= 3;

-- The function has another parameter now. Processes of version 5 call the new one without it.
drop function if exists treadle.fire(text, float8, float8, treadle.new_items, boolean, boolean);

-- drain  someone has asked the worker to stop
alter table treadle.worker add column drain boolean not null default false;
