-- Store new items: all of them, or raise an exception that names the owners of the refused ones (TR001 a
-- taken id, TR002 a cycle, TR007 a prerequisite that must exist and does not, TR011 a taken key).
--
-- Rows come sorted by id and tenant, so that concurrent calls wait for each other's ids in one order. A row
-- without a type becomes a placeholder unless its id exists. Locks, in this order: keys, ids, placeholders,
-- prerequisites, the lock on cycles.
--
-- p_plain   no row has a key or dependencies, or is to be leased at once
-- p_cycles  look for cycles: rows of this call seem to wait for each other
create or replace function treadle.store_items(items treadle.new_items, p_plain boolean, p_cycles boolean)
returns treadle.stored_items
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set lock_timeout = '200ms' set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  n constant int := cardinality(items.id);
  stored treadle.stored_items; now float8; nos bigint[]; tenants text[];
  inserted int; alike record; keys record; redirected record; blocked record; old record; group_nos bigint[];
  taken_over int[]; placeholders bigint[] := '{}'; replacements bigint[] := '{}'; taken_id text[] := '{}'; taken_owner int[] := '{}';
begin
  -- The short way, for items that are alike.
  if p_plain and 1 = greatest(
      cardinality(items.tenant), cardinality(items.type), cardinality(items.queue), cardinality(items.lane),
      cardinality(items.priority), cardinality(items.attempts), cardinality(items.run_at),
      cardinality(items.delay), cardinality(items.deadline), cardinality(items.expires_in),
      cardinality(items.parent), cardinality(items.workflow), cardinality(items.workflow_type),
      cardinality(items.need), cardinality(items.keep), cardinality(items.keep_dead),
      cardinality(items.options), cardinality(items.group_id)) then
    select * into alike from treadle.store_alike(items);
    stored.now := alike.now; stored.nos := alike.nos;
    if alike.stored = n then
      stored.states := array_fill(alike.state, array[n]);
      return stored;
    end if;
    -- Some ids are taken. The rest of this function decides what to do, and inserts the open items again.
    now := alike.now; nos := alike.nos;
    delete from treadle.open_item o where o.no = any(nos);
  else
    nos := treadle.new_numbers(items.rank, n);
    now := treadle.clock();
  end if;
  if n > 1 then
    items := treadle.spread_items(items);
  end if;

  -- Keys: leave out the rows for which an earlier item with the same key answers.
  if items.key is not null then
    select * into keys from treadle.match_keys(now, nos, items);
    now := treadle.clock();  -- it may have waited
    stored.existing_row := keys.row; stored.existing_id := keys.id; stored.existing_own := keys.own;
    if keys.row is not null then
      items.skip := coalesce(items.skip, array_fill(false, array[n]));
      for k in 1 .. cardinality(keys.row) loop
        items.skip[keys.row[k]] := true;
      end loop;
      if items.after is not null then
        select * into redirected from treadle.redirect_dependencies(items, keys.row, keys.id, keys.own);
        items.after := redirected.after;
        p_cycles := p_cycles or redirected.changed;
      end if;
    end if;
  end if;

  if items.closes is not null then
    items := treadle.without_members(items);
    group_nos := treadle.nested_group_numbers(nos, items);
    perform treadle.open_nested_groups(now, nos, items, group_nos);
    items.group_no := group_nos;
  end if;

  -- The items. The second round comes after placeholders have been removed.
  for round in 1 .. 2 loop
    insert into treadle.item (no, nonce, queued, due, deadline, keep, keep_dead, group_no, priority, attempts,
        need, id, tenant, type, queue, lane, group_id, parent, workflow, workflow_type, key, after, counting,
        contributes, input, options)
      select u.no, u.nonce, now, coalesce(u.run_at, now + u.delay), coalesce(u.deadline, now + u.expires_in),
        u.keep, u.keep_dead, u.group_no, u.priority, u.attempts, u.need, u.id, u.tenant, u.type, u.queue,
        u.lane, u.group_id, u.parent, u.workflow, u.workflow_type, u.key, treadle.parts(u.after),
        nullif(u.counting, 0), nullif(u.contributes, true), u.input, u.options
      from unnest(nos, items.skip, items.nonce, items.run_at, items.delay, items.deadline, items.expires_in,
          items.keep, items.keep_dead, items.group_no, items.priority, items.attempts, items.need, items.id,
          items.tenant, items.type, items.queue, items.lane, items.group_id, items.parent, items.workflow,
          items.workflow_type, items.key, items.after, items.counting, items.contributes, items.input,
          items.options)
        u(no, skip, nonce, run_at, delay, deadline, expires_in, keep, keep_dead, group_no, priority, attempts,
          need, id, tenant, type, queue, lane, group_id, parent, workflow, workflow_type, key, after, counting,
          contributes, input, options)
      where u.skip is not true
      on conflict (id, tenant) do nothing;
    get diagnostics inserted = row_count;
    exit when inserted = n or round = 2;

    -- Some ids exist: as placeholders, which these items replace; as items that an earlier try of this call
    -- stored; as other items, which means that the id is taken.
    for old in
      select i.no, i.type is null as is_placeholder, i.nonce = u.nonce as is_own, u.row, u.no as new, u.id,
        u.owner
      from (select no, id, tenant, type, nonce from treadle.item
            where id = any(array(select t.id from unnest(items.id, items.type) t(id, type)
                                 where t.type is not null))
              and tenant = any(items.tenant) order by id, tenant for update) i
      join unnest(nos, items.skip, items.type, items.nonce, items.id, items.tenant, items.owner)
        with ordinality u(no, skip, type, nonce, id, tenant, owner, row) on u.id = i.id and u.tenant = i.tenant
      where u.no <> i.no and u.type is not null and u.skip is not true
      order by u.no
    loop
      if old.is_placeholder and old.no <> all(placeholders) then
        placeholders := placeholders || old.no;
        replacements := replacements || old.new;
      elsif not old.is_placeholder and old.is_own and old.no <> all(nos) then
        items.skip := coalesce(items.skip, array_fill(false, array[n]));
        items.skip[old.row] := true;
        stored.existing_row := stored.existing_row || old.row::int;
        stored.existing_id := stored.existing_id || old.id;
        stored.existing_own := stored.existing_own || true;
      else
        taken_id := taken_id || old.id; taken_owner := taken_owner || old.owner;
      end if;
    end loop;
    if taken_id <> '{}' then
      raise exception 'duplicate_id' using errcode = 'TR001',
        detail = jsonb_build_object('owners', to_jsonb(taken_owner), 'ids', to_jsonb(taken_id))::text;
    end if;
    exit when placeholders = '{}';
    -- Items that waited for the placeholder wait for the new item from now on.
    delete from treadle.item where no = any(placeholders);
    update treadle.dependency d set prerequisite = r.new from unnest(placeholders, replacements) r(old, new)
      where d.prerequisite = any(placeholders) and d.prerequisite = r.old;
  end loop;
  if inserted < n then
    -- An item that had one of the ids may have been deleted before this call could look at it.
    perform treadle.retry_unless(not exists (
      select 1 from unnest(nos, items.skip, items.type) u(no, skip, type)
      where u.skip is not true and u.type is not null
        and not exists (select 1 from treadle.item i where i.no = u.no)));
  end if;

  -- Their open rows.
  if p_plain then
    insert into treadle.open_item (no, seq, due, ready_since, deadline, group_no, keep, keep_dead, status,
        priority, queue, tenant, lane, type)
      select u.no, u.no, coalesce(u.run_at, now + u.delay), now, coalesce(u.deadline, now + u.expires_in),
        u.group_no, nullif(u.keep, 86400), u.keep_dead,
        case when coalesce(u.run_at, now + u.delay) > now then 1 else 2 end, u.priority, u.queue,
        u.tenant, u.lane, u.type
      from unnest(nos, items.skip, items.run_at, items.delay, items.deadline, items.expires_in, items.group_no,
          items.keep, items.keep_dead, items.priority, items.queue, items.tenant, items.lane, items.type)
        u(no, skip, run_at, delay, deadline, expires_in, group_no, keep, keep_dead, priority, queue, tenant,
          lane, type)
      where u.skip is not true;
    select array_agg(case when coalesce(u.run_at, now + u.delay) > now then 1 else 2 end)
      into stored.states from unnest(items.run_at, items.delay) u(run_at, delay);
  else
    select * into blocked from treadle.add_dependencies(nos, items);
    select x.states, x.tokens into stored.states, stored.tokens
      from treadle.insert_open_items(now, nos, items, blocked.no, blocked.met, blocked.pending) x;
    if p_cycles then
      perform treadle.refuse_cycle(nos, nos, items.owner);
    elsif replacements && blocked.no then
      perform treadle.refuse_cycle(replacements || blocked.outward, nos, items.owner);
    elsif treadle.any_group_is_awaited(blocked.outward, nos, items.group_no) then
      perform treadle.refuse_cycle(blocked.outward, nos, items.owner);
    end if;
  end if;

  -- The items that answer for those that were left out. Some take over what these have.
  if items.key_policy is not null and stored.existing_row is not null then
    taken_over := treadle.take_over(
      now, nos, items, stored.existing_row, stored.existing_id, stored.existing_own);
    if taken_over is not null then
      -- For the audit: null tells them from those that were not changed.
      stored.existing_own := array(select case when k.row = any(taken_over) then null else k.own end
        from unnest(stored.existing_row, stored.existing_own) with ordinality k(row, own, place) order by k.place);
    end if;
  end if;
  if stored.existing_row is not null then
    tenants := items.tenant;
    select array_agg(x.state order by k.place), array_agg(coalesce(x.group_id, x.id) order by k.place)
      into stored.existing_state, stored.existing_group
      from unnest(stored.existing_row, stored.existing_id) with ordinality k(row, id, place)
      join treadle.item_statuses(
          array(select tenants[q] from unnest(stored.existing_row) q), stored.existing_id) x
        on x.id = k.id and x.tenant = tenants[k.row];
    perform treadle.retry_unless(cardinality(stored.existing_state) = cardinality(stored.existing_row));
  end if;
  stored.now := now; stored.nos := nos;
  return stored;
