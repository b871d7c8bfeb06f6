-- What workers counted. A histogram is one number: see stats.py.

-- Add rows, given in the order of the key: processes that do so at once wait for each other, and do not deadlock.
create or replace function treadle.add_stats(
  p_step int[], p_at float8[], p_type text[], p_queue text[], p_started bigint[], p_succeeded bigint[],
  p_failed bigint[], p_retried bigint[], p_dead bigint[], p_cancelled bigint[],
  p_lost bigint[], p_wait numeric[], p_run numeric[])
returns void
language plpgsql
set jit = off set enable_seqscan = off set lock_timeout = '2s'
as $$
begin
  insert into treadle.stat as s
      (step, at, type, queue, started, succeeded, failed, retried, dead, cancelled, lost, wait, run)
    select * from unnest(p_step, p_at, p_type, p_queue, p_started, p_succeeded, p_failed, p_retried, p_dead,
      p_cancelled, p_lost, p_wait, p_run)
    on conflict (step, at, type, queue) do update set
      started = s.started + excluded.started, succeeded = s.succeeded + excluded.succeeded,
      failed = s.failed + excluded.failed, retried = s.retried + excluded.retried,
      dead = s.dead + excluded.dead, cancelled = s.cancelled + excluded.cancelled, lost = s.lost + excluded.lost,
      wait = s.wait + excluded.wait, run = s.run + excluded.run;
end $$;

-- The sums of the rows of a minute, a quarter or an hour (`p_kept`): by time, for each `p_step` seconds, or by type or queue.
create or replace function treadle.read_stats(
  p_kept int, p_since float8, p_until float8, p_type text, p_queue text, p_step int, p_by text)
returns table (
  at float8, name text, started bigint, succeeded bigint, failed bigint, retried bigint, dead bigint,
  cancelled bigint, lost bigint, wait text, run text)
language plpgsql stable
set jit = off
as $$
#variable_conflict use_column
begin
  return query
    select x.at, x.name, sum(x.started)::bigint, sum(x.succeeded)::bigint, sum(x.failed)::bigint,
      sum(x.retried)::bigint, sum(x.dead)::bigint, sum(x.cancelled)::bigint, sum(x.lost)::bigint,
      sum(x.wait)::text, sum(x.run)::text
    from (
      select case when p_by = 'time' then floor(s.at / p_step) * p_step else p_since end as at,
        case p_by when 'type' then s.type when 'queue' then s.queue else '' end as name,
        s.started, s.succeeded, s.failed, s.retried, s.dead, s.cancelled, s.lost, s.wait, s.run
      from treadle.stat s
      where s.step = p_kept and s.at >= p_since and s.at < coalesce(p_until, 'infinity')
        and (p_type is null or s.type = p_type) and (p_queue is null or s.queue = p_queue)) x
    group by x.at, x.name order by x.at, x.name collate "C";
end $$;

-- Samples of the backlog, in place of those of the same step, instant and queue.
create or replace function treadle.put_samples(
  p_step int[], p_at float8[], p_queue text[], p_samples int[], p_ready float8[], p_running float8[], p_oldest float8[],
  p_estimated boolean[])
returns void
language plpgsql
set jit = off set lock_timeout = '2s'
as $$
begin
  insert into treadle.sample (step, at, queue, samples, ready, running, oldest, estimated)
    select * from unnest(p_step, p_at, p_queue, p_samples, p_ready, p_running, p_oldest, p_estimated)
    on conflict (step, at, queue) do update set samples = excluded.samples, ready = excluded.ready,
      running = excluded.running, oldest = excluded.oldest, estimated = excluded.estimated;
end $$;

-- Remove what is not kept any more, up to a portion.
create or replace function treadle.prune_stats(p_step int, p_before float8, p_limit int) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
begin
  delete from treadle.stat s where s.ctid = any(array(
    select x.ctid from treadle.stat x where x.step = p_step and x.at < p_before
    order by x.at limit p_limit for update skip locked));
  delete from treadle.sample s where s.ctid = any(array(
    select x.ctid from treadle.sample x where x.step = p_step and x.at < p_before
    order by x.at limit p_limit for update skip locked));
end $$;
