-- Items as they are shown, by number. Everything that reads whole items goes through here.
create or replace function treadle.show(p_nos bigint[], p_full boolean) returns setof treadle.shown
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
    select i.no, i.id, i.tenant, i.type, i.queue, i.lane, i.priority, i.attempts, i.queued,
      coalesce(j.due, d.due), case when j.no is not null then j.deadline when d.flags & 4 = 0 then i.deadline end,
      coalesce(j.claimed, d.started), d.ended,
      coalesce(case when j.verdict is not null then j.was when j.status = 3 then 2 else j.status end,
        d.outcome)::smallint,
      d.reason, coalesce(j.attempt, d.attempt), coalesce(i.group_id, i.id), i.parent, i.workflow,
      i.workflow_type, i.after, i.key,
      case when j.status = 5 and j.verdict is null
        then (select w.id from treadle.worker w where w.no = j.worker) else d.worker end,
      d.result, i.input, i.options, f.type, f.message,
      case when p_full and j.counting < 2 and i.after is not null then array(
        select a.id from unnest(i.after) with ordinality a(id, place)
        where not exists (select 1 from treadle.item p where p.id = a.id and p.tenant = i.tenant
                          and p.type is not null) order by a.place) end,
      h.attempts, h.types, h.messages, h.traces, h.ats, h.workers
    from unnest(p_nos) n(no)
    join treadle.item i on i.no = n.no
    left join treadle.job j on j.no = n.no
    left join treadle.done d on d.no = n.no
    left join lateral (
      select a.type, a.message from treadle.attempt a where a.no = n.no order by a.no, a.seq desc limit 1) f on true
    left join lateral (
      select array_agg(a.attempt) as attempts, array_agg(a.type) as types, array_agg(a.message) as messages,
        array_agg(a.trace) as traces, array_agg(a.at) as ats, array_agg(a.worker) as workers
      from (select * from treadle.attempt a where p_full and a.no = n.no order by a.no, a.seq) a) h on true;
end $$;

-- An id that several tenants use means, without a tenant, the one submitted first.
create or replace function treadle.find(p_ids text[], p_tenant text) returns bigint[]
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return (
    select array_agg(x.no) from (
      select distinct on (i.id) i.no from treadle.item i
      where i.id = any(p_ids) and i.type is not null and (p_tenant is null or i.tenant = p_tenant)
      order by i.id, i.no) x);
end $$;
