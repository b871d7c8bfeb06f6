-- Limits that the fleet shares, and permits under them. The arithmetic is that of `LimitState` in treadle.store.rules;
-- a row of `limit_state` holds its fields: at, used, before.
--
-- Algorithms: 0 token bucket  1 fixed window  2 sliding window  3 slots

-- Take permits for several requests, in order. Each asks for up to `p_count` permits under all of its limits.
--
-- p_request        for each limit, the request that it belongs to, in order; the other columns describe the limit
-- p_token, p_item  for each request, the lease that the permit is for, or null; null: none is for a lease
--
-- The holders are the items whose leases have permits of the limits that denied a lease one.
create or replace function treadle.take_permits(
  p_worker text, p_request int[], p_count int[], p_name text[], p_algorithm smallint[], p_limit int[],
  p_window float8[], p_token bigint[], p_item bigint[],
  out counts int[], out waits float8[],
  out holder_request int[], out holder_id text[], out holder_tenant text[], out holder_due float8[],
  out holder_no bigint[])
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
  now float8; is_alive boolean; request int; first int := 1; last int; given int; wait float8;
  state treadle.limit_state; states treadle.limit_state[]; names text[]; denied int[]; denied_name text[];
begin
  counts := array_fill(0, array[cardinality(p_count)]);
  waits := array_fill(0::float8, array[cardinality(p_count)]);
  -- Lock the limits in one order, so that calls that share limits wait for each other without deadlock.
  names := array(select distinct u.algorithm || ':' || u.name
                 from unnest(p_name, p_algorithm) u(name, algorithm) order by 1);
  insert into treadle.limit_state (name, at, used, before, until)
    select n, 0, 0, 0, 'infinity' from unnest(names) n order by n on conflict do nothing;
  perform 1 from treadle.limit_state s where s.name = any(names) order by s.name for update;
  now := treadle.clock();
  is_alive := exists (select 1 from treadle.worker w where w.id = p_worker and not w.gone for key share);

  while first <= cardinality(p_request) loop
    -- What all limits of this request allow.
    request := p_request[first]; last := first; given := p_count[request]; states := '{}';
    while last <= cardinality(p_request) and p_request[last] = request loop
      state := treadle.current_limit_state(p_name[last], p_algorithm[last], p_limit[last], p_window[last], now);
      states := states || state;
      given := least(given, case when p_algorithm[last] = 3 and not is_alive then 0 else
        treadle.permits_left(p_algorithm[last], p_limit[last], p_window[last], state, now) end);
      last := last + 1;
    end loop;
    given := greatest(given, 0);
    if p_token[request] is not null then
      if exists (select 1 from treadle.lease_permit p
                 where p.name = any(p_name[first:last - 1]) and p.token = p_token[request]) then
        counts[request] := 1;
        first := last;
        continue;
      end if;
      if not exists (select 1 from treadle.open_item o join treadle.worker w on w.no = o.worker
                     where o.no = p_item[request] and o.token = p_token[request] and o.status > 4
                       and w.id = p_worker) then
        given := 0;
      elsif given > 0 then
        insert into treadle.lease_permit (name, token, worker, no)
          select n, p_token[request], p_worker, p_item[request] from unnest(p_name[first:last - 1]) n;
      else
        denied := denied || array_fill(request, array[last - first]);
        denied_name := denied_name || p_name[first:last - 1];
      end if;
    end if;

    -- Count it under each of them.
    wait := 0;
    for k in first .. last - 1 loop
      state := states[k - first + 1];
      state.used := state.used + given;
      wait := greatest(wait, treadle.permit_wait(p_algorithm[k], p_limit[k], p_window[k], state, now));
      if p_algorithm[k] < 3 then
        update treadle.limit_state s set at = state.at, used = state.used, before = state.before,
            until = treadle.limit_idle_at(p_algorithm[k], p_limit[k], p_window[k], state),
            limit_ = p_limit[k], window_ = p_window[k]
          where s.name = state.name;
      elsif given > 0 then
        insert into treadle.permit as p (name, worker, held) values (p_name[k], p_worker, given)
          on conflict (name, worker) do update set held = p.held + excluded.held;
      end if;
    end loop;
    counts[request] := given; waits[request] := wait;
    first := last;
  end loop;

  if denied is not null then
    select array_agg(h.request), array_agg(h.id), array_agg(h.tenant), array_agg(h.due), array_agg(h.no)
      into holder_request, holder_id, holder_tenant, holder_due, holder_no
      from (
        select d.request, i.id, o.tenant, o.due, o.no from unnest(denied, denied_name) d(request, name)
        join treadle.lease_permit p on p.name = d.name
        join treadle.open_item o on o.no = p.no and o.token = p.token and o.status > 4
        join treadle.item i on i.no = o.no
        order by d.request, o.due, o.no) h;
  end if;
