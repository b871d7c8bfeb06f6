-- Steps: what running items record, and what they wait for without a worker.

-- Record: write each record whose token owns its item. Answers the records that were not written, and why: see
-- `lease_losses`; 5: another transaction has locked the item.
--
-- p_wait  wait for other transactions
-- p_logs  what attempts have logged; `owner` is null if none has. Version 8 does not pass it
create or replace function treadle.record(
  p_no bigint[], p_token bigint[], p_tenant text[], steps treadle.new_steps,
  p_progress_owner int[], p_progress bytea[], p_chunk_owner int[], p_chunk_number int[], p_chunk bytea[], p_wait boolean,
  p_logs treadle.new_logs default null,
  out lost_row int[], out lost_code smallint[])
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan set lock_timeout = '200ms'
as $$
#variable_conflict use_column
declare
  n constant int := cardinality(p_no);
  now float8; rows int[]; nos bigint[];
begin
  if p_wait then
    perform 1 from treadle.open_item o where o.no = any(p_no) order by o.no for no key update;
  end if;
  select array_agg(x.row), array_agg(x.no) into rows, nos from (
    select u.row::int, o.no from treadle.open_item o
    join unnest(p_no, p_token, treadle.spread(p_tenant, n)) with ordinality u(no, token, tenant, row)
      on u.no = o.no and u.token = o.token and u.tenant = o.tenant
    where o.no = any(p_no) and o.status > 4 for no key update of o skip locked) x;
  if coalesce(cardinality(rows), 0) < n then
    select array_agg(u.row), array_agg(coalesce(l.loss, 5)) into lost_row, lost_code
      from generate_series(1, n) u(row)
      left join treadle.lease_losses(p_no, p_token, treadle.spread(p_tenant, n)) l on l.place = u.row
      where u.row <> all(coalesce(rows, '{}'));
  end if;
  if rows is null then
    return;
  end if;

  now := treadle.clock();
  if p_logs.owner is not null then
    perform treadle.write_logs(now, p_no, p_token, p_logs);
  end if;

  -- A step is progress. After the first one of an attempt the row stays as it is.
  if steps.owner <> '{}' then
    update treadle.open_item o set attempt = 1, failures = 0, losses = 0, recorded = o.recorded | 1
      where o.no = any(nos) and (o.attempt <> 1 or o.failures > 0 or o.losses > 0 or o.recorded & 1 = 0)
        and o.no = any(array(select r.no from unnest(rows, nos) r(row, no) where r.row = any(steps.owner)));
    perform treadle.write_steps(now, rows, nos, array_fill(1, array[cardinality(rows)]), steps);
  end if;
  if p_progress_owner <> '{}' or p_chunk_owner <> '{}' then
    perform treadle.write_stream(now, rows, nos, p_progress_owner, p_progress, p_chunk_owner, p_chunk_number, p_chunk);
  end if;
end $$;

-- Write the steps of these owners, whose items are locked. One with a name that its item has takes the place of that one;
-- if that one was forgotten, it comes last.
create or replace function treadle.write_steps(
  p_now float8, p_row int[], p_no bigint[], p_attempt int[], steps treadle.new_steps) returns void
language plpgsql as $$
#variable_conflict use_column
begin
  insert into treadle.step as s (no, seq, at, took, until, attempt, kind, over, name, signal, value, undo)
    select x.no, nextval('treadle.number'), p_now, x.took, coalesce(p_now + x.delay, x.until), x.attempt, x.kind, x.over,
      x.name, x.signal, x.value, x.undo
    from (
      select r.no, r.attempt, u.* from unnest(steps.owner, steps.name, steps.kind, steps.value, steps.took, steps.undo,
          steps.signal, steps.over, steps.delay, steps.until) with ordinality
        u(owner, name, kind, value, took, undo, signal, over, delay, until, place)
      join unnest(p_row, p_no, p_attempt) r(row, no, attempt) on r.row = u.owner
      order by u.place) x
    on conflict (no, name) do update set seq = case when s.kind = 5 then excluded.seq else s.seq end,
      at = excluded.at, took = excluded.took, until = excluded.until,
      attempt = excluded.attempt, kind = excluded.kind, over = excluded.over, signal = excluded.signal,
      value = excluded.value, undo = excluded.undo;
end $$;

-- Write how far these items are, and what they add to their streams. A chunk that is there stays as it is.
create or replace function treadle.write_stream(
  p_now float8, p_row int[], p_no bigint[], p_progress_owner int[], p_progress bytea[], p_chunk_owner int[],
  p_chunk_number int[], p_chunk bytea[]) returns void
