-- Prune: remove items whose retention is over, up to a portion.
--
-- An item without a group row has its time in `ended_item`. A group has its time in `item_group`: when the
-- first member may be pruned. It is then set to the time of the next member. Nested groups have none: what is in
-- them is pruned with the outermost group around them.
create or replace function treadle.prune(p_limit int) returns int
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  now float8 := treadle.clock(); nos bigint[]; kept bigint[]; passed bigint[] := '{}'; pruned int := 0;
begin
  -- Items without a group row.
  loop
    select array_agg(x.no) into nos from (
      select e.no from treadle.ended_item e where e.prune_at <= now and e.no <> all(passed)
      order by e.prune_at limit p_limit - pruned for update skip locked) x;
    exit when nos is null;
    nos := treadle.lock_for_removal(nos);
    kept := treadle.with_dependents(nos);
    if kept is not null then
      -- An item waits for them: the next call looks at them again, after all others.
      update treadle.ended_item e set prune_at = now where e.no = any(kept);
      passed := passed || kept;
      nos := array(select n from unnest(nos) n where n <> all(kept));
    end if;
    perform treadle.remove_items(nos);
    pruned := pruned + cardinality(nos);
    exit when pruned >= p_limit or kept is null or cardinality(passed) > 10 * p_limit;
  end loop;

  if pruned < p_limit then
    pruned := pruned + treadle.prune_groups(now, p_limit - pruned);
  end if;
  perform treadle.prune_names(now, p_limit);
  return pruned;
end $$;

-- Members of ended groups, up to a portion, of as many groups as that takes. "offset 0" keeps each look-up a look-up: by
-- statistics of short tables, or of one that was empty when the server looked, reading all of a table once per group
-- seems cheaper.
create or replace function treadle.prune_groups(p_now float8, p_limit int) returns int
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  nos bigint[]; kept bigint[]; groups bigint[]; rows int; pruned int;
begin
  -- A group without a member that may go has a row too, so that it is looked at later.
  select array_agg(x.no) filter (where x.no is not null), array_agg(x.group_no), count(*)
    into nos, groups, rows from (
    select m.no, g.no as group_no from (
      select r.no, r.ended from treadle.item_group r where r.prune_at <= p_now order by r.prune_at limit p_limit
      for update skip locked) g
    left join lateral (
      select i.no from (
        select g.no, g.ended, g.no as root
        union all
        select x.no, greatest(x.ended, g.ended), null from treadle.item_group x
          where x.outermost = g.no and x.ended is not null) f
      cross join lateral (
        select i.no, i.keep, i.keep_dead from treadle.item i where i.no = f.root
        union all
        select i.no, i.keep, i.keep_dead from treadle.item i where i.group_no = f.no) i
      cross join lateral (select e.outcome from treadle.ended_item e where e.no = i.no offset 0) e
      where f.ended + case e.outcome when 7 then i.keep_dead else i.keep end <= p_now) m on true
    limit p_limit) x;
  if groups is null then
    return 0;
  end if;
  nos := treadle.lock_for_removal(nos);
  kept := treadle.with_dependents(nos);
  if kept is not null then
    nos := array(select n from unnest(nos) n where n <> all(kept));
  end if;
  pruned := cardinality(nos);
  -- A group whose root goes is still found by its id, as long as it has other members.
  update treadle.item_group g
    set (id, tenant, type) = (select i.id, i.tenant, i.type from treadle.item i where i.no = g.no)
    where g.no = any(nos) and g.outermost is null;
  perform treadle.remove_items(nos);
  if rows = p_limit then
    -- There may be more of the last one: it is not looked through now.
    update treadle.item_group r set prune_at = p_now where r.no = groups[rows];
    groups := array_remove(groups, groups[rows]);
  end if;
  -- Nested groups that are empty, then the groups around them.
  perform treadle.remove_empty_groups(array(select r.no from treadle.item_group r where r.outermost = any(groups)));
  perform treadle.remove_empty_groups(groups);
  -- If a nested group is open, because the item that closes it was cancelled, look at this one again later.
  update treadle.item_group r set prune_at = least((
    select min(greatest(f.ended + case e.outcome when 7 then i.keep_dead else i.keep end, p_now)) from (
      select r.no, r.ended, r.no as root
      union all
      select x.no, greatest(x.ended, r.ended), null from treadle.item_group x
        where x.outermost = r.no and x.ended is not null) f
    cross join lateral (
      select i.no, i.keep, i.keep_dead from treadle.item i where i.no = f.root
      union all
      select i.no, i.keep, i.keep_dead from treadle.item i where i.group_no = f.no) i
    cross join lateral (select e.outcome from treadle.ended_item e where e.no = i.no offset 0) e
    where case e.outcome when 7 then i.keep_dead else i.keep end is not null),
    case when exists (select 1 from treadle.item_group x where x.outermost = r.no and x.ended is null)
         then p_now + 60 end)
  where r.no = any(groups);
  return pruned;
end $$;

