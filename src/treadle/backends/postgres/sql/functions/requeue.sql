-- Requeue: open dead items again, with `p_cancelled` also cancelled ones, with their attempts and losses reset. They
-- wait for their `after` again; those whose condition cannot be met stay as they were. Unless `p_alone`, items that
-- died because they could not be met follow, if they can be met now. Groups open again with their members.
-- Steps stay, but for those that `forget_steps` removes. p_from_step: see there. Version 7 does not pass it.
--
-- It goes in rounds: what a round opens may make it possible to meet the items that wait for it. Opening an item never
-- makes it impossible to meet another one, so the order does not matter.
--
-- There may be many items: joins hash, and so do tests whether an array has a number. Each join names the rows of its
-- tables, so that none is read whole.
create or replace function treadle.requeue(
  p_nos bigint[], p_redrives int, p_backoff float8, p_alone boolean, p_cancelled boolean, p_from_step text default null)
returns table (item treadle.item_state, effects treadle.effects)
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '200ms'
as $$
#variable_conflict use_column
declare
  named bigint[]; candidates bigint[]; fresh bigint[]; opened bigint[] := '{}'; groups bigint[] := '{}'; now float8;
  recorded bigint[];
begin
  named := treadle.lock_ended(p_nos, p_cancelled, p_redrives, p_from_step);
  candidates := named;
  while candidates is not null loop
    fresh := treadle.can_be_met(candidates, opened, groups);
    exit when fresh is null;
    opened := opened || fresh;
    groups := groups || array(select distinct coalesce(i.group_no, i.no) from treadle.item i where i.no = any(fresh));
    candidates := treadle.lock_unmet_dependents(fresh, opened, named, p_alone);
  end loop;
  if opened = '{}' then
    return;
  end if;
  groups := array(select distinct g from unnest(groups) g);
  -- Those asked for come first.
  opened := array(select o.no from unnest(opened) with ordinality o(no, place)
                  left join unnest(named) with ordinality n(no, place) on n.no = o.no order by n.place, o.place);
  perform 1 from treadle.item_group g where g.no = any(groups) order by g.no for update;
  now := treadle.clock();
  return query select s, null::treadle.effects from treadle.read_items(opened, false) s;
  perform treadle.wait_for_opened(opened, groups, p_alone);
  recorded := array(select e.no from treadle.ended_item e
                    where e.no = any(opened) and e.no = any(named) and e.flags & 32 <> 0);
  if recorded <> '{}' then
    perform treadle.forget_steps(recorded, p_from_step);
  end if;
  perform treadle.open_ended(now, opened, groups, named, p_redrives, p_backoff);
end $$;

-- Lock these items, if they have ended in a way that can be requeued, and answer them in the same order. A transaction
-- that removes them has either committed, or will find them open.
create or replace function treadle.lock_ended(p_nos bigint[], p_cancelled boolean, p_redrives int, p_from_step text)
returns bigint[]
language plpgsql
set jit = off set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  perform 1 from treadle.item i where i.no = any(p_nos) order by i.no for key share;
  return (
    select array_agg(x.no order by n.place) from (
      select e.no from treadle.ended_item e
      where e.no = any(p_nos) and (e.outcome = 7 or e.outcome = 8 and p_cancelled)
        and (p_redrives is null or e.redrives < p_redrives)
        and (p_from_step is null
             or exists (select 1 from treadle.step s where s.no = e.no and s.name = p_from_step and s.kind <> 5))
      order by e.no for update) x
    join (select u.no, min(u.place) as place from unnest(p_nos) with ordinality u(no, place) group by u.no) n
      on n.no = x.no);
end $$;

-- Of these ended items: those whose condition can be met, if `p_opened` and the groups `p_groups` are open.
create or replace function treadle.can_be_met(p_nos bigint[], p_opened bigint[], p_groups bigint[]) returns bigint[]
language plpgsql
set jit = off set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  return (
    select array_agg(i.no) from treadle.item i
    left join (
      select p.no, sum(p.times) as able from treadle.prerequisites_of(p_nos, p_opened, p_groups) p
      where p.state <> 2 group by p.no) p on p.no = i.no
    where i.no = any(p_nos) and i.need <= coalesce(p.able, 0));
end $$;

