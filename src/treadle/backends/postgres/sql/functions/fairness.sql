-- Fairness: which queues, tenants and lanes a claim serves next.
--
-- Ready items stand in lines, one per queue, tenant and lane, in the order of an index. The step from one line
-- to the next is one step in that index, however long the lines are. p_type: null for the lines of ready
-- items; a type for the lines of items that are parked under it.

create or replace function treadle.next_queue(p_type text, p_after text) returns text
language plpgsql stable as $$
#variable_conflict use_column
declare answer text;
begin
  if p_type is null then
    select o.queue into answer from treadle.open_item o where o.status = 2 and o.queue > p_after
      order by o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1;
  else
    select o.queue into answer from treadle.open_item o
      where o.status = 3 and o.type = p_type and o.queue > p_after
      order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1;
  end if;
  return answer;
end $$;

create or replace function treadle.next_tenant(p_type text, p_queue text, p_after text) returns text
language plpgsql stable as $$
#variable_conflict use_column
declare answer text;
begin
  if p_type is null then
    select o.tenant into answer from treadle.open_item o
      where o.status = 2 and o.queue = p_queue and o.tenant > p_after
      order by o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1;
  else
    select o.tenant into answer from treadle.open_item o
      where o.status = 3 and o.type = p_type and o.queue = p_queue and o.tenant > p_after
      order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1;
  end if;
  return answer;
end $$;

-- A lane may be empty text. Null asks for the first lane.
create or replace function treadle.next_lane(p_type text, p_queue text, p_tenant text, p_after text)
returns text language plpgsql stable as $$
#variable_conflict use_column
declare answer text;
begin
  if p_type is null then
    if p_after is null then
      select o.lane into answer from treadle.open_item o
        where o.status = 2 and o.queue = p_queue and o.tenant = p_tenant
        order by o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1;
    else
      select o.lane into answer from treadle.open_item o
        where o.status = 2 and o.queue = p_queue and o.tenant = p_tenant and o.lane > p_after
        order by o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1;
    end if;
  elsif p_after is null then
    select o.lane into answer from treadle.open_item o
      where o.status = 3 and o.type = p_type and o.queue = p_queue and o.tenant = p_tenant
      order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1;
  else
    select o.lane into answer from treadle.open_item o
      where o.status = 3 and o.type = p_type and o.queue = p_queue and o.tenant = p_tenant and o.lane > p_after
      order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1;
  end if;
  return answer;
end $$;

-- Up to `p_limit` queues, starting behind the one that was served last. Only queues count that have an item
-- for this demand: of a wanted tenant that is not paused, in a lane that is not avoided. A queue that is
-- skipped must not use up the share of another. `fair_tenants` and `fair_lanes` do the same.
--
-- p_avoid  the lanes to avoid, if there are any for this type. Lines of ready items have items of all types: those
--          to avoid are parked when they are found.
create or replace function treadle.fair_queues(
  p_type text, p_last text, p_limit int, p_demand treadle.demand, p_paused_queues text[],
  p_paused_tenants text[], p_avoid jsonb) returns text[]
language plpgsql stable as $$
declare
  answer text[] := '{}'; at text := coalesce(p_last, ''); wrapped boolean := p_last is null;
  every_tenant constant boolean := p_demand.tenants is null and p_paused_tenants = '{}' and p_avoid is null;
begin
  loop
    at := treadle.next_queue(p_type, at);
    if at is null then
      exit when wrapped;
      wrapped := true; at := '';
      continue;
    end if;
    exit when wrapped and p_last is not null and at collate "C" > p_last;
    if (p_demand.queues is null or at = any(p_demand.queues)) and at <> all(p_paused_queues)
        and (every_tenant or '{}' <> treadle.fair_tenants(p_type, at, null, 1, p_demand.tenants,
          treadle.paused_tenants(p_paused_tenants, at), p_avoid)) then
      answer := answer || at;
      exit when cardinality(answer) >= p_limit;
    end if;
  end loop;
  return answer;
end $$;

-- The tenants that a queue is paused for. `p_paused` has a queue, a newline and a tenant in each element. The queue is
-- empty for a tenant that is paused in all queues.
create or replace function treadle.paused_tenants(p_paused text[], p_queue text) returns text[]
language plpgsql stable as $$
begin
  return case when p_paused = '{}' then p_paused else
    array(select substr(p, strpos(p, chr(10)) + 1) from unnest(p_paused) p
          where split_part(p, chr(10), 1) in ('', p_queue)) end;
