-- Settle: apply each settlement whose token still owns its item, all of it or none of it.
--
-- It consists of several statements, each with its own snapshot: a statement sees what was committed while
-- the one before waited for a lock. Locks, in this order: the items themselves (no other transaction settles
-- them, so there is no wait here), the items that depend on them by number, the groups by number, then what
-- `store_items` locks, and at last the items that depend on groups that end. (Only an item that waits for a
-- group and for something else can be locked in both places, so only such an item can cause a deadlock, which the
-- lock timeout ends.) Dependents that can no longer be met are not settled here: the next claim hands them out
-- with a verdict.
--
-- Only a user's own transaction holds one of these locks for long (with `submit(tx=)` and `after`). The caller
-- then settles the others without the one that is locked.
--
-- Refused children raise an exception (see `store_items`); the caller leaves that settlement out and calls
-- again.
--
-- p_folds    some settlement has a version
-- p_returns  some settlement does not end its item
-- p_plain, p_cycles  see `store_items`
-- p_marks    the fingerprints of deaths, one element per row; null: none has one. Version 4 does not pass it
-- p_steps    the steps of those that suspend their items; `owner` is null if none does. Version 7 does not pass it
-- p_logs     what their attempts have logged; `owner` is null if none has. Version 8 does not pass it
create or replace function treadle.settle(
  settlements treadle.settlements, children treadle.new_items, p_folds boolean, p_returns boolean,
  p_plain boolean, p_cycles boolean, p_marks text[] default null,
  p_steps treadle.new_steps default null, p_logs treadle.new_logs default null,
  out settled_at float8,
  out ended_row int[], out ended_group bigint[],      -- items that ended; their groups, if those have a row
  out moved_row int[], out moved_version bigint[], out moved_value bytea[], out moved_final boolean[],
  out contributed_row int[],                          -- contributions that were applied to groups with a row
  out lost_row int[], out lost_code smallint[],       -- see `lease_losses`
  out silent_row int[],                               -- items that ended and do not contribute
  out existing_row int[], out existing_id text[],     -- children that were not stored
  out effects treadle.effects,
  out ready_row int[])                                -- suspended items that are ready at once
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan set lock_timeout = '200ms'
as $$
#variable_conflict use_column
declare
  n constant int := cardinality(settlements.no);
  now float8; ended treadle.ended_rows; returned treadle.ended_rows; parents treadle.ended_rows; stored treadle.stored_items;
  dependents bigint[]; awaited bigint[]; groups bigint[]; grouped record;
