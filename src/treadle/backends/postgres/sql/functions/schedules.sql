-- Store a schedule that is new or has another spec as given. If the spec is the same, only record that its
-- code was seen. Without a next time, store nothing: only record that its code was seen.
create or replace function treadle.put_schedule(
  p_name text, p_next_at float8, p_last_at float8, p_paused boolean, p_spec bytea) returns setof treadle.schedule
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '5s'
as $$
#variable_conflict use_column
begin
  if p_next_at is null then
    update treadle.schedule s set seen_at = treadle.clock() where s.name = p_name and s.spec = p_spec;
  else
    insert into treadle.schedule as s (name, next_at, last_at, seen_at, paused, spec)
      values (p_name, p_next_at, p_last_at, treadle.clock(), p_paused, p_spec)
      on conflict (name) do update set
        seen_at = excluded.seen_at, spec = excluded.spec,
        next_at = case when s.spec = excluded.spec then s.next_at else excluded.next_at end,
        last_at = case when s.spec = excluded.spec then s.last_at else excluded.last_at end,
        paused = case when s.spec = excluded.spec then s.paused else excluded.paused end;
  end if;
  return query select s.* from treadle.schedule s where s.name = p_name;
end $$;

-- Fire one occurrence of a schedule: store its items and move the schedule on, if `p_at` is still due.
create or replace function treadle.fire(
  p_name text, p_at float8, p_next_at float8, items treadle.new_items, p_plain boolean, p_cycles boolean,
  out fired boolean, out stored treadle.stored_items)
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '2s'
as $$
#variable_conflict use_column
begin
  perform 1 from treadle.schedule s where s.name = p_name and s.next_at = p_at and not s.paused for update;
  fired := found;
  if not fired then
    -- An earlier try of this call may have fired it, and its answer was lost.
    fired := exists (select 1 from treadle.item i
                     where i.id = items.id[1] and i.tenant = items.tenant[1] and i.nonce = items.nonce[1]);
    if not fired then
      return;
    end if;
  end if;
  if cardinality(items.id) > 0 then
    stored := treadle.store_items(items, p_plain, p_cycles);
  end if;
  update treadle.schedule s set last_at = p_at, next_at = p_next_at where s.name = p_name and s.next_at = p_at;
end $$;