language plpgsql as $$
#variable_conflict use_column
begin
  update treadle.open_item o set recorded = o.recorded | 2
    where o.no = any(p_no) and o.recorded & 2 = 0
      and o.no = any(array(select r.no from unnest(p_row, p_no) r(row, no)
                           where r.row = any(p_progress_owner || p_chunk_owner)));
  insert into treadle.progress as p (no, at, value)
    select r.no, p_now, u.value from unnest(p_progress_owner, p_progress) u(owner, value)
    join unnest(p_row, p_no) r(row, no) on r.row = u.owner
    on conflict (no) do update set at = excluded.at, value = excluded.value;
  insert into treadle.chunk (no, number, at, value)
    select r.no, u.number, p_now, u.value from unnest(p_chunk_owner, p_chunk_number, p_chunk) u(owner, number, value)
    join unnest(p_row, p_no) r(row, no) on r.row = u.owner
    on conflict do nothing;
end $$;

-- Write the logs of these owners, if their tokens own their items. Of each item the last ones are kept: KEPT_ATTEMPTS.
-- (The look for others takes as long as the write. Without `trim` there may be some more, if an item was requeued often.)
create or replace function treadle.write_logs(p_now float8, p_no bigint[], p_token bigint[], logs treadle.new_logs)
returns void
language plpgsql as $$
#variable_conflict use_column
begin
  insert into treadle.log as l (no, token, at, value)
    select o.no, o.token, p_now, u.value from treadle.open_item o
    join unnest(logs.owner, logs.value) u(owner, value) on o.no = p_no[u.owner] and o.token = p_token[u.owner]
    where o.no = any(p_no) and o.status > 4
    -- No other transaction removes the item before this one commits.
    for key share of o
    on conflict (no, token) do update set at = excluded.at, value = excluded.value;
  if logs.trim then
    delete from treadle.log l using (
        select x.no, x.token, row_number() over (partition by x.no order by x.at desc, x.token desc) as place
        from treadle.log x where x.no = any(p_no)) x
      where l.no = any(p_no) and l.no = x.no and l.token = x.token and x.place > 10;
  end if;
end $$;

-- Suspend: write the steps of the settlements that suspend their items, if their tokens own them, and let waits take the
-- signals that are there. Answers when each settlement's item is due: now, if a wait is over. `return_leased_items`
-- does the rest.
create or replace function treadle.suspend_items(
  p_now float8, settlements treadle.settlements, steps treadle.new_steps) returns float8[]
language plpgsql as $$
#variable_conflict use_column
declare
  never constant float8 := 253402300799;  -- see treadle.item
  rows int[]; nos bigint[]; attempts int[]; names text[]; of_no bigint[];
begin
  -- The lock waits for signals under way. Until this commits, no other is stored.
  select array_agg(x.row), array_agg(x.no), array_agg(x.attempt) into rows, nos, attempts from (
    select u.row::int, o.no, o.attempt from treadle.open_item o
    join unnest(settlements.no, settlements.token, settlements.tenant, settlements.kind) with ordinality
      u(no, token, tenant, kind, row) on u.no = o.no and u.token = o.token and u.tenant = o.tenant and u.kind = 4
    where o.no = any(settlements.no) and o.status > 4 order by o.no for update of o) x;
  if rows is null then
    return settlements.run_at;
  end if;
  perform treadle.write_steps(p_now, rows, nos, attempts, steps);

  -- What it no longer asks for would take signals from the others.
  select array_agg(u.name order by u.place), array_agg(r.no order by u.place) into names, of_no
    from unnest(steps.owner, steps.name) with ordinality u(owner, name, place)
    join unnest(rows, nos) r(row, no) on r.row = u.owner;
  delete from treadle.step s where s.no = any(nos) and not s.over and s.signal is not null
    and not exists (select 1 from unnest(of_no, names) w(no, name) where w.no = s.no and w.name = s.name);

  if exists (select 1 from treadle.mail m where m.no = any(nos) and not m.taken) then
    perform treadle.take_signals(p_now, nos, of_no, names);
  end if;
  return (
    select array_agg(case when r.no is null then u.run_at else coalesce(d.due, never) end order by u.row)
    from unnest(settlements.no, settlements.run_at) with ordinality u(no, run_at, row)
    left join unnest(rows, nos) r(row, no) on r.row = u.row
    left join (
      select s.no, min(case when s.over or s.until <= p_now then p_now else coalesce(s.until, never) end) as due
      from unnest(of_no, names) w(no, name) join treadle.step s on s.no = w.no and s.name = w.name
      where s.no = any(nos) and s.kind > 1 group by s.no) d on d.no = r.no);
end $$;

