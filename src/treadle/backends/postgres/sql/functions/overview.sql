-- Overview: how the store stands. What is read has a bound that does not depend on how many items are kept. The
-- functions are stable: all of it is from one instant.
--
-- The rows of one queue are all over the table, and to read each from its own page takes ten times as long as to read
-- whole pages. So the table of open items is read whole, portion by portion, until the time is up. If it is up before
-- the end, the portions that were read are spread over the table, and say about how many items there are. The first
-- items of each queue and status are counted along the indexes then: what there is little of is exact all the same.
-- Without a time (null), they are all that is counted.

-- seen_*      open items on the pages that were read: for each portion
-- share       how much of the table was read. 1: all of it
-- first_*     if not: the first items of each queue and status, and the dead
-- first_cut   whether there are more of the queue and status; without a queue: of the status, in any queue
-- lost_type, lost  when the last worker that had a type was removed; an empty type: one that had every type
create or replace function treadle.overview(
  p_tenant text, p_seconds float8,
  out now float8, out share float8,
  out seen_tenant text[], out seen_queue text[], out seen_type text[], out seen_status int[], out seen_count int[],
  out first_tenant text[], out first_queue text[], out first_type text[], out first_status int[], out first_count int[],
  out first_cut boolean[], out age_queue text[], out age float8[], out lost_type text[], out lost float8[],
  out paused_queue text[], out paused_tenant text[],
  out worker_id text[], out worker_until float8[], out worker_types text[], out worker_running int[],
  out worker_info bytea[], out release_name text[], out release_began float8[])
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  few_portions constant int := 4;
  most_seen constant int := 50000;  -- rows of the answer: there may be a tenant for each item
  pages int := pg_relation_size('treadle.open_item') / current_setting('block_size')::int;
  -- Each portion answers with all labels that it has, so a few long ones are cheaper than many short ones: a tenth with
  -- 200,000 items of a thousand labels. With little time a portion is short: the time is up at the end of one.
  size int := greatest(40, pages / 1000, case when p_seconds >= 0.1 then least(pages / 8 + 1, 2000)
    when p_seconds > 0 then least(pages / 8 + 1, 100) end);
  portions int := greatest(1, ceil(pages::float8 / size));
  stride int := ceil(portions * 0.618);
  stop_at timestamptz := clock_timestamp() + p_seconds * interval '1 second';
  at_portion int := 0; done int := 0; low tid; high tid; part record; is_whole boolean;
begin
  now := treadle.clock();
  -- Steps of this length come to every portion once.
  while gcd(stride, portions) > 1 loop
    stride := stride + 1;
  end loop;
  while p_seconds is not null and done < portions loop
    exit when done >= few_portions and (clock_timestamp() > stop_at or cardinality(seen_count) > most_seen);
    low := format('(%s,0)', at_portion::bigint * size)::tid;
    high := format('(%s,0)', (at_portion + 1)::bigint * size)::tid;
    select array_agg(c.tenant) as tenant, array_agg(c.queue) as queue, array_agg(c.type) as type,
      array_agg(c.status) as status, array_agg(c.count) as count
      into part from (
        select o.tenant, o.queue, o.type,
          case when o.verdict is not null then o.shown_status when o.status = 3 then 2 else o.status end::int as status,
          count(*)::int as count
        from treadle.open_item o
        where o.ctid >= low and o.ctid < high and (p_tenant is null or o.tenant = p_tenant)
        group by 1, 2, 3, 4) c;
    seen_tenant := seen_tenant || part.tenant; seen_queue := seen_queue || part.queue;
    seen_type := seen_type || part.type; seen_status := seen_status || part.status;
    seen_count := seen_count || part.count;
    done := done + 1;
    at_portion := (at_portion + stride) % portions;
  end loop;
  is_whole := done = portions;
  share := done::float8 / portions;
  select array_agg(c.tenant), array_agg(c.queue), array_agg(c.type), array_agg(c.status), array_agg(c.count),
         array_agg(c.cut)
    into first_tenant, first_queue, first_type, first_status, first_count, first_cut from (
      select * from treadle.count_dead(p_tenant, p_seconds / 2)
      union all select * from treadle.count_ready(p_tenant) where not is_whole
      union all select * from treadle.count_parked(p_tenant) where not is_whole
      union all select * from treadle.count_others(p_tenant) where not is_whole) c;
  select array_agg(a.queue order by a.queue), array_agg(a.age order by a.queue) into age_queue, age
    from treadle.oldest_ready(p_tenant) a;
  select array_agg(t.type), array_agg(t.lost) into lost_type, lost from treadle.lost_type t
    where t.type = '' or t.type = any(seen_type) or t.type = any(first_type);
  select array_agg(p.queue order by p.queue, p.tenant), array_agg(p.tenant order by p.queue, p.tenant)
    into paused_queue, paused_tenant from treadle.pause p where p_tenant is null or p.tenant in ('', p_tenant);
  select * into worker_id, worker_until, worker_types, worker_running, worker_info from treadle.worker_states(10000);
  select array_agg(r.name order by r.began desc, r.name desc), array_agg(r.began order by r.began desc, r.name desc)
    into release_name, release_began from treadle.release r;
