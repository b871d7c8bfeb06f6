-- Put a schedule: a new or changed one as given; of one with the same spec only that its code was seen.
-- Without a next time it only says that its code was seen, and stores nothing.
create or replace function treadle.put_schedule(
  p_name text, p_next_at float8, p_last_at float8, p_paused boolean, p_spec bytea) returns setof treadle.schedule
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '5s'
as $$
#variable_conflict use_column
begin
  if p_next_at is null then
    update treadle.schedule s set seen_at = treadle.clock() where s.name = p_name and s.spec = p_spec;
  else
    insert into treadle.schedule as s (name, next_at, last_at, seen_at, paused, spec)
      values (p_name, p_next_at, p_last_at, treadle.clock(), p_paused, p_spec)
      on conflict (name) do update set
        seen_at = excluded.seen_at, spec = excluded.spec,
        next_at = case when s.spec = excluded.spec then s.next_at else excluded.next_at end,
        last_at = case when s.spec = excluded.spec then s.last_at else excluded.last_at end,
        paused = case when s.spec = excluded.spec then s.paused else excluded.paused end;
  end if;
  return query select s.* from treadle.schedule s where s.name = p_name;
end $$;

-- Fire: one occurrence of a schedule, with what it submits.
create or replace function treadle.fire(
  p_name text, p_at float8, p_next_at float8,
  i_rank int[], i_owner int[], i_id text[], i_tenant text[], i_type text[], i_queue text[], i_lane text[],
  i_priority int[], i_attempts int[], i_run_at float8[], i_delay float8[], i_deadline float8[],
  i_expires float8[], i_parent text[], i_workflow text[], i_workflow_type text[], i_after text[], i_need int[],
  i_counting smallint[], i_key text[], i_scope float8[], i_keep float8[], i_keep_dead float8[],
  i_input bytea[], i_options bytea[], i_skip boolean[], i_nonce bigint[], i_lease_to text[], i_grp bigint[],
  i_group_id text[], p_plain boolean, p_check boolean,
  out fired boolean, out now float8, out nos bigint[], out states smallint[], out tokens bigint[],
  out e_row int[], out e_id text[], out e_state smallint[], out e_group text[], out e_own boolean[])
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set lock_timeout = '2s'
as $$
#variable_conflict use_column
begin
  perform 1 from treadle.schedule s where s.name = p_name and s.next_at = p_at and not s.paused for update;
  fired := found;
  if not fired then
    -- Unless it was this very call that did, and its answer was lost.
    fired := exists (select 1 from treadle.item i
                     where i.id = i_id[1] and i.tenant = i_tenant[1] and i.nonce = i_nonce[1]);
    if not fired then
      return;
    end if;
  end if;
  if cardinality(i_id) > 0 then
    select s.now, s.nos, s.states, s.tokens, s.e_row, s.e_id, s.e_state, s.e_group, s.e_own
      into now, nos, states, tokens, e_row, e_id, e_state, e_group, e_own
      from treadle.store(i_rank, i_owner, i_id, i_tenant, i_type, i_queue, i_lane, i_priority, i_attempts,
          i_run_at, i_delay, i_deadline, i_expires, i_parent, i_workflow, i_workflow_type, i_after, i_need,
          i_counting, i_key, i_scope, i_keep, i_keep_dead, i_input, i_options, i_skip, i_nonce, i_lease_to,
          i_grp, i_group_id, p_plain, p_check) s;
  end if;
  update treadle.schedule s set last_at = p_at, next_at = p_next_at where s.name = p_name and s.next_at = p_at;
end $$;
