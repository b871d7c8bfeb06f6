-- Overview: how the store stands. What is read has a bound that does not depend on how many items are kept. The functions
-- are stable: all of it is from one instant.

-- p_cap  how many items of a queue and status are looked at, at least 1000
--
-- The columns of counts: `cut` says that there are more of the queue and status than were looked at.
-- lost_type, lost  when the last worker that had a type was removed; an empty type: one that had every type
create or replace function treadle.overview(
  p_tenant text, p_cap int,
  out now float8, out count_tenant text[], out count_queue text[], out count_type text[], out count_status int[],
  out count int[], out cut boolean[], out age_queue text[], out age float8[], out lost_type text[], out lost float8[],
  out paused_queue text[], out paused_tenant text[],
  out worker_id text[], out worker_until float8[], out worker_types text[], out worker_running int[],
  out worker_info bytea[])
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  now := treadle.clock();
  select array_agg(c.tenant), array_agg(c.queue), array_agg(c.type), array_agg(c.status), array_agg(c.count),
         array_agg(c.cut)
    into count_tenant, count_queue, count_type, count_status, count, cut from (
      select * from treadle.count_ready(p_tenant, p_cap)
      union all select * from treadle.count_parked(p_tenant, p_cap)
      union all select * from treadle.count_others(p_tenant, p_cap)) c;
  select array_agg(a.queue order by a.queue), array_agg(a.age order by a.queue) into age_queue, age from (
    select a.queue, min(a.age) as age from treadle.oldest_ready(p_tenant) a group by a.queue) a;
  select array_agg(t.type), array_agg(t.lost) into lost_type, lost from treadle.lost_type t
    where t.type = '' or t.type = any(count_type);
  select array_agg(p.queue order by p.queue, p.tenant), array_agg(p.tenant order by p.queue, p.tenant)
    into paused_queue, paused_tenant from treadle.pause p where p_tenant is null or p.tenant in ('', p_tenant);
  select * into worker_id, worker_until, worker_types, worker_running, worker_info from treadle.worker_states(10000);
end $$;

-- Ready items, queue by queue. A queue that comes late has less of the whole bound, but not nothing.
create or replace function treadle.count_ready(p_tenant text, p_cap int)
returns table (tenant text, queue text, type text, status int, count int, cut boolean)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  bound int := 30000; at_queue text := ''; portion int; seen int;
begin
  for k in 1 .. 500 loop
    at_queue := treadle.next_queue(null, at_queue);
    exit when at_queue is null;
    portion := least(greatest(p_cap, 1000), greatest(bound, 100));
    if p_tenant is null then
      return query
        select x.tenant, at_queue, x.type, 2, count(*)::int, sum(count(*)) over () > portion from (
          select o.tenant, o.type from treadle.open_item o where o.status = 2 and o.queue = at_queue
          order by o.queue, o.tenant, o.lane, o.priority desc, o.seq limit portion + 1) x
        group by x.tenant, x.type;
    else
      return query
        select p_tenant, at_queue, x.type, 2, count(*)::int, sum(count(*)) over () > portion from (
          select o.type from treadle.open_item o where o.status = 2 and o.queue = at_queue and o.tenant = p_tenant
          order by o.queue, o.tenant, o.lane, o.priority desc, o.seq limit portion + 1) x
        group by x.type;
    end if;
    get diagnostics seen = row_count;
    bound := bound - case when seen > 0 then portion else 0 end;
  end loop;
end $$;

-- Parked items, by type and queue.
create or replace function treadle.count_parked(p_tenant text, p_cap int)
returns table (tenant text, queue text, type text, status int, count int, cut boolean)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  bound int := 10000; at_type text := ''; at_queue text; portion int;
begin
  for k in 1 .. 500 loop
    select o.type into at_type from treadle.open_item o where o.status = 3 and o.type > at_type
      order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1;
    exit when at_type is null;
    at_queue := '';
    for n in 1 .. 500 loop
      at_queue := treadle.next_queue(at_type, at_queue);
      exit when at_queue is null;
      portion := least(greatest(p_cap, 1000), greatest(bound, 100));
      return query
        select x.tenant, at_queue, at_type, 2, count(*)::int, sum(count(*)) over () > portion from (
          select o.tenant from treadle.open_item o
          where o.status = 3 and o.type = at_type and o.queue = at_queue
            and o.tenant = coalesce(p_tenant, o.tenant)
          order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit portion + 1) x
        group by x.tenant;
      bound := bound - portion;
    end loop;
  end loop;
end $$;

