-- New items that are alike but for their ids and inputs, as almost all are, and that wait for nobody.
-- Those whose ids are taken are left out; `added` says how many are not.
create or replace function treadle.add(
  i_rank int[], i_id text[], i_nonce bigint[], i_grp bigint[], i_input bytea[], i_skip boolean[],
  p_tenant text, p_type text, p_queue text, p_lane text, p_priority int, p_attempts int, p_run_at float8,
  p_delay float8, p_deadline float8, p_expires float8, p_parent text, p_workflow text, p_workflow_type text,
  p_need int, p_keep float8, p_keep_dead float8, p_options bytea, p_group_id text,
  out now float8, out nos bigint[], out state smallint, out added int)
language plpgsql set lock_timeout = '200ms'
as $$
#variable_conflict use_column
declare
  n constant int := cardinality(i_id);
  due float8; until float8;
begin
  nos := treadle.numbered(i_rank, n);
  now := treadle.clock();
  due := coalesce(p_run_at, now + p_delay);
  until := coalesce(p_deadline, now + p_expires);
  state := case when due > now then 1 else 2 end;
  with stored as (
    insert into treadle.item (no, nonce, queued, due, deadline, keep, keep_dead, grp, priority, attempts, need,
        id, tenant, type, queue, lane, group_id, parent, workflow, workflow_type, input, options)
      select u.no, u.nonce, now, due, until, p_keep, p_keep_dead, u.grp, p_priority, p_attempts, p_need,
        u.id, p_tenant, p_type, p_queue, p_lane, p_group_id, p_parent, p_workflow, p_workflow_type, u.input,
        p_options
      from unnest(nos, treadle.spread(i_nonce, n), i_grp, i_id, treadle.spread(i_input, n), i_skip)
        u(no, nonce, grp, id, input, skip)
      where u.skip is not true
      on conflict (id, tenant) do nothing
      returning no, grp
  )
  insert into treadle.job (no, seq, due, since, deadline, grp, keep, keep_dead, status, priority, budget,
      queue, tenant, lane, type)
    select s.no, s.no, due, now, until, s.grp, nullif(p_keep, 86400), p_keep_dead, state, p_priority, p_attempts,
      p_queue, p_tenant, p_lane, p_type
    from stored s;
  get diagnostics added = row_count;
end $$;

-- Numbers in the order of submission, which need not be the order of the rows.
create or replace function treadle.numbered(p_rank int[], p_rows int) returns bigint[]
language plpgsql as $$
begin
  if p_rows = 1 then
    return array[nextval('treadle.number')];
  elsif p_rank is null then
    return array(select nextval('treadle.number') from generate_series(1, p_rows));
  end if;
  return array(
    select x.no from (
      select nextval('treadle.number') as no, o.row from (
        select u.row from unnest(p_rank) with ordinality u(rank, row) order by u.rank) o) x
    order by x.row);
end $$;
