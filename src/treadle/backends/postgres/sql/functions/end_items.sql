-- End open items without a lease, all in the same way, for operators. The items are locked already.
create or replace function treadle.end_items(
  p_now float8, p_nos bigint[], p_kind smallint, p_flags smallint, p_result bytea) returns treadle.effects
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set lock_timeout = '200ms' set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  ended_rows treadle.ended_rows; groups bigint[]; lone bigint[]; dependents bigint[];
  awaited bigint[]; n int;
  effects treadle.effects; grouped record;
begin
  with ended as (
    delete from treadle.open_item o where o.no = any(p_nos)
      returning o.no, o.last_token, o.group_no, o.due, o.claimed, o.attempt, o.failures, o.losses, o.deferrals, o.redrives,
        o.keep, o.keep_dead, o.deadline, case when o.contributes then p_flags else p_flags & ~3 end as flags,
        o.recorded, o.met < o.need as is_unmet,
        case when o.status = 5 and o.verdict is null and o.begun then o.claimed else o.began end as began
  ), recorded as (
    insert into treadle.ended_item (no, ended, started, due, prune_at, last_token, attempt, failures, losses, redrives,
        outcome, flags, result, began, deferrals)
      select e.no, p_now, e.claimed, e.due,
        case when e.group_no is null then p_now + coalesce(e.keep, 86400) end,
        e.last_token, e.attempt, nullif(e.failures, 0), nullif(e.losses, 0), e.redrives, p_kind,
        e.flags | case when e.deadline is null then 4 else 0 end | case when e.is_unmet then 16 else 0 end | (e.recorded << 5),
        p_result, e.began, nullif(e.deferrals, 0)
      from ended e
  )
  select array_agg(e.no), array_agg(e.group_no), array_agg(e.flags),
         array_agg(least(coalesce(e.keep, 86400), e.keep_dead)),
         array_agg(distinct e.group_no) filter (where e.group_no is not null),
         array_agg(e.no) filter (where e.group_no is null), count(*)
    into ended_rows.no, ended_rows.group_no, ended_rows.flags, ended_rows.keep, groups, lone, n from ended e;
  if n = 0 then
    effects.doomed := 0;
    return effects;
  end if;
  ended_rows.row := array(select generate_series(1, n));
  ended_rows.kind := array_fill(p_kind, array[n]);

  -- The items that depend on them, or on a group that consists of one of them.
  select array_agg(d.dependent) filter (where not d.of_group), array_agg(d.prerequisite) filter (where d.of_group)
    into dependents, awaited from treadle.dependency d where d.prerequisite = any(ended_rows.no);
  if dependents is not null then
    effects := treadle.count_towards_dependents(p_now, dependents, ended_rows.no, ended_rows.kind, false);
  end if;
  if awaited is not null then
    effects := treadle.count_ended_items_as_groups(p_now, effects, awaited, ended_rows);
  end if;
  effects.doomed := coalesce(effects.doomed, 0);

  -- Their groups. The group of an item without a group row ends with it.
  if groups is not null then
    perform 1 from treadle.item_group g where g.no = any(groups) order by g.no for no key update;
    select * into grouped from treadle.update_groups(
      p_now, groups, ended_rows, array_fill(p_result, array[n]), null,
      array(select treadle.new_token() from generate_series(1, n)), null, null);
    effects.ended_group_id := grouped.id; effects.ended_group_tenant := grouped.tenant;
    effects.ended_group_type := grouped.type; effects.ended_group_value := grouped.value;
    if grouped.no is not null then
      effects := treadle.count_ended_groups(p_now, effects, grouped.no, grouped.kind);
    end if;
  end if;
  if lone is not null then
    select effects.ended_group_id || array_agg(i.id), effects.ended_group_tenant || array_agg(i.tenant),
           effects.ended_group_type || array_agg(i.type),
           effects.ended_group_value
             || array_agg(case when p_flags & 1 <> 0 and i.contributes is not false then p_result end)
      into effects.ended_group_id, effects.ended_group_tenant, effects.ended_group_type,
        effects.ended_group_value
      from treadle.item i where i.no = any(lone);
  end if;
  return effects;
end $$;
