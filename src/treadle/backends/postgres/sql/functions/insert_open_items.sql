-- The open rows of new items: blocked, doomed, scheduled, ready, or running on the worker they are leased to.
-- p_blocked, p_met, p_pending: what `add_dependencies` answered.
create or replace function treadle.insert_open_items(
  p_now float8, p_nos bigint[], items treadle.new_items, p_blocked bigint[], p_met int[], p_pending int[],
  out states smallint[], out tokens bigint[])
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set lock_timeout = '200ms' set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  worker_no bigint[]; worker_id text[];
begin
  if items.lease_to is not null then
    -- The lock keeps a worker from being removed meanwhile. One that is being removed gets no lease.
    select array_agg(x.no), array_agg(x.id) into worker_no, worker_id
      from (select w.no, w.id from treadle.worker w
            where w.id = any(items.lease_to) and not w.gone and w.until > p_now for key share) x;
  end if;
  with new as materialized (
    select x.*, case when x.status = 5 then treadle.new_token() end as token
    from (
      select u.*, w.no as worker, coalesce(b.met, 0) as met, coalesce(b.pending, 0) as pending,
        coalesce(u.run_at, p_now + u.delay) as due_at,
        coalesce(u.deadline, p_now + u.expires_in) as expires_at,
        case when u.need > coalesce(b.met, 0) + coalesce(b.pending, 0) then 4
             when u.need > coalesce(b.met, 0) then 0
             when coalesce(u.run_at, p_now + u.delay) > p_now then 1
             when w.no is not null and (coalesce(u.deadline, p_now + u.expires_in) <= p_now) is not true
               and not treadle.is_paused(u.queue, u.tenant, p_now) then 5
             else 2 end::smallint as status
      from unnest(p_nos, items.skip, items.type, items.run_at, items.delay, items.deadline, items.expires_in,
             items.group_no, items.keep, items.keep_dead, items.priority, items.need,
             items.counting, items.lease_to, items.queue, items.tenant, items.lane, items.contributes)
           with ordinality
           u(no, skip, type, run_at, delay, deadline, expires_in, group_no, keep, keep_dead, priority,
             need, counting, lease_to, queue, tenant, lane, contributes, row)
      left join unnest(p_blocked, p_met, p_pending) b(no, met, pending) on b.no = u.no
      left join unnest(worker_no, worker_id) w(no, id) on w.id = u.lease_to
    ) x
  ), stored as (
    insert into treadle.open_item (no, seq, due, ready_since, deadline, claimed, token, worker, group_no, keep,
        keep_dead, status, shown_status, verdict, counting, priority, attempt, need, met, pending,
        queue, tenant, lane, type, contributes)
      select x.no, x.no, x.due_at, p_now, x.expires_at, case when x.status = 5 then p_now end, x.token,
        case when x.status = 5 then x.worker end, x.group_no, nullif(x.keep, 86400), x.keep_dead, x.status,
        case when x.status = 4 then 0 end, case when x.status = 4 then 5 end, coalesce(x.counting, 0),
        x.priority, case when x.status = 5 then 1 else 0 end, x.need, x.met, x.pending, x.queue,
        x.tenant, x.lane, x.type, coalesce(x.contributes, true)
      from new x where x.type is not null and x.skip is not true order by x.row
  )
  select array_agg(case when x.status = 4 then 0 else x.status end order by x.row),
         array_agg(x.token order by x.row)
    into states, tokens from new x;
end $$;
