-- Claim: lease what is ready, in fair order, and what is doomed. It never waits for locks: rows that another
-- transaction has locked are skipped. (Not those that an open transaction waits for with `after`: such an item
-- may start, it only cannot end.)
--
-- The last row of the answer has no item. It has the numbers of the leased items in their order (`picks`),
-- the seconds until the next item is due, and the types of items that this claim freed, made ready, parked or
-- locked but did not lease (`left_types`): a claim at the same time may have skipped them. No row at all: the
-- worker is not alive.
--
-- p_grace   see `Demand.unknown_grace`
-- p_orders  the version of the orders that the worker knows. If it is another one now, the last row has it, and nothing is
--           leased. Null: the worker knows none
create or replace function treadle.claim(
  p_worker text, p_limit int, p_demand treadle.demand, p_grace float8, p_last treadle.last_served,
  p_orders bigint default null)
returns table (
  id text, tenant text, token bigint, type text, input bytea, attempt int, group_id text, queue text, lane text,
  priority int, attempts int, parent text, workflow text, workflow_type text, after text[], options bytea,
  queued float8, due float8, claimed float8, deadline float8, verdict smallint, no bigint, failures int, losses int,
  begun boolean, ready float8, picks bigint[], next_due float8,
  left_types text[], orders bigint, has_steps boolean, resumes boolean, deferrals int)
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  portion constant int := 1000;
  few constant int := 16;
  now float8 := treadle.clock();
  worker_no bigint; more boolean := false; is_quick boolean := false; is_late boolean; line text[]; room int := p_limit;
  store record; fair record;
  leased bigint[] := '{}'; doomed bigint[] := '{}'; promoted bigint[];
begin
  -- One query for everything that is rarely there. (With a statement for each, a claim of one item took
  -- 1.4 ms instead of 0.8.)
  select exists (select 1 from treadle.worker w where w.until <= now or w.until > now + 2 * w.lease)
      as has_lapsed_workers,
    exists (select 1 from treadle.orders o where o.queue is not null) as has_pauses,
    coalesce((select o.at::bigint from treadle.orders o where o.subject = ''), 0) as orders,
    (select o.due from treadle.open_item o where o.status = 1
      order by o.due, o.queue, o.tenant limit 1) as first_due,
    (select o.deadline from treadle.open_item o where o.deadline is not null and o.status < 4
      order by o.deadline limit 1) as first_deadline,
    (select o.type from treadle.open_item o where o.status = 3
      order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1) as parked_type,
    (select o.type from treadle.open_item o where o.status = 4
      order by o.type, o.queue, o.tenant, o.no limit 1) as doomed_type,
    r.*
    into store from (
      select count(*) as ready, min(x.queue) as queue, max(x.queue) as last_queue, min(x.tenant) as tenant,
        max(x.tenant) as last_tenant, min(x.lane) as lane, max(x.lane) as last_lane,
        array_agg(distinct x.type) as types from (
          select o.queue, o.tenant, o.lane, o.type from treadle.open_item o where o.status = 2
          order by o.queue, o.tenant, o.lane, o.priority desc, o.seq limit few + 1) x) r;
  left_types := '{}';
  if store.has_lapsed_workers then
    select coalesce(array_agg(distinct o.type), '{}') into left_types
      from treadle.worker w join treadle.open_item o on o.worker = w.no and o.status = 5 where w.until <= now;
    more := treadle.remove_lapsed_workers(now, portion);
  end if;
  is_late := store.has_lapsed_workers
    or coalesce(store.first_due <= now or store.first_deadline <= now, false);

  -- The worker itself.
  if is_late or store.has_pauses or store.ready > 0 or store.parked_type is not null
      or store.doomed_type is not null then
    -- The lock keeps the worker from being removed while it claims.
    select w.no into worker_no from treadle.worker w
      where w.id = p_worker and not w.gone and w.until > now for key share;
  else
    -- Nothing to claim: no lock, so nothing is written. (An empty claim took 450 us with the lock, and takes
    -- 330 without.)
    select w.no into worker_no from treadle.worker w where w.id = p_worker and not w.gone and w.until > now;
  end if;
  if worker_no is null then
    return;
  end if;
  if p_orders <> store.orders then
    no := null; picks := '{}'; orders := store.orders;
    return next;
    return;
  end if;

  -- `line`: the only line that has ready items, as is often the case. Then fairness does not matter. (To find the lines takes
  -- nine looks at the start of the index. Each passes by the entries of items that have left it, until a vacuum.)
  --
  -- The quick way, if there is room for everything that is ready and can run here, and it is all in that line. Items of
  -- types that only other workers run are neither locked nor parked.
  if is_late then
    select p.more or more, p.promoted into more, promoted from treadle.promote_due(now, portion) p;
  elsif store.parked_type is not null or store.has_pauses then
    null;
  elsif store.ready = 0 then
    is_quick := true;
  elsif store.queue = store.last_queue and store.tenant = store.last_tenant and store.lane = store.last_lane
      and (p_demand.queues is null or store.queue = any(p_demand.queues))
      and (p_demand.tenants is null or store.tenant = any(p_demand.tenants)) then
    line := array[store.queue, store.tenant, store.lane];
    if store.ready > few then
      -- The first few do not tell whether there are other lines: look at the last one.
      if line <> (select array[o.queue, o.tenant, o.lane] from treadle.open_item o where o.status = 2
                  order by o.queue desc, o.tenant desc, o.lane desc, o.priority, o.seq desc limit 1) then
        line := null;
      end if;
    elsif store.ready <= room and p_demand.avoid is null
        and (p_demand.strict_types is null or not store.types && p_demand.strict_types)
        and treadle.rooms_suffice(store.types, store.ready, p_demand, p_grace is not null, now) then
      is_quick := true;
      leased := treadle.lock_only_line(
        store.queue, store.tenant, store.lane, least(room, few), store.types, p_demand);
      update treadle.open_item o set status = 5, token = treadle.new_token(), worker = worker_no,
          claimed = greatest(now, o.ready_since), begun = treadle.begins(o.losses, o.type, p_demand.buffered),
          attempt = o.attempt + treadle.begins(o.losses, o.type, p_demand.buffered)::int
        where o.no = any(leased);
    end if;
  end if;

  -- The usual way.
  if not is_quick then
    if room > 0 then
      select * into fair from treadle.claim_fairly(worker_no, now, room, p_demand, p_last, line);
      leased := fair.leased; more := more or fair.more;
      left_types := left_types || fair.left_types;
      room := room - cardinality(leased);
    end if;
    if p_grace is not null then
      if room = 0 then
        perform treadle.park_unknown_types(now);
      end if;
      perform treadle.doom_unknown_types(now, p_grace, portion);
    end if;
  end if;
  if not is_quick or store.doomed_type is not null then
    doomed := treadle.claim_doomed(worker_no, now, p_demand.types, p_demand.queues, p_demand.tenants, 100);
  end if;

  if leased <> '{}' or doomed <> '{}' then
    return query
      select i.id, i.tenant, o.token, i.type, i.input, o.attempt + (not o.begun)::int, coalesce(i.group_id, i.id),
        i.queue, i.lane, i.priority, i.attempts, i.parent, i.workflow, i.workflow_type, i.after, i.options, i.queued, o.due, now,
        o.deadline, o.verdict, o.no, o.failures, o.losses, o.begun, o.ready_since, null::bigint[], null::float8, null::text[],
        null::bigint, o.recorded & 1 = 1, o.suspended, o.deferrals
      from treadle.open_item o join treadle.item i on i.no = o.no
      where o.no = any(leased || doomed);
  end if;
  if promoted is not null then
    left_types := left_types || array(select distinct o.type from treadle.open_item o
                                      where o.no = any(promoted) and o.status in (2, 3));
  end if;
  no := null; picks := leased || doomed;
  next_due := case when more then 0
                   when is_quick
                       and (store.first_due is null or p_demand.queues is null and p_demand.tenants is null)
                     then store.first_due - now
                   else treadle.next_due(now, p_demand.queues, p_demand.tenants) end;
  return next;
