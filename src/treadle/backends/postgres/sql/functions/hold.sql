-- Hold: hold ready and scheduled items, or let them go, all of them or none. TR003: one does not exist. TR014: one is to be
-- held that is not ready or scheduled, or is doomed.
--
-- A held item is due at the instant at which it was due, times 2^64: see treadle.store.rules.times.
create or replace function treadle.hold(p_ids text[], p_tenant text, p_held boolean)
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
    where s.no is null or p_held and (o.status in (1, 2, 3)) is not true order by a.place limit 1;
  if found and bad.state is null then
    raise exception 'not found' using errcode = 'TR003', detail = jsonb_build_object('id', bad.id)::text;
  elsif found then
    raise exception 'not to be held' using errcode = 'TR014',
      detail = jsonb_build_object('id', bad.id, 'state', bad.state)::text;
  end if;
  -- Those that change, in the order of the ids, which is that of their new places.
  select array_agg(x.no order by x.place) into nos from (
    select i.no, min(a.place) as place from treadle.item i
    join unnest(p_ids) with ordinality a(id, place) on a.id = i.id
    join treadle.open_item o on o.no = i.no
    where i.no = any(nos) and o.status in (1, 2, 3) and treadle.is_held(o.due) <> p_held group by i.no) x;
  seqs := array(select nextval('treadle.number') from generate_series(1, cardinality(nos)));
  return query select s, null::treadle.effects from treadle.read_items(nos, false) s;
  now := treadle.clock();
  update treadle.open_item o set seq = u.seq, ready_since = now, due = d.due,
      status = case when d.due > now then 1 else 2 end
    from unnest(nos, seqs) u(no, seq)
    join treadle.open_item b on b.no = u.no
    cross join lateral (select case when p_held then greatest(b.due, 1) * 2::float8 ^ 64
                                    else b.due / 2::float8 ^ 64 end as due) d
    where o.no = u.no;
end $$;

create or replace function treadle.is_held(p_due float8) returns boolean
language sql immutable as $$
  select p_due >= 2::float8 ^ 64
$$;

-- The instant that is stored for an item that becomes due then, and stays held if it is.
create or replace function treadle.keep_hold(p_before float8, p_due float8) returns float8
language sql immutable as $$
  select case when p_due is not null and treadle.is_held(p_before) then greatest(p_due, 1) * 2::float8 ^ 64 else p_due end
$$;
