-- The turns of queues, tenants and lanes: which lines are served next, and in what order their items come.
--
-- Ready items stand in lines, (queue, tenant, lane) each, in the order of an index. Going from one line to
-- the next is one step in that index, however long the lines are. Without a type: the ready ones; with
-- one: those that are parked under it.

create or replace function treadle.next_queue(p_type text, p_after text) returns text
language plpgsql stable as $$
#variable_conflict use_column
declare found text;
begin
  if p_type is null then
    select j.queue into found from treadle.job j where j.status = 2 and j.queue > p_after
      order by j.queue, j.tenant, j.lane, j.priority desc, j.seq limit 1;
  else
    select j.queue into found from treadle.job j where j.status = 3 and j.type = p_type and j.queue > p_after
      order by j.type, j.queue, j.tenant, j.lane, j.priority desc, j.seq limit 1;
  end if;
  return found;
end $$;

create or replace function treadle.next_tenant(p_type text, p_queue text, p_after text) returns text
language plpgsql stable as $$
#variable_conflict use_column
declare found text;
begin
  if p_type is null then
    select j.tenant into found from treadle.job j
      where j.status = 2 and j.queue = p_queue and j.tenant > p_after
      order by j.queue, j.tenant, j.lane, j.priority desc, j.seq limit 1;
  else
    select j.tenant into found from treadle.job j
      where j.status = 3 and j.type = p_type and j.queue = p_queue and j.tenant > p_after
      order by j.type, j.queue, j.tenant, j.lane, j.priority desc, j.seq limit 1;
  end if;
  return found;
end $$;

-- Lanes may be empty text, so the first one is asked for with null.
create or replace function treadle.next_lane(p_type text, p_queue text, p_tenant text, p_after text)
returns text language plpgsql stable as $$
#variable_conflict use_column
declare found text;
begin
  if p_type is null then
    if p_after is null then
      select j.lane into found from treadle.job j
        where j.status = 2 and j.queue = p_queue and j.tenant = p_tenant
        order by j.queue, j.tenant, j.lane, j.priority desc, j.seq limit 1;
    else
      select j.lane into found from treadle.job j
        where j.status = 2 and j.queue = p_queue and j.tenant = p_tenant and j.lane > p_after
        order by j.queue, j.tenant, j.lane, j.priority desc, j.seq limit 1;
    end if;
  elsif p_after is null then
    select j.lane into found from treadle.job j
      where j.status = 3 and j.type = p_type and j.queue = p_queue and j.tenant = p_tenant
      order by j.type, j.queue, j.tenant, j.lane, j.priority desc, j.seq limit 1;
  else
    select j.lane into found from treadle.job j
      where j.status = 3 and j.type = p_type and j.queue = p_queue and j.tenant = p_tenant and j.lane > p_after
      order by j.type, j.queue, j.tenant, j.lane, j.priority desc, j.seq limit 1;
  end if;
  return found;
end $$;

-- Up to so many queues, tenants or lanes, starting behind the one that was served last. Only those count in
-- which there is something for this demand: of the tenants that it wants, not held back, not in a lane that
-- it avoids. One that is passed over must not take the turn of another.
create or replace function treadle.turn_queues(
  p_type text, p_last text, p_limit int, p_wanted text[], p_paused text[], p_tenants text[], p_holds text[],
  a_tenants text[], a_lanes text[]) returns text[]
language plpgsql stable as $$
declare
  found text[] := '{}'; at text := coalesce(p_last, ''); wrapped boolean := p_last is null;
  anyone constant boolean := p_tenants is null and p_holds = '{}' and a_tenants is null;
begin
  loop
    at := treadle.next_queue(p_type, at);
    if at is null then
      exit when wrapped;
      wrapped := true; at := '';
      continue;
    end if;
    exit when wrapped and p_last is not null and at collate "C" > p_last;
    if (p_wanted is null or at = any(p_wanted)) and at <> all(p_paused) and (anyone or '{}' <>
        treadle.turn_tenants(p_type, at, null, 1, p_tenants, treadle.held(p_holds, at), a_tenants, a_lanes)) then
      found := found || at;
      exit when cardinality(found) >= p_limit;
    end if;
  end loop;
  return found;
end $$;

-- The tenants that a queue is paused for.
create or replace function treadle.held(p_holds text[], p_queue text) returns text[] language plpgsql stable as $$
begin
  return case when p_holds = '{}' then p_holds else
    array(select substr(h, length(p_queue) + 2) from unnest(p_holds) h
          where left(h, length(p_queue) + 1) = p_queue || chr(10)) end;
end $$;

create or replace function treadle.turn_tenants(
  p_type text, p_queue text, p_last text, p_limit int, p_wanted text[], p_paused text[],
  a_tenants text[], a_lanes text[]) returns text[]
language plpgsql stable as $$
declare
  found text[] := '{}'; at text := coalesce(p_last, ''); wrapped boolean := p_last is null;
begin
  if p_wanted is not null then
    -- Asked for one by one: there may be very many others.
    return array(
      select w.tenant from (select distinct unnest(p_wanted) as tenant) w
      where w.tenant <> all(p_paused) and treadle.has_line(p_type, p_queue, w.tenant, a_tenants, a_lanes)
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
    if at <> all(p_paused) and (a_tenants is null or at <> all(a_tenants)
        or treadle.has_line(p_type, p_queue, at, a_tenants, a_lanes)) then
      found := found || at;
      exit when cardinality(found) >= p_limit;
    end if;
  end loop;
  return found;
end $$;

create or replace function treadle.has_line(
  p_type text, p_queue text, p_tenant text, a_tenants text[], a_lanes text[]) returns boolean
language plpgsql stable as $$
begin
  if a_tenants is null or p_tenant <> all(a_tenants) then
    return treadle.next_lane(p_type, p_queue, p_tenant, null) is not null;
  end if;
  return '{}' <> treadle.turn_lanes(p_type, p_queue, p_tenant, null, 1,
    array(select a.lane from unnest(a_tenants, a_lanes) a(tenant, lane) where a.tenant = p_tenant));
end $$;

create or replace function treadle.turn_lanes(
  p_type text, p_queue text, p_tenant text, p_last text, p_limit int, p_avoid text[]) returns text[]
language plpgsql stable as $$
declare
  found text[] := '{}'; at text := p_last; wrapped boolean := p_last is null;
begin
  loop
    at := treadle.next_lane(p_type, p_queue, p_tenant, at);
    if at is null then
      exit when wrapped;
      wrapped := true;
      continue;
    end if;
    exit when wrapped and p_last is not null and at collate "C" > p_last;
    if at <> all(p_avoid) then
      found := found || at;
      exit when cardinality(found) >= p_limit;
    end if;
  end loop;
  return found;
end $$;
