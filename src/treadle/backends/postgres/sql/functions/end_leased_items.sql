-- The items that a settlement ends, if its token owns them. This check fences off workers that lost a lease:
-- their rows are not in the answer.
--
-- Most calls have the same values for every item. Their columns are then single values, and the first
-- statement, which does much less, is used. `p_all`: all columns of the answer are needed, so use the second. So do
-- deaths, whose rows have more columns.
--
-- It asks for `status > 4`, and not for 5: a plan from when the table was empty would use the index of all that run.
create or replace function treadle.end_leased_items(
  p_now float8, settlements treadle.settlements, p_marks text[], p_all boolean) returns treadle.ended_rows
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  n constant int := cardinality(settlements.no);
  the_tenant constant text := settlements.tenant[1];
  the_kind constant smallint := settlements.kind[1];
  the_flags constant smallint := settlements.flags[1];
  the_worker bigint; the_worker_id text; ended_rows treadle.ended_rows;
begin
  -- As a rule all of them ran on one worker.
  select w.no, w.id into the_worker, the_worker_id from treadle.worker w
    where w.no = (select o.worker from treadle.open_item o where o.no = settlements.no[1] and o.status > 4);

  -- One value for all items.
  if p_all is not true and settlements.reason is null and cardinality(settlements.tenant) = 1
      and cardinality(settlements.kind) = 1 and cardinality(settlements.flags) = 1 and the_kind <> 7 then
    with ended as (
      delete from treadle.open_item o
        using unnest(settlements.no, settlements.token, settlements.result, settlements.ran) with ordinality
              u(no, token, result, ran, row)
        where o.no = any(settlements.no) and o.no = u.no and not o.token <> u.token and o.tenant = the_tenant
          and o.status > 4
        returning u.row, u.result, u.ran, o.began, o.no, o.token, o.last_token, o.group_no, o.due, o.claimed, o.attempt,
          o.failures, o.losses, o.deferrals, o.redrives, o.worker, o.keep, o.keep_dead, o.deadline, o.contributes,
          o.recorded, o.met < o.need as is_unmet
    ), recorded as (
      insert into treadle.ended_item (no, ended, started, due, prune_at, token, last_token, attempt, failures, losses, redrives,
          outcome, reason, flags, worker, result, began, deferrals)
        select e.no, p_now, e.claimed, e.due,
          case when e.group_no is not null or the_flags & 8 <> 0 then null
               else p_now + coalesce(e.keep, 86400) end,
          e.token, e.last_token, e.attempt, nullif(e.failures, 0), nullif(e.losses, 0), e.redrives, the_kind, null,
          case when e.contributes then the_flags & 3 else 0 end
            | case when e.deadline is null then 4 else 0 end | case when e.is_unmet then 16 else 0 end | (e.recorded << 5),
          case when e.worker = the_worker then the_worker_id
               else (select w.id from treadle.worker w where w.no = e.worker) end, e.result,
          case when e.ran is null then e.began else greatest(p_now - e.ran, e.claimed) end, nullif(e.deferrals, 0)
        from ended e
    )
    select array_agg(e.row::int), array_agg(e.no), array_agg(e.group_no),
           case when the_flags & 8 <> 0 then array_agg(least(coalesce(e.keep, 86400), e.keep_dead)) end,
           array_agg(e.row::int) filter (where not e.contributes)
      into ended_rows.row, ended_rows.no, ended_rows.group_no, ended_rows.keep, ended_rows.silent_row from ended e;
    if ended_rows.row is not null then
      ended_rows.kind := array_fill(the_kind, array[cardinality(ended_rows.row)]);
      ended_rows.flags := array_fill(the_flags, array[cardinality(ended_rows.row)]);
    end if;
    if ended_rows.silent_row is not null then
      select array_agg(case when x.row = any(ended_rows.silent_row) then the_flags & ~3 else the_flags end
               order by x.place)
        into ended_rows.flags from unnest(ended_rows.row) with ordinality x(row, place);
    end if;
    return ended_rows;
  end if;

  -- Values per item.
  settlements.tenant := treadle.spread(settlements.tenant, n);
  settlements.kind := treadle.spread(settlements.kind, n);
  settlements.flags := treadle.spread(settlements.flags, n);
  settlements.reason := treadle.spread(settlements.reason, n);
  with ended as (
    delete from treadle.open_item o
      using unnest(settlements.no, settlements.token, settlements.tenant, settlements.kind, settlements.flags,
              settlements.reason, settlements.result, settlements.ran, p_marks) with ordinality
            u(no, token, tenant, kind, flags, reason, result, ran, mark, row)
      where o.no = any(settlements.no) and o.no = u.no and not (o.token <> u.token or o.tenant <> u.tenant)
        and o.status > 4 and u.kind >= 6
      returning u.row, u.kind, u.flags, u.reason, u.result, u.ran, u.mark, o.began, o.no, o.token, o.last_token,
        o.group_no, o.due,
        o.claimed, o.attempt, o.failures, o.losses, o.deferrals, o.begun, o.redrives, o.worker, o.keep, o.keep_dead,
        o.deadline, o.verdict, o.contributes, o.tenant, o.queue, o.type, o.recorded, o.met < o.need as is_unmet
  ), named as materialized (
    select e.*, case when e.worker = the_worker then the_worker_id
                     else (select w.id from treadle.worker w where w.no = e.worker) end as worker_id
    from ended e
  ), recorded as (
    insert into treadle.ended_item (no, ended, started, due, prune_at, token, last_token, attempt, failures, losses, redrives,
        outcome, reason, flags, worker, result, began, mark, tenant, queue, type, group_no, deferrals, release)
      select e.no, p_now, e.claimed, e.due,
        case when e.group_no is not null or e.flags & 8 <> 0 then null
             when e.kind = 7 then p_now + e.keep_dead else p_now + coalesce(e.keep, 86400) end,
        e.token, e.last_token, e.attempt,
        nullif(e.failures + (e.kind = 7 and e.verdict is null and e.begun)::int, 0), nullif(e.losses, 0),
        e.redrives, e.kind,
        case when e.kind = 7 then coalesce(e.reason, e.verdict, 2) end,
        case when e.contributes then e.flags & 3 else 0 end
          | case when e.deadline is null then 4 else 0 end | case when e.is_unmet then 16 else 0 end | (e.recorded << 5),
        e.worker_id, e.result,
        case when e.ran is null then e.began else greatest(p_now - e.ran, e.claimed) end,
        case when e.kind = 7 then coalesce(e.mark, '') end, case when e.kind = 7 then e.tenant end,
        case when e.kind = 7 then e.queue end, case when e.kind = 7 then e.type end,
        case when e.kind = 7 then coalesce(e.group_no, case when e.flags & 8 <> 0 then e.no end) end,
        nullif(e.deferrals, 0),
        case when e.kind = 7 and e.row = any(settlements.failed_row)
          then (select w.release from treadle.worker w where w.no = e.worker) end
      from named e
  )
  select array_agg(e.row::int), array_agg(e.no), array_agg(e.group_no), array_agg(e.kind),
         array_agg(case when e.contributes then e.flags else e.flags & ~3 end),
         array_agg(least(coalesce(e.keep, 86400), e.keep_dead)), array_agg(e.attempt), array_agg(e.worker_id),
         array_agg(e.row::int) filter (where not e.contributes), null
    into ended_rows from named e;
  return ended_rows;
end $$;
