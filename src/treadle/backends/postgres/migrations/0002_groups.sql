-- Version 2: groups in groups, items that wait for whole groups, deaths that fail a group, and a requeue that
-- waits for `after` again.
--
--   item_group  A nested group has the number of the item that closes it. That item is a member of the group
--               around it, and its id is the id of the nested group.
--   dependency  With `of_group`, the dependent waits for the whole group that has the number `prerequisite`:
--               the group of that root, or the nested group that this item closes. The names of groups in
--               `item.after` begin with chr(30).
--   ended_item  More flags: 8 the death is tolerated, and does not fail the group; 16 it ended before enough of
--               its prerequisites had counted.

alter table treadle.item
  add column counting smallint,            -- as in open_item; null: 0
  add column contributes boolean;          -- null: true
alter table treadle.open_item
  add column contributes boolean not null default true;
alter table treadle.item_group
  add column failed int not null default 0,  -- dead members whose death is not tolerated
  add column outermost bigint,               -- for a nested group: the group around it that is not nested
  add column id text collate "C",            -- of the root, if it was pruned and other members stay; else null
  add column tenant text collate "C",        -- the same
  add column type text collate "C";          -- the same
create index item_group_id on treadle.item_group (id, tenant) where id is not null;
create index item_group_outermost on treadle.item_group (outermost) where outermost is not null;
alter table treadle.dependency
  add column of_group boolean not null default false,
  drop constraint dependency_pkey,
  add primary key (prerequisite, dependent, of_group);

-- What the older version did not record, as far as it can be known.
update treadle.item i set counting = 1 from treadle.open_item o where o.no = i.no and o.counting = 1;
update treadle.ended_item e set flags = e.flags | 16 from treadle.item i
  where i.no = e.no and i.need > 0 and e.outcome in (7, 8) and (e.reason = 5 or e.attempt = 0);
update treadle.ended_item e set flags = e.flags | 8 from treadle.item i
  where i.no = e.no and e.outcome = 7 and exists (
    select 1 from treadle.item w left join treadle.ended_item x on x.no = w.no
    where w.after is not null and w.after @> array[i.id] and w.tenant = i.tenant
      and (w.need < cardinality(w.after) or w.counting = 1 or x.outcome = 6));
update treadle.item_group g set failed = (
    select count(*) from treadle.item i join treadle.ended_item e on e.no = i.no
    where (i.no = g.no or i.group_no = g.no) and e.outcome = 7 and e.flags & 8 = 0)
  where g.dead > 0;

alter type treadle.new_items
  add attribute contributes boolean[],     -- null: all do
  add attribute closes boolean[];          -- rows that close nested groups; null: none
alter type treadle.ended_rows
  add attribute silent_row int[],          -- the rows of those that do not contribute
  add attribute tolerated bigint[];        -- the numbers of the dead whose deaths are tolerated
alter type treadle.group_state
  drop attribute failed,
  add attribute failed int,
  add attribute deaths bigint[],           -- the first ten members whose deaths fail it
  add attribute cancelled bigint,          -- a cancelled member, if it has ended
  add attribute outer_id text;

-- Functions that have other parameters now, or no longer exist.
drop function if exists treadle.requeue(bigint[], int, float8);
drop function if exists treadle.count_towards_dependents(float8, bigint[], bigint[], smallint[]);
drop function if exists treadle.with_open_dependents(bigint[]);
