-- Signal: store signals for open items, in order. A wait for the signal of a suspended item takes it at once, and the item
-- is ready. Answers for each: see `Signalled` in treadle.item.
--
-- The open row of the item is the lock. A signal takes it for key share, so that the item can be claimed, and records its
-- steps, while the transaction of a user is open. An attempt that suspends or ends the item has either committed, or waits.
--
-- p_most  unread signals that an item may have
-- stored  how many were stored
create or replace function treadle.signal(
  p_ids text[], p_tenant text, p_names text[], p_values bytea[], p_keys text[], p_most int,
  out verbs text[], out states smallint[], out types text[], out queues text[], out stored int)
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set lock_timeout = '200ms' set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  nos constant bigint[] := treadle.find_each_item(p_ids, p_tenant);
  now float8; answer record;
begin
  verbs := '{}'; states := '{}'; types := '{}'; queues := '{}'; stored := 0;
  perform 1 from treadle.open_item o where o.no = any(nos) order by o.no for key share;
  now := treadle.clock();
  for k in 1 .. coalesce(cardinality(p_ids), 0) loop
    select * into answer from treadle.signal_one(now, nos[k], p_names[k], p_values[k], p_keys[k], p_most);
    verbs := verbs || answer.verb; states := states || answer.state;
    types := types || answer.type; queues := queues || answer.queue;
    stored := stored + (answer.verb = 'stored')::int;
  end loop;
end $$;

-- The number of the item of each id; null: there is none.
create or replace function treadle.find_each_item(p_ids text[], p_tenant text) returns bigint[]
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  nos constant bigint[] := treadle.find_items(p_ids, p_tenant);
begin
  if cardinality(p_ids) = 1 then
    return coalesce(nos, array[null::bigint]);
  end if;
  return array(
    select i.no from unnest(p_ids) with ordinality u(id, place)
    left join (select i.id, i.no from treadle.item i where i.no = any(nos)) i on i.id = u.id
    order by u.place);
end $$;

-- type, queue  of the item, if this has made it ready
create or replace function treadle.signal_one(
  p_now float8, p_no bigint, p_name text, p_value bytea, p_key text, p_most int,
  out verb text, out state smallint, out type text, out queue text)
language plpgsql as $$
#variable_conflict use_column
declare
  found treadle.open_item; waiting text;
begin
  select * into found from treadle.open_item o where o.no = p_no for key share;
  if found.suspended and found.status <> 5 then
    select * into found from treadle.open_item o where o.no = p_no for no key update;
  end if;
  if found.no is null then
    select e.outcome into state from treadle.ended_item e where e.no = p_no;
    verb := case when state is null then 'not_found' else 'ended' end;
    -- It may have been requeued in this moment.
    perform treadle.retry_unless(state is not null or not exists (select 1 from treadle.item i where i.no = p_no));
    return;
  end if;
  state := case when found.verdict is not null then found.shown_status when found.status = 3 then 2
                else found.status end;
  if found.suspended and found.status <> 5 then
    select s.name into waiting from treadle.step s
      where s.no = p_no and not s.over and s.signal = p_name and (s.until > p_now) is not false
      order by s.seq limit 1;
  end if;
  verb := treadle.store_signal(p_no, p_name, p_value, p_key, p_most, waiting is not null);
  if verb <> 'stored' or waiting is null then
    return;
  end if;
  update treadle.step s set over = true, value = p_value where s.no = p_no and s.name = waiting;
  if found.status = 1 and treadle.is_held(found.due) then
    update treadle.open_item o set due = treadle.keep_hold(o.due, p_now) where o.no = p_no;
  elsif found.status = 1 then
    update treadle.open_item o set status = 2, due = p_now, ready_since = p_now, seq = nextval('treadle.number')
      where o.no = p_no;
    state := 2; type := found.type; queue := found.queue;
  end if;
end $$;

-- Put a signal into the mailbox of an item. Of one that a wait takes at once only the key is stored.
create or replace function treadle.store_signal(
  p_no bigint, p_name text, p_value bytea, p_key text, p_most int, p_taken boolean) returns text
language plpgsql as $$
begin
  if p_key is not null
      and exists (select 1 from treadle.mail m where m.no = p_no and m.name = p_name and m.key = p_key) then
    return 'existing';
  elsif p_taken and p_key is null then
    return 'stored';
  elsif not p_taken and p_most <= (
      select count(*) from (select 1 from treadle.mail m where m.no = p_no and not m.taken limit p_most) x) then
    return 'full';
  end if;
  -- Another transaction may have stored the same key in this moment.
  insert into treadle.mail (no, seq, taken, name, key, value)
    values (p_no, nextval('treadle.number'), p_taken, p_name, p_key, case when not p_taken then p_value end)
    on conflict (no, name, key) where key is not null do nothing;
  return case when found then 'stored' else 'existing' end;
end $$;

-- The same as part of the user's own transaction. If it has made an item ready, a wake-up is sent when that commits.
create or replace function treadle.signal_in_transaction(
  p_ids text[], p_tenant text, p_names text[], p_values bytea[], p_keys text[], p_most int, p_channel text,
  out verbs text[], out states smallint[], out types text[], out queues text[], out stored int)
language plpgsql
as $$
begin
  for try in 1 .. 5 loop
    begin
      select s.verbs, s.states, s.types, s.queues, s.stored into verbs, states, types, queues, stored
        from treadle.signal(p_ids, p_tenant, p_names, p_values, p_keys, p_most) s;
      if p_channel is not null and array_remove(types, null) <> '{}' then
        perform pg_notify(p_channel, '{"ready":true}');
      end if;
      return;
    exception
      when lock_not_available or serialization_failure then
        if try = 5 then
          raise;
        end if;
    end;
  end loop;
end $$;
