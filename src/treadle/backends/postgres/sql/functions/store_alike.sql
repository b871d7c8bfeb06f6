-- Store new items that differ only in their ids and inputs, as almost all do, and that have no dependencies.
-- Items whose ids are taken are left out; `stored` is the number of those that are not.
create or replace function treadle.store_alike(
  items treadle.new_items, out now float8, out nos bigint[], out state smallint, out stored int)
language plpgsql set lock_timeout = '200ms'
as $$
#variable_conflict use_column
declare
  n constant int := cardinality(items.id);
  -- The fields that are the same for all of them.
  tenant constant text := items.tenant[1];
  type constant text := items.type[1];
  queue constant text := items.queue[1];
  lane constant text := items.lane[1];
  priority constant int := items.priority[1];
  attempts constant int := items.attempts[1];
  need constant int := items.need[1];
  keep constant float8 := items.keep[1];
  keep_dead constant float8 := items.keep_dead[1];
  group_id constant text := items.group_id[1];
  parent constant text := items.parent[1];
  workflow constant text := items.workflow[1];
  workflow_type constant text := items.workflow_type[1];
  options constant bytea := items.options[1];
  due_at float8; expires_at float8;
begin
  nos := treadle.new_numbers(items.rank, n);
  now := treadle.clock();
  due_at := coalesce(items.run_at[1], now + items.delay[1]);
  expires_at := coalesce(items.deadline[1], now + items.expires_in[1]);
  state := case when due_at > now then 1 else 2 end;
  with new as (
    insert into treadle.item (no, nonce, queued, due, deadline, keep, keep_dead, group_no, priority, attempts,
        need, id, tenant, type, queue, lane, group_id, parent, workflow, workflow_type, input, options)
      select u.no, u.nonce, now, due_at, expires_at, keep, keep_dead, u.group_no, priority, attempts, need,
        u.id, tenant, type, queue, lane, group_id, parent, workflow, workflow_type, u.input, options
      from unnest(nos, treadle.spread(items.nonce, n), items.group_no, items.id, treadle.spread(items.input, n),
          items.skip) u(no, nonce, group_no, id, input, skip)
      where u.skip is not true
      on conflict (id, tenant) do nothing
      returning no, group_no
  )
  insert into treadle.open_item (no, seq, due, ready_since, deadline, group_no, keep, keep_dead, status, priority,
      queue, tenant, lane, type)
    select x.no, x.no, due_at, now, expires_at, x.group_no, nullif(keep, 86400), keep_dead, state, priority,
      queue, tenant, lane, type
    from new x;
  get diagnostics stored = row_count;
end $$;
