-- New items: all of them, or an exception that says whose are refused (TR001 a taken id, TR002 a cycle).
--
-- Rows come sorted by id and tenant, so that calls under way at once wait for each other's ids in one
-- order. A row without a type is an id that another row waits for: it becomes a placeholder unless it is
-- there. What must be locked, in this order: keys, ids, placeholders, prerequisites, the lock on cycles.
--
-- Rows to skip belong to settlements that do not apply. Answered in e_*: rows for which an earlier item
-- with the same key stands, and rows that an earlier try of this very call has stored (`own`).
create or replace function treadle.store(
  i_rank int[], i_owner int[], i_id text[], i_tenant text[], i_type text[], i_queue text[], i_lane text[],
  i_priority int[], i_attempts int[], i_run_at float8[], i_delay float8[], i_deadline float8[],
  i_expires float8[], i_parent text[], i_workflow text[], i_workflow_type text[], i_after text[], i_need int[],
  i_counting smallint[], i_key text[], i_scope float8[], i_keep float8[], i_keep_dead float8[],
  i_input bytea[], i_options bytea[], i_skip boolean[], i_nonce bigint[], i_lease_to text[], i_grp bigint[],
  i_group_id text[], p_plain boolean, p_check boolean,
  out now float8, out nos bigint[], out states smallint[], out tokens bigint[],
  out e_row int[], out e_id text[], out e_state smallint[], out e_group text[], out e_own boolean[])
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set lock_timeout = '200ms' set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  n int := cardinality(i_id);
  got int; state smallint; answers record; gates record; old record;
  emptied bigint[] := '{}'; awaited bigint[] := '{}'; taken text[] := '{}'; takers int[] := '{}';
