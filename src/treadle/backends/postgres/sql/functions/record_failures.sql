-- Failed attempts: add them to the history. p_row, p_no, p_attempt, p_worker: the settlements that applied.
create or replace function treadle.record_failures(
  p_now float8, settlements treadle.settlements, p_row int[], p_no bigint[], p_attempt int[], p_worker text[])
returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  failed bigint[];
begin
  with added as (
    insert into treadle.attempt (no, attempt, token, at, worker, type, message, traceback, release)
      select a.no, a.attempt, settlements.token[a.row], p_now, coalesce(a.worker, ''), f.type, f.message,
        f.traceback, (select w.release from treadle.worker w where w.id = a.worker and not w.gone)
      from unnest(settlements.failed_row, settlements.error_type, settlements.error_message,
             settlements.traceback) f(row, type, message, traceback)
      join unnest(p_row, p_no, p_attempt, p_worker) a(row, no, attempt, worker) on a.row = f.row
      returning no
  )
  select array_agg(no) into failed from added;
  perform treadle.trim_history(failed);
end $$;

-- Keep the last ten failed attempts of each item.
create or replace function treadle.trim_history(p_nos bigint[]) returns void language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
begin
  delete from treadle.attempt a using unnest(p_nos) u(no)
    where a.no = u.no and a.seq < (
      select t.seq from treadle.attempt t where t.no = u.no order by t.no, t.seq desc offset 9 limit 1);
end $$;
