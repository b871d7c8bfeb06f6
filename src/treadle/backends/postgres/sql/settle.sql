-- Settle: each settlement whose token still owns its item, all of it or none of it.
--
-- Several statements, each with a snapshot of its own: what commits while one of them waits for a lock is
-- seen by the next. Locks, in this order: the items themselves (nobody else settles them, so nobody waits
-- for another here), the gates that wait for them by number, the groups by number, then what `store` locks.
-- Gates that can no longer be met are not settled here: the next claim hands them out.
--
-- Only a user's own transaction holds one of these for long (with `submit(tx=)` and `after`). The caller then
-- settles the others without the one that is held.
--
-- s_flags  1 contributes  2 as the final value  4 a value of its own, not the result  8 needs a group row
-- Refused children raise (see `store`); the caller leaves that settlement out and calls again.
create or replace function treadle.settle(
  s_no bigint[], s_token bigint[], s_tenant text[], s_kind smallint[], s_flags smallint[], s_reason smallint[],
  s_result bytea[], s_run_at float8[], s_delay float8[], s_version int[], s_group int[],
  s_value bytea[], f_row int[], f_type bytea[], f_message bytea[], f_trace bytea[], p_folds boolean, p_returns boolean,
  i_rank int[], i_owner int[], i_id text[], i_tenant text[], i_type text[], i_queue text[], i_lane text[],
  i_priority int[], i_attempts int[], i_run_at float8[], i_delay float8[], i_deadline float8[],
  i_expires float8[], i_parent text[], i_workflow text[], i_workflow_type text[], i_after text[], i_need int[],
  i_counting smallint[], i_key text[], i_scope float8[], i_keep float8[], i_keep_dead float8[],
  i_input bytea[], i_options bytea[], i_group_id text[], p_plain boolean, p_check boolean,
  out x_row int[], out x_grp bigint[], out y_row int[],
  out m_row int[], out m_version int[], out m_value bytea[], out m_final boolean[],
  out v_row int[], out v_version int[],
  out l_row int[], out l_loss smallint[],
  out e_row int[], out e_id text[],
  out r_id text[], out r_tenant text[], out r_type text[], out r_group text[], out r_queue text[],
  out r_parent text[], out r_after text[],
  out c_id text[], out c_tenant text[], out c_type text[], out c_value bytea[],
  out doomed int)
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan set lock_timeout = '500ms'
as $$
#variable_conflict use_column
declare
  n int := cardinality(s_no); m int;
  ts float8; x_no bigint[]; x_kind smallint[]; x_flags smallint[]; x_keep float8[]; x_attempt int[];
  x_worker text[]; y_no bigint[]; y_attempt int[]; y_worker text[]; own bigint[];
  gates bigint[]; released bigint[]; groups bigint[]; stored record;
  i_skip boolean[]; i_grp bigint[];