end $$;

-- Rows of the same owner and tenant that wait for a new id, or its group, wait for the earlier item with its key, or
-- its group, instead.
create or replace function treadle.redirect_dependencies(
  items treadle.new_items, p_row int[], p_id text[], p_own boolean[], out after text[], out changed boolean)
language plpgsql as $$
declare
  tenant text[] := items.tenant; owner int[] := items.owner; group_id text;
begin
  after := items.after; changed := false;
  for k in 1 .. cardinality(p_row) loop
    continue when p_own[k];
    group_id := treadle.group_of(p_id[k], tenant[p_row[k]]);
    for w in 1 .. cardinality(items.id) loop
      if after[w] is not null and owner[w] = owner[p_row[k]] and tenant[w] = tenant[p_row[k]] then
        after[w] := array_to_string(array_replace(array_replace(treadle.parts(after[w]), items.id[p_row[k]], p_id[k]),
          chr(30) || items.id[p_row[k]], chr(30) || group_id), chr(31));
        changed := true;
      end if;
    end loop;
  end loop;
end $$;

-- The id of the group of an item. A new item is a root.
create or replace function treadle.group_of(p_id text, p_tenant text) returns text
language plpgsql stable
set enable_seqscan = off
as $$
begin
  return coalesce((select i.group_id from treadle.item i where i.id = p_id and i.tenant = p_tenant), p_id);
end $$;

-- Fail with a serialization failure, so that the caller repeats the transaction, if `p_unchanged` is not true.
create or replace function treadle.retry_unless(p_unchanged boolean) returns boolean language plpgsql as $$
begin
  if not p_unchanged then
    raise exception 'another transaction changed these items' using errcode = '40001';
  end if;
  return true;
end $$;