end $$;

-- The dead, by their labels: all, if there are few. Otherwise ever more of each, up to a number of labels, until the time is
-- up; of those that are not counted to the end, about as many as some pages say. A row without a queue says that there
-- are more labels, or more dead than were looked at.
create or replace function treadle.count_dead(p_tenant text, p_seconds float8)
returns table (tenant text, queue text, type text, status int, count int, cut boolean)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_hashagg = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  few constant int := case when p_seconds is null then 500 else 5000 end;
  most_labels constant int := 500;
  some_pages constant float8 := 1000;
  pages float8 := greatest(some_pages, pg_relation_size('treadle.ended_item') / current_setting('block_size')::int);
  is_many boolean;
  few_enough constant int := case when p_seconds >= 0.1 then 10000 when p_seconds > 0 then 1000 else 0 end;
  tenants text[]; queues text[]; types text[]; counts int[]; portion int;
  stop_at timestamptz := clock_timestamp() + p_seconds * interval '1 second'; began timestamptz;
begin
  if p_tenant is null then
    is_many := (select count(*) from (
      select 1 from treadle.ended_item e where e.outcome = 7 order by e.no limit few + 1) x) > few;
    if not is_many then
      return query
        select e.tenant, e.queue, e.type, 7, count(*)::int, false from treadle.ended_item e where e.outcome = 7
        group by e.tenant, e.queue, e.type;
    end if;
  else
    is_many := (select count(*) from (
      select 1 from treadle.ended_item e where e.outcome = 7 and e.tenant = p_tenant
      order by e.tenant, e.queue, e.type, e.mark, e.ended, e.no limit few + 1) x) > few;
    if not is_many then
      return query
        select e.tenant, e.queue, e.type, 7, count(*)::int, false from treadle.ended_item e
        where e.outcome = 7 and e.tenant = p_tenant group by e.tenant, e.queue, e.type;
    end if;
  end if;
  if not is_many then
    return;
  end if;
  -- Without a time, the first of them.
  if p_seconds is null and p_tenant is null then
    return query
      select x.tenant, x.queue, x.type, 7, count(*)::int, true from (
        select e.tenant, e.queue, e.type from treadle.ended_item e where e.outcome = 7
        order by e.tenant, e.queue, e.type, e.mark, e.ended, e.no limit few) x
      group by x.tenant, x.queue, x.type;
  elsif p_seconds is null then
    return query
      select x.tenant, x.queue, x.type, 7, count(*)::int, true from (
        select e.tenant, e.queue, e.type from treadle.ended_item e where e.outcome = 7 and e.tenant = p_tenant
        order by e.tenant, e.queue, e.type, e.mark, e.ended, e.no limit few) x
      group by x.tenant, x.queue, x.type;
  end if;
  if p_seconds is null then
    return query select null::text, null::text, null::text, 7, 0, true;
    return;
  end if;

  with recursive label as (
    (select e.tenant, e.queue, e.type from treadle.ended_item e
     where e.outcome = 7 and e.tenant >= coalesce(p_tenant, '')
     order by e.tenant, e.queue, e.type, e.mark, e.ended, e.no limit 1)
    union all
    select n.* from label l cross join lateral (
      select e.tenant, e.queue, e.type from treadle.ended_item e
      where e.outcome = 7 and (e.tenant, e.queue, e.type) > (l.tenant, l.queue, l.type)
      order by e.tenant, e.queue, e.type, e.mark, e.ended, e.no limit 1) n
    where p_tenant is null or l.tenant = p_tenant
  )
  select array_agg(l.tenant), array_agg(l.queue), array_agg(l.type) into tenants, queues, types
    from (select * from label l where p_tenant is null or l.tenant = p_tenant limit most_labels + 1) l;
  if cardinality(tenants) > most_labels then
    tenants := tenants[:most_labels]; queues := queues[:most_labels]; types := types[:most_labels];
    return query select null::text, null::text, null::text, 7, 0, true;
  end if;
  -- One pass along a short index takes less time than those to the first of each label.
  if p_tenant is null and cardinality(tenants) < most_labels
    and pg_relation_size('treadle.ended_item_labels') / current_setting('block_size')::int <= few_enough then
    return query
      select e.tenant, e.queue, e.type, 7, count(*)::int, false from treadle.ended_item e where e.outcome = 7
      group by e.tenant, e.queue, e.type;
    return;
  end if;
  portion := greatest(10, few / cardinality(tenants));
  loop
    began := clock_timestamp();
    select array_agg(coalesce(l.known, c.seen) order by l.place) into counts
    from (select l.*, case when counts[l.place] <= portion / 8 then counts[l.place] end as known
          from unnest(tenants, queues, types) with ordinality l(tenant, queue, type, place)) l
    cross join lateral (
      select count(*)::int as seen from (
        select 1 from treadle.ended_item e
        where l.known is null and e.outcome = 7 and e.tenant = l.tenant and e.queue = l.queue and e.type = l.type
        order by e.tenant, e.queue, e.type, e.mark, e.ended, e.no limit portion + 1) x) c;
    exit when portion >= all(counts);
    -- The next pass takes about eight times as long as this one.
    exit when clock_timestamp() + 8 * (clock_timestamp() - began) > stop_at or portion > 100000000;
    portion := portion * 8;
  end loop;
  return query
    with sampled as materialized (
      select e.tenant, e.queue, e.type, (count(*) * pages / some_pages)::int as count
      from treadle.ended_item e tablesample system (100 * some_pages / pages) repeatable (1)
      where e.outcome = 7 and portion < any(counts) group by e.tenant, e.queue, e.type)
    select l.tenant, l.queue, l.type, 7,
      case when l.seen > portion then greatest(portion, s.count) else l.seen end, l.seen > portion
    from unnest(tenants, queues, types, counts) l(tenant, queue, type, seen)
    left join sampled s on s.tenant = l.tenant and s.queue = l.queue and s.type = l.type;
