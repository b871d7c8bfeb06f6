-- Trigger: make scheduled items due now, all of them or none, and end their sleeps. TR003: one does not exist. TR005: one
-- is not scheduled, is held, or is suspended and does not sleep.
create or replace function treadle.trigger(p_ids text[], p_tenant text)
returns table (item treadle.item_state, effects treadle.effects)
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set lock_timeout = '200ms'
as $$
#variable_conflict use_column
declare
  nos bigint[] := treadle.find_items(p_ids, p_tenant); bad record; now float8;
begin
  perform 1 from treadle.open_item o where o.no = any(nos) order by o.no for no key update;
  -- The first of them that cannot be triggered.
  select a.id, s.state, s.state = 1 and treadle.is_held(s.due) as held into bad from unnest(p_ids) with ordinality a(id, place)
    left join treadle.read_items(nos, false) s on s.id = a.id
    where s.state is distinct from 1 or treadle.is_held(s.due) or s.suspended and not exists (
      select 1 from treadle.step t where t.no = s.no and t.kind = 2 and not t.over)
    order by a.place limit 1;
  if found and bad.state is null then
    raise exception 'not found' using errcode = 'TR003', detail = jsonb_build_object('id', bad.id)::text;
  elsif found then
    raise exception 'not scheduled' using errcode = 'TR005',
      detail = jsonb_build_object('id', bad.id, 'state', bad.state, 'held', bad.held)::text;
  end if;
  return query select s, null::treadle.effects from treadle.read_items(nos, false) s;
  now := treadle.clock();
  update treadle.open_item o set status = 2, due = now, ready_since = now, seq = nextval('treadle.number')
    where o.no = any(nos) and o.status = 1;
  update treadle.step t set over = true where t.no = any(nos) and t.kind = 2 and not t.over;
end $$;
