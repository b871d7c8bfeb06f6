-- Claim from the lines that are next, in exactly fair order, and park what this worker cannot run.
--
-- Items that are parked under a type that there is room for stand in line with the ready ones.
--
-- Each round asks every line for a fair share of what is left to claim. If some lines run out of items, the
-- next round shares the rest among the others.
--
-- p_line  the queue, tenant and lane of everything that is ready, if that is one line and nothing is parked or paused;
--         null otherwise. Then there is nothing to be fair to: a claim from one line takes a third of the time.
--
-- Answers the items that were leased, and the types of others that were parked, or locked only.
create or replace function treadle.claim_fairly(
  p_worker bigint, p_now float8, p_limit int, p_demand treadle.demand, p_last treadle.last_served,
  p_line text[], out leased bigint[], out more boolean, out left_types text[])
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  most_parked constant int := 2000;
  types text[]; paused_queues text[]; paused_tenants text[]; some_parked boolean := false;
  next_type text; place int; sharing int; room int := p_limit; asked int; stretch int := 1; lines treadle.lines;
  found_no bigint[]; found_type text[]; found_parked boolean[]; found_avoided boolean[];
  chosen bigint[]; to_park bigint[]; parked int := 0; holders record;
begin
  leased := '{}'; more := false; left_types := '{}';
  if p_demand.strict_types is not null then
    select * into holders from treadle.claim_lane_holders(p_worker, p_now, p_limit, p_demand);
    leased := holders.leased; p_demand := holders.demand; room := room - cardinality(leased);
    if room = 0 then
      return;
    end if;
  end if;

  if p_line is null then
    -- The types of lines: null for the ready items, and each type of parked items that there is room for.
    types := array[null::text];
    next_type := '';
    loop
      select o.type into next_type from treadle.open_item o where o.status = 3 and o.type > next_type
        order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1;
      exit when next_type is null;
      if p_demand.types is null or p_demand.rooms[array_position(p_demand.types, next_type)] > 0 then
        types := types || next_type;
      end if;
    end loop;
    some_parked := cardinality(types) > 1;
    select coalesce(array_agg(p.queue) filter (where p.tenant = ''), '{}'),
           coalesce(array_agg(p.queue || chr(10) || p.tenant) filter (where p.tenant <> ''), '{}')
      into paused_queues, paused_tenants from treadle.orders p
      where p.queue is not null and (p.until is null or p.until > p_now);
  else
    lines.queue := p_line[1:1]; lines.tenant := p_line[2:2]; lines.lane := p_line[3:3];
  end if;

  loop
    -- The lines that are next, and their items.
    asked := room * stretch;
    if p_line is null then
      select * into lines
        from treadle.fair_lines(room, stretch, types, p_demand, p_last, paused_queues, paused_tenants);
      exit when lines.lane = '{}';
    end if;
    if some_parked then
      select f.no, f.type, f.parked into found_no, found_type, found_parked
        from treadle.fair_order_parked(asked, p_last.queue, lines) f;
    elsif cardinality(lines.lane) = 1 then
      select array_agg(x.no), array_agg(x.type) into found_no, found_type from (
        select o.no, o.type from treadle.open_item o
        where o.status = 2 and o.queue = lines.queue[1] and o.tenant = lines.tenant[1]
          and o.lane = lines.lane[1]
        order by o.queue, o.tenant, o.lane, o.priority desc, o.seq limit asked
        for no key update skip locked) x;
    else
      select f.no, f.type into found_no, found_type
        from treadle.fair_order(asked, p_last.queue, lines) f;
    end if;
    exit when found_no is null;
    found_avoided := null;
    if p_demand.avoid is not null then
      found_avoided := treadle.left_out(found_no, p_demand);
    end if;

    -- Those that there is room for. The others are parked.
    chosen := '{}'; to_park := '{}';
    if p_demand.types is null and found_avoided is null then
      chosen := found_no[1:room];
    else
      for k in 1 .. cardinality(found_no) loop
        exit when cardinality(chosen) >= room;
        place := array_position(p_demand.types, found_type[k]);
        if (p_demand.types is null or coalesce(p_demand.rooms[place], 0) > 0)
            and not coalesce(found_avoided[k], false) then
          chosen := chosen || found_no[k];
          if place is not null then
            p_demand.rooms[place] := p_demand.rooms[place] - 1;
            sharing := p_demand.shared[place];
            if sharing is not null then
              p_demand.shared_rooms[sharing] := p_demand.shared_rooms[sharing] - 1;
              if p_demand.shared_rooms[sharing] = 0 then
                p_demand.rooms := treadle.without_shared_room(p_demand.rooms, p_demand.shared, sharing);
              end if;
            end if;
          end if;
        elsif not some_parked or not found_parked[k] then
          to_park := to_park || found_no[k];
        end if;
      end loop;
    end if;

    if p_demand.strict_types is not null and chosen <> '{}' then
      p_demand.avoid := p_demand.avoid || treadle.hold_lanes(chosen, p_demand);
    end if;
    if cardinality(chosen) < cardinality(found_no) then
      left_types := left_types || array(select distinct f.type from unnest(found_no, found_type) f(no, type)
                                        where f.no <> all(chosen) and f.type <> all(left_types));
    end if;
    if chosen <> '{}' then
      update treadle.open_item o set status = 5, token = treadle.new_token(), worker = p_worker,
          claimed = greatest(p_now, o.ready_since), begun = treadle.begins(o.losses, o.type, p_demand.buffered),
          attempt = o.attempt + treadle.begins(o.losses, o.type, p_demand.buffered)::int
        where o.no = any(chosen);
      leased := leased || chosen;
      room := room - cardinality(chosen);
    end if;
    if to_park <> '{}' then
      update treadle.open_item o set status = 3 where o.no = any(to_park);
      parked := parked + cardinality(to_park);
    end if;
    exit when room = 0 or (chosen = '{}' and to_park = '{}')
      or (p_line is not null and cardinality(found_no) < asked);
    if parked >= most_parked then
      more := true;
      exit;
    end if;
    stretch := least(stretch * 2, 64);
  end loop;