begin
  if p_logs.owner is not null then
    perform treadle.write_logs(treadle.clock(), settlements.no, settlements.token, p_logs);
  end if;
  if n > 1 then
    settlements := treadle.spread_settlements(settlements, p_folds or p_returns);
  end if;

  -- Folds from an outdated value do not apply. Number 0 is no item's.
  if p_folds then
    select f.row, f.version, f.value, f.final into moved_row, moved_version, moved_value, moved_final
      from treadle.check_folds(settlements) f;
    for k in 1 .. coalesce(cardinality(moved_row), 0) loop
      settlements.no[moved_row[k]] := 0;
    end loop;
  end if;
  now := treadle.clock(); settled_at := now;

  -- The items themselves: end them, or return them to their queues.
  ended := treadle.end_leased_items(now, settlements, p_marks,
    p_returns or settlements.failed_row is not null or children.id is not null);
  ended_row := ended.row; ended_group := ended.group_no; silent_row := ended.silent_row;
  if p_returns then
    if p_steps.owner is not null then
      settlements.run_at := treadle.suspend_items(now, settlements, p_steps);
    end if;
    returned := treadle.return_leased_items(now, settlements);
    if p_steps.owner is not null then
      ready_row := array(select r.row from unnest(returned.row) r(row)
                         where settlements.kind[r.row] = 4 and settlements.run_at[r.row] <= now);
      if children.id is not null then
        parents := treadle.group_suspended(settlements, returned);
      end if;
    end if;
  end if;
  if settlements.failed_row is not null then
    perform treadle.record_failures(now, settlements, ended.row || returned.row, ended.no || returned.no,
      ended.attempt || returned.attempt, ended.worker || returned.worker);
  end if;

  -- The settlements that did not apply, and why.
  if coalesce(cardinality(ended_row), 0) + coalesce(cardinality(returned.row), 0)
      + coalesce(cardinality(moved_row), 0) < n then
    select array_agg(l.place), array_agg(l.loss) into lost_row, lost_code
      from treadle.lease_losses(settlements.no, settlements.token, treadle.spread(settlements.tenant, n)) l
      where l.place <> all(coalesce(ended_row, '{}') || coalesce(returned.row, '{}') || coalesce(moved_row, '{}'));
  end if;
  if ended_row is null and parents.row is null then
    return;
  end if;

  if 7 = any(ended.kind) then
    ended.tolerated := treadle.tolerate_deaths(ended, null, null);
  end if;

  -- The items that depend on them. `awaited`: those that are awaited as groups, too.
  select array_agg(d.dependent) filter (where not d.of_group), array_agg(d.prerequisite) filter (where d.of_group)
    into dependents, awaited from treadle.dependency d where d.prerequisite = any(ended.no);
  if dependents is not null then
    effects := treadle.count_towards_dependents(now, dependents, ended.no, ended.kind, false);
  end if;

  -- Their children. The groups are locked first. An item without a group row needs none.
  if array_remove(ended_group || parents.group_no, null) <> '{}' then
    groups := array(select distinct g.no from unnest(ended_group || parents.group_no) g(no) where g.no is not null);
    perform 1 from treadle.item_group g where g.no = any(groups) order by g.no for no key update;
  end if;
  if children.id is not null then
    select array_agg(x.no is null and u.owner > 0 order by u.row),
           array_agg(coalesce(x.group_no, x.no) order by u.row)
      into children.skip, children.group_no
      from unnest(treadle.spread(children.owner, cardinality(children.id))) with ordinality u(owner, row)
      left join unnest(ended.row || parents.row, ended.no || parents.no, ended.group_no || parents.group_no)
        x(row, no, group_no) on x.row = u.owner;
    stored := treadle.store_items(children, p_plain, p_cycles);
    existing_row := stored.existing_row; existing_id := stored.existing_id;
    if children.closes is not null then
      children.group_no := treadle.nested_group_numbers(stored.nos, children);
    end if;
    for k in 1 .. coalesce(cardinality(existing_row), 0) loop
      children.skip[existing_row[k]] := true;
    end loop;
    if 7 = any(ended.kind) then
      ended.tolerated := ended.tolerated || treadle.tolerate_deaths(ended, stored.nos, children.owner);
    end if;
  end if;

  if awaited is not null then
    effects := treadle.count_ended_items_as_groups(now, effects, awaited, ended);
  end if;

  -- Their groups. (Flag 8: it needs a group row. A query for each of these two questions took a tenth of the call that settles
  -- one item.)
  if groups is not null or ended.flags && '{8,9,10,11,12,13,14,15}'::smallint[] then
    select * into grouped
      from treadle.update_groups(now, groups, ended, settlements.result, settlements.value, settlements.token,
        settlements.version, children);
    contributed_row := grouped.contributed_row;
    effects.ended_group_id := grouped.id; effects.ended_group_tenant := grouped.tenant;
    effects.ended_group_type := grouped.type; effects.ended_group_value := grouped.value;
    if grouped.no is not null then
      effects := treadle.count_ended_groups(now, effects, grouped.no, grouped.kind);
    end if;
    -- Items that now have a group row: their groups have not ended with them.
    select array_agg(case when x.flags & 8 <> 0 then coalesce(x.group_no, x.no) else x.group_no end)
      into ended_group from unnest(ended.group_no, ended.no, ended.flags) x(group_no, no, flags);
  end if;
  if children.closes is not null then
    effects := treadle.end_empty_groups(now, effects, stored.nos);
  end if;
