-- Explain: the facts that say why an item is where it is. All functions here are stable: they read the snapshot of the
-- statement that calls them, so the facts are from one instant. Each takes a bounded number of steps.

-- p_tenant  null: of any tenant. Otherwise lines of other tenants are not counted.
--
-- name, name_state, name_type  what it names in `after`: see `explain_prerequisites`
-- paused                       read by processes of version 8: the tenants whose pauses stop its queue; empty text: all
-- lost                         since when no live worker has had its type
create or replace function treadle.explain(
  p_id text, p_tenant text,
  out now float8, out item treadle.item_state, out verdict smallint, out need int, out met int, out open int,
  out counting smallint, out name text[], out name_state int[], out name_type text[], out keeps_place boolean,
  out begun boolean, out paused text[], out lost float8, out ahead int, out lanes int, out lane_holder text,
  out worker_id text[], out worker_until float8[], out worker_types text[], out worker_running int[],
  out worker_info bytea[])
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  found treadle.open_item; of_tenant text;
begin
  now := treadle.clock();
  select * into item from treadle.read_items(treadle.find_items(array[p_id], p_tenant), true);
  if item.no is null then
    return;
  end if;
  select * into worker_id, worker_until, worker_types, worker_running, worker_info from treadle.worker_states(1000);
  of_tenant := item.tenant;
  paused := array(select p.tenant from treadle.pause p
                  where p.queue = item.queue and p.tenant in ('', of_tenant) order by p.tenant);
  select * into found from treadle.open_item o where o.no = item.no;
  if found.no is null then
    return;
  end if;
  verdict := found.verdict; counting := found.counting;
  if item.state = 0 then
    need := found.need; met := found.met; open := found.pending;
  end if;
  if item.state = 0 or verdict is not null then
    select p.name, p.state, p.type into name, name_state, name_type
      from treadle.explain_prerequisites(item.no, found.counting) p;
  end if;
  lost := treadle.unknown_since(found.type, now);
  keeps_place := found.status = 1 and found.seq < 0;
  begun := found.begun;
  if found.status in (2, 3) then
    ahead := treadle.items_ahead(found);
    lanes := treadle.ready_lines(found.queue, p_tenant, 100);
    lane_holder := (
      select i.id from treadle.open_item o join treadle.item i on i.no = o.no
      where o.holds_lane and o.type = found.type and o.tenant = of_tenant and o.lane = found.lane and o.no <> found.no
      limit 1);
  end if;
end $$;

-- Up to 100 of those that an item names in `after`, each once. Those that have not ended come first, then those that
-- have ended without counting, then the others.
--
-- state  the status that readers see; -1: it does not exist. A group is running or success or dead.
create or replace function treadle.explain_prerequisites(
  p_no bigint, p_counting smallint, out name text[], out state int[], out type text[])
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  select array_agg(x.name order by x.rank, x.place), array_agg(x.state order by x.rank, x.place),
         array_agg(x.type order by x.rank, x.place)
    into name, state, type from (
      select s.*, case when s.state < 0 and p_counting = 2 then 2
                        when s.state < 6 then 0 when p_counting <> 1 and s.state > 6 then 1 else 2 end as rank from (
        select a.name, a.place,
          case when r.no is not null then
                 case when r.ended is null then 5 when r.failed = 0 and r.cancelled = 0 then 6 else 7 end
               when i.no is null then -1
               when left(a.name, 1) <> chr(30) then
                 case when o.no is null then e.outcome when o.verdict is not null then o.shown_status
                      when o.status = 3 then 2 else o.status end
               when g.no is not null then
                 case when g.ended is null then 5 when g.failed = 0 and g.cancelled = 0 then 6 else 7 end
               when e.no is null then 5
               when e.outcome = 6 or e.outcome = 7 and e.flags & 8 <> 0 then 6
               else 7 end::int as state,
          coalesce(r.type, i.type, '') as type
        from (
          select u.name, min(u.place) as place, w.tenant
          from treadle.item w cross join lateral unnest(w.after) with ordinality u(name, place)
          where w.no = p_no group by u.name, w.tenant) a
        -- The id of a member is not the id of a group.
        left join treadle.item i on i.id = ltrim(a.name, chr(30)) and i.tenant = a.tenant and i.type is not null
          and (left(a.name, 1) <> chr(30) or i.group_no is null
               or exists (select 1 from treadle.item_group x where x.no = i.no))
        left join treadle.open_item o on o.no = i.no
        left join treadle.ended_item e on e.no = i.no
        left join treadle.item_group g on g.no = i.no
        -- A group whose root was pruned.
        left join lateral (
          select p.no, p.type, p.ended, p.failed, p.cancelled from treadle.item_group p
          where i.no is null and left(a.name, 1) = chr(30) and p.id = ltrim(a.name, chr(30)) and p.tenant = a.tenant
          order by p.no desc limit 1) r on true
      ) s order by rank, s.place limit 100
    ) x;
