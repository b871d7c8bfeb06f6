-- The items of several lines, locked, in the exact order of turns: queues one item at a time, tenants
-- within a queue, lanes within a tenant; in a lane by priority, then by age.
--
-- An item's turn: its depth in its lane orders the items of a tenant, its rank there those of a queue, its
-- rank there all of them. Beyond a line's share nothing may be said yet: others might come first.
create or replace function treadle.line_up(
  p_limit int, t_queue text, s_queue text[], s_tenant text[], s_lane text[], s_last_tenant text[],
  s_last_lane text[], s_per_queue int[], s_per_tenant int[], s_per_lane int[],
  out c_no bigint[], out c_type text[])
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  select array_agg(x.no), array_agg(x.type) into c_no, c_type from (
    select q.no, q.type from (
      select t.*, row_number() over (partition by t.queue
        order by t.rank, t.tenant collate "C" <= t.last_tenant, t.tenant collate "C") as turn from (
        select l.*, row_number() over (partition by l.queue, l.tenant
          order by l.depth, l.lane collate "C" <= l.last_lane, l.lane collate "C") as rank from (
          select s.*, c.no, c.type, row_number() over (partition by s.queue, s.tenant, s.lane
            order by c.priority desc, c.seq) as depth
          from unnest(s_queue, s_tenant, s_lane, s_last_tenant, s_last_lane, s_per_queue, s_per_tenant, s_per_lane)
               s(queue, tenant, lane, last_tenant, last_lane, per_queue, per_tenant, per_lane)
          cross join lateral (
            select j.no, j.type, j.priority, j.seq from treadle.job j
            where j.status = 2 and j.queue = s.queue and j.tenant = s.tenant and j.lane = s.lane
            order by j.queue, j.tenant, j.lane, j.priority desc, j.seq limit s.per_lane
            for update skip locked) c
        ) l
      ) t where t.rank <= t.per_tenant
    ) q where q.turn <= q.per_queue
    order by q.turn, q.queue collate "C" <= t_queue, q.queue collate "C" limit p_limit
  ) x;
end $$;

-- The same where some are parked under a type that is wanted: they stand in their lanes among the others. A
-- line of the ready ones has no type. What counts is the smallest of the shares that the parts of a line,
-- tenant or queue were given, each as if it were alone.
create or replace function treadle.line_up_parked(
  p_limit int, t_queue text, s_type text[], s_queue text[], s_tenant text[], s_lane text[],
  s_last_tenant text[], s_last_lane text[], s_per_queue int[], s_per_tenant int[], s_per_lane int[],
  out c_no bigint[], out c_type text[], out c_parked boolean[])
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  select array_agg(x.no), array_agg(x.type), array_agg(x.parked) into c_no, c_type, c_parked from (
    select q.no, q.type, q.parked from (
      select t.*, row_number() over (partition by t.queue
        order by t.rank, t.tenant collate "C" <= t.last_tenant, t.tenant collate "C") as turn from (
        select l.*, row_number() over (partition by l.queue, l.tenant
          order by l.depth, l.lane collate "C" <= l.last_lane, l.lane collate "C") as rank from (
          select s.queue, s.tenant, s.lane, s.last_tenant, s.last_lane, s.per_queue, s.per_tenant, s.per_lane,
            c.no, c.type, c.parked,
            row_number() over (partition by s.queue, s.tenant, s.lane order by c.priority desc, c.seq) as depth
          from (
            select u.type, u.queue, u.tenant, u.lane, u.last_tenant, u.last_lane,
              min(u.per_queue) over (partition by u.queue) as per_queue,
              min(u.per_tenant) over (partition by u.queue, u.tenant) as per_tenant,
              min(u.per_lane) over (partition by u.queue, u.tenant, u.lane) as per_lane
            from unnest(s_type, s_queue, s_tenant, s_lane, s_last_tenant, s_last_lane, s_per_queue,
                        s_per_tenant, s_per_lane)
                 u(type, queue, tenant, lane, last_tenant, last_lane, per_queue, per_tenant, per_lane)
          ) s
          cross join lateral (
            select r.*, false as parked from (
              select j.no, j.type, j.priority, j.seq from treadle.job j
              where s.type is null and j.status = 2 and j.queue = s.queue and j.tenant = s.tenant
                and j.lane = s.lane
              order by j.queue, j.tenant, j.lane, j.priority desc, j.seq limit s.per_lane
              for update skip locked) r
            union all
            select p.*, true from (
              select j.no, j.type, j.priority, j.seq from treadle.job j
              where j.status = 3 and j.type = s.type and j.queue = s.queue and j.tenant = s.tenant
                and j.lane = s.lane
              order by j.type, j.queue, j.tenant, j.lane, j.priority desc, j.seq limit s.per_lane
              for update skip locked) p
          ) c
        ) l where l.depth <= l.per_lane
      ) t where t.rank <= t.per_tenant
    ) q where q.turn <= q.per_queue
    order by q.turn, q.queue collate "C" <= t_queue, q.queue collate "C" limit p_limit
  ) x;
end $$;
