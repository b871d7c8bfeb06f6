-- Free what a dead worker was running, up to a portion, and forget the worker once all of it is free.
create or replace function treadle.free(p_now float8, p_worker bigint, p_limit int) returns int
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  nos bigint[]; freed int;
begin
  select array_agg(no) into nos from (
    select j.no from treadle.job j where j.worker = p_worker and j.status = 5
    order by j.no limit p_limit for update skip locked) x;
  freed := coalesce(cardinality(nos), 0);
  if freed > 0 then
    insert into treadle.attempt (no, attempt, at, worker, type, message, trace)
      select j.no, j.attempt, p_now, w.id, 'LeaseLost',
        convert_to('worker ' || w.id || ' died or lost its lease', 'UTF8'), ''
      from treadle.job j join treadle.worker w on w.no = p_worker
      where j.no = any(nos) and j.verdict is null;
    perform treadle.trim(nos);
    update treadle.job j set
        status = case when j.verdict is not null or j.attempt >= j.budget then 4
                      when j.losses >= 1 then 1 else 2 end,
        was = case when j.verdict is not null then j.was when j.attempt >= j.budget then 2 end,
        verdict = case when j.verdict is not null then j.verdict when j.attempt >= j.budget then 4 end,
        due = case when j.verdict is null and j.losses >= 1 and (j.budget is null or j.attempt < j.budget)
                   then p_now + least(2 ^ least(j.losses - 1, 10), 60) else j.due end,
        losses = j.losses + case when j.verdict is null then 1 else 0 end,
        since = p_now, token = null, worker = null
      where j.no = any(nos);
  end if;
  insert into treadle.skill (type, lost)
    select distinct y.type, p_now from treadle.worker w, lateral unnest(coalesce(w.types, array[''])) y(type)
    where w.no = p_worker and not w.gone order by y.type
    on conflict (type) do update set lost = excluded.lost;
  delete from treadle.slot s using treadle.worker w where w.no = p_worker and s.worker = w.id;
  delete from treadle.worker w where w.no = p_worker
    and not exists (select 1 from treadle.job j where j.worker = p_worker and j.status = 5);
  if not found then
    update treadle.worker w set gone = true, until = '-infinity' where w.no = p_worker and not w.gone;
  end if;
  return freed;
end $$;