end $$;

-- How many items of its line go before a ready one, up to 1000. Those of its line that are parked are in it too.
create or replace function treadle.items_ahead(p_item treadle.open_item) returns int
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  most constant int := 1000;
  most_types constant int := 100;
  next_type text := ''; ahead int; more int;
begin
  -- Two ranges of the index: a single condition would read the whole line.
  ahead := (select count(*) from (
    select 1 from treadle.open_item o where o.status = 2 and o.queue = p_item.queue and o.tenant = p_item.tenant
      and o.lane = p_item.lane and o.priority > p_item.priority limit most) x);
  ahead := ahead + (select count(*) from (
    select 1 from treadle.open_item o where o.status = 2 and o.queue = p_item.queue and o.tenant = p_item.tenant
      and o.lane = p_item.lane and o.priority = p_item.priority and o.seq < p_item.seq limit most) x);
  for k in 1 .. most_types loop
    exit when ahead >= most;
    select o.type into next_type from treadle.open_item o where o.status = 3 and o.type > next_type
      order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1;
    exit when next_type is null;
    select count(*) into more from (
      select 1 from treadle.open_item o where o.status = 3 and o.type = next_type and o.queue = p_item.queue
        and o.tenant = p_item.tenant and o.lane = p_item.lane and o.priority > p_item.priority limit most) x;
    ahead := ahead + more;
    select count(*) into more from (
      select 1 from treadle.open_item o where o.status = 3 and o.type = next_type and o.queue = p_item.queue
        and o.tenant = p_item.tenant and o.lane = p_item.lane and o.priority = p_item.priority
        and o.seq < p_item.seq limit most) x;
    ahead := ahead + more;
  end loop;
  return least(ahead, most);
end $$;

-- How many lines of a queue, or of one tenant in it, have ready items, up to `p_most`.
create or replace function treadle.ready_lines(p_queue text, p_tenant text, p_most int) returns int
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  most_types constant int := 100;
  lines text[]; next_type text := '';
begin
  lines := treadle.lines_of(null, p_queue, p_tenant, p_most);
  for k in 1 .. most_types loop
    exit when cardinality(lines) >= p_most;
    select o.type into next_type from treadle.open_item o where o.status = 3 and o.type > next_type
      order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1;
    exit when next_type is null;
    lines := array(select unnest(lines)
                   union select unnest(treadle.lines_of(next_type, p_queue, p_tenant, p_most)));
  end loop;
  return least(cardinality(lines), p_most);
end $$;

-- The lines of ready items, or of items that are parked under a type: a tenant, a control character and a lane each.
create or replace function treadle.lines_of(p_type text, p_queue text, p_tenant text, p_most int) returns text[]
language plpgsql stable as $$
declare
  answer text[] := '{}'; at_tenant text := ''; at_lane text;
begin
  loop
    if p_tenant is null then
      at_tenant := treadle.next_tenant(p_type, p_queue, at_tenant);
    else
      at_tenant := case when at_tenant = '' then p_tenant end;
    end if;
    exit when at_tenant is null;
    at_lane := null;
    loop
      at_lane := treadle.next_lane(p_type, p_queue, at_tenant, at_lane);
      exit when at_lane is null;
      answer := answer || (at_tenant || chr(31) || at_lane);
      if cardinality(answer) >= p_most then
        return answer;
      end if;
    end loop;
  end loop;
  return answer;
end $$;

-- Since when no live worker has had a type. Null: one has it, or none ever had.
create or replace function treadle.unknown_since(p_type text, p_now float8) returns float8
language plpgsql stable
set jit = off
as $$
begin
  if treadle.has_worker_for(p_type, p_now) then
    return null;
  end if;
  return (
    select max(x.at) from (
      select t.lost as at from treadle.lost_type t where t.type in ('', p_type)
      union all
      -- A worker that has lapsed, and that no claim has removed yet.
      select w.until from treadle.worker w where not w.gone and (w.types is null or p_type = any(w.types))) x);
end $$;

-- The workers that have a lease, lapsed or not. The types within one element are separated by chr(31); null: all.
create or replace function treadle.worker_states(
  p_most int, out id text[], out until float8[], out types text[], out running int[], out info bytea[])
language plpgsql stable
set jit = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  select array_agg(w.id order by w.id), array_agg(w.until order by w.id),
         array_agg(array_to_string(w.types, chr(31)) order by w.id), array_agg(w.running order by w.id),
         array_agg(w.info order by w.id)
    into id, until, types, running, info from (
      select w.id, w.until, w.types, w.info,
        (select count(*)::int from treadle.open_item o
         where o.worker = w.no and o.status = 5 and o.verdict is null) as running
      from treadle.worker w where not w.gone order by w.id limit p_most) w;
end $$;
