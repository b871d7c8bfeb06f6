-- End open items without a lease, all in the same way: what operators do. The items are locked already.
create or replace function treadle.conclude(
  p_now float8, p_nos bigint[], p_kind smallint, p_flags smallint, p_result bytea) returns treadle.effects
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set lock_timeout = '200ms' set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  x_no bigint[]; x_grp bigint[]; x_keep float8[]; groups bigint[]; lone bigint[]; gates bigint[];
  released bigint[]; n int; e treadle.effects; c_id text[]; c_tenant text[]; c_type text[]; c_value bytea[];
begin
  with ended as (
    delete from treadle.job j where j.no = any(p_nos)
      returning j.no, j.last, j.grp, j.due, j.claimed, j.attempt, j.redrives, j.keep, j.keep_dead, j.deadline
  ), recorded as (
    insert into treadle.done (no, ended, started, due, prune, last, attempt, redrives, outcome, flags, result)
      select e.no, p_now, e.claimed, e.due, case when e.grp is null then p_now + coalesce(e.keep, 86400) end,
        e.last, e.attempt, e.redrives, p_kind, p_flags | case when e.deadline is null then 4 else 0 end, p_result
      from ended e
  )
  select array_agg(e.no), array_agg(e.grp), array_agg(least(coalesce(e.keep, 86400), e.keep_dead)),
         array_agg(distinct e.grp) filter (where e.grp is not null),
         array_agg(e.no) filter (where e.grp is null), count(*)
    into x_no, x_grp, x_keep, groups, lone, n from ended e;
  e.doomed := 0;
  if n = 0 then
    return e;
  end if;

  select array_agg(w.dst) into gates from treadle.edge w where w.src = any(x_no);
  if gates is not null then
    select g.released, g.doomed into released, e.doomed
      from treadle.count(p_now, gates, x_no, array_fill(p_kind, array[n])) g;
    if released is not null then
      select array_agg(i.id), array_agg(i.tenant), array_agg(i.type), array_agg(coalesce(i.group_id, i.id)),
             array_agg(i.queue), array_agg(i.parent), array_agg(array_to_string(i.after, chr(31)))
        into e.r_id, e.r_tenant, e.r_type, e.r_group, e.r_queue, e.r_parent, e.r_after
        from treadle.item i where i.no = any(released);
    end if;
  end if;

  if groups is not null then
    perform 1 from treadle.grp g where g.no = any(groups) order by g.no for no key update;
    select t.c_id, t.c_tenant, t.c_type, t.c_value into c_id, c_tenant, c_type, c_value
      from treadle.tally(p_now, groups, array(select generate_series(1, n)), x_no, x_grp,
        array_fill(p_kind, array[n]), array_fill(p_flags, array[n]), x_keep, array_fill(p_result, array[n]),
        null, null, null, null, null, null) t;
  end if;
  if lone is not null then
    select c_id || array_agg(i.id), c_tenant || array_agg(i.tenant), c_type || array_agg(i.type),
           c_value || array_agg(case when p_flags & 1 <> 0 then p_result end)
      into c_id, c_tenant, c_type, c_value from treadle.item i where i.no = any(lone);
  end if;
  e.c_id := c_id; e.c_tenant := c_tenant; e.c_type := c_type; e.c_value := c_value;
  return e;
end $$;
