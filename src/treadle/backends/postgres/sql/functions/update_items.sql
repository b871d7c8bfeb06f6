-- Update: change items that have not started, all of them or none. TR003: one does not exist. TR012: one has
-- started, has ended or is doomed. What is null stays as it is; `p_sets_deadline`: the deadline is given.
create or replace function treadle.update_items(
  p_ids text[], p_tenant text, p_run_at float8, p_priority int, p_lane text, p_queue text, p_deadline float8,
  p_sets_deadline boolean)
returns table (item treadle.item_state, effects treadle.effects)
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set lock_timeout = '200ms'
as $$
#variable_conflict use_column
declare
  nos bigint[] := treadle.find_items(p_ids, p_tenant); seqs bigint[]; bad record; now float8;
begin
  perform 1 from treadle.open_item o where o.no = any(nos) order by o.no for no key update;
  select a.id, s.state into bad from unnest(p_ids) with ordinality a(id, place)
    left join treadle.read_items(nos, false) s on s.id = a.id
    left join treadle.open_item o on o.no = s.no
    where (o.status < 4 and o.attempt = 0 and o.recorded & 1 = 0) is not true order by a.place limit 1;
  if found and bad.state is null then
    raise exception 'not found' using errcode = 'TR003', detail = jsonb_build_object('id', bad.id)::text;
  elsif found then
    raise exception 'not to be updated' using errcode = 'TR012',
      detail = jsonb_build_object('id', bad.id, 'state', bad.state)::text;
  end if;
  -- In the order of the ids, which is that of their new places.
  select array_agg(x.no order by x.place) into nos from (
    select i.no, min(a.place) as place from treadle.item i
    join unnest(p_ids) with ordinality a(id, place) on a.id = i.id where i.no = any(nos) group by i.no) x;
  seqs := array(select nextval('treadle.number') from generate_series(1, cardinality(nos)));
  return query select s, null::treadle.effects from treadle.read_items(nos, false) s;
  now := treadle.clock();

  -- One that gets another line or instant goes to the end of its line. A blocked one stays blocked. One that was
  -- ready has been so since the same time, unless it gets another instant.
  update treadle.open_item o set seq = u.seq, holds_lane = false,
      ready_since = case when o.status in (2, 3) and coalesce(treadle.keep_hold(o.due, p_run_at), o.due) = o.due then o.ready_since else now end,
      status = case when o.status = 0 then 0 when coalesce(treadle.keep_hold(o.due, p_run_at), o.due) > now then 1 else 2 end
    from unnest(nos, seqs) u(no, seq)
    where o.no = u.no and (treadle.keep_hold(o.due, p_run_at) <> o.due or p_priority <> o.priority or p_lane <> o.lane or p_queue <> o.queue);
  update treadle.open_item o set due = coalesce(treadle.keep_hold(o.due, p_run_at), o.due), priority = coalesce(p_priority, o.priority),
      lane = coalesce(p_lane, o.lane), queue = coalesce(p_queue, o.queue),
      deadline = case when p_sets_deadline then p_deadline else o.deadline end
    where o.no = any(nos);
  update treadle.item i set due = coalesce(p_run_at, i.due), priority = coalesce(p_priority, i.priority),
      lane = coalesce(p_lane, i.lane), queue = coalesce(p_queue, i.queue),
      deadline = case when p_sets_deadline then p_deadline else i.deadline end
    where i.no = any(nos);
end $$;
