-- The live rows of new items: blocked, doomed, scheduled, ready, or running for the worker that asked.
create or replace function treadle.enter(
  p_now float8, i_nos bigint[], i_skip boolean[], i_type text[], g_no bigint[], g_met int[], g_open int[],
  i_run_at float8[], i_delay float8[], i_deadline float8[], i_expires float8[], i_grp bigint[],
  i_keep float8[], i_keep_dead float8[], i_priority int[], i_attempts int[], i_need int[],
  i_counting smallint[], i_lease_to text[],
  i_queue text[], i_tenant text[], i_lane text[],
  out states smallint[], out tokens bigint[])
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set lock_timeout = '200ms' set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  w_no bigint[]; w_id text[];
begin
  if i_lease_to is not null then
    -- Not while it is being buried, and it is not buried meanwhile.
    select array_agg(no), array_agg(id) into w_no, w_id
      from (select w.no, w.id from treadle.worker w
            where w.id = any(i_lease_to) and not w.gone and w.until > p_now for key share) x;
  end if;
  with new as materialized (
    select x.*, case when x.status = 5 then nextval('treadle.token') end as token
    from (
      select u.*, w.no as worker, coalesce(g.met, 0) as met, coalesce(g.open, 0) as open,
        coalesce(u.run_at, p_now + u.delay) as due_at, coalesce(u.deadline, p_now + u.expires) as until,
        case when u.need > coalesce(g.met, 0) + coalesce(g.open, 0) then 4
             when u.need > coalesce(g.met, 0) then 0
             when coalesce(u.run_at, p_now + u.delay) > p_now then 1
             when w.no is not null and (coalesce(u.deadline, p_now + u.expires) <= p_now) is not true then 5
             else 2 end::smallint as status
      from unnest(i_nos, i_skip, i_type, i_run_at, i_delay, i_deadline, i_expires, i_grp, i_keep,
             i_keep_dead, i_priority, i_attempts, i_need, i_counting, i_lease_to, i_queue, i_tenant, i_lane)
           with ordinality
           u(no, skip, type, run_at, delay, deadline, expires, grp, keep,
             keep_dead, priority, attempts, need, counting, lease_to, queue, tenant, lane, row)
      left join unnest(g_no, g_met, g_open) g(no, met, open) on g.no = u.no
      left join unnest(w_no, w_id) w(no, id) on w.id = u.lease_to
    ) x
  ), stored as (
    insert into treadle.job (no, seq, due, since, deadline, claimed, token, worker, grp, keep, keep_dead, status,
        was, verdict, counting, priority, attempt, budget, need, met, open, queue, tenant, lane, type)
      select x.no, x.no, x.due_at, p_now, x.until, case when x.status = 5 then p_now end, x.token,
        case when x.status = 5 then x.worker end, x.grp, nullif(x.keep, 86400), x.keep_dead, x.status,
        case when x.status = 4 then 0 end,
        case when x.status = 4 then 5 end, coalesce(x.counting, 0), x.priority,
        case when x.status = 5 then 1 else 0 end, x.attempts, x.need, x.met, x.open, x.queue, x.tenant,
        x.lane, x.type
      from new x where x.type is not null and x.skip is not true order by x.row
  )
  select array_agg(case when x.status = 4 then 0 else x.status end order by x.row),
         array_agg(x.token order by x.row)
    into states, tokens from new x;
end $$;
