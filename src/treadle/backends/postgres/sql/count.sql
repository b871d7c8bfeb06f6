-- Count items that have ended towards the gates that wait for them, once: the edges go.
create or replace function treadle.count(
  p_now float8, p_gates bigint[], x_no bigint[], x_kind smallint[],
  out released bigint[], out doomed int)
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  -- By number, so that settlements that meet at the same gates wait in one order.
  perform 1 from treadle.job j where j.no = any(p_gates) and j.status = 0 order by j.no for no key update;
  with gone as (
    delete from treadle.edge e where e.src = any(x_no) returning e.src, e.dst, e.times
  ), sums as (
    select g.dst, sum(g.times)::int as ends,
      coalesce(sum(g.times) filter (where x.kind = 6), 0)::int as successes
    from gone g join unnest(x_no, x_kind) x(no, kind) on x.no = g.src group by g.dst
  ), counted as (
    update treadle.job j set
        met = j.met + case j.counting when 1 then s.ends else s.successes end,
        open = j.open - s.ends,
        status = case
          when j.met + case j.counting when 1 then s.ends else s.successes end >= j.need
            then case when j.due > p_now then 1 else 2 end
          when j.met + j.open - case j.counting when 1 then 0 else s.ends - s.successes end < j.need then 4
          else 0 end,
        seq = case when j.met + case j.counting when 1 then s.ends else s.successes end >= j.need
          then nextval('treadle.number') else j.seq end,
        since = p_now
      from sums s where j.no = any(p_gates) and j.no = s.dst and j.status = 0
      returning j.no, j.status
  )
  select array_agg(c.no) filter (where c.status in (1, 2)), count(*) filter (where c.status = 4)
    into released, doomed from counted c;
  if doomed > 0 then
    update treadle.job j set verdict = 5, was = 0
      where j.no = any(p_gates) and j.status = 4 and j.verdict is null;
  end if;
end $$;
