-- :name explain
select (e.item).*, e.now, e.verdict, e.need, e.met, e.open, e.counting, e.name, e.name_state, e.name_type, e.keeps_place, e.begun,
  e.lost, e.ahead, e.lanes, e.lane_holder, e.worker_id, e.worker_until, e.worker_types,
  e.worker_running, e.worker_info
from treadle.explain(:id, :tenant) e

-- :name overview
select * from treadle.overview(:tenant, :seconds::float8)

-- :name marks
select m.*, treadle.mark_releases(m.mark, :tenant, m.count) from treadle.dead_marks(:tenant, :count, :cap) m

-- :name limits
select * from treadle.limit_uses(:names::text[], :count)

-- :name lines
select * from treadle.queue_lines(:queue, :tenant, :count, :most)

-- :name related
select * from treadle.related_items(:id, :tenant, :count)
