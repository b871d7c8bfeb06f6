-- Take: permits under limits that the fleet shares, for several takes, in order. The arithmetic is that of
-- `treadle.rules`; a bucket keeps its gauge: at, used, before.
--
-- t_take   for each limit of each take the number of the take, in order; t_count how many that one asks for
-- kinds    0 token bucket  1 fixed window  2 sliding window  3 slots
create or replace function treadle.take_permits(
  p_worker text, t_take int[], t_count int[], t_name text[], t_kind smallint[], t_limit int[], t_window float8[],
  out counts int[], out waits float8[])
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
  now float8; alive boolean; take int; first int := 1; last int; given int; wait float8; g treadle.bucket;
  gauges treadle.bucket[]; names text[];
begin
  counts := array_fill(0, array[cardinality(t_count)]); waits := array_fill(0::float8, array[cardinality(t_count)]);
  -- In one order, so that takes that share limits wait for each other and for nothing else.
  names := array(select distinct u.kind || ':' || u.name from unnest(t_name, t_kind) u(name, kind) order by 1);
  insert into treadle.bucket (name, at, used, before, until) select n, 0, 0, 0, 'infinity' from unnest(names) n
    order by n on conflict do nothing;
  perform 1 from treadle.bucket b where b.name = any(names) order by b.name for update;
  now := treadle.clock();
  alive := exists (select 1 from treadle.worker w where w.id = p_worker and not w.gone for key share);

  while first <= cardinality(t_take) loop
    take := t_take[first]; last := first; given := t_count[take]; gauges := '{}';
    while last <= cardinality(t_take) and t_take[last] = take loop
      g := treadle.gauge(t_name[last], t_kind[last], t_limit[last], t_window[last], now);
      gauges := gauges || g;
      given := least(given, case when t_kind[last] = 3 and not alive then 0 else
        treadle.allowance(t_kind[last], t_limit[last], t_window[last], g, now) end);
      last := last + 1;
    end loop;
    given := greatest(given, 0);
    wait := 0;
    for k in first .. last - 1 loop
      g := gauges[k - first + 1];
      g.used := g.used + given;
      wait := greatest(wait, treadle.wait_for_one(t_kind[k], t_limit[k], t_window[k], g, now));
      if t_kind[k] < 3 then
        update treadle.bucket b set at = g.at, used = g.used, before = g.before,
            until = treadle.idle_at(t_kind[k], t_limit[k], t_window[k], g)
          where b.name = g.name;
      elsif given > 0 then
        insert into treadle.slot as s (name, worker, held) values (t_name[k], p_worker, given)
          on conflict (name, worker) do update set held = s.held + excluded.held;
      end if;
    end loop;
    counts[take] := given; waits[take] := wait;
    first := last;
  end loop;
end $$;

-- Where a limit stands now.
create or replace function treadle.gauge(p_name text, p_kind int, p_limit int, p_window float8, p_now float8)
returns treadle.bucket language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  g treadle.bucket; start float8;
begin
  select * into g from treadle.bucket b where b.name = p_kind || ':' || p_name;
  if p_kind = 3 then
    select coalesce(sum(s.held), 0) into g.used from treadle.slot s where s.name = p_name;
  elsif g.until = 'infinity' then
    g.at := p_now; g.used := 0; g.before := 0;  -- untouched so far
    if p_kind = 2 then
      g.at := floor(p_now / p_window) * p_window;
    end if;
  elsif p_kind = 0 then
    g.used := greatest(0, g.used - greatest(0, p_now - g.at) * p_limit / p_window);
    g.at := p_now;
  elsif p_kind = 1 then
    if g.used = 0 or p_now >= g.at + p_window - 1e-6 then
      g.at := p_now; g.used := 0;
    end if;
  else
    start := floor(p_now / p_window) * p_window;
    if g.at >= start then
      g.at := start;
    elsif g.at >= start - p_window then
      g.at := start; g.before := g.used; g.used := 0;
    else
      g.at := start; g.before := 0; g.used := 0;
    end if;
  end if;
  return g;
end $$;

-- How many permits it has left.
create or replace function treadle.allowance(
  p_kind int, p_limit int, p_window float8, g treadle.bucket, p_now float8) returns int
language sql immutable as $$
  select greatest(0, least(p_limit, floor(p_limit
    - (g.used + case when p_kind = 2
         then g.before * least(1, greatest(0, 1 - (p_now - g.at) / p_window)) else 0 end)
    + least(0.5, 1e-6 * p_limit / p_window + 1e-9))::int))
$$;

-- Seconds until it has one.
create or replace function treadle.wait_for_one(
  p_kind int, p_limit int, p_window float8, g treadle.bucket, p_now float8) returns float8
language sql immutable as $$
  select case
    when p_kind = 3 or treadle.allowance(p_kind, p_limit, p_window, g, p_now) >= 1 then 0
    when p_limit < 1 then 'infinity'
    when p_kind = 0 then (g.used + 1 - p_limit) * p_window / p_limit
    when p_kind = 1 then g.at + p_window - p_now
    when p_limit - 1 - g.used >= 0
      then g.at + p_window * (1 - (p_limit - 1 - g.used) / g.before) - p_now
    else g.at + p_window * (2 - (p_limit - 1) / g.used) - p_now end
$$;

-- When it is like new if it is left alone.
create or replace function treadle.idle_at(p_kind int, p_limit int, p_window float8, g treadle.bucket) returns float8
language sql immutable as $$
  select case p_kind
    when 0 then g.at + case when p_limit > 0 then g.used * p_window / p_limit else 0 end
    when 1 then g.at + p_window
    else g.at + 2 * p_window end
$$;

-- Give back slots, no more than the worker holds.
create or replace function treadle.give_permits(p_worker text, t_name text[], t_count int[]) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '5s'
as $$
#variable_conflict use_column
begin
  perform 1 from treadle.bucket b where b.name = any(array(select distinct '3:' || n from unnest(t_name) n))
    order by b.name for update;
  update treadle.slot s set held = greatest(0, s.held - u.count)
    from (select x.name, sum(x.count)::int as count from unnest(t_name, t_count) x(name, count) group by x.name) u
    where s.name = u.name and s.worker = p_worker;
  delete from treadle.slot s where s.name = any(t_name) and s.worker = p_worker and s.held = 0;
end $$;