begin
  if p_plain and 1 = greatest(
      cardinality(i_tenant), cardinality(i_type), cardinality(i_queue), cardinality(i_lane),
      cardinality(i_priority), cardinality(i_attempts), cardinality(i_run_at), cardinality(i_delay),
      cardinality(i_deadline), cardinality(i_expires), cardinality(i_parent), cardinality(i_workflow),
      cardinality(i_workflow_type), cardinality(i_need), cardinality(i_keep), cardinality(i_keep_dead),
      cardinality(i_options), cardinality(i_group_id)) then
    select a.now, a.nos, a.state, a.added into now, nos, state, got from treadle.add(
      i_rank, i_id, i_nonce, i_grp, i_input, i_skip, i_tenant[1], i_type[1], i_queue[1], i_lane[1], i_priority[1],
      i_attempts[1], i_run_at[1], i_delay[1], i_deadline[1], i_expires[1], i_parent[1], i_workflow[1],
      i_workflow_type[1], i_need[1], i_keep[1], i_keep_dead[1], i_options[1], i_group_id[1]) a;
    if got = n then
      states := array_fill(state, array[n]);
      return;
    end if;
    -- Some ids were taken: the long way, which makes the jobs at its end.
    delete from treadle.job j where j.no = any(nos);
  else
    nos := treadle.numbered(i_rank, n);
    now := treadle.clock();
  end if;
  if n > 1 then
    i_owner := treadle.spread(i_owner, n); i_tenant := treadle.spread(i_tenant, n);
    i_type := treadle.spread(i_type, n); i_queue := treadle.spread(i_queue, n);
    i_lane := treadle.spread(i_lane, n); i_priority := treadle.spread(i_priority, n);
    i_attempts := treadle.spread(i_attempts, n); i_run_at := treadle.spread(i_run_at, n);
    i_delay := treadle.spread(i_delay, n); i_deadline := treadle.spread(i_deadline, n);
    i_expires := treadle.spread(i_expires, n); i_parent := treadle.spread(i_parent, n);
    i_workflow := treadle.spread(i_workflow, n); i_workflow_type := treadle.spread(i_workflow_type, n);
    i_after := treadle.spread(i_after, n); i_need := treadle.spread(i_need, n);
    i_counting := treadle.spread(i_counting, n); i_key := treadle.spread(i_key, n);
    i_scope := treadle.spread(i_scope, n); i_keep := treadle.spread(i_keep, n);
    i_keep_dead := treadle.spread(i_keep_dead, n); i_input := treadle.spread(i_input, n);
    i_options := treadle.spread(i_options, n); i_nonce := treadle.spread(i_nonce, n);
    i_lease_to := treadle.spread(i_lease_to, n); i_group_id := treadle.spread(i_group_id, n);
  end if;

  if i_key is not null then
    select * into answers from treadle.answer(now, i_skip, nos, i_nonce, i_id, i_tenant, i_type, i_key,
      i_scope, i_grp);
    now := treadle.clock();  -- it may have waited
    e_row := answers.o_row; e_id := answers.o_id; e_own := answers.o_own;
    if e_row is not null then
      i_skip := coalesce(i_skip, array_fill(false, array[n]));
      for k in 1 .. cardinality(e_row) loop
        i_skip[e_row[k]] := true;
        continue when e_own[k] or i_after is null;
        -- Whoever waits for the new id means the earlier item.
        for w in 1 .. n loop
          if i_after[w] is not null and i_owner[w] = i_owner[e_row[k]]
              and i_tenant[w] = i_tenant[e_row[k]] then
            i_after[w] := array_to_string(array_replace(
              treadle.parts(i_after[w]), i_id[e_row[k]], e_id[k]), chr(31));
            p_check := true;
          end if;
        end loop;
      end loop;
    end if;
  end if;

  for round in 1 .. 2 loop
    insert into treadle.item (no, nonce, queued, due, deadline, keep, keep_dead, grp, priority, attempts,
        need, id, tenant, type, queue, lane, group_id, parent, workflow, workflow_type, key, after, input,
        options)
      select u.no, u.nonce, now, coalesce(u.run_at, now + u.delay), coalesce(u.deadline, now + u.expires),
        u.keep, u.keep_dead, u.grp, u.priority, u.attempts, u.need, u.id, u.tenant, u.type, u.queue, u.lane,
        u.group_id, u.parent, u.workflow, u.workflow_type, u.key, treadle.parts(u.after),
        u.input, u.options
      from unnest(nos, i_skip, i_nonce, i_run_at, i_delay, i_deadline, i_expires, i_keep, i_keep_dead, i_grp,
          i_priority, i_attempts, i_need, i_id, i_tenant, i_type, i_queue, i_lane, i_group_id, i_parent,
          i_workflow, i_workflow_type, i_key, i_after, i_input, i_options)
        u(no, skip, nonce, run_at, delay, deadline, expires, keep, keep_dead, grp, priority, attempts, need,
          id, tenant, type, queue, lane, group_id, parent, workflow, workflow_type, key, after, input, options)
      where u.skip is not true
      on conflict (id, tenant) do nothing;
    get diagnostics got = row_count;
    exit when got = n or round = 2;

    -- Some were there: placeholders, which these items replace; items that an earlier try of this very
    -- call has stored; items of others.
    for old in
      select i.no, i.type is null as empty, i.nonce, u.row, u.no as new, u.nonce as mine, u.id, u.owner
      from (select no, id, tenant, type, nonce from treadle.item
            where id = any(array(select t.id from unnest(i_id, i_type) t(id, type) where t.type is not null))
              and tenant = any(i_tenant) order by id, tenant for update) i
      join unnest(nos, i_skip, i_type, i_nonce, i_id, i_tenant, i_owner) with ordinality
        u(no, skip, type, nonce, id, tenant, owner, row) on u.id = i.id and u.tenant = i.tenant
      where u.no <> i.no and u.type is not null and u.skip is not true
      order by u.no
    loop
      if old.empty and old.no <> all(emptied) then
        emptied := emptied || old.no;
        awaited := awaited || old.new;
      elsif not old.empty and old.nonce = old.mine and old.no <> all(nos) then
        i_skip := coalesce(i_skip, array_fill(false, array[n]));
        i_skip[old.row] := true;
        e_row := e_row || old.row::int; e_id := e_id || old.id; e_own := e_own || true;
      else
        taken := taken || old.id; takers := takers || old.owner;
      end if;
    end loop;
    if taken <> '{}' then
      raise exception 'duplicate_id' using errcode = 'TR001',
        detail = jsonb_build_object('owners', to_jsonb(takers), 'ids', to_jsonb(taken))::text;
    end if;
    exit when emptied = '{}';
    -- Who waits for the placeholder waits for the item from now on.
    delete from treadle.item where no = any(emptied);
    update treadle.edge e set src = m.new from unnest(emptied, awaited) m(old, new)
      where e.src = any(emptied) and e.src = m.old;
  end loop;
  if got < n then
    -- An item that stood in the way may have been deleted before it could be looked at.
    perform treadle.insist(not exists (
      select 1 from unnest(nos, i_skip, i_type) u(no, skip, type)
      where u.skip is not true and u.type is not null
        and not exists (select 1 from treadle.item i where i.no = u.no)));
  end if;

  if p_plain then
    insert into treadle.job (no, seq, due, since, deadline, grp, keep, keep_dead, status, priority, budget,
        queue, tenant, lane, type)
      select u.no, u.no, coalesce(u.run_at, now + u.delay), now, coalesce(u.deadline, now + u.expires), u.grp,
        nullif(u.keep, 86400), u.keep_dead, case when coalesce(u.run_at, now + u.delay) > now then 1 else 2 end,
        u.priority, u.attempts, u.queue, u.tenant, u.lane, u.type
      from unnest(nos, i_skip, i_run_at, i_delay, i_deadline, i_expires, i_grp, i_keep, i_keep_dead,
          i_priority, i_attempts, i_queue, i_tenant, i_lane, i_type)
        u(no, skip, run_at, delay, deadline, expires, grp, keep, keep_dead, priority, attempts, queue, tenant,
          lane, type)
      where u.skip is not true;
    select array_agg(case when coalesce(u.run_at, now + u.delay) > now then 1 else 2 end)
      into states from unnest(i_run_at, i_delay) u(run_at, delay);
  else
    select * into gates from treadle.await(nos, i_skip, i_tenant, i_after, i_counting);
    select * into states, tokens from treadle.enter(now, nos, i_skip, i_type, gates.d_no, gates.d_met,
      gates.d_open, i_run_at, i_delay, i_deadline, i_expires, i_grp, i_keep, i_keep_dead, i_priority, i_attempts,
      i_need, i_counting, i_lease_to, i_queue, i_tenant, i_lane);
    if p_check then
      perform treadle.acyclic(nos, nos, i_owner);
    elsif awaited && gates.d_no then
      perform treadle.acyclic(awaited, nos, i_owner);
    end if;
  end if;

  if e_row is not null then
    select array_agg(x.state order by k.ord), array_agg(coalesce(x.group_id, x.id) order by k.ord)
      into e_state, e_group
      from unnest(e_row, e_id) with ordinality k(row, id, ord)
      join treadle.look(array(select i_tenant[q] from unnest(e_row) q), e_id) x
        on x.id = k.id and x.tenant = i_tenant[k.row];
    perform treadle.insist(cardinality(e_state) = cardinality(e_row));
  end if;
end $$;
