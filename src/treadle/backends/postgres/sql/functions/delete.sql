-- Delete: remove whole groups. TR006: an open item outside the groups waits for a member.
create or replace function treadle.delete(p_ids text[], p_tenant text, p_cascade boolean)
returns table (item treadle.item_state, effects treadle.effects)
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set lock_timeout = '200ms'
as $$
#variable_conflict use_column
declare
  roots bigint[]; nos bigint[]; again bigint[]; rootless bigint[]; dependents jsonb;
begin
  roots := array(select g.no from treadle.read_groups(treadle.find_groups(p_ids, p_tenant)) g);
  nos := treadle.group_members(roots, p_cascade);
  loop
    -- Transactions that settle a member or wait for one either have committed, or find it gone.
    perform 1 from treadle.open_item o where o.no = any(nos) order by o.no for update;
    perform 1 from treadle.item i where i.no = any(nos) order by i.no for update;
    again := treadle.group_members(roots, p_cascade);
    exit when cardinality(again) is not distinct from cardinality(nos);
    nos := again;
  end loop;
  if nos is null then
    return;
  end if;
  dependents := treadle.open_dependents(nos);
  if dependents is not null then
    raise exception 'referenced' using errcode = 'TR006',
      detail = jsonb_build_object('references', dependents)::text;
  end if;
  return query select s, null::treadle.effects from treadle.read_items(nos, false) s;
  rootless := array(
    select g.no from treadle.item_group g where g.id is not null
      and g.no = any(roots || array(select i.group_no from treadle.item i where i.no = any(nos))));
  perform treadle.remove_items(nos);
  delete from treadle.item_group g where g.no = any(nos || rootless);
  -- Nested groups stay as long as the items that close them.
  update treadle.item_group g set open = 0, ended = coalesce(g.ended, treadle.clock())
    where g.no = any(roots) and g.open > 0;
end $$;

-- The members of groups and of the groups inside them; with cascade also those of the groups that any of them
-- waits for, and so on.
create or replace function treadle.group_members(p_roots bigint[], p_cascade boolean) returns bigint[]
language plpgsql stable
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return (
    with recursive groups(no) as (
      select r.no from unnest(p_roots) r(no)
      union
      select n.no from groups g cross join lateral (
        select x.no from treadle.item_group x where x.outermost = g.no
        union all
        select x.no from treadle.item_group r join treadle.item i on i.group_no = r.no
          join treadle.item_group x on x.no = i.no
          where r.no = g.no and r.outermost is not null
        union all
        select coalesce(x.outermost, p.group_no, p.no) from (
            select i.tenant, i.after from treadle.item i where i.no = g.no and i.group_no is null
            union all
            select i.tenant, i.after from treadle.item i where i.group_no = g.no) m
          cross join lateral unnest(m.after) a(id)
          join treadle.item p on p.id = ltrim(a.id, chr(30)) and p.tenant = m.tenant and p.type is not null
          left join treadle.item_group x on x.no = p.group_no
          where p_cascade) n
    )
    select array_agg(distinct m.no order by m.no) from groups g
      cross join lateral (
        select i.no from treadle.item i where i.no = g.no and i.group_no is null
        union all
        select i.no from treadle.item i where i.group_no = g.no) m);
end $$;

-- Open items outside of `p_nos` that name one of them, or its group, as [prerequisite, dependent] pairs of ids.
create or replace function treadle.open_dependents(p_nos bigint[]) returns jsonb
language plpgsql stable
set jit = off set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  tenants text[]; names text[];
begin
  select array_agg(x.tenant), array_agg(x.name) into tenants, names
    from (select distinct x.tenant, x.name from treadle.names_of(p_nos) x) x;
  return (
    select jsonb_agg(jsonb_build_array(x.id, x.dependent) order by x.id, x.dependent) from (
      select distinct ltrim(w.name, chr(30)) as id, w.id as dependent
      from treadle.names_awaited_by(treadle.naming(names)) w
      join unnest(tenants, names) m(tenant, name) on m.name = w.name and m.tenant = w.tenant
      where w.is_open and w.no <> all(p_nos)
      limit 100) x);
end $$;

-- Remove items from all tables but item_group. If an item waits for a group with the id of one of them, which is no
-- group, that one becomes a placeholder: a group with this id may still come.
create or replace function treadle.remove_items(p_nos bigint[]) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
declare
  awaited bigint[] := array(
    select d.prerequisite from treadle.dependency d
    cross join lateral (select o.status from treadle.open_item o where o.no = d.dependent offset 0) o
    where d.prerequisite = any(p_nos) and d.of_group and o.status = 0 and d.dependent <> all(p_nos));
  recorded bigint[];
begin
  with open as (
    delete from treadle.open_item o where o.no = any(p_nos) returning o.no, o.recorded
  ), ended as (
    delete from treadle.ended_item e where e.no = any(p_nos) returning e.no, e.flags
  )
  select array_agg(x.no) into recorded from (
    select o.no from open o where o.recorded <> 0 union all select e.no from ended e where e.flags & 96 <> 0) x;
  if recorded is not null then
    perform treadle.remove_steps(recorded);
  end if;
  delete from treadle.mail m where m.no = any(p_nos);
  delete from treadle.attempt a where a.no = any(p_nos);
  delete from treadle.log l where l.no = any(p_nos);
  delete from treadle.dependency d where d.prerequisite = any(p_nos)
    and not (d.of_group and d.prerequisite = any(awaited));
  delete from treadle.key k where k.no = any(p_nos);
  delete from treadle.item i where i.no = any(p_nos) and i.no <> all(awaited);
  if awaited <> '{}' then
    update treadle.item i set type = null, group_no = null, group_id = null, parent = null, workflow = null, key = null,
        after = null, input = null, options = null
      where i.no = any(awaited);
  end if;
end $$;