end $$;

-- The state of a limit now.
create or replace function treadle.current_limit_state(
  p_name text, p_algorithm int, p_limit int, p_window float8, p_now float8) returns treadle.limit_state
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  state treadle.limit_state; window_start float8;
begin
  select * into state from treadle.limit_state s where s.name = p_algorithm || ':' || p_name;
  if p_algorithm = 3 then
    select coalesce(sum(p.held), 0) into state.used from treadle.permit p where p.name = p_name;
  elsif state.until = 'infinity' then
    state.at := p_now; state.used := 0; state.before := 0;  -- no permit was taken yet
    if p_algorithm = 2 then
      state.at := floor(p_now / p_window) * p_window;
    end if;
  elsif p_algorithm = 0 then
    state.used := greatest(0, state.used - greatest(0, p_now - state.at) * p_limit / p_window);
    state.at := p_now;
  elsif p_algorithm = 1 then
    if state.used = 0 or p_now >= state.at + p_window - 1e-6 then
      state.at := p_now; state.used := 0;
    end if;
    state.at := least(state.at, p_now);  -- later only if the clock went back
  else
    window_start := floor(p_now / p_window) * p_window;
    if state.at >= window_start then
      state.at := window_start;
    elsif state.at >= window_start - p_window then
      state.at := window_start; state.before := state.used; state.used := 0;
    else
      state.at := window_start; state.before := 0; state.used := 0;
    end if;
  end if;
  return state;
end $$;

-- How many permits a limit has left.
create or replace function treadle.permits_left(
  p_algorithm int, p_limit int, p_window float8, state treadle.limit_state, p_now float8) returns int
language sql immutable as $$
  select greatest(0, least(p_limit, floor(p_limit
    - (state.used + case when p_algorithm = 2
         then state.before * least(1, greatest(0, 1 - (p_now - state.at) / p_window)) else 0 end)
    + least(0.5, 1e-6 * p_limit / p_window + 1e-9))::int))
$$;

-- Seconds until a limit has a permit.
create or replace function treadle.permit_wait(
  p_algorithm int, p_limit int, p_window float8, state treadle.limit_state, p_now float8) returns float8
language sql immutable as $$
  select case
    when p_algorithm = 3 or treadle.permits_left(p_algorithm, p_limit, p_window, state, p_now) >= 1 then 0
    when p_limit < 1 then 'infinity'
    when p_algorithm = 0 then (state.used + 1 - p_limit) * p_window / p_limit
    when p_algorithm = 1 then state.at + p_window - p_now
    when p_limit - 1 - state.used >= 0
      then state.at + p_window * (1 - (p_limit - 1 - state.used) / state.before) - p_now
    else state.at + p_window * (2 - (p_limit - 1) / state.used) - p_now end
$$;

-- When a limit is as if unused, if no more permits are taken.
create or replace function treadle.limit_idle_at(
  p_algorithm int, p_limit int, p_window float8, state treadle.limit_state) returns float8
language sql immutable as $$
  select case p_algorithm
    when 0 then state.at + case when p_limit > 0 then state.used * p_window / p_limit else 0 end
    when 1 then state.at + p_window
    else state.at + 2 * p_window end
$$;

-- Return permits of slots, no more than the worker holds.
--
-- p_token  the lease that each permit belongs to, or null; null: none belongs to a lease
create or replace function treadle.return_permits(p_worker text, p_name text[], p_count int[], p_token bigint[])
returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '5s'
as $$
#variable_conflict use_column
begin
  perform 1 from treadle.limit_state s
    where s.name = any(array(select distinct '3:' || n from unnest(p_name) n)) order by s.name for update;
  if p_token is not null then
    for k in 1 .. cardinality(p_token) loop
      delete from treadle.lease_permit p
        where p.name = p_name[k] and p.token = p_token[k] and p.worker = p_worker;
      if p_token[k] is not null and not found then
        p_count[k] := 0;
      end if;
    end loop;
  end if;
  update treadle.permit p set held = greatest(0, p.held - u.count)
    from (select x.name, sum(x.count)::int as count from unnest(p_name, p_count) x(name, count) group by x.name) u
    where p.name = u.name and p.worker = p_worker;
  delete from treadle.permit p where p.name = any(p_name) and p.worker = p_worker and p.held = 0;
