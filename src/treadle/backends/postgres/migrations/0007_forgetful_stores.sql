-- Version 7: what a store needs that may forget its last changes, and in which ids are used again.

-- A version stands for one value of a group, whatever became of the group: see `next_version` in treadle.rules.
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

-- The function has another parameter now. Processes of version 6 call the new one without it.
drop function if exists treadle.put_schedule(text, float8, float8, boolean, bytea);