end $$;

-- The first ready items of each queue. A queue that comes late has less of the whole bound.
create or replace function treadle.count_ready(p_tenant text)
returns table (tenant text, queue text, type text, status int, count int, cut boolean)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  bound int := 2000; at_queue text := ''; portion int;
begin
  for k in 1 .. 500 loop
    at_queue := treadle.next_queue(null, at_queue);
    exit when at_queue is null;
    portion := least(200, greatest(bound, 5));
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
    bound := bound - portion;
  end loop;
end $$;

-- The first parked items of each type and queue.
create or replace function treadle.count_parked(p_tenant text)
returns table (tenant text, queue text, type text, status int, count int, cut boolean)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  bound int := 1000; at_type text := ''; at_queue text; portion int;
begin
  for k in 1 .. 500 loop
    select o.type into at_type from treadle.open_item o where o.status = 3 and o.type > at_type
      order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1;
    exit when at_type is null;
    at_queue := '';
    for n in 1 .. 500 loop
      at_queue := treadle.next_queue(at_type, at_queue);
      exit when at_queue is null;
      portion := least(200, greatest(bound, 5));
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

-- The first items of the other statuses. They are not in the order of their queues: if there are more, there may be
-- more of any queue. A row without a queue says so for its status.
--
-- Each blocked item is a dependent of something, and is found there.
create or replace function treadle.count_others(p_tenant text)
returns table (tenant text, queue text, type text, status int, count int, cut boolean)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  bound constant int := 200;
begin
  return query
    with walk as materialized (
      select d.dependent from treadle.dependency d order by d.prerequisite, d.dependent, d.of_group limit bound + 1)
    select o.tenant, o.queue, o.type, 0, count(*)::int, false
    from (select distinct w.dependent from walk w) w join treadle.open_item o on o.no = w.dependent and o.status = 0
    where p_tenant is null or o.tenant = p_tenant group by o.tenant, o.queue, o.type
    union all select null, null, null, 0, 0, true where (select count(*) from walk) > bound;
  return query
    with walk as materialized (
      select o.tenant, o.queue, o.type from treadle.open_item o where o.status = 1
      order by o.due, o.queue, o.tenant limit bound + 1)
    select o.tenant, o.queue, o.type, 1, count(*)::int, false from walk o
    where p_tenant is null or o.tenant = p_tenant group by o.tenant, o.queue, o.type
    union all select null, null, null, 1, 0, true where (select count(*) from walk) > bound;
  return query
    with walk as materialized (
      select o.tenant, o.queue, o.type, o.shown_status::int as state from treadle.open_item o where o.status = 4
      order by o.type, o.queue, o.tenant, o.no limit bound + 1)
    select o.tenant, o.queue, o.type, o.state, count(*)::int, false from walk o
    where p_tenant is null or o.tenant = p_tenant group by o.tenant, o.queue, o.type, o.state
    union all select null, null, null, s.state, 0, true from unnest(array[0, 1, 2]) s(state)
      where (select count(*) from walk) > bound;
  return query
    with walk as materialized (
      select o.tenant, o.queue, o.type, case when o.verdict is null then 5 else o.shown_status end::int as state
      from treadle.open_item o where o.status = 5 order by o.worker limit 4 * bound + 1)
    select o.tenant, o.queue, o.type, o.state, count(*)::int, false from walk o
    where p_tenant is null or o.tenant = p_tenant group by o.tenant, o.queue, o.type, o.state
    union all select null, null, null, s.state, 0, true from unnest(array[0, 1, 2, 5]) s(state)
      where (select count(*) from walk) > 4 * bound;