-- The ended items that wait for one of `p_fresh` or its group, and that may be opened now: those of `p_named`, and
-- unless `p_alone` those that died because they could not be met. They are locked.
create or replace function treadle.lock_unmet_dependents(
  p_fresh bigint[], p_opened bigint[], p_named bigint[], p_alone boolean) returns bigint[]
language plpgsql
set jit = off set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  nos bigint[] := treadle.dependents_by_name(p_fresh);
begin
  nos := array(
    select e.no from treadle.ended_item e
    where e.no = any(nos) and e.no not in (select unnest(p_opened))
      and (e.no in (select unnest(p_named)) or not p_alone and e.outcome = 7 and e.reason = 5));
  if nos = '{}' then
    return null;
  end if;
  perform 1 from treadle.item i where i.no = any(nos) order by i.no for key share;
  return (
    select array_agg(x.no) from (
      select e.no from treadle.ended_item e
      where e.no = any(nos) and (e.no in (select unnest(p_named)) or e.outcome = 7 and e.reason = 5)
      order by e.no for update) x);
end $$;

-- The items that name one of these items, or its group.
create or replace function treadle.dependents_by_name(p_nos bigint[]) returns bigint[]
language plpgsql stable
set jit = off set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  tenants text[]; names text[];
begin
  select array_agg(x.tenant), array_agg(x.name) into tenants, names
    from (select distinct x.tenant, x.name from treadle.names_of(p_nos) x) x;
  return (
    select array_agg(distinct w.no) from treadle.after_of(treadle.naming(names)) w
    join unnest(tenants, names) m(tenant, name) on m.name = w.name and m.tenant = w.tenant);
end $$;

-- What these items name in `after`.
create or replace function treadle.after_of(p_nos bigint[])
returns table (no bigint, tenant text, name text, times int, any_end boolean)
language plpgsql stable
set jit = off set enable_seqscan = off
as $$
#variable_conflict use_column
begin
  return query
    select i.no, i.tenant, a.name, count(*)::int, coalesce(i.counting = 1, false)
    from treadle.item i cross join lateral unnest(i.after) a(name)
    where i.no = any(p_nos) group by i.no, a.name;
end $$;

-- What these items wait for, if `p_opened` and the groups `p_groups` are open. The prerequisites are locked, so that
-- they stay as they are.
--
-- state  0 open  1 ended, and counts  2 ended, and does not count  3 does not exist (`prerequisite`: its placeholder)
create or replace function treadle.prerequisites_of(p_nos bigint[], p_opened bigint[], p_groups bigint[])
returns table (no bigint, name text, prerequisite bigint, of_group boolean, times int, state int)
language plpgsql
set jit = off set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  ids text[] := array(select distinct ltrim(a.name, chr(30)) from treadle.after_of(p_nos) a);
  tenants text[] := array(select distinct i.tenant from treadle.item i where i.no = any(p_nos));
  found bigint[];
begin
  if ids = '{}' then
    return;
  end if;
  select array_agg(x.no) into found from (
    select i.no from treadle.item i where i.id = any(ids) and i.tenant = any(tenants)
    order by i.id, i.tenant for key share) x;
  perform 1 from treadle.open_item o where o.no = any(found) order by o.no for key share;
  perform 1 from treadle.item_group g where g.no = any(found) order by g.no for key share;
  perform 1 from treadle.ended_item e where e.no = any(found) and e.outcome > 6 order by e.no for key share;
  return query
    select a.no, a.name, coalesce(r.no, i.no), left(a.name, 1) = chr(30), a.times,
      case when r.no is not null then
             case when r.no in (select unnest(p_groups)) or r.ended is null then 0
                  when a.any_end or r.failed = 0 and r.cancelled = 0 then 1 else 2 end
           when i.no is null or i.type is null then 3
           when left(a.name, 1) = chr(30) then
             case when i.no in (select unnest(p_groups)) then 0
                  when g.no is not null then
                    case when g.ended is null then 0
                         when a.any_end or g.failed = 0 and g.cancelled = 0 then 1 else 2 end
                  when e.no is null or i.group_no is not null then 0
                  when a.any_end or e.outcome = 6 or e.outcome = 7 and e.flags & 8 <> 0 then 1
                  else 2 end
           when e.no is null or i.no in (select unnest(p_opened)) then 0
           when a.any_end or e.outcome = 6 then 1
           else 2 end
    from treadle.after_of(p_nos) a
    left join (select * from treadle.item i where i.no = any(found)) i
      on i.id = ltrim(a.name, chr(30)) and i.tenant = a.tenant
    left join (select * from treadle.ended_item e where e.no = any(found)) e on e.no = i.no
    left join (select * from treadle.item_group g where g.no = any(found)) g on g.no = i.no
    -- A group whose root was pruned.
    left join (
      select distinct on (g.id, g.tenant) g.no, g.id, g.tenant, g.ended, g.failed, g.cancelled from treadle.item_group g
      where g.id = any(ids) and g.tenant = any(tenants) order by g.id, g.tenant, g.no desc) r
      on i.type is null and a.name = chr(30) || r.id and r.tenant = a.tenant;
