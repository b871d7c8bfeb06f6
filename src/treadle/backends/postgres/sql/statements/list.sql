-- The parts of a list: see `ListQuery` in lists.py. Aliases: i item, o open_item, e ended_item.

-- :name list
select * from treadle.read_items(array({numbers}), :history)

-- :name numbers
select {front}.no from {tables} where {conditions} order by {front}.no {direction} limit :limit

-- :name item
treadle.item i

-- :name join_item
join treadle.item i on i.no = {front}.no

-- :name open_item
treadle.open_item o

-- :name join_open_item
left join treadle.open_item o on o.no = {front}.no

-- :name ended_item
treadle.ended_item e

-- :name join_ended_item
left join treadle.ended_item e on e.no = {front}.no

-- :name is_submitted
i.type is not null

-- :name nothing
false

-- :name reason
e.reason = :reason::smallint

-- :name mark
e.mark = :mark

-- :name release
(select a.release from treadle.attempt a where a.no = {front}.no order by a.no, a.seq desc limit 1) = :release

-- :name dead_release
e.release = :release

-- :name failed_group
e.flags & 8 = 0

-- :name is_dead
e.outcome = 7

-- :name is_cancelled
e.outcome = 8

-- :name has_ended
e.outcome = any(:outcomes::smallint[])

-- The statuses are constants: partial indexes are used for nothing else.
-- :name is_open
(o.verdict is null and o.status = any(array[{stored}])
  or o.verdict is not null and o.shown_status = any(array[{shown}]))

-- :name is_running
o.status = 5 and o.verdict is null

-- :name is_open_or_ended
({is_open} or e.outcome = any(array[{shown}]))

-- :name killing
o.losses >= 3

-- :name held
o.status = 1 and o.due >= 2::float8 ^ 64

-- :name tenant
{labels}.tenant = :tenant

-- :name type
{labels}.type = :type

-- :name queue
{labels}.queue = :queue

-- :name workflow
i.workflow = :workflow

-- :name key
i.key = :key

-- :name since
i.queued >= :since::float8

-- :name until
i.queued < :until::float8

-- :name since_number
{front}.no >= (select treadle.first_number_since(:first_at::float8))

-- :name until_number
{front}.no < (select treadle.first_number_since(:last_at::float8))

-- :name group_id
(i.group_no = any(array(select r.no from treadle.item r where r.id = :group_id
    union all select g.no from treadle.item_group g where g.id = :group_id
      and not exists (select 1 from treadle.item r where r.id = :group_id and r.tenant = g.tenant
                      and r.type is not null)))
  or i.no = any(array(select r.no from treadle.item r where r.id = :group_id and r.group_no is null)))

-- :name redrives
e.redrives < :redrives

-- :name after_cursor
{front}.no > :cursor::bigint

-- :name before_cursor
{front}.no < :cursor::bigint

-- Where a walk along an index begins, and the next two rows after a number of others.
-- :name walk
select n.no, n.is_first, (select i.queued from treadle.item i where i.no = n.no) as queued
from ((select {front}.no, true as is_first from {table} where {conditions} order by {front}.no {direction} limit 1)
  union all
  (select {front}.no, false from {table} where {conditions} order by {front}.no {direction}
   offset :looked_at limit 2)) n

-- :name within
{alias}.no >= :low::bigint and {alias}.no <= :high::bigint

-- :name count
select count(*) from (select 1 from {table} where {conditions} limit :most) n

-- The same as group_id. No index has the sum.
-- :name unindexed_group_id
(i.group_no + 0 = any(array(select r.no from treadle.item r where r.id = :group_id
    union all select g.no from treadle.item_group g where g.id = :group_id
      and not exists (select 1 from treadle.item r where r.id = :group_id and r.tenant = g.tenant
                      and r.type is not null)))
  or i.no + 0 = any(array(select r.no from treadle.item r where r.id = :group_id and r.group_no is null)))

-- The groups, or the workflows, and the first death of each, as of one instant.
-- :name groups
select g.no, g.id, g.tenant, g.type, g.outcome, g.open, g.total, g.failed, g.queued, g.ended, false, f.*
from treadle.list_groups({group_arguments}) g
left join lateral treadle.read_items(array[g.death], false) f on true

-- :name workflows
select g.no, g.id, g.tenant, g.type, g.outcome, g.open, g.total, g.failed, g.queued, g.ended, g.capped, f.*
from treadle.list_workflows({group_arguments}, :most) g
left join lateral treadle.read_items(array[g.death], false) f on true

-- :name group_arguments
:outcomes::smallint[],
  case when :first_at::float8 is null then 0 else treadle.first_number_since(:first_at::float8) end,
  case when :last_at::float8 is null then :before::bigint
       else least(:before::bigint, treadle.first_number_since(:last_at::float8)) end,
  :limit, :reach, :tenant, :type, :since::float8, :until::float8