end $$;

-- When the oldest of the first items of the lines of each queue became ready: of up to 200 lines of a queue, and of some
-- hundreds in all. Parked items belong to their lines.
create or replace function treadle.oldest_ready(p_tenant text) returns table (queue text, age float8)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  bound constant int := 150; queues text[] := '{}'; types text[] := '{}'; at_queue text := ''; at_type text := '';
  most int;
begin
  -- The queues of ready items, and those of items that are parked under each type.
  for k in 1 .. 500 loop
    at_queue := treadle.next_queue(null, at_queue);
    exit when at_queue is null;
    queues := queues || at_queue; types := array_append(types, null);
  end loop;
  for k in 1 .. 500 loop
    select o.type into at_type from treadle.open_item o where o.status = 3 and o.type > at_type
      order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1;
    exit when at_type is null;
    at_queue := '';
    loop
      at_queue := treadle.next_queue(at_type, at_queue);
      exit when at_queue is null or cardinality(queues) > 1000;
      queues := queues || at_queue; types := types || at_type;
    end loop;
  end loop;
  most := least(200, greatest(3, bound / greatest(1, cardinality(queues))));
  return query
    select f.queue, min(f.since)
    from (
      select h.queue, (array_agg(h.ready_since order by h.priority desc, h.seq))[1] as since
      from unnest(queues, types) q(queue, type)
      cross join lateral unnest(treadle.line_heads(q.type, q.queue, p_tenant, most)) h
      group by h.queue, h.tenant, h.lane) f
    group by f.queue;
end $$;