-- Items of the other statuses. They are not in order of their queues, so they share one bound per status.
--
-- Each blocked item is a dependent of something: it is found there, as few open items are blocked as a rule.
create or replace function treadle.count_others(p_tenant text, p_cap int)
returns table (tenant text, queue text, type text, status int, count int, cut boolean)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  bound constant int := greatest(p_cap, 10000);
begin
  return query
    select x.tenant, x.queue, x.type, 0, count(*)::int, max(x.seen) > bound from (
      select o.tenant, o.queue, o.type, d.seen from (
        select distinct d.dependent, count(*) over () as seen from (
          select d.dependent from treadle.dependency d
          order by d.prerequisite, d.dependent, d.of_group limit bound + 1) d) d
      join treadle.open_item o on o.no = d.dependent and o.status = 0) x
    where p_tenant is null or x.tenant = p_tenant group by x.tenant, x.queue, x.type;
  return query
    select x.tenant, x.queue, x.type, 1, count(*)::int, max(x.seen) > bound from (
      select o.*, count(*) over () as seen from (
        select o.tenant, o.queue, o.type from treadle.open_item o where o.status = 1
        order by o.due, o.queue, o.tenant limit bound + 1) o) x
    where p_tenant is null or x.tenant = p_tenant group by x.tenant, x.queue, x.type;
  return query
    select x.tenant, x.queue, x.type, x.shown_status::int, count(*)::int, max(x.seen) > bound from (
      select o.*, count(*) over () as seen from (
        select o.tenant, o.queue, o.type, o.shown_status from treadle.open_item o where o.status = 4
        order by o.type, o.queue, o.tenant, o.no limit bound + 1) o) x
    where p_tenant is null or x.tenant = p_tenant group by x.tenant, x.queue, x.type, x.shown_status;
  return query
    select x.tenant, x.queue, x.type, x.state, count(*)::int, max(x.seen) > bound from (
      select o.*, count(*) over () as seen from (
        select o.tenant, o.queue, o.type, case when o.verdict is null then 5 else o.shown_status end::int as state
        from treadle.open_item o where o.status = 5 order by o.worker limit bound + 1) o) x
    where p_tenant is null or x.tenant = p_tenant group by x.tenant, x.queue, x.type, x.state;
  if p_tenant is null then
    return query
      select i.tenant, i.queue, i.type, 7, count(*)::int, max(x.seen) > bound from (
        select e.no, count(*) over () as seen from (
          select e.no from treadle.ended_item e where e.outcome = 7 order by e.no desc limit bound + 1) e) x
      join treadle.item i on i.no = x.no group by i.tenant, i.queue, i.type;
  else
    return query
      select i.tenant, i.queue, i.type, 7, count(*)::int, max(x.seen) > bound from (
        select e.no, count(*) over () as seen from (
          select e.no from treadle.ended_item e where e.outcome = 7 and e.tenant = p_tenant
          order by e.tenant, e.mark, e.ended, e.no limit bound + 1) e) x
      join treadle.item i on i.no = x.no group by i.tenant, i.queue, i.type;
  end if;
end $$;

-- When the oldest of the heads of the lines of each queue became ready: of up to 200 lines of a queue, and of some
-- thousand in all.
create or replace function treadle.oldest_ready(p_tenant text) returns table (queue text, age float8)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  bound int := 2000; at_queue text := ''; at_type text := ''; lines int;
begin
  for k in 1 .. 500 loop
    at_queue := treadle.next_queue(null, at_queue);
    exit when at_queue is null;
    lines := least(200, greatest(bound, 5));
    return query
      with recursive head as (
        (select o.tenant, o.lane, o.ready_since, 1 as place from treadle.open_item o
         where o.status = 2 and o.queue = at_queue and o.tenant >= coalesce(p_tenant, '')
         order by o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1)
        union all
        select n.* from head h cross join lateral (
          select o.tenant, o.lane, o.ready_since, h.place + 1 from treadle.open_item o
          where o.status = 2 and o.queue = at_queue and (o.tenant, o.lane) > (h.tenant, h.lane)
          order by o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1) n
        where h.place < lines and (p_tenant is null or h.tenant = p_tenant)
      )
      select at_queue, min(h.ready_since) from head h where p_tenant is null or h.tenant = p_tenant having count(*) > 0;
    bound := bound - lines;
  end loop;
  for k in 1 .. 500 loop
    select o.type into at_type from treadle.open_item o where o.status = 3 and o.type > at_type
      order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1;
    exit when at_type is null;
    at_queue := '';
    for n in 1 .. 500 loop
      at_queue := treadle.next_queue(at_type, at_queue);
      exit when at_queue is null;
      lines := least(200, greatest(bound, 5));
      return query
        with recursive head as (
          (select o.tenant, o.lane, o.ready_since, 1 as place from treadle.open_item o
           where o.status = 3 and o.type = at_type and o.queue = at_queue and o.tenant >= coalesce(p_tenant, '')
           order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1)
          union all
          select n.* from head h cross join lateral (
            select o.tenant, o.lane, o.ready_since, h.place + 1 from treadle.open_item o
            where o.status = 3 and o.type = at_type and o.queue = at_queue and (o.tenant, o.lane) > (h.tenant, h.lane)
            order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1) n
          where h.place < lines and (p_tenant is null or h.tenant = p_tenant)
        )
        select at_queue, min(h.ready_since) from head h
        where p_tenant is null or h.tenant = p_tenant having count(*) > 0;
      bound := bound - lines;
    end loop;
  end loop;
end $$;