end $$;

-- The columns of settlements, one element per row. `p_all`: also those that `end_leased_items` can use as
-- single values.
create or replace function treadle.spread_settlements(settlements treadle.settlements, p_all boolean)
returns treadle.settlements
language plpgsql as $$
declare
  n constant int := cardinality(settlements.no);
begin
  settlements.result := treadle.spread(settlements.result, n);
  settlements.run_at := treadle.spread(settlements.run_at, n);
  settlements.delay := treadle.spread(settlements.delay, n);
  settlements.version := treadle.spread(settlements.version, n);
  settlements.group_index := treadle.spread(settlements.group_index, n);
  settlements.value := treadle.spread(settlements.value, n);
  settlements.ran := treadle.spread(settlements.ran, n);
  if p_all then
    settlements.tenant := treadle.spread(settlements.tenant, n);
    settlements.kind := treadle.spread(settlements.kind, n);
    settlements.flags := treadle.spread(settlements.flags, n);
  end if;
  return settlements;
end $$;

-- The items that a settlement returns to their queues, if its token owns them.
create or replace function treadle.return_leased_items(p_now float8, settlements treadle.settlements)
returns treadle.ended_rows
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  answer treadle.ended_rows;
begin
  with returned as (
    update treadle.open_item o set
        status = case when o.verdict is not null then 4
                      when coalesce(u.run_at, p_now + u.delay) > p_now then 1 else 2 end,
        -- A released item keeps its place in its lane, also if it is due later: see `promote_due`.
        seq = case when u.kind <> 3 then nextval('treadle.number')
                   when o.verdict is null and coalesce(u.run_at, p_now + u.delay) > p_now then -o.seq
                   else o.seq end,
        attempt = case when u.kind = 4 then 0
                       else o.attempt - case when u.kind = 1 or o.verdict is not null or not o.begun then 0 else 1 end end,
        failures = case when u.kind = 4 then 0
                        else o.failures + case when u.kind = 1 and o.verdict is null then 1 else 0 end end,
        losses = case when u.kind = 3 or o.verdict is not null then o.losses else 0 end,
        deferrals = o.deferrals + case when u.kind = 2 and o.verdict is null then 1 else 0 end,
        due = case when o.verdict is not null or u.kind = 3 and u.run_at is null and u.delay = 0 then o.due
                   else coalesce(u.run_at, p_now + u.delay) end,
        ready_since = case when u.kind = 3 and u.run_at is null and u.delay = 0 then o.ready_since else p_now end,
        began = case when u.ran is null then o.began else greatest(p_now - u.ran, o.claimed) end,
        recorded = o.recorded | case when u.kind = 4 then 1 else 0 end, suspended = u.kind = 4,
        last_token = o.token, token = null, worker = null
      from unnest(settlements.no, settlements.token, settlements.tenant, settlements.kind, settlements.run_at,
            settlements.delay, settlements.ran) with ordinality u(no, token, tenant, kind, run_at, delay, ran, row),
        (select no, id from treadle.worker) w
      where o.no = any(settlements.no) and o.no = u.no and not (o.token <> u.token or o.tenant <> u.tenant)
        and o.status > 4 and u.kind < 6
        and w.no = o.worker
      returning u.row, o.no, o.attempt, w.id
  )
  select array_agg(r.row::int), array_agg(r.no), array_agg(r.attempt), array_agg(r.id)
    into answer.row, answer.no, answer.attempt, answer.worker from returned r;
  return answer;
end $$;

-- Of these items: those that no transaction has locked at this moment.
create or replace function treadle.unlocked_items(p_nos bigint[]) returns bigint[]
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off
as $$
begin
  return array(select o.no from treadle.open_item o where o.no = any(p_nos) for update skip locked);
end $$;
