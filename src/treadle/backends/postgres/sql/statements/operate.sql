-- :name cancel
select (c.item).*, (c.effects).* from treadle.cancel(:ids::text[], :tenant, :only_open) c

-- :name complete
select (c.item).*, (c.effects).* from treadle.complete(:id, :tenant, :result) c

-- :name requeue
select (c.item).*, (c.effects).* from treadle.requeue({numbers}, :redrives, :backoff, :alone, :cancelled,
  :from_step) c

-- :name requeue_ids
select (c.item).*, (c.effects).* from treadle.requeue(treadle.find_items_in_order(:ids::text[], :tenant),
  :redrives, :backoff, :alone, :cancelled, :from_step) c

-- :name numbers_of_list
array({list})

-- :name trigger
select (c.item).*, (c.effects).* from treadle.trigger(:ids::text[], :tenant) c

-- :name hold
select (c.item).*, (c.effects).* from treadle.hold(:ids::text[], :tenant, :held::boolean) c

-- :name update
select (c.item).*, (c.effects).* from treadle.update_items(:ids::text[], :tenant, :run_at::float8,
  :priority::int, :lane::text, :queue::text, :deadline::float8, :sets_deadline::boolean) c

-- :name delete
select (c.item).*, (c.effects).* from treadle.delete(:group_ids::text[], :tenant, :cascade) c

-- :name prune
select treadle.prune(:limit)
