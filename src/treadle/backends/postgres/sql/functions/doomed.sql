-- Doomed items: they can only end. A claim hands them out with a verdict.

-- Lease doomed items of the demanded queues and tenants: to a worker that has their type, or to any worker if
-- no live worker has it.
create or replace function treadle.claim_doomed(
  p_worker bigint, p_now float8, p_types text[], p_queues text[], p_tenants text[], p_limit int)
returns bigint[]
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  chosen bigint[] := '{}'; nos bigint[]; next_type text := ''; next_queue text;
begin
  loop
    select o.type into next_type from treadle.open_item o where o.status = 4 and o.type > next_type
      order by o.type, o.queue, o.tenant, o.no limit 1;
    exit when next_type is null;
    continue when not (p_types is null or next_type = any(p_types)
                       or not treadle.has_worker_for(next_type, p_now));
    next_queue := '';
    loop
      select o.queue into next_queue from treadle.open_item o
        where o.status = 4 and o.type = next_type and o.queue > next_queue
        order by o.type, o.queue, o.tenant, o.no limit 1;
      exit when next_queue is null;
      continue when p_queues is not null and next_queue <> all(p_queues);
      select array_agg(x.no) into nos from (
        select o.no from treadle.open_item o where o.status = 4 and o.type = next_type and o.queue = next_queue
          and (p_tenants is null or o.tenant = any(p_tenants))
        order by o.type, o.queue, o.tenant, o.no limit p_limit - cardinality(chosen)
        for update skip locked) x;
      chosen := chosen || coalesce(nos, '{}');
      exit when cardinality(chosen) >= p_limit;
    end loop;
    exit when cardinality(chosen) >= p_limit;
  end loop;
  if chosen <> '{}' then
    update treadle.open_item o set status = 5, begun = true, token = treadle.new_token(), worker = p_worker
      where o.no = any(chosen);
  end if;
  return chosen;
end $$;

-- Doom parked items that waited longer than the grace while no live worker had their type. Bulk actions wait.
create or replace function treadle.doom_unknown_types(p_now float8, p_grace float8, p_portion int) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  next_type text := ''; nos bigint[];
begin
  if exists (select 1 from treadle.worker w where not w.gone and w.until > p_now and w.types is null) then
    return;
  end if;
  -- Only parked items are looked at: the first claim that reaches an item of an unknown type parks it.
  loop
    select o.type into next_type from treadle.open_item o where o.status = 3 and o.type > next_type
      order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit 1;
    exit when next_type is null;
    continue when next_type = 'treadle' || '.bulk' or treadle.has_worker_for(next_type, p_now);
    continue when exists (
      select 1 from treadle.lost_type t where t.type in ('', next_type) and t.lost >= p_now - p_grace);
    select array_agg(x.no) into nos from (
      select o.no from treadle.open_item o
      where o.status = 3 and o.type = next_type and o.ready_since < p_now - p_grace
      order by o.type, o.queue, o.tenant, o.lane, o.priority desc, o.seq limit p_portion
      for update skip locked) x;
    if nos is not null then
      update treadle.open_item o set status = 4, shown_status = 2, verdict = 8 where o.no = any(nos);
    end if;
  end loop;
end $$;
