-- Version 5: what operators read.
--
-- Nothing here makes an item dearer that does not die: its rows have nulls in the new columns, and no index has them.

-- info  what the worker says about itself. A heartbeat writes the row again: kept outside of it, `info` is not copied.
alter table treadle.worker add column info bytea;
alter table treadle.worker alter column info set storage external, alter column types set storage main;
alter table treadle.worker set (toast_tuple_target = 128);

-- mark                 the fingerprint of its death; empty: it has none. Those that died before version 5: old:TYPE
-- tenant, queue, type  those of its item
-- All are null unless it is dead.
alter table treadle.ended_item
  add column mark text collate "C",
  add column tenant text collate "C",
  add column queue text collate "C",
  add column type text collate "C";
update treadle.ended_item e set mark = 'old:' || i.type, tenant = i.tenant, queue = i.queue, type = i.type
  from treadle.item i where i.no = e.no and e.outcome = 7;
-- To list those with a mark; to find the last of each mark; to count the dead, and to do the same for one tenant.
create index ended_item_mark on treadle.ended_item (mark, no) where outcome = 7;
create index ended_item_last_mark on treadle.ended_item (mark, ended, no) where outcome = 7;
create index ended_item_labels on treadle.ended_item (tenant, queue, type, mark, ended, no) where outcome = 7;
alter type treadle.item_state add attribute mark text;

-- limit_, window_  `limit` and `window` of the last request. Null: there was none since version 5, or the limit is of slots.
alter table treadle.limit_state
  add column limit_ int,
  add column window_ float8;

-- Functions that have more parameters now. Processes of version 4 that are still open call them without these.
drop function if exists treadle.beat(text, float8, text[], boolean, bigint[], bigint[], text[]);
drop function if exists treadle.settle(
  treadle.settlements, treadle.new_items, boolean, boolean, boolean, boolean);
drop function if exists treadle.end_leased_items(float8, treadle.settlements, boolean);