-- Remove those of these groups that have neither their item, nor members, nor groups in them.
create or replace function treadle.remove_empty_groups(p_nos bigint[]) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
begin
  delete from treadle.item_group r where r.no = any(p_nos)
    and not exists (select 1 from treadle.item i where i.no = r.no offset 0)
    and not exists (select 1 from treadle.item i where i.group_no = r.no offset 0)
    and not exists (select 1 from treadle.item_group x where x.outermost = r.no offset 0);
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

-- Of these items: those that an item names, or whose group it names, and that item is open, or died unsatisfiable
-- and may be blocked again.
create or replace function treadle.with_dependents(p_nos bigint[]) returns bigint[]
language plpgsql stable
set jit = off set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  naming bigint[]; nos bigint[]; tenants text[]; names text[]; found bigint[];
begin
  select array_agg(x.no), array_agg(x.tenant), array_agg(x.name) into nos, tenants, names
    from treadle.names_of(p_nos) x;
  naming := treadle.naming(names);
  if naming is not null then
    select array_agg(distinct m.no) into found
      from treadle.names_awaited_by(naming) w
      join unnest(nos, tenants, names) m(no, tenant, name) on m.name = w.name and m.tenant = w.tenant;
  end if;
  return found;
end $$;

-- The names in `after` that may mean one of these items: ids, and names of groups.
create or replace function treadle.names_of(p_nos bigint[]) returns table (no bigint, tenant text, name text)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  return query
    select i.no, i.tenant, n.name from treadle.item i
    cross join lateral (
      select i.id as name
      union all
      select chr(30) || coalesce(i.group_id, i.id)
      union all
      select chr(30) || i.id where i.group_no is not null
        and exists (select 1 from treadle.item_group g where g.no = i.no)) n
    where i.no = any(p_nos);
end $$;

-- The names in `after` of these items, as far as they are open, or dead because they were unsatisfiable.
create or replace function treadle.names_awaited_by(p_nos bigint[])
returns table (no bigint, id text, tenant text, name text, is_open boolean)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
    select n.no, w.id, w.tenant, a.name, w.is_open from unnest(p_nos) n(no)
    cross join lateral (
      select i.id, i.tenant, i.after, exists (select 1 from treadle.open_item o where o.no = n.no offset 0) as is_open
      from treadle.item i where i.no = n.no offset 0) w
    cross join lateral unnest(w.after) a(name)
    where w.is_open or exists (select 1 from treadle.ended_item e where e.no = n.no and e.reason = 5 offset 0);
end $$;

-- The items, of any tenant, that have one of these names in `after`. Only the index of `after` can find them: a scan of
-- another index would read the whole table. The names are looked up in portions: the server compares each name of a
-- look-up with each other one before it begins. (2,000 at once took 4 ms.)
create or replace function treadle.naming(p_names text[]) returns bigint[]
language plpgsql stable
set jit = off set enable_seqscan = off set enable_indexscan = off set enable_indexonlyscan = off
set enable_bitmapscan = on set plan_cache_mode = force_generic_plan
as $$
declare
  portion constant int := 100;
  answer bigint[] := '{}';
begin
  for k in 0 .. (coalesce(cardinality(p_names), 0) - 1) / portion loop
    answer := answer || array(
      select w.no from treadle.item w
      where w.after && p_names[k * portion + 1 : (k + 1) * portion] and w.after is not null);
  end loop;
  return (select array_agg(distinct n) from unnest(answer) n);
end $$;

-- Remove names that are no longer in use: claimed keys, limits, placeholders that no item waits for. And old audit
-- entries.
create or replace function treadle.prune_names(p_now float8, p_limit int) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  nos bigint[];
begin
  delete from treadle.claimed_key k where k.ctid = any(array(
    select x.ctid from treadle.claimed_key x where x.until <= p_now order by x.until limit p_limit
    for update skip locked));
  delete from treadle.limit_state s where s.name = any(array(
    select x.name from treadle.limit_state x where x.until <= p_now order by x.until limit p_limit
    for update skip locked));
  delete from treadle.lost_type t where t.lost < p_now - 31 * 86400;
  delete from treadle.removed_schedule r where r.at < p_now - 30 * 86400;
  delete from treadle.orders o where o.until <= p_now;
  perform treadle.prune_stats(60, p_now - 86400, p_limit);
  perform treadle.prune_stats(900, p_now - 86400, p_limit);
  perform treadle.prune_stats(3600, p_now - 90 * 86400, p_limit);
  delete from treadle.audit a where a.no = any(array(
    select x.no from treadle.audit x where x.at < p_now - 365 * 86400 order by x.at limit p_limit
    for update skip locked));

  -- The items that waited for a placeholder have ended, or no longer wait.
  select array_agg(x.no) into nos from (
    select i.no from treadle.item i where i.type is null order by i.no limit p_limit for update skip locked) x;
  if nos is not null then
    delete from treadle.dependency d where d.prerequisite = any(nos)
      and not exists (select 1 from treadle.open_item o where o.no = d.dependent and o.status in (0, 4) offset 0);
    delete from treadle.item i where i.no = any(nos)
      and not exists (select 1 from treadle.dependency d where d.prerequisite = i.no offset 0);
  end if;
end $$;