begin
  if n > 1 then
    s_result := treadle.spread(s_result, n);
    s_run_at := treadle.spread(s_run_at, n); s_delay := treadle.spread(s_delay, n);
    s_version := treadle.spread(s_version, n); s_group := treadle.spread(s_group, n);
    s_value := treadle.spread(s_value, n);
    if p_folds or p_returns then
      s_tenant := treadle.spread(s_tenant, n); s_kind := treadle.spread(s_kind, n);
      s_flags := treadle.spread(s_flags, n);
    end if;
  end if;
  if i_id is not null then
    m := cardinality(i_id);
    i_owner := treadle.spread(i_owner, m); i_type := treadle.spread(i_type, m);
    i_keep := treadle.spread(i_keep, m); i_keep_dead := treadle.spread(i_keep_dead, m);
  end if;
  if p_folds then
    select f.m_row, f.m_version, f.m_value, f.m_final into m_row, m_version, m_value, m_final
      from treadle.fold(s_no, s_token, s_tenant, s_flags, s_version, s_group, s_result, s_value) f;
    if m_row is not null then
      for k in 1 .. cardinality(m_row) loop
        s_no[m_row[k]] := 0;  -- nobody's number
      end loop;
    end if;
  end if;
  ts := treadle.clock();

  select f.x_row, f.x_no, f.x_grp, f.x_kind, f.x_flags, f.x_keep, f.x_attempt, f.x_worker
    into x_row, x_no, x_grp, x_kind, x_flags, x_keep, x_attempt, x_worker
    from treadle.finish(ts, s_no, s_token, s_tenant, s_kind, s_flags, s_reason, s_result,
      p_returns or f_row is not null or i_id is not null) f;

  if p_returns then
    with returned as (
      update treadle.job j set
          status = case when j.verdict is not null then 4
                        when coalesce(u.run_at, ts + u.delay) > ts then 1 else 2 end,
          -- What is released keeps its place, also if it is due later: see `refresh`.
          seq = case when u.kind <> 3 then nextval('treadle.number')
                     when j.verdict is null and coalesce(u.run_at, ts + u.delay) > ts then -j.seq
                     else j.seq end,
          attempt = j.attempt - case when u.kind = 1 or j.verdict is not null then 0 else 1 end,
          due = case when j.verdict is not null or u.kind = 3 and u.run_at is null and u.delay = 0 then j.due
                     else coalesce(u.run_at, ts + u.delay) end,
          since = ts, losses = 0,
          last = j.token, token = null, worker = null
        from unnest(s_no, s_token, s_tenant, s_kind, s_run_at, s_delay) with ordinality
            u(no, token, tenant, kind, run_at, delay, row),
          (select no, id from treadle.worker) w
        where j.no = any(s_no) and j.no = u.no and not (j.token <> u.token or j.tenant <> u.tenant)
          and j.status = 5 and u.kind < 6
          and w.no = j.worker
        returning u.row, j.no, j.attempt + case when u.kind = 1 then 0 else 1 end as attempt, w.id
    )
    select array_agg(r.row::int), array_agg(r.no), array_agg(r.attempt), array_agg(r.id)
      into y_row, y_no, y_attempt, y_worker from returned r;
  end if;

  if f_row is not null then
    perform treadle.record(ts, f_row, f_type, f_message, f_trace, s_token,
      x_row || y_row, x_no || y_no, x_attempt || y_attempt, x_worker || y_worker);
  end if;

  if coalesce(cardinality(x_row), 0) + coalesce(cardinality(y_row), 0) + coalesce(cardinality(m_row), 0)
      < cardinality(s_no) then
    select array_agg(l.place), array_agg(l.loss) into l_row, l_loss
      from treadle.lost(s_no, s_token, treadle.spread(s_tenant, n)) l
      where l.place <> all(coalesce(x_row, '{}') || coalesce(y_row, '{}') || coalesce(m_row, '{}'));
  end if;
  if x_row is null then
    return;
  end if;

  -- The gates that wait for them.
  select array_agg(e.dst) into gates from treadle.edge e where e.src = any(x_no);
  if gates is not null then
    select g.released, g.doomed into released, doomed from treadle.count(ts, gates, x_no, x_kind) g;
    if released is not null then
      select array_agg(i.id), array_agg(i.tenant), array_agg(i.type), array_agg(coalesce(i.group_id, i.id)),
             array_agg(i.queue), array_agg(i.parent), array_agg(array_to_string(i.after, chr(31)))
        into r_id, r_tenant, r_type, r_group, r_queue, r_parent, r_after
        from treadle.item i where i.no = any(released);
    end if;
  end if;

  -- Their groups, and their children. A lone item has no row there, and needs none.
  select array_agg(distinct x.grp) into groups from unnest(x_grp) x(grp) where x.grp is not null;
  if groups is not null then
    perform 1 from treadle.grp g where g.no = any(groups) order by g.no for no key update;
  end if;
  if i_id is not null then
    select array_agg(x.no is null and u.owner > 0 order by u.row), array_agg(coalesce(x.grp, x.no) order by u.row)
      into i_skip, i_grp
      from unnest(i_owner) with ordinality u(owner, row)
      left join unnest(x_row, x_no, x_grp) x(row, no, grp) on x.row = u.owner;
    select * into stored from treadle.store(i_rank, i_owner, i_id, i_tenant, i_type, i_queue, i_lane,
      i_priority, i_attempts, i_run_at, i_delay, i_deadline, i_expires, i_parent, i_workflow, i_workflow_type,
      i_after, i_need, i_counting, i_key, i_scope, i_keep, i_keep_dead, i_input, i_options, i_skip, null, null,
      i_grp, i_group_id, p_plain, p_check);
    e_row := stored.e_row; e_id := stored.e_id;
    if e_row is not null then
      for k in 1 .. cardinality(e_row) loop
        i_skip[e_row[k]] := true;
      end loop;
    end if;
  end if;
  if groups is not null or exists (select 1 from unnest(x_flags) f(flags) where f.flags & 8 <> 0) then
    select t.v_row, t.v_version, t.c_id, t.c_tenant, t.c_type, t.c_value
      into v_row, v_version, c_id, c_tenant, c_type, c_value
      from treadle.tally(ts, groups, x_row, x_no, x_grp, x_kind, x_flags, x_keep, s_result, s_value,
        i_type, i_skip, i_grp, i_keep, i_keep_dead) t;
    -- Those that have a row in grp are not lone any more.
    select array_agg(case when x.flags & 8 <> 0 then coalesce(x.grp, x.no) else x.grp end)
      into x_grp from unnest(x_grp, x_no, x_flags) x(grp, no, flags);
  end if;
end $$;

-- Of these items: those that nobody holds. For a moment's look only.
create or replace function treadle.free_items(p_nos bigint[]) returns bigint[]
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off
as $$
begin
  return array(select j.no from treadle.job j where j.no = any(p_nos) for update skip locked);
end $$;
