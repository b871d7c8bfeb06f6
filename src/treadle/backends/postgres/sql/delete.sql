-- Delete: remove whole groups. TR006: an open item outside waits for a member.
create or replace function treadle.delete(p_ids text[], p_tenant text, p_cascade boolean)
returns table (item treadle.shown, effects treadle.effects)
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set lock_timeout = '200ms'
as $$
#variable_conflict use_column
declare
  roots bigint[]; nos bigint[]; again bigint[]; waiting jsonb;
begin
  roots := array(select i.no from treadle.item i where i.no = any(treadle.find(p_ids, p_tenant)) and i.grp is null);
  nos := treadle.members(roots, p_cascade);
  loop
    -- Whoever is about to settle or to wait for one of them is through with it, or finds it gone.
    perform 1 from treadle.job j where j.no = any(nos) order by j.no for update;
    perform 1 from treadle.item i where i.no = any(nos) order by i.no for update;
    again := treadle.members(roots, p_cascade);
    exit when cardinality(again) is not distinct from cardinality(nos);
    nos := again;
  end loop;
  if nos is null then
    return;
  end if;
  waiting := treadle.waiting(nos);
  if waiting is not null then
    raise exception 'referenced' using errcode = 'TR006',
      detail = jsonb_build_object('references', waiting)::text;
  end if;
  return query select s, null::treadle.effects from treadle.show(nos, false) s;
  perform treadle.remove(nos);
  delete from treadle.grp g where g.no = any(nos);
end $$;

-- The members of groups; with cascade also those of the groups that any of them names, and so on.
create or replace function treadle.members(p_roots bigint[], p_cascade boolean) returns bigint[]
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
      select coalesce(p.grp, p.no) from groups g
        cross join lateral (
          select i.tenant, i.after from treadle.item i where i.no = g.no
          union all
          select i.tenant, i.after from treadle.item i where i.grp = g.no) m
        cross join lateral unnest(m.after) a(id)
        join treadle.item p on p.id = a.id and p.tenant = m.tenant and p.type is not null
        where p_cascade
    )
    select array_agg(m.no order by m.no) from groups g
      cross join lateral (
        select i.no from treadle.item i where i.no = g.no
        union all
        select i.no from treadle.item i where i.grp = g.no) m);
end $$;

-- Open items that name one of these and are none of them, as [named, waiting] pairs.
create or replace function treadle.waiting(p_nos bigint[]) returns jsonb
language plpgsql stable
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return (
    select jsonb_agg(jsonb_build_array(x.id, x.waiting) order by x.id, x.waiting) from (
      select m.id, w.id as waiting from treadle.item m
      join treadle.item w on w.after @> array[m.id] and w.tenant = m.tenant
      where m.no = any(p_nos) and w.no <> all(p_nos)
        and exists (select 1 from treadle.job j where j.no = w.no)
      limit 100) x);
end $$;

-- Take items out of all tables but that of the groups.
create or replace function treadle.remove(p_nos bigint[]) returns void
language plpgsql
set jit = off set enable_seqscan = off
as $$
begin
  delete from treadle.job j where j.no = any(p_nos);
  delete from treadle.done d where d.no = any(p_nos);
  delete from treadle.attempt a where a.no = any(p_nos);
  delete from treadle.edge e where e.src = any(p_nos);
  delete from treadle.key k where k.no = any(p_nos);
  delete from treadle.item i where i.no = any(p_nos);
end $$;
