-- Prune: remove items whose retention is over, up to a portion.
--
-- An item without a group row has its time in `ended_item`. A group has its time in `item_group`: when the
-- first member may be pruned. It is then set to the time of the next member.
create or replace function treadle.prune(p_limit int) returns int
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  now float8 := treadle.clock(); nos bigint[]; kept bigint[]; passed bigint[] := '{}'; g record;
  pruned int := 0; next_at float8;
begin
  -- Items without a group row.
  loop
    select array_agg(x.no) into nos from (
      select e.no from treadle.ended_item e where e.prune_at <= now and e.no <> all(passed)
      order by e.prune_at limit p_limit - pruned for update skip locked) x;
    exit when nos is null;
    nos := treadle.lock_for_removal(nos);
    kept := treadle.with_open_dependents(nos);
    if kept is not null then
      -- An open item names them: the next call looks at them again, after all others.
      update treadle.ended_item e set prune_at = now where e.no = any(kept);
      passed := passed || kept;
      nos := array(select n from unnest(nos) n where n <> all(kept));
    end if;
    perform treadle.remove_items(nos);
    pruned := pruned + cardinality(nos);
    exit when pruned >= p_limit or kept is null or cardinality(passed) > 10 * p_limit;
  end loop;

  -- Groups, member by member.
  for g in
    select r.no, r.ended from treadle.item_group r where r.prune_at <= now order by r.prune_at limit p_limit
    for update skip locked
  loop
    exit when pruned >= p_limit;
    nos := null; kept := null;
    select array_agg(x.no) into nos from (
      select m.no from treadle.member_prune_times(g.no, g.ended) m where m.prune_at <= now
      order by m.no limit p_limit - pruned) x;
    if nos is not null then
      nos := treadle.lock_for_removal(nos);
      kept := treadle.with_open_dependents(nos);
      nos := array(select n from unnest(nos) n where n <> all(coalesce(kept, '{}')));
      perform treadle.remove_items(nos);
      pruned := pruned + cardinality(nos);
    end if;
    select min(greatest(m.prune_at, now)) into next_at from treadle.member_prune_times(g.no, g.ended) m;
    if exists (select 1 from treadle.item i where i.no = g.no)
        or exists (select 1 from treadle.item i where i.group_no = g.no) then
      update treadle.item_group r set prune_at = next_at where r.no = g.no;
    else
      delete from treadle.item_group r where r.no = g.no;
    end if;
  end loop;

  perform treadle.prune_names(now, p_limit);
  return pruned;
end $$;

-- The members of an ended group and when each may be pruned, without those that are kept for ever.
create or replace function treadle.member_prune_times(p_group bigint, p_ended float8)
returns table (no bigint, prune_at float8)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
    select m.no, p_ended + case e.outcome when 7 then m.keep_dead else m.keep end
    from (
      select i.no, i.keep, i.keep_dead from treadle.item i where i.no = p_group
      union all
      select i.no, i.keep, i.keep_dead from treadle.item i where i.group_no = p_group) m
    join treadle.ended_item e on e.no = m.no
    where case e.outcome when 7 then m.keep_dead else m.keep end is not null;
end $$;

-- Lock items that are to be removed, without those that another transaction is about to wait for. Later
-- transactions that name them wait until they are gone.
create or replace function treadle.lock_for_removal(p_nos bigint[]) returns bigint[]
language plpgsql
set jit = off set enable_seqscan = off
as $$
begin
  return array(select i.no from treadle.item i where i.no = any(p_nos) order by i.no for update skip locked);
end $$;

-- Of these items: those that an open item waits for.
create or replace function treadle.with_open_dependents(p_nos bigint[]) returns bigint[]
language plpgsql stable
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return (
    select array_agg(distinct m.no) from treadle.item m
    join treadle.item w on w.after @> array[m.id] and w.tenant = m.tenant
    where m.no = any(p_nos) and exists (select 1 from treadle.open_item o where o.no = w.no));
end $$;

-- Remove names that are no longer in use: claimed keys, limits, placeholders that no item waits for.
create or replace function treadle.prune_names(p_now float8, p_limit int) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  nos bigint[];
begin
  delete from treadle.claimed_key k where (k.key, k.tenant) in (
    select x.key, x.tenant from treadle.claimed_key x where x.until <= p_now order by x.until limit p_limit
    for update skip locked);
  delete from treadle.limit_state s where s.name in (
    select x.name from treadle.limit_state x where x.until <= p_now order by x.until limit p_limit
    for update skip locked);
  delete from treadle.lost_type t where t.lost < p_now - 31 * 86400;

  -- The items that waited for a placeholder have ended, or no longer wait.
  select array_agg(x.no) into nos from (
    select i.no from treadle.item i where i.type is null order by i.no limit p_limit for update skip locked) x;
  if nos is not null then
    delete from treadle.dependency d where d.prerequisite = any(nos)
      and not exists (select 1 from treadle.open_item o where o.no = d.dependent and o.status in (0, 4));
    delete from treadle.item i where i.no = any(nos)
      and not exists (select 1 from treadle.dependency d where d.prerequisite = i.no);
  end if;
end $$;