end $$;

-- Open items wait again for what is open again and had not counted for them. Those that were doomed for it are blocked
-- again if they can be met now; a lease with that verdict is lost. Called before the ended items are opened.
create or replace function treadle.wait_for_opened(p_opened bigint[], p_groups bigint[], p_alone boolean) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  nos bigint[] := treadle.dependents_by_name(p_opened); unsuccessful bigint[];
begin
  if nos is null then
    return;
  end if;
  select array_agg(x.no) into nos from (
    select o.no from treadle.open_item o
    where o.no = any(nos) and (o.status = 0 or o.verdict = 5) order by o.no for no key update) x;
  if nos is null then
    return;
  end if;
  -- The groups that had not counted as success. (An item without a group row is a group.)
  unsuccessful := array(
    select g.no from treadle.item_group g
      where g.no = any(p_groups) and g.ended is not null and (g.failed > 0 or g.cancelled > 0)
    union all
    select e.no from treadle.ended_item e
      where e.no = any(p_groups) and e.no in (select unnest(p_opened))
        and (e.outcome = 8 or e.outcome = 7 and e.flags & 8 = 0)
        and not exists (select 1 from treadle.item_group g where g.no = e.no));
  with again as (
    insert into treadle.dependency (prerequisite, dependent, of_group, times)
      select p.prerequisite, p.no, p.of_group, p.times
      from treadle.prerequisites_of(nos, p_opened, p_groups) p
      join treadle.open_item o on o.no = p.no and o.status = 0 and o.counting = 0
      where o.no = any(nos) and p.state = 0
        and case when p.of_group then p.prerequisite in (select unnest(unsuccessful))
                 else p.prerequisite in (select unnest(p_opened)) end
      on conflict do nothing
      returning dependent, times
  )
  update treadle.open_item o set pending = o.pending + a.times
    from (select a.dependent, sum(a.times)::int as times from again a group by a.dependent) a
    where o.no = any(nos) and o.no = a.dependent;

  select array_agg(o.no) into nos from treadle.open_item o where o.no = any(nos) and o.verdict = 5;
  if nos is null or p_alone then
    return;
  end if;
  perform treadle.add_placeholders(nos);
  with conditions as (
    select o.no, coalesce(sum(p.times) filter (where p.state in (0, 3)), 0)::int as pending,
      coalesce(sum(p.times) filter (where p.state = 1), 0)::int as met
    from treadle.open_item o left join treadle.prerequisites_of(nos, p_opened, p_groups) p on p.no = o.no
    where o.no = any(nos) group by o.no
  )
  update treadle.open_item o
    set status = 0, verdict = null, shown_status = null, met = c.met, pending = c.pending, token = null,
      worker = null
    from conditions c where o.no = any(nos) and o.no = c.no and c.met < o.need and c.met + c.pending >= o.need;
  insert into treadle.dependency (prerequisite, dependent, of_group, times)
    select p.prerequisite, p.no, p.of_group, p.times
    from treadle.prerequisites_of(nos, p_opened, p_groups) p join treadle.open_item o on o.no = p.no and o.status = 0
    where o.no = any(nos) and p.state in (0, 3)
    on conflict do nothing;
end $$;

-- Placeholders for what these items name and does not exist.
create or replace function treadle.add_placeholders(p_nos bigint[]) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  ids text[] := array(select distinct ltrim(a.name, chr(30)) from treadle.after_of(p_nos) a);
begin
  if ids = '{}' then
    return;
  end if;
  insert into treadle.item (no, id, tenant)
    select nextval('treadle.number'), x.id, x.tenant from (
      select distinct ltrim(a.name, chr(30)) as id, a.tenant from treadle.after_of(p_nos) a) x
    where not exists (select 1 from treadle.item i where i.id = any(ids) and i.id = x.id and i.tenant = x.tenant)
    order by x.id, x.tenant
    on conflict (id, tenant) do nothing;