end $$;

-- Make the permits that a worker holds exactly these, each of one limit, if it holds p_counted in all. Answer how
-- many it held.
--
-- p_token, p_no  the lease that each permit belongs to, or nulls
create or replace function treadle.keep_permits(
  p_worker text, p_counted int, p_name text[], p_count int[], p_token bigint[], p_no bigint[]) returns int
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
  found_ int;
begin
  if not exists (select 1 from treadle.worker w where w.id = p_worker and not w.gone) then
    return 0;
  end if;
  perform 1 from treadle.limit_state s
    where s.name = any(array(select '3:' || n from unnest(p_name) n
      union select '3:' || p.name from treadle.permit p where p.worker = p_worker))
    order by s.name for update;
  select coalesce(sum(p.held), 0) into found_ from treadle.permit p where p.worker = p_worker;
  if found_ <> p_counted then
    return found_;
  end if;
  delete from treadle.permit p where p.worker = p_worker;
  delete from treadle.lease_permit p where p.worker = p_worker;
  insert into treadle.permit (name, worker, held)
    select u.name, p_worker, sum(u.count) from unnest(p_name, p_count) u(name, count) group by u.name;
  insert into treadle.lease_permit (name, token, worker, no)
    select u.name, u.token, p_worker, u.no from unnest(p_name, p_token, p_no) u(name, token, no)
    where u.token is not null;
  return found_;
end $$;

-- How far limits are used: those of these names, or the first `p_count` by name of each algorithm. Those that
-- are not in use are left out.
--
-- For slots `used` is the number of permits. worker, held: up to 100 holders. lease_worker, lease_item: the items whose
-- leases have permits of their own, up to 100.
create or replace function treadle.limit_uses(p_names text[], p_count int)
returns table (
  algorithm int, name text, now float8, at float8, used float8, before float8, limit_ int, window_ float8, worker text[],
  held int[], lease_worker text[], lease_item text[])
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  now float8 := treadle.clock(); names text[] := p_names; next_name text := '';
begin
  if p_names is null then
    names := '{}';
    for k in 1 .. p_count loop
      select p.name into next_name from treadle.permit p where p.name > next_name order by p.name, p.worker limit 1;
      exit when next_name is null;
      names := names || next_name;
    end loop;
    return query
      select a.code, substr(s.name, 3), now, s.at, s.used, s.before, s.limit_, s.window_, null::text[], null::int[],
        null::text[], null::text[]
      from unnest(array[0, 1, 2]) a(code)
      cross join lateral (
        select * from treadle.limit_state s
        where s.name > a.code || ':' and s.name < a.code || ';' and s.until > now and s.until < 'infinity'
        order by s.name limit p_count) s;
  else
    return query
      select a.code, n.name, now, s.at, s.used, s.before, s.limit_, s.window_, null::text[], null::int[], null::text[],
        null::text[]
      from unnest(array[0, 1, 2]) a(code) cross join unnest(p_names) n(name)
      join treadle.limit_state s on s.name = a.code || ':' || n.name and s.until > now and s.until < 'infinity';
  end if;
  return query
    select 3, n.name, now, 0::float8, h.used::float8, 0::float8, null::int, null::float8, h.workers, h.held, l.workers,
      l.items
    from (select distinct u.name from unnest(names) u(name)) n
    cross join lateral (
      select sum(p.held) as used, (array_agg(p.worker order by p.held desc, p.worker))[1:100] as workers,
        (array_agg(p.held order by p.held desc, p.worker))[1:100] as held
      from treadle.permit p where p.name = n.name and p.held > 0) h
    cross join lateral (
      select array_agg(x.worker) as workers, array_agg(x.id) as items from (
        select p.worker, i.id from treadle.lease_permit p
        join treadle.open_item o on o.no = p.no and o.token = p.token and o.status > 4
        join treadle.item i on i.no = o.no
        where p.name = n.name order by p.name, p.token limit 100) x) l
    where h.used > 0;
end $$;
