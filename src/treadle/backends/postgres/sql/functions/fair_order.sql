-- The items of several lines, locked, in exactly fair order: queues alternate item by item, tenants within a
-- queue, lanes within a tenant; in a lane by priority, then by age.
--
-- `in_lane` numbers the items of a lane by priority and age, `in_tenant` those of a tenant by `in_lane`,
-- `in_queue` those of a queue by `in_tenant`. The answer is in the order of `in_queue`. Items beyond a line's
-- share are left out, because items that were not read might come first.
create or replace function treadle.fair_order(
  p_limit int, p_last_queue text, lines treadle.lines, out no bigint[], out type text[])
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  select array_agg(x.no), array_agg(x.type) into no, type from (
    select q.no, q.type from (
      select t.*, row_number() over (partition by t.queue
        order by t.in_tenant, t.tenant collate "C" <= t.last_tenant, t.tenant collate "C") as in_queue from (
        select l.*, row_number() over (partition by l.queue, l.tenant
          order by l.in_lane, l.lane collate "C" <= l.last_lane, l.lane collate "C") as in_tenant from (
          select s.*, c.no, c.type, row_number() over (partition by s.queue, s.tenant, s.lane
            order by c.priority desc, c.seq) as in_lane
          from unnest(lines.queue, lines.tenant, lines.lane, lines.last_tenant, lines.last_lane,
                 lines.per_queue, lines.per_tenant, lines.per_lane)
               s(queue, tenant, lane, last_tenant, last_lane, per_queue, per_tenant, per_lane)
          cross join lateral (
            select o.no, o.type, o.priority, o.seq from treadle.open_item o
            where o.status = 2 and o.queue = s.queue and o.tenant = s.tenant and o.lane = s.lane
            order by o.queue, o.tenant, o.lane, o.priority desc, o.seq limit s.per_lane
            for no key update skip locked) c
        ) l
      ) t where t.in_tenant <= t.per_tenant
    ) q where q.in_queue <= q.per_queue
    order by q.in_queue, q.queue collate "C" <= p_last_queue, q.queue collate "C" limit p_limit
  ) x;
end $$;

-- The same if some items are parked under a type that is wanted: they stand in their lanes among the others.
-- A line of ready items has no type. The parts of a line, tenant or queue were each given a share as if they
-- were alone: the smallest of these shares counts.
create or replace function treadle.fair_order_parked(
  p_limit int, p_last_queue text, lines treadle.lines,
  out no bigint[], out type text[], out parked boolean[])
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  select array_agg(x.no), array_agg(x.type), array_agg(x.parked) into no, type, parked from (
    select q.no, q.type, q.parked from (
      select t.*, row_number() over (partition by t.queue
        order by t.in_tenant, t.tenant collate "C" <= t.last_tenant, t.tenant collate "C") as in_queue from (
        select l.*, row_number() over (partition by l.queue, l.tenant
          order by l.in_lane, l.lane collate "C" <= l.last_lane, l.lane collate "C") as in_tenant from (
          select s.queue, s.tenant, s.lane, s.last_tenant, s.last_lane, s.per_queue, s.per_tenant, s.per_lane,
            c.no, c.type, c.parked,
            row_number() over (partition by s.queue, s.tenant, s.lane order by c.priority desc, c.seq) as in_lane
          from (
            select u.type, u.queue, u.tenant, u.lane, u.last_tenant, u.last_lane,
              min(u.per_queue) over (partition by u.queue) as per_queue,
              min(u.per_tenant) over (partition by u.queue, u.tenant) as per_tenant,
              min(u.per_lane) over (partition by u.queue, u.tenant, u.lane) as per_lane
            from unnest(lines.type, lines.queue, lines.tenant, lines.lane, lines.last_tenant, lines.last_lane,
                        lines.per_queue, lines.per_tenant, lines.per_lane)
                 u(type, queue, tenant, lane, last_tenant, last_lane, per_queue, per_tenant, per_lane)
          ) s
          cross join lateral (
            select r.*, false as parked from (
              select o.no, o.type, o.priority, o.seq from treadle.open_item o
              where s.type is null and o.status = 2 and o.queue = s.queue and o.tenant = s.tenant
                and o.lane = s.lane
              order by o.queue, o.tenant, o.lane, o.priority desc, o.seq limit s.per_lane
              for no key update skip locked) r
            union all
            select p.*, true from (
              select o.no, o.type, o.priority, o.seq from treadle.open_item o
              where o.status = 3 and o.type = s.type and o.queue = s.queue and o.tenant = s.tenant
                and o.lane = s.lane
              order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit s.per_lane
              for no key update skip locked) p
          ) c
        ) l where l.in_lane <= l.per_lane
      ) t where t.in_tenant <= t.per_tenant
    ) q where q.in_queue <= q.per_queue
    order by q.in_queue, q.queue collate "C" <= p_last_queue, q.queue collate "C" limit p_limit
  ) x;
end $$;
