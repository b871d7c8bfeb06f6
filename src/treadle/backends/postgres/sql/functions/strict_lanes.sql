-- Strict lanes: an item that holds its lane is handed out before all others, and nothing else of that lane.

-- Lease the ready items that hold their lanes, if this worker wants them. The answer's `demand` has less room, and
-- avoids all lanes that are held.
--
-- Until it commits, no other claim hands out items of these types: two claims that look at a lane at the same time
-- would both find it free. It waits for claims only, which wait for nothing.
create or replace function treadle.claim_lane_holders(
  p_worker bigint, p_now float8, p_limit int, p_demand treadle.demand,
  out leased bigint[], out demand treadle.demand)
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  held_lanes jsonb; found record; place int; sharing int;
begin
  leased := '{}'; demand := p_demand;
  perform pg_advisory_xact_lock(l.key) from (
    select distinct hashtextextended('treadle.lanes.' || t.type, 0) as key
    from unnest(p_demand.strict_types) t(type) order by key) l;

  for found in
    select o.no, o.type from treadle.open_item o
    where o.holds_lane and o.type = any(p_demand.strict_types) and o.status in (2, 3)
      and (p_demand.queues is null or o.queue = any(p_demand.queues))
      and (p_demand.tenants is null or o.tenant = any(p_demand.tenants))
      and not treadle.avoids(p_demand.avoid, o.type, o.tenant, o.lane)
      and not treadle.is_paused(o.queue, o.tenant, p_now)
    order by o.seq for no key update of o skip locked
  loop
    exit when cardinality(leased) >= p_limit;
    place := array_position(demand.types, found.type);
    continue when demand.types is not null and coalesce(demand.rooms[place], 0) <= 0;
    leased := leased || found.no;
    if place is not null then
      demand.rooms[place] := demand.rooms[place] - 1;
      sharing := demand.shared[place];
      if sharing is not null then
        demand.shared_rooms[sharing] := demand.shared_rooms[sharing] - 1;
        if demand.shared_rooms[sharing] = 0 then
          demand.rooms := treadle.without_shared_room(demand.rooms, demand.shared, sharing);
        end if;
      end if;
    end if;
  end loop;
  if leased <> '{}' then
    update treadle.open_item o set status = 5, token = treadle.new_token(), worker = p_worker,
        claimed = greatest(p_now, o.ready_since), begun = treadle.begins(o.losses, o.type, p_demand.buffered),
        attempt = o.attempt + treadle.begins(o.losses, o.type, p_demand.buffered)::int
      where o.no = any(leased);
  end if;

  select jsonb_object_agg(treadle.lane_key(p_demand.avoid, o.type, o.tenant, o.lane), '') into held_lanes
    from treadle.open_item o where o.holds_lane and o.type = any(p_demand.strict_types);
  if held_lanes is not null then
    demand.avoid := demand.avoid || held_lanes;
  end if;
end $$;

-- The key of a lane among the lanes to avoid: see `treadle.demand`.
create or replace function treadle.lane_key(p_avoid jsonb, p_type text, p_tenant text, p_lane text) returns text
language sql immutable as $$
  select (p_avoid ->> p_type) || e'\x1f' || p_tenant || e'\x1f' || p_lane
$$;

-- Which of the items that a claim has found it must leave out, in their order: those in lanes to avoid, and in a
-- strict lane all but the first. Null: none.
create or replace function treadle.left_out(p_found bigint[], p_demand treadle.demand) returns boolean[]
language plpgsql stable
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return (
    select nullif(array_agg(a.avoided or coalesce(a.is_strict and a.nth > 1, false) order by a.k),
      array_fill(false, array[cardinality(p_found)]))
    from (
      select f.k, o.avoided, o.is_strict,
        row_number() over (partition by o.type, o.tenant, o.lane, o.avoided order by f.k) as nth
      from unnest(p_found) with ordinality f(no, k)
      cross join lateral (
        select x.type, x.tenant, x.lane, treadle.avoids(p_demand.avoid, x.type, x.tenant, x.lane) as avoided,
          x.type = any(p_demand.strict_types) as is_strict
        from treadle.open_item x where x.no = f.no limit 1) o
    ) a);
end $$;

-- Let these items, which a claim hands out, hold their lanes. Answers the keys of those lanes.
create or replace function treadle.hold_lanes(p_nos bigint[], p_demand treadle.demand) returns jsonb
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  held_lanes jsonb;
begin
  with held as (
    update treadle.open_item o set holds_lane = true
      where o.no = any(p_nos) and o.type = any(p_demand.strict_types)
      returning o.type, o.tenant, o.lane
  )
  select jsonb_object_agg(treadle.lane_key(p_demand.avoid, h.type, h.tenant, h.lane), '') into held_lanes
    from held h;
  return coalesce(held_lanes, '{}');
end $$;
