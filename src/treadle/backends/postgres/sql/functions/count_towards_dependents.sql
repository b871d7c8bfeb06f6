-- Count items that have ended, or with `p_of_group` groups, towards the items that depend on them, once: their
-- dependencies are deleted.
-- Answers the dependents that are released, and how many are doomed.
create or replace function treadle.count_towards_dependents(
  p_now float8, p_dependents bigint[], p_ended bigint[], p_kind smallint[],
  p_of_group boolean) returns treadle.effects
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  released bigint[]; effects treadle.effects;
begin
  -- By number, so that settlements with the same dependents wait in one order.
  perform 1 from treadle.open_item o where o.no = any(p_dependents) and o.status = 0
    order by o.no for no key update;
  with gone as (
    delete from treadle.dependency d where d.prerequisite = any(p_ended) and d.of_group = p_of_group
      returning d.prerequisite, d.dependent, d.times
  ), sums as (
    select g.dependent, sum(g.times)::int as ends,
      coalesce(sum(g.times) filter (where x.kind = 6), 0)::int as successes
    from gone g join unnest(p_ended, p_kind) x(no, kind) on x.no = g.prerequisite group by g.dependent
  ), placed as materialized (
    -- Those that are released get their places by age.
    select s.*, nextval('treadle.number') as place from (select * from sums order by dependent) s
  ), counted as (
    update treadle.open_item o set
        met = o.met + case o.counting when 1 then s.ends else s.successes end,
        pending = o.pending - s.ends,
        status = case
          when o.met + case o.counting when 1 then s.ends else s.successes end >= o.need
            then case when o.due > p_now then 1 else 2 end
          when o.met + o.pending - case o.counting when 1 then 0 else s.ends - s.successes end < o.need then 4
          else 0 end,
        seq = case when o.met + case o.counting when 1 then s.ends else s.successes end >= o.need
          then s.place else o.seq end,
        ready_since = p_now
      from placed s where o.no = any(p_dependents) and o.no = s.dependent and o.status = 0
      returning o.no, o.status
  )
  select array_agg(c.no) filter (where c.status in (1, 2)), count(*) filter (where c.status = 4)
    into released, effects.doomed from counted c;
  if effects.doomed > 0 then
    update treadle.open_item o set verdict = 5, shown_status = 0
      where o.no = any(p_dependents) and o.status = 4 and o.verdict is null;
  end if;
  if released is not null then
    select array_agg(i.id), array_agg(i.tenant), array_agg(i.type), array_agg(coalesce(i.group_id, i.id)),
           array_agg(i.queue), array_agg(i.parent), array_agg(array_to_string(i.after, chr(31)))
      into effects.released_id, effects.released_tenant, effects.released_type, effects.released_group,
        effects.released_queue, effects.released_parent, effects.released_after
      from treadle.item i where i.no = any(released);
  end if;
  return effects;
end $$;

-- Count groups that have ended towards the items that depend on them, and add what that causes to `p_effects`.
create or replace function treadle.count_ended_groups(
  p_now float8, p_effects treadle.effects, p_groups bigint[], p_kind smallint[]) returns treadle.effects
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  dependents bigint[]; more treadle.effects;
begin
  select array_agg(d.dependent) into dependents from treadle.dependency d
    where d.prerequisite = any(p_groups) and d.of_group;
  if dependents is null then
    return p_effects;
  end if;
  more := treadle.count_towards_dependents(p_now, dependents, p_groups, p_kind, true);
  p_effects.released_id := p_effects.released_id || more.released_id;
  p_effects.released_tenant := p_effects.released_tenant || more.released_tenant;
  p_effects.released_type := p_effects.released_type || more.released_type;
  p_effects.released_group := p_effects.released_group || more.released_group;
  p_effects.released_queue := p_effects.released_queue || more.released_queue;
  p_effects.released_parent := p_effects.released_parent || more.released_parent;
  p_effects.released_after := p_effects.released_after || more.released_after;
  p_effects.doomed := coalesce(p_effects.doomed, 0) + more.doomed;
  return p_effects;
end $$;

-- Of the items that ended: those that `p_awaited` names, and that are a group of their own without a row, have
-- ended as groups too.
create or replace function treadle.count_ended_items_as_groups(
  p_now float8, p_effects treadle.effects, p_awaited bigint[], ended treadle.ended_rows) returns treadle.effects
language plpgsql as $$
#variable_conflict use_column
declare
  groups bigint[]; kinds smallint[];
begin
  select array_agg(x.no),
         array_agg(case when x.kind = 7 and x.no = any(ended.tolerated) then 6 else x.kind end)
    into groups, kinds
    from unnest(ended.no, ended.group_no, ended.kind, ended.flags) x(no, group_no, kind, flags)
    where x.no = any(p_awaited) and x.group_no is null and x.flags & 8 = 0;
  return case when groups is null then p_effects
              else treadle.count_ended_groups(p_now, p_effects, groups, kinds) end;
end $$;
