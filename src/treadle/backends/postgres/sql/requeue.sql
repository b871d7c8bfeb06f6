-- Requeue: dead items live again, with a fresh row of attempts and losses; their groups open.
create or replace function treadle.requeue(p_nos bigint[], p_redrives int, p_backoff float8)
returns table (item treadle.shown, effects treadle.effects)
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set lock_timeout = '200ms'
as $$
#variable_conflict use_column
declare
  nos bigint[]; groups bigint[]; now float8;
begin
  -- Whoever removes them has them all to itself: it is through with it before, or finds them open.
  perform 1 from treadle.item i where i.no = any(p_nos) order by i.no for key share;
  select array_agg(x.no) into nos from (
    select d.no from treadle.done d
    where d.no = any(p_nos) and d.outcome = 7 and (p_redrives is null or d.redrives < p_redrives)
    order by d.no for update) x;
  if nos is null then
    return;
  end if;
  select array_agg(distinct coalesce(i.grp, i.no)) into groups from treadle.item i where i.no = any(nos);
  perform 1 from treadle.grp g where g.no = any(groups) order by g.no for no key update;
  now := treadle.clock();
  return query select s, null::treadle.effects from treadle.show(nos, false) s;

  with gone as (
    delete from treadle.done d where d.no = any(nos) returning d.no, d.token, d.redrives
  )
  insert into treadle.job (no, seq, due, since, last, grp, keep, keep_dead, status, priority, budget, redrives,
      counting, queue, tenant, lane, type)
    select i.no, nextval('treadle.number'), t.due, now, g.token,
      case when exists (select 1 from treadle.grp r where r.no = coalesce(i.grp, i.no)) then coalesce(i.grp, i.no) end,
      nullif(i.keep, 86400), i.keep_dead, case when t.due > now then 1 else 2 end, i.priority, i.attempts,
      case when p_redrives is null then 0 else g.redrives + 1 end, 2, i.queue, i.tenant, i.lane, i.type
    from gone g join treadle.item i on i.no = g.no,
      lateral (select case when p_redrives is null then now
                           else now + p_backoff * 2 ^ least(g.redrives, 60) end as due) t
    order by i.no;
  update treadle.grp g set open = g.open + m.members, dead = g.dead - m.members, ended = null, prune = null
    from (select coalesce(i.grp, i.no) as grp, count(*)::int as members from treadle.item i
          where i.no = any(nos) group by 1) m
    where g.no = m.grp;
end $$;
