-- :name claim
select c.* from {unflushed} treadle.claim(
  :worker::text, :limit::int,
  row(treadle.names(:types), :rooms::text::int[], treadle.names(:queues), treadle.names(:tenants),
    :avoid::text::jsonb, treadle.names(:buffered), :shared::text::int[], :shared_rooms::text::int[],
    treadle.names(:strict))::treadle.demand,
  :grace::float8,
  row(:last_queue::text, treadle.names(:tenant_queue), treadle.names(:last_tenant), treadle.names(:lane_queue),
    treadle.names(:lane_tenant), treadle.names(:last_lane))::treadle.last_served,
  :orders::bigint) c
