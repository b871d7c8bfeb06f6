-- Failed attempts: added to the history, of which the last ten are kept.
create or replace function treadle.record(
  p_now float8, f_row int[], f_type bytea[], f_message bytea[], f_trace bytea[], s_token bigint[],
  a_row int[], a_no bigint[], a_attempt int[], a_worker text[]) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  failed bigint[]; old record;
begin
  with added as (
    insert into treadle.attempt (no, attempt, token, at, worker, type, message, trace)
      select a.no, a.attempt, s_token[a.row], p_now, coalesce(a.worker, ''), f.type, f.message, f.trace
      from unnest(f_row, f_type, f_message, f_trace) f(row, type, message, trace)
      join unnest(a_row, a_no, a_attempt, a_worker) a(row, no, attempt, worker) on a.row = f.row
      returning no
  )
  select array_agg(no) into failed from added;
  perform treadle.trim(failed);
end $$;

create or replace function treadle.trim(p_nos bigint[]) returns void language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
begin
  delete from treadle.attempt a using unnest(p_nos) u(no)
    where a.no = u.no and a.seq < (
      select t.seq from treadle.attempt t where t.no = u.no order by t.no, t.seq desc offset 9 limit 1);
end $$;