-- Let the waits `p_names` of the items `p_of` take signals that are there: the first wait for a signal takes the first one
-- of that name, and so on.
create or replace function treadle.take_signals(p_now float8, p_nos bigint[], p_of bigint[], p_names text[]) returns void
language plpgsql as $$
#variable_conflict use_column
begin
  with waits as (
    select s.no, s.name, s.signal, row_number() over (partition by s.no, s.signal order by w.place) as nth
    from unnest(p_of, p_names) with ordinality w(no, name, place)
    join treadle.step s on s.no = w.no and s.name = w.name
    where s.no = any(p_nos) and not s.over and s.signal is not null and (s.until > p_now) is not false
  ), unread as (
    select m.no, m.name, m.seq, m.key, m.value, row_number() over (partition by m.no, m.name order by m.seq) as nth
    from treadle.mail m where m.no = any(p_nos) and not m.taken
  ), taken as (
    select w.no, w.name, u.seq, u.key, u.value
    from waits w join unread u on u.no = w.no and u.name = w.signal and u.nth = w.nth
  ), answered as (
    update treadle.step s set over = true, value = t.value from taken t
      where s.no = any(p_nos) and s.no = t.no and s.name = t.name
  ), removed as (
    delete from treadle.mail m using taken t where m.no = any(p_nos) and m.no = t.no and m.seq = t.seq and m.key is null
  )
  update treadle.mail m set taken = true, value = null from taken t
    where m.no = any(p_nos) and m.no = t.no and m.seq = t.seq and m.key is not null;
end $$;

-- Suspended items that have children now: each has a group row from now on. Answers their rows, numbers and groups.
create or replace function treadle.group_suspended(settlements treadle.settlements, returned treadle.ended_rows)
returns treadle.ended_rows
language plpgsql as $$
#variable_conflict use_column
declare
  parents treadle.ended_rows;
begin
  with suspended as (
    select r.row, o.no, o.group_no, least(coalesce(o.keep, 86400), o.keep_dead) as keep
    from unnest(returned.row, returned.no) r(row, no) join treadle.open_item o on o.no = r.no
    where o.no = any(returned.no) and settlements.kind[r.row] = 4 and settlements.flags[r.row] & 8 <> 0
  ), opened as (
    insert into treadle.item_group (no, open, keep)
      select s.no, 1, s.keep from suspended s where s.group_no is null
  ), joined as (
    update treadle.open_item o set group_no = o.no from suspended s
      where o.no = any(returned.no) and o.no = s.no and s.group_no is null
  )
  select array_agg(s.row), array_agg(s.no), array_agg(coalesce(s.group_no, s.no))
    into parents.row, parents.no, parents.group_no from suspended s;
  return parents;
end $$;

-- What these items have recorded.
create or replace function treadle.read_steps(p_nos bigint[])
returns table (
  id text, unread text[], progress bytea, progress_at float8, chunks int, name text[], kind smallint[], value bytea[],
  took float8[], undo bytea[], signal text[], over boolean[], until float8[], at float8[], attempt int[], times int[])
language plpgsql stable
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  return query
    select i.id, (select array_agg(m.name) from treadle.mail m where m.no = i.no and not m.taken), p.value, p.at,
      coalesce((select c.number from treadle.chunk c where c.no = i.no order by c.no, c.number desc limit 1), 0),
      s.names, s.kinds, s.values_, s.tooks, s.undos, s.signals, s.overs, s.untils, s.ats, s.attempts,
      s.times
    from treadle.item i
    left join treadle.progress p on p.no = i.no
    left join lateral (
      select array_agg(x.name) as names, array_agg(x.kind) as kinds, array_agg(x.value) as values_,
        array_agg(x.took) as tooks, array_agg(x.undo) as undos, array_agg(x.signal) as signals,
        array_agg(x.over) as overs, array_agg(x.until) as untils, array_agg(x.at) as ats, array_agg(x.attempt) as attempts,
        array_agg(x.times) as times
      from (select * from treadle.step s where s.no = i.no order by s.seq) x) s on true
    where i.no = any(p_nos);
end $$;

-- A requeue of these ended items removes the waits that are not over. It forgets what was undone when they died, and with
-- `p_from` that step and those that were recorded after it: their names stay.
create or replace function treadle.forget_steps(p_nos bigint[], p_from text) returns void
language plpgsql as $$
#variable_conflict use_column
begin
  delete from treadle.step s where s.no = any(p_nos) and not s.over;
  update treadle.step s set kind = 5, times = s.times + 1, took = 0, until = null, attempt = 0, signal = null, value = null,
      undo = null
    from treadle.ended_item e
    where s.no = any(p_nos) and e.no = any(p_nos) and e.no = s.no and s.kind <> 5
      and (e.outcome = 7 and s.undo is not null
           or s.seq >= (select f.seq from treadle.step f where f.no = s.no and f.name = p_from));
end $$;

-- Remove what these items have recorded.
create or replace function treadle.remove_steps(p_nos bigint[]) returns void
language plpgsql
set enable_seqscan = off
as $$
begin
  delete from treadle.step s where s.no = any(p_nos);
  delete from treadle.progress p where p.no = any(p_nos);
  delete from treadle.chunk c where c.no = any(p_nos);
end $$;