end $$;

create or replace function treadle.fair_tenants(
  p_type text, p_queue text, p_last text, p_limit int, p_wanted text[], p_paused text[], p_avoid jsonb)
returns text[]
language plpgsql stable as $$
declare
  answer text[] := '{}'; at text := coalesce(p_last, ''); wrapped boolean := p_last is null;
begin
  if p_wanted is not null then
    -- Each wanted tenant is looked up: there may be very many others.
    return array(
      select w.tenant from (select distinct unnest(p_wanted) as tenant) w
      where w.tenant <> all(p_paused)
        and '{}' <> treadle.fair_lanes(p_type, p_queue, w.tenant, null, 1, p_avoid)
      order by w.tenant collate "C" <= p_last, w.tenant collate "C" limit p_limit);
  end if;
  loop
    at := treadle.next_tenant(p_type, p_queue, at);
    if at is null then
      exit when wrapped;
      wrapped := true; at := '';
      continue;
    end if;
    exit when wrapped and p_last is not null and at collate "C" > p_last;
    if at <> all(p_paused)
        and (p_avoid is null or '{}' <> treadle.fair_lanes(p_type, p_queue, at, null, 1, p_avoid)) then
      answer := answer || at;
      exit when cardinality(answer) >= p_limit;
    end if;
  end loop;
  return answer;
end $$;

create or replace function treadle.fair_lanes(
  p_type text, p_queue text, p_tenant text, p_last text, p_limit int, p_avoid jsonb) returns text[]
language plpgsql stable as $$
declare
  answer text[] := '{}'; at text := p_last; wrapped boolean := p_last is null;
begin
  if p_avoid is not null then
    return treadle.fair_lanes_avoiding(
      p_type, p_queue, p_tenant, p_last, p_limit, p_avoid, (p_avoid ->> p_type) || e'\x1f' || p_tenant);
  end if;
  loop
    at := treadle.next_lane(p_type, p_queue, p_tenant, at);
    if at is null then
      exit when wrapped;
      wrapped := true;
      continue;
    end if;
    exit when wrapped and p_last is not null and at collate "C" > p_last;
    answer := answer || at;
    exit when cardinality(answer) >= p_limit;
  end loop;
  return answer;
end $$;

-- The same for parked items of a type that avoids lanes. There may be thousands to step over. So it reads on from
-- lane to lane as far as lanes are short, and skips the rest of a long one by a step in the index.
--
-- p_tenant_key  the key of `p_avoid` for the whole tenant; with a lane behind it, for that lane
create or replace function treadle.fair_lanes_avoiding(
  p_type text, p_queue text, p_tenant text, p_last text, p_limit int, p_avoid jsonb, p_tenant_key text)
returns text[]
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  answer text[] := '{}'; lanes text[]; at text := p_last; wrapped boolean := p_last is null; portion int := 16;
begin
  if p_avoid ? p_tenant_key then
    return answer;
  end if;
  loop
    -- Names have no control characters: no lane is between `at` and `at || chr(1)`. A lane may be empty text.
    lanes := array(
      select distinct x.lane from (
        select o.lane from treadle.open_item o
        where o.status = 3 and o.type = p_type and o.queue = p_queue and o.tenant = p_tenant
          and o.lane >= coalesce(at || chr(1), '')
        order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit portion) x
      order by x.lane);
    at := lanes[cardinality(lanes)];
    answer := answer || array(
      select l.lane from unnest(lanes) with ordinality l(lane, k)
      where not p_avoid ? (p_tenant_key || e'\x1f' || l.lane)
        and (not wrapped or p_last is null or l.lane collate "C" <= p_last) order by l.k);
    exit when cardinality(answer) >= p_limit or (wrapped and (at is null or at collate "C" >= p_last));
    wrapped := wrapped or at is null;
    portion := least(1000, greatest(4, 2 * cardinality(lanes)));
  end loop;
  return answer[1:p_limit];
end $$;

-- Whether items of this type, tenant and lane are to be avoided: all lanes of the tenant, or this one.
create or replace function treadle.avoids(p_avoid jsonb, p_type text, p_tenant text, p_lane text) returns boolean
language sql immutable as $$
  select coalesce(p_avoid ? ((p_avoid ->> p_type) || e'\x1f' || p_tenant)
    or p_avoid ? ((p_avoid ->> p_type) || e'\x1f' || p_tenant || e'\x1f' || p_lane), false)
$$;
