-- Version 7: stores that forget their last changes, ids that are used again, runs that fail, deferrals that count.

-- A version stands for one value of a group, also after the group is gone: see `next_version` in treadle.rules.
alter table treadle.item_group alter column version type bigint;
alter type treadle.group_state alter attribute version type bigint;
alter type treadle.settlements alter attribute version type bigint[];
drop function if exists treadle.update_groups(
  float8, bigint[], treadle.ended_rows, bytea[], bytea[], treadle.new_items);

-- The schedules that were removed, each until it is stored again. One that is in neither table is lost.
create table treadle.removed_schedule (
  name text collate "C" primary key,
  at   float8 not null
);

-- lease  seconds for which a heartbeat renews its lease. Null: it has sent none since version 7
alter table treadle.worker add column lease float8;

-- The function has another parameter now. Processes of version 6 call the new one without it.
drop function if exists treadle.put_schedule(text, float8, float8, boolean, bytea);

-- error  in a line; null: the run did not fail
alter table treadle.schedule_run add column error text collate "C";

-- These functions have other parameters now. Processes of version 6 call the new `fire` without its last one.
drop function if exists treadle.fire(text, float8, float8, treadle.new_items, boolean, boolean, int);
drop function if exists treadle.record_run(text, float8, text, text);
drop function if exists treadle.overview(text, int);
drop function if exists treadle.count_dead(text, int);

-- A heartbeat counts the permits of its worker.
create index permit_worker on treadle.permit (worker);

-- deferrals  how often a handler has deferred it
alter table treadle.open_item add column deferrals int not null default 0;
alter table treadle.ended_item add column deferrals int;  -- null: none
alter type treadle.item_state add attribute deferrals int;

-- Both answer one column more, the last one. Processes of version 6 do not read it.
drop function if exists treadle.claim(text, int, treadle.demand, float8, treadle.last_served);
drop function if exists treadle.unknown_leases(text, bigint[]);
