-- Version 8: steps, signals and streams. An item that has none has two more constants in its open row, and nothing else.
--
--   step      what an item has recorded under a name, and what it waits for
--   mail      signals that no wait has taken yet, and the keys of those that were taken
--   progress  the last thing that an item said about how far it is
--   chunk     the parts of its stream
--
-- Rows of these tables are changed only under a lock of the open row of their item. They go with the item.
--
-- A settlement of kind 4 suspends its item.

-- kind    0 value  1 failure  2 sleep  3 signal  4 children  5 forgotten
-- seq     in the order in which the steps of an item were recorded first, since they were forgotten
-- times   how often requeues have forgotten it
-- signal  the name of the signal that it waits for; null: of none
create table treadle.step (
  no      bigint not null,
  seq     bigint not null,
  at      float8 not null,
  took    float8 not null,
  until   float8,
  attempt int not null,
  times   int not null default 0,
  kind    smallint not null,
  over    boolean not null,
  name    text collate "C" not null,
  signal  text collate "C",
  value   bytea,
  undo    bytea,
  primary key (no, name)
);
create index step_wait on treadle.step (no, seq) where not over;

-- taken  only its key is needed
create table treadle.mail (
  no    bigint not null,
  seq   bigint not null,
  taken boolean not null,
  name  text collate "C" not null,
  key   text collate "C",
  value bytea,
  primary key (no, seq)
);
create index mail_unread on treadle.mail (no, name, seq) where not taken;
create unique index mail_key on treadle.mail (no, name, key) where key is not null;

create table treadle.progress (
  no    bigint primary key,
  at    float8 not null,
  value bytea not null
);

create table treadle.chunk (
  no     bigint not null,
  number int not null,
  at     float8 not null,
  value  bytea not null,
  primary key (no, number)
);

do $$
declare name text;
begin
  foreach name in array array['step', 'mail', 'progress', 'chunk'] loop
    execute format(
      'alter table treadle.%I set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,
         autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)', name);
  end loop;
end $$;

-- recorded   1 it has steps  2 it has a stream, or said how far it is. In `ended_item` these are the flags 32 and 64
-- suspended  it was suspended, and its last lease, if it has one since, goes on from there
alter table treadle.open_item
  add column recorded smallint not null default 0,
  add column suspended boolean not null default false;
alter type treadle.item_state
  add attribute has_steps boolean,
  add attribute suspended boolean;

-- Steps to write. The names of an owner are different.
-- owner  the record or the settlement that each belongs to
create type treadle.new_steps as (
  owner int[], name text[], kind smallint[], value bytea[], took float8[], undo bytea[], signal text[],
  over boolean[], delay float8[], until float8[]
);

-- These functions have other parameters now, or answer other columns. Processes of version 7 that are still open call
-- the new ones without the new parameters, and do not read the new columns.
drop function if exists treadle.settle(
  treadle.settlements, treadle.new_items, boolean, boolean, boolean, boolean, text[]);
drop function if exists treadle.requeue(bigint[], int, float8, boolean, boolean);
drop function if exists treadle.lock_ended(bigint[], boolean, int);
drop function if exists treadle.claim(text, int, treadle.demand, float8, treadle.last_served);
drop function if exists treadle.unknown_leases(text, bigint[]);
