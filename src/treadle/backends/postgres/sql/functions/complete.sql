-- Complete: end an open item as a success, without a worker. TR003: it does not exist. TR004: it has ended.
create or replace function treadle.complete(p_id text, p_tenant text, p_result bytea)
returns table (item treadle.item_state, effects treadle.effects)
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '200ms'
as $$
#variable_conflict use_column
declare
  nos bigint[] := treadle.find_items(array[p_id], p_tenant); outcome smallint;
begin
  if nos is null then
    raise exception 'not found' using errcode = 'TR003', detail = jsonb_build_object('id', p_id)::text;
  end if;
  perform 1 from treadle.open_item o where o.no = any(nos) for update;
  if not found then
    select e.outcome into outcome from treadle.ended_item e where e.no = any(nos);
    if not found then  -- it is open again, or gone
      raise exception 'another transaction changed these items' using errcode = '40001';
    end if;
    raise exception 'already ended' using errcode = 'TR004',
      detail = jsonb_build_object('id', p_id, 'state', outcome)::text;
  end if;
  return query select s, null::treadle.effects from treadle.read_items(nos, false) s;
  return query select null::treadle.item_state, c
    from treadle.end_items(treadle.clock(), nos, 6::smallint, 1::smallint, p_result) c;
end $$;
