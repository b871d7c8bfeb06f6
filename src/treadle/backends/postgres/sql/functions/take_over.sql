-- Key policies: let the items that hold keys take over what new items have, if they have not started. The keys
-- are locked.
--
-- p_row, p_id, p_own  what `match_keys` answered: the new items for which an earlier one answers
--
-- Answers the rows of the new items that earlier ones, stored before this call, have taken over.
create or replace function treadle.take_over(
  p_now float8, p_nos bigint[], items treadle.new_items, p_row int[], p_id text[], p_own boolean[]) returns int[]
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set lock_timeout = '200ms' set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  taken int[];
begin
  -- A claim has either committed, or skips them.
  perform 1 from treadle.open_item o where o.no in (
      select i.no from unnest(p_row, p_id) x(row, id)
      join unnest(items.tenant) with ordinality u(tenant, row) on u.row = x.row
      join treadle.item i on i.id = x.id and i.tenant = u.tenant)
    order by o.no for no key update;

  -- Of several new items for one earlier item the last one counts. One that changed it before is repeated because
  -- its answer was lost, and so are those of the call that came before it.
  with wanted as materialized (
    select y.*, nextval('treadle.number') as seq from (
      select distinct on (i.no) i.no, x.row, u.no as new_no, u.id, u.tenant, u.type, u.key, u.input, u.options, u.attempts,
        u.priority, u.lane, u.queue, u.keep, u.keep_dead, coalesce(u.deadline, p_now + u.expires_in) as deadline,
        coalesce(k.changed_by, '{}') as changed_by,
        case when u.run_at is not null then u.run_at
             when u.policy = 1 then i.queued + u.delay
             else least(p_now + u.delay, i.queued + u.debounce_max) end as due
      from unnest(p_row, p_id, p_own) x(row, id, own)
      join unnest(p_nos, items.id, items.tenant, items.type, items.key, items.key_policy, items.debounce_max,
            items.input, items.options, items.attempts, items.priority, items.lane, items.queue, items.keep,
            items.keep_dead, items.deadline, items.expires_in, items.run_at, items.delay) with ordinality
          u(no, id, tenant, type, key, policy, debounce_max, input, options, attempts, priority, lane, queue, keep,
            keep_dead, deadline, expires_in, run_at, delay, row) on u.row = x.row
      join treadle.item i on i.id = x.id and i.tenant = u.tenant
      join treadle.key k on k.key = u.key and k.type = u.type and k.tenant = u.tenant
      where not x.own and u.policy in (1, 2) and u.id <> x.id
      order by i.no, u.no desc) y
    where y.id <> all(y.changed_by)
    order by y.new_no
  ), changed as (
    update treadle.open_item o set queue = w.queue, lane = w.lane, priority = w.priority,
        due = treadle.keep_hold(o.due, w.due), deadline = w.deadline, keep = nullif(w.keep, 86400), keep_dead = w.keep_dead, seq = w.seq,
        ready_since = p_now, holds_lane = false,
        status = case when o.status = 0 then 0 when treadle.keep_hold(o.due, w.due) > p_now then 1 else 2 end
      from wanted w where o.no = w.no and o.status < 4 and o.attempt = 0 and o.recorded & 1 = 0
      returning o.no
  ), stored as (
    update treadle.item i set input = w.input, options = w.options, attempts = w.attempts, priority = w.priority,
        lane = w.lane, queue = w.queue, keep = w.keep, keep_dead = w.keep_dead, deadline = w.deadline, due = w.due
      from wanted w join changed c on c.no = w.no where i.no = w.no
  ), remembered as (
    update treadle.key k set changed_by = k.changed_by[greatest(cardinality(k.changed_by) - 18, 1):] || w.id
      from wanted w join changed c on c.no = w.no
      where k.key = w.key and k.type = w.type and k.tenant = w.tenant
  )
  select array_agg(w.row) into taken from wanted w join changed c on c.no = w.no where w.no <> all(p_nos);
  return taken;
end $$;
