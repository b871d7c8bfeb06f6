-- Prune: remove items whose time is over, up to a portion.
--
-- Lone items have their time in `done`, groups in `grp`: that of the member whose time comes first. A group
-- is looked at then, and again when the next member's time has come.
create or replace function treadle.prune(p_limit int) returns int
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  now float8 := treadle.clock(); nos bigint[]; kept bigint[]; passed bigint[] := '{}'; g record; gone int := 0; again float8;
begin
  loop
    select array_agg(x.no) into nos from (
      select d.no from treadle.done d where d.prune <= now and d.no <> all(passed)
      order by d.prune limit p_limit - gone for update skip locked) x;
    exit when nos is null;
    nos := treadle.reserve(nos);
    kept := treadle.awaited(nos);
    if kept is not null then
      -- Somebody open names it: the next call looks again, after all others.
      update treadle.done d set prune = now where d.no = any(kept);
      passed := passed || kept;
      nos := array(select n from unnest(nos) n where n <> all(kept));
    end if;
    perform treadle.remove(nos);
    gone := gone + cardinality(nos);
    exit when gone >= p_limit or kept is null or cardinality(passed) > 10 * p_limit;
  end loop;

  for g in
    select r.no, r.ended from treadle.grp r where r.prune <= now order by r.prune limit p_limit
    for update skip locked
  loop
    exit when gone >= p_limit;
    nos := null; kept := null;
    select array_agg(x.no) into nos from (
      select m.no from treadle.member_times(g.no, g.ended) m where m.over <= now order by m.no limit p_limit - gone) x;
    if nos is not null then
      nos := treadle.reserve(nos);
      kept := treadle.awaited(nos);
      nos := array(select n from unnest(nos) n where n <> all(coalesce(kept, '{}')));
      perform treadle.remove(nos);
      gone := gone + cardinality(nos);
    end if;
    select min(greatest(m.over, now)) into again from treadle.member_times(g.no, g.ended) m;
    if exists (select 1 from treadle.item i where i.no = g.no)
        or exists (select 1 from treadle.item i where i.grp = g.no) then
      update treadle.grp r set prune = again where r.no = g.no;
    else
      delete from treadle.grp r where r.no = g.no;
    end if;
  end loop;

  perform treadle.sweep_names(now, p_limit);
  return gone;
end $$;

-- The members of an ended group, and when the time of each is over; not those that are kept for ever.
create or replace function treadle.member_times(p_group bigint, p_ended float8)
returns table (no bigint, over float8)
language plpgsql stable
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
    select m.no, p_ended + case d.outcome when 7 then m.keep_dead else m.keep end
    from (
      select i.no, i.keep, i.keep_dead from treadle.item i where i.no = p_group
      union all
      select i.no, i.keep, i.keep_dead from treadle.item i where i.grp = p_group) m
    join treadle.done d on d.no = m.no
    where case d.outcome when 7 then m.keep_dead else m.keep end is not null;
end $$;

-- Of these items: those that nobody is about to wait for. Whoever wants to from now on waits to hear that
-- they are gone.
create or replace function treadle.reserve(p_nos bigint[]) returns bigint[]
language plpgsql
set jit = off set enable_seqscan = off
as $$
begin
  return array(select i.no from treadle.item i where i.no = any(p_nos) order by i.no for update skip locked);
end $$;

-- Of these items: those that an open item names.
create or replace function treadle.awaited(p_nos bigint[]) returns bigint[]
language plpgsql stable
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return (
    select array_agg(distinct m.no) from treadle.item m
    join treadle.item w on w.after @> array[m.id] and w.tenant = m.tenant
    where m.no = any(p_nos) and exists (select 1 from treadle.job j where j.no = w.no));
end $$;

-- Names that mean nothing any more: claimed keys, limits, ids that nobody waits for any longer.
create or replace function treadle.sweep_names(p_now float8, p_limit int) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  nos bigint[];
begin
  delete from treadle.once o where (o.key, o.tenant) in (
    select x.key, x.tenant from treadle.once x where x.until <= p_now order by x.until limit p_limit
    for update skip locked);
  delete from treadle.bucket b where b.name in (
    select x.name from treadle.bucket x where x.until <= p_now order by x.until limit p_limit
    for update skip locked);
  delete from treadle.skill s where s.lost < p_now - 31 * 86400;

  -- Who waited has ended, or waits no longer.
  select array_agg(x.no) into nos from (
    select i.no from treadle.item i where i.type is null order by i.no limit p_limit for update skip locked) x;
  if nos is not null then
    delete from treadle.edge e where e.src = any(nos)
      and not exists (select 1 from treadle.job j where j.no = e.dst and j.status in (0, 4));
    delete from treadle.item i where i.no = any(nos)
      and not exists (select 1 from treadle.edge e where e.src = i.no);
  end if;
end $$;
