-- Requeue: open dead items again, with their attempts and losses reset, and open their groups again.
create or replace function treadle.requeue(p_nos bigint[], p_redrives int, p_backoff float8)
returns table (item treadle.item_state, effects treadle.effects)
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set lock_timeout = '200ms'
as $$
#variable_conflict use_column
declare
  nos bigint[]; groups bigint[]; now float8;
begin
  -- A transaction that removes them has either committed, or will find them open.
  perform 1 from treadle.item i where i.no = any(p_nos) order by i.no for key share;
  select array_agg(x.no) into nos from (
    select e.no from treadle.ended_item e
    where e.no = any(p_nos) and e.outcome = 7 and (p_redrives is null or e.redrives < p_redrives)
    order by e.no for update) x;
  if nos is null then
    return;
  end if;
  select array_agg(distinct coalesce(i.group_no, i.no)) into groups from treadle.item i where i.no = any(nos);
  perform 1 from treadle.item_group g where g.no = any(groups) order by g.no for no key update;
  now := treadle.clock();
  return query select s, null::treadle.effects from treadle.read_items(nos, false) s;

  with gone as (
    delete from treadle.ended_item e where e.no = any(nos) returning e.no, e.token, e.redrives
  )
  insert into treadle.open_item (no, seq, due, ready_since, last_token, group_no, keep, keep_dead, status, priority,
      redrives, counting, queue, tenant, lane, type)
    select i.no, nextval('treadle.number'), t.due, now, g.token,
      case when exists (select 1 from treadle.item_group r where r.no = coalesce(i.group_no, i.no))
           then coalesce(i.group_no, i.no) end,
      nullif(i.keep, 86400), i.keep_dead, case when t.due > now then 1 else 2 end, i.priority,
      case when p_redrives is null then 0 else g.redrives + 1 end, 2, i.queue, i.tenant, i.lane, i.type
    from gone g join treadle.item i on i.no = g.no,
      lateral (select case when p_redrives is null then now
                           else now + p_backoff * 2 ^ least(g.redrives, 60) end as due) t
    order by i.no;
  update treadle.item_group g set open = g.open + m.members, dead = g.dead - m.members, ended = null,
      prune_at = null
    from (select coalesce(i.group_no, i.no) as group_no, count(*)::int as members from treadle.item i
          where i.no = any(nos) group by 1) m
    where g.no = m.group_no;
end $$;
