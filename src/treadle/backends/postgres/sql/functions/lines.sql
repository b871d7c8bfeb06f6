-- The lines of a queue that have ready items, by tenant and lane: how many, up to a limit for each, since when the first
-- one is ready, and which it is. Parked items are found by their types; they belong to their lines.
create or replace function treadle.queue_lines(p_queue text, p_tenant text, p_count int, p_most int)
returns table (tenant text, lane text, count int, since float8, first text)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  at_type text; heads treadle.open_item[] := treadle.line_heads(null, p_queue, p_tenant, p_count);
begin
  at_type := '';
  for k in 1 .. 500 loop
    select o.type into at_type from treadle.open_item o where o.status = 3 and o.type > at_type
      order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1;
    exit when at_type is null;
    heads := heads || treadle.line_heads(at_type, p_queue, p_tenant, p_count);
  end loop;
  return query
    select l.tenant, l.lane, n.count, l.since, i.id
    from (
      select h.tenant, h.lane, array_agg(case when h.status = 3 then h.type end) as types,
        (array_agg(h.no order by h.priority desc, h.seq))[1] as no,
        (array_agg(h.ready_since order by h.priority desc, h.seq))[1] as since
      from unnest(heads) h group by h.tenant, h.lane order by h.tenant, h.lane limit p_count) l
    join treadle.item i on i.no = l.no
    cross join lateral (
      -- A function for each would take ten times as long to call as to count.
      select sum(case when t.type is null then (select count(*) from (
          select 1 from treadle.open_item o
          where o.status = 2 and o.queue = p_queue and o.tenant = l.tenant and o.lane = l.lane limit p_most) x)
        else (select count(*) from (
          select 1 from treadle.open_item o
          where o.status = 3 and o.type = t.type and o.queue = p_queue and o.tenant = l.tenant and o.lane = l.lane
          limit p_most) x) end)::int as count
      from unnest(l.types) t(type)) n
    order by l.tenant, l.lane;
end $$;

-- The first items of the lines of a queue: one step in the index each. p_type: of those that are parked under a type.
create or replace function treadle.line_heads(p_type text, p_queue text, p_tenant text, p_count int)
returns treadle.open_item[]
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  answer treadle.open_item[] := '{}'; head treadle.open_item;
begin
  if p_type is null then
    select * into head from treadle.open_item o
      where o.status = 2 and o.queue = p_queue and o.tenant >= coalesce(p_tenant, '')
      order by o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1;
  else
    select * into head from treadle.open_item o
      where o.status = 3 and o.type = p_type and o.queue = p_queue and o.tenant >= coalesce(p_tenant, '')
      order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1;
  end if;
  for k in 1 .. p_count loop
    exit when head.no is null or head.tenant <> p_tenant;
    answer := answer || head;
    if p_type is null then
      select * into head from treadle.open_item o
        where o.status = 2 and o.queue = p_queue and (o.tenant, o.lane) > (head.tenant, head.lane)
        order by o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1;
    else
      select * into head from treadle.open_item o
        where o.status = 3 and o.type = p_type and o.queue = p_queue and (o.tenant, o.lane) > (head.tenant, head.lane)
        order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1;
    end if;
  end loop;
  return answer;
end $$;
