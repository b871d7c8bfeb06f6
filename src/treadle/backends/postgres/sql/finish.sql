-- The items that end by a settlement, if its token owns them: the fence. Rows that are not answered do not.
--
-- Most calls say the same of every item: then their columns are single values, and most of the work is gone.
create or replace function treadle.finish(
  p_now float8, s_no bigint[], s_token bigint[], s_tenant text[], s_kind smallint[], s_flags smallint[],
  s_reason smallint[], s_result bytea[], p_all boolean,
  out x_row int[], out x_no bigint[], out x_grp bigint[], out x_kind smallint[], out x_flags smallint[],
  out x_keep float8[], out x_attempt int[], out x_worker text[])
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  n int := cardinality(s_no); who bigint; name text;
begin
  -- As a rule all of them ran on one worker.
  select w.no, w.id into who, name from treadle.worker w
    where w.no = (select j.worker from treadle.job j where j.no = s_no[1] and j.status = 5);

  if p_all is not true and s_reason is null
      and cardinality(s_tenant) = 1 and cardinality(s_kind) = 1 and cardinality(s_flags) = 1 then
    with ended as (
      delete from treadle.job j using unnest(s_no, s_token, s_result) with ordinality u(no, token, result, row)
        where j.no = any(s_no) and j.no = u.no and not j.token <> u.token and j.tenant = s_tenant[1]
          and j.status = 5
        returning u.row, u.result, j.no, j.token, j.last, j.grp, j.due, j.claimed, j.attempt, j.redrives,
          j.worker, j.keep, j.keep_dead, j.deadline, j.verdict
    ), recorded as (
      insert into treadle.done (no, ended, started, due, prune, token, last, attempt, redrives, outcome, reason,
          flags, worker, result)
        select e.no, p_now, e.claimed, e.due,
          case when e.grp is not null or s_flags[1] & 8 <> 0 then null
               when s_kind[1] = 7 then p_now + e.keep_dead else p_now + coalesce(e.keep, 86400) end,
          e.token, e.last, e.attempt, e.redrives, s_kind[1],
          case when s_kind[1] = 7 then coalesce(e.verdict, 2) end,
          s_flags[1] & 3 | case when e.deadline is null then 4 else 0 end,
          case when e.worker = who then name
               else (select w.id from treadle.worker w where w.no = e.worker) end, e.result
        from ended e
    )
    select array_agg(e.row::int), array_agg(e.no), array_agg(e.grp),
           case when s_flags[1] & 8 <> 0 then array_agg(least(coalesce(e.keep, 86400), e.keep_dead)) end
      into x_row, x_no, x_grp, x_keep from ended e;
    if x_row is not null then
      x_kind := array_fill(s_kind[1], array[cardinality(x_row)]);
      x_flags := array_fill(s_flags[1], array[cardinality(x_row)]);
    end if;
    return;
  end if;

  s_tenant := treadle.spread(s_tenant, n); s_kind := treadle.spread(s_kind, n);
  s_flags := treadle.spread(s_flags, n); s_reason := treadle.spread(s_reason, n);
  with ended as (
    delete from treadle.job j
      using unnest(s_no, s_token, s_tenant, s_kind, s_flags, s_reason, s_result) with ordinality
            u(no, token, tenant, kind, flags, reason, result, row)
      where j.no = any(s_no) and j.no = u.no and not (j.token <> u.token or j.tenant <> u.tenant)
        and j.status = 5 and u.kind >= 6
      returning u.row, u.kind, u.flags, u.reason, u.result, j.no, j.token, j.last, j.grp, j.due, j.claimed,
        j.attempt, j.redrives, j.worker, j.keep, j.keep_dead, j.deadline, j.verdict
  ), named as materialized (
    select e.*, case when e.worker = who then name
                     else (select w.id from treadle.worker w where w.no = e.worker) end as worker_id
    from ended e
  ), recorded as (
    insert into treadle.done (no, ended, started, due, prune, token, last, attempt, redrives, outcome, reason,
        flags, worker, result)
      select e.no, p_now, e.claimed, e.due,
        case when e.grp is not null or e.flags & 8 <> 0 then null
             when e.kind = 7 then p_now + e.keep_dead else p_now + coalesce(e.keep, 86400) end,
        e.token, e.last, e.attempt, e.redrives, e.kind,
        case when e.kind = 7 then coalesce(e.reason, e.verdict, 2) end,
        e.flags & 3 | case when e.deadline is null then 4 else 0 end, e.worker_id, e.result
      from named e
  )
  select array_agg(e.row::int), array_agg(e.no), array_agg(e.grp), array_agg(e.kind), array_agg(e.flags),
         array_agg(least(coalesce(e.keep, 86400), e.keep_dead)), array_agg(e.attempt), array_agg(e.worker_id)
    into x_row, x_no, x_grp, x_kind, x_flags, x_keep, x_attempt, x_worker from named e;
end $$;