end $$;

-- The lines that a claim of `p_room` items comes to, and the share of each queue, tenant and lane.
create or replace function treadle.fair_lines(
  p_room int, p_stretch int, p_types text[], p_demand treadle.demand, p_last treadle.last_served,
  p_paused_queues text[], p_paused_tenants text[],
  out type text[], out queue text[], out tenant text[], out lane text[], out last_tenant text[],
  out last_lane text[], out per_queue int[], out per_tenant int[], out per_lane int[])
language plpgsql stable as $$
#variable_conflict use_column
declare
  queues text[]; tenants text[]; lanes text[]; n int;
  at_type text; at_queue text; at_tenant text; tenant_before text; lane_before text;
  queue_share int; tenant_share int; avoid jsonb;
begin
  type := '{}'; queue := '{}'; tenant := '{}'; lane := '{}'; last_tenant := '{}'; last_lane := '{}';
  per_queue := '{}'; per_tenant := '{}'; per_lane := '{}';
  foreach at_type in array p_types loop
    if at_type is not null and p_demand.types is not null then
      continue when p_demand.rooms[array_position(p_demand.types, at_type)] = 0;
    end if;
    avoid := case when at_type is not null and p_demand.avoid ? at_type then p_demand.avoid end;
    queues := treadle.fair_queues(
      at_type, p_last.queue, p_room, p_demand, p_paused_queues, p_paused_tenants, avoid);
    continue when queues = '{}';

    for nth_queue in 1 .. cardinality(queues) loop
      at_queue := queues[nth_queue];
      queue_share := treadle.fair_share(p_room, cardinality(queues), nth_queue) * p_stretch;
      tenant_before := p_last.tenant[array_position(p_last.tenant_queue, at_queue)];
      tenants := treadle.fair_tenants(at_type, at_queue, tenant_before, queue_share, p_demand.tenants,
        treadle.paused_tenants(p_paused_tenants, at_queue), avoid);
      continue when tenants = '{}';

      for nth_tenant in 1 .. cardinality(tenants) loop
        at_tenant := tenants[nth_tenant];
        tenant_share := treadle.fair_share(queue_share, cardinality(tenants), nth_tenant);
        lane_before := null;
        if p_last.lane is not null then
          select l.lane into lane_before
            from unnest(p_last.lane_queue, p_last.lane_tenant, p_last.lane) l(queue, tenant, lane)
            where l.queue = at_queue and l.tenant = at_tenant;
        end if;
        lanes := treadle.fair_lanes(at_type, at_queue, at_tenant, lane_before, tenant_share, avoid);
        n := cardinality(lanes);
        continue when n = 0;

        type := type || array_fill(at_type, array[n]);
        queue := queue || array_fill(at_queue, array[n]);
        tenant := tenant || array_fill(at_tenant, array[n]);
        lane := lane || lanes;
        last_tenant := last_tenant || array_fill(tenant_before, array[n]);
        last_lane := last_lane || array_fill(lane_before, array[n]);
        per_queue := per_queue || array_fill(queue_share, array[n]);
        per_tenant := per_tenant || array_fill(tenant_share, array[n]);
        per_lane := per_lane || case when at_type = any(p_demand.strict_types) then array_fill(1, array[n]) else
          array(select treadle.fair_share(tenant_share, n, nth) from generate_series(1, n) nth) end;
      end loop;
    end loop;
  end loop;
end $$;

-- The share of the nth of `p_many`. The shares add up to the whole, so that no more is locked than can be leased.
create or replace function treadle.fair_share(p_whole int, p_many int, p_nth int) returns int
language sql immutable as $$
  select p_whole / p_many + case when p_nth <= p_whole % p_many then 1 else 0 end
$$;

-- The rooms of types once the shared room at `p_place` is used up: none of the types that share it has room.
create or replace function treadle.without_shared_room(p_rooms int[], p_shared int[], p_place int) returns int[]
language sql immutable as $$
  select array_agg(case when r.shared = p_place then 0 else r.room end order by r.k)
  from unnest(p_rooms, p_shared) with ordinality r(room, shared, k)
$$;
