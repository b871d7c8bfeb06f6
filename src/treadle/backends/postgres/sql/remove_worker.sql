-- Bury: take a worker's lease away at once, and free all that it was running.
create or replace function treadle.remove_worker(p_worker text) returns int
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '200ms'
as $$
#variable_conflict use_column
declare
  who bigint; now float8; freed int; total int := 0;
begin
  -- Waits for claims under way; after that there are no new ones.
  select w.no into who from treadle.worker w where w.id = p_worker and not w.gone for update;
  if who is null then
    return 0;
  end if;
  now := treadle.clock();
  -- Its own settlements may still be under way: they are waited for, not skipped.
  perform 1 from treadle.job j where j.worker = who and j.status = 5 order by j.no for update;
  loop
    freed := treadle.free(now, who, 10000);
    total := total + freed;
    exit when freed = 0 or not exists (select 1 from treadle.worker w where w.no = who);
  end loop;
  return total;
end $$;
