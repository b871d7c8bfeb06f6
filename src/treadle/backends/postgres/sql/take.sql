-- Take from the lines that are next, in exact turns, and move aside what this worker cannot run.
--
-- What is parked under a type that there is room for stands in line with what is ready.
--
-- Each round asks every line for a fair share of what is left to take. Where lines run dry, the next round
-- shares out the rest among the others.
create or replace function treadle.take(
  p_me bigint, p_now float8, p_limit int, p_types text[], p_rooms int[], p_queues text[],
  p_tenants text[], p_avoid_tenants text[], p_avoid_lanes text[],
  t_queue text, t_queues text[], t_tenants text[], l_queues text[], l_tenants text[], l_lanes text[],
  out held bigint[], out fresh bigint[], out rooms int[], out more boolean)
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  most_parked constant int := 2000;
  types text[]; paused text[]; holds text[]; queues text[]; tenants text[]; lanes text[]; avoided text[];
  q text; t text; y text; last_tenant text; last_lane text; place int; lines int; rest int := p_limit;
  per_queue int; per_tenant int; per_lane int; stretch int := 1;
  s_type text[]; s_queue text[]; s_tenant text[]; s_lane text[]; s_last_tenant text[]; s_last_lane text[];
  s_per_queue int[]; s_per_tenant int[]; s_per_lane int[];
  some_parked boolean; c_no bigint[]; c_type text[]; c_parked boolean[];
  batch bigint[]; aside bigint[]; set_aside int := 0;
begin
  held := '{}'; fresh := '{}'; rooms := p_rooms; more := false;
  -- Those that are ready have no type here, those that are parked one that there is room for.
  types := array[null::text];
  y := '';
  loop
    select j.type into y from treadle.job j where j.status = 3 and j.type > y
      order by j.type, j.queue, j.tenant, j.lane, j.priority desc, j.seq limit 1;
    exit when y is null;
    if p_types is null or rooms[array_position(p_types, y)] > 0 then
      types := types || y;
    end if;
  end loop;
  some_parked := cardinality(types) > 1;
  select coalesce(array_agg(p.queue) filter (where p.tenant = ''), '{}'),
         coalesce(array_agg(p.queue || chr(10) || p.tenant) filter (where p.tenant <> ''), '{}')
    into paused, holds from treadle.pause p;

  loop
    s_type := '{}'; s_queue := '{}'; s_tenant := '{}'; s_lane := '{}'; s_last_tenant := '{}';
    s_last_lane := '{}'; s_per_queue := '{}'; s_per_tenant := '{}'; s_per_lane := '{}';
    foreach y in array types loop
      if y is not null and p_types is not null then
        continue when rooms[array_position(p_types, y)] = 0;
      end if;
      queues := treadle.turn_queues(y, t_queue, rest, p_queues, paused, p_tenants, holds, p_avoid_tenants,
        p_avoid_lanes);
      continue when queues = '{}';
      per_queue := (rest + cardinality(queues) - 1) / cardinality(queues) * stretch;
      foreach q in array queues loop
        last_tenant := t_tenants[array_position(t_queues, q)];
        tenants := treadle.turn_tenants(y, q, last_tenant, per_queue, p_tenants, treadle.held(holds, q),
          p_avoid_tenants, p_avoid_lanes);
        continue when tenants = '{}';
        per_tenant := (per_queue + cardinality(tenants) - 1) / cardinality(tenants);
        foreach t in array tenants loop
          last_lane := null;
          if l_lanes is not null then
            select l.lane into last_lane from unnest(l_queues, l_tenants, l_lanes) l(queue, tenant, lane)
              where l.queue = q and l.tenant = t;
          end if;
          lanes := treadle.turn_lanes(y, q, t, last_lane, per_tenant,
            case when p_avoid_lanes is null then '{}'::text[] else
              array(select a.lane from unnest(p_avoid_tenants, p_avoid_lanes) a(tenant, lane)
                    where a.tenant = t) end);
          lines := cardinality(lanes);
          continue when lines = 0;
          per_lane := (per_tenant + lines - 1) / lines;
          s_type := s_type || array_fill(y, array[lines]);
          s_queue := s_queue || array_fill(q, array[lines]);
          s_tenant := s_tenant || array_fill(t, array[lines]);
          s_lane := s_lane || lanes;
          s_last_tenant := s_last_tenant || array_fill(last_tenant, array[lines]);
          s_last_lane := s_last_lane || array_fill(last_lane, array[lines]);
          s_per_queue := s_per_queue || array_fill(per_queue, array[lines]);
          s_per_tenant := s_per_tenant || array_fill(per_tenant, array[lines]);
          s_per_lane := s_per_lane || array_fill(per_lane, array[lines]);
        end loop;
      end loop;
    end loop;
    exit when s_lane = '{}';

    if some_parked then
      select h.c_no, h.c_type, h.c_parked into c_no, c_type, c_parked from treadle.line_up_parked(
        rest * stretch, t_queue, s_type, s_queue, s_tenant, s_lane, s_last_tenant, s_last_lane,
        s_per_queue, s_per_tenant, s_per_lane) h;
    elsif cardinality(s_lane) = 1 then
      select array_agg(x.no), array_agg(x.type) into c_no, c_type from (
        select j.no, j.type from treadle.job j
        where j.status = 2 and j.queue = s_queue[1] and j.tenant = s_tenant[1] and j.lane = s_lane[1]
        order by j.queue, j.tenant, j.lane, j.priority desc, j.seq limit rest * stretch
        for update skip locked) x;
    else
      select h.c_no, h.c_type into c_no, c_type from treadle.line_up(rest * stretch, t_queue, s_queue, s_tenant,
        s_lane, s_last_tenant, s_last_lane, s_per_queue, s_per_tenant, s_per_lane) h;
    end if;
    exit when c_no is null;

    batch := '{}'; aside := '{}';
    if p_types is null then
      batch := c_no[1:rest];
    elsif not exists (
        select 1 from unnest(c_type[1:rest]) c(type) group by c.type
        having count(*) > coalesce(rooms[array_position(p_types, c.type)], 0)) then
      -- The usual case: whatever comes fits.
      batch := c_no[1:rest];
      for y, place in select c.type, count(*) from unnest(c_type[1:rest]) c(type) group by c.type loop
        rooms[array_position(p_types, y)] := rooms[array_position(p_types, y)] - place;
      end loop;
    else
      for k in 1 .. cardinality(c_no) loop
        exit when cardinality(batch) >= rest;
        place := array_position(p_types, c_type[k]);
        if coalesce(rooms[place], 0) > 0 then
          batch := batch || c_no[k];
          rooms[place] := rooms[place] - 1;
        elsif not some_parked or not c_parked[k] then
          aside := aside || c_no[k];
        end if;
      end loop;
    end if;

    if cardinality(batch) = rest then
      -- That was all: the caller leases them as it reads them.
      fresh := batch;
      rest := 0;
    elsif batch <> '{}' then
      update treadle.job j set status = 5, attempt = j.attempt + 1, token = nextval('treadle.token'),
          worker = p_me, claimed = p_now
        where j.no = any(batch);
      held := held || batch;
      rest := rest - cardinality(batch);
    end if;
    if aside <> '{}' then
      update treadle.job j set status = 3 where j.no = any(aside);
      set_aside := set_aside + cardinality(aside);
    end if;
    exit when rest = 0 or (batch = '{}' and aside = '{}');
    if set_aside >= most_parked then
      more := true;
      exit;
    end if;
    stretch := least(stretch * 2, 64);
  end loop;
end $$;