end $$;

-- Whether there is room for `p_ready` items of each of these types. A type without any room counts as well if
-- another worker has it: its items are left alone. (If they may be of unknown types, the usual way parks them.)
create or replace function treadle.rooms_suffice(
  p_types text[], p_ready bigint, p_demand treadle.demand, p_find_unknown boolean, p_now float8) returns boolean
language plpgsql stable as $$
declare
  ready_type text; room int;
begin
  if p_demand.types is null then
    return true;
  end if;
  foreach ready_type in array p_types loop
    room := coalesce(p_demand.rooms[array_position(p_demand.types, ready_type)], 0);
    if room < p_ready and (room > 0 or p_find_unknown and not treadle.has_worker_for(ready_type, p_now)) then
      return false;
    end if;
  end loop;
  return true;
end $$;

-- Lock the items of a short line that are of these types, if there is room for the type.
create or replace function treadle.lock_only_line(
  p_queue text, p_tenant text, p_lane text, p_limit int, p_types text[], p_demand treadle.demand)
returns bigint[]
language plpgsql as $$
#variable_conflict use_column
begin
  if p_demand.types is not null then
    p_types := array(select t.type from unnest(p_types) t(type)
                     where p_demand.rooms[array_position(p_demand.types, t.type)] > 0);
  end if;
  return array(
    select o.no from treadle.open_item o
    where o.status = 2 and o.queue = p_queue and o.tenant = p_tenant and o.lane = p_lane
      and o.type = any(p_types)
    order by o.queue, o.tenant, o.lane, o.priority desc, o.seq limit p_limit for no key update skip locked);
end $$;

-- Whether the attempt of a lease begins with it: see `Demand.buffered`.
create or replace function treadle.begins(p_losses int, p_type text, p_buffered text[]) returns boolean
language sql immutable as $$
  select p_losses = 0 and (p_buffered is null or p_type <> all(p_buffered))
$$;
