-- :name get
select * from treadle.read_items(treadle.find_items(:ids::text[], :tenant), true)

-- A group, with the members that failed it and a cancelled one, as of one instant: one row for each of these members,
-- in order. (Not as one column: the driver would look up its type, by the search path of the connection.)
-- :name group
select g.*, f.*, treadle.group_total(g.no) from treadle.read_groups(treadle.find_groups(:ids::text[], :tenant)) g
left join lateral treadle.read_items(pg_catalog.array_append(g.deaths, g.cancelled), false) f on true

-- :name groups
select g.*, f.*, treadle.group_total(g.no) from treadle.read_groups(:nos::bigint[]) g
left join lateral treadle.read_items(pg_catalog.array_append(g.deaths, g.cancelled), false) f on true

-- What has ended, as of one instant: a row for each item, and one without an item if there is none. The first row has the
-- rest.
-- :name ended
select case when i.ordinality > 1 then null else f.groups end as groups,
  case when i.ordinality > 1 then null else f.missing_items end as missing_items,
  case when i.ordinality > 1 then null else f.missing_groups end as missing_groups, i.*
from treadle.find_ended(treadle.names(:item_tenant), treadle.names(:item_id),
  treadle.names(:group_tenant), treadle.names(:group_id)) f
left join lateral treadle.read_items(f.items, false) with ordinality i on true

-- :name counts
select o.tenant, o.queue, o.type,
  case when o.verdict is not null then o.shown_status when o.status = 3 then 2 else o.status end, pg_catalog.count(*)
from treadle.open_item o where :tenant::text is null or o.tenant = :tenant group by 1, 2, 3, 4
union all
{ended}

-- The row of a dead item has all that is needed.
-- :name only_dead
select e.tenant, e.queue, e.type, 7, pg_catalog.count(*) from treadle.ended_item e
where e.outcome = 7 and (:tenant::text is null or e.tenant = :tenant) group by 1, 2, 3

-- :name every_outcome
select i.tenant, i.queue, i.type, e.outcome, pg_catalog.count(*)
from treadle.ended_item e join treadle.item i on i.no = e.no
where :tenant::text is null or i.tenant = :tenant group by 1, 2, 3, 4

-- :name now
select treadle.clock()