end $$;

-- Open these ended items, which are locked, and their groups.
create or replace function treadle.open_ended(
  p_now float8, p_nos bigint[], p_groups bigint[], p_named bigint[], p_redrives int, p_backoff float8) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  unmet bigint[] := array(select e.no from treadle.ended_item e where e.no = any(p_nos) and e.flags & 16 <> 0);
  blocked bigint[]; met int[]; pending int[];
begin
  -- A prerequisite that does not exist counts, unless the item was blocked when it ended: then it may still come.
  perform treadle.add_placeholders(unmet);
  select array_agg(x.no), array_agg(x.met), array_agg(x.pending) into blocked, met, pending from (
    select p.no, coalesce(sum(p.times) filter (where p.state = 1 or p.state = 3 and not p.may_come), 0)::int as met,
      coalesce(sum(p.times) filter (where p.state = 0 or p.state = 3 and p.may_come), 0)::int as pending
    from (select p.*, p.no in (select unnest(unmet)) as may_come
          from treadle.prerequisites_of(p_nos, p_nos, p_groups) p) p group by p.no) x;
  -- Those of an item that ended while it was blocked are still stored.
  insert into treadle.dependency (prerequisite, dependent, of_group, times)
    select p.prerequisite, p.no, p.of_group, p.times
    from treadle.prerequisites_of(p_nos, p_nos, p_groups) p
    join treadle.item i on i.no = p.no
    join unnest(blocked, met) b(no, met) on b.no = p.no and b.met < i.need
    where i.no = any(p_nos) and (p.state = 0 or p.state = 3 and p.no in (select unnest(unmet)))
    on conflict do nothing;

  update treadle.item_group g
    set open = g.open + m.members, dead = g.dead - m.dead, failed = g.failed - m.failed,
      cancelled = g.cancelled - m.cancelled, ended = null, prune_at = null
    from (select coalesce(i.group_no, i.no) as group_no, count(*)::int as members,
            count(*) filter (where e.outcome = 7) as dead, count(*) filter (where e.outcome = 8) as cancelled,
            count(*) filter (where e.outcome = 7 and e.flags & 8 = 0) as failed
          from treadle.item i join treadle.ended_item e on e.no = i.no
          where i.no = any(p_nos) and e.no = any(p_nos) group by 1) m
    where g.no = any(p_groups) and g.no = m.group_no;
  -- An outermost group that stays ended is to be looked at when the group inside it has ended again.
  update treadle.item_group r set prune_at = least(r.prune_at, p_now + 60)
    where r.ended is not null
      and r.no = any(array(select g.outermost from treadle.item_group g where g.no = any(p_groups)));

  with gone as (
    delete from treadle.ended_item e where e.no = any(p_nos) returning e.no, e.token, e.redrives, e.due, e.flags
  )
  insert into treadle.open_item (no, seq, due, ready_since, last_token, group_no, keep, keep_dead, status, counting,
      priority, redrives, need, met, pending, queue, tenant, lane, type, contributes, recorded)
    select i.no, nextval('treadle.number'), t.due, p_now, e.token, r.no, nullif(i.keep, 86400), i.keep_dead,
      case when coalesce(b.met, 0) < i.need then 0 when t.due > p_now then 1 else 2 end,
      coalesce(i.counting, 0), i.priority,
      case when i.no not in (select unnest(p_named)) then e.redrives
           when p_redrives is null then 0 else e.redrives + 1 end,
      i.need, coalesce(b.met, 0), coalesce(b.pending, 0), i.queue, i.tenant, i.lane, i.type,
      coalesce(i.contributes, true),
      (e.flags >> 5 & 2) | (e.flags & 32 <> 0 and exists (select 1 from treadle.step s where s.no = e.no))::int
    from gone e join treadle.item i on i.no = e.no
    left join treadle.item_group r on r.no = any(p_groups) and r.no = coalesce(i.group_no, i.no)
    left join unnest(blocked, met, pending) b(no, met, pending) on b.no = i.no
    cross join lateral (
      select case when i.no not in (select unnest(p_named)) then e.due when p_redrives is null then p_now
                  else p_now + p_backoff * 2 ^ least(e.redrives, 60) end as due) t
    where i.no = any(p_nos)
    order by i.no;
end $$;
