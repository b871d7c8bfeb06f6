-- Submit as a part of the user's own transaction. Refusals are answered, not raised: an error would undo
-- what the user did before. The wake is sent when that transaction commits, if it does.
create or replace function treadle.submit_within(
  i_rank int[], i_owner int[], i_id text[], i_tenant text[], i_type text[], i_queue text[], i_lane text[],
  i_priority int[], i_attempts int[], i_run_at float8[], i_delay float8[], i_deadline float8[],
  i_expires float8[], i_parent text[], i_workflow text[], i_workflow_type text[], i_after text[], i_need int[],
  i_counting smallint[], i_key text[], i_scope float8[], i_keep float8[], i_keep_dead float8[],
  i_input bytea[], i_options bytea[], i_skip boolean[], i_nonce bigint[], i_lease_to text[], i_grp bigint[],
  i_group_id text[], p_plain boolean, p_check boolean, p_channel text,
  out refused text, out detail text, out now float8, out nos bigint[], out states smallint[], out tokens bigint[],
  out e_row int[], out e_id text[], out e_state smallint[], out e_group text[], out e_own boolean[])
language plpgsql
as $$
#variable_conflict use_column
begin
  for try in 1 .. 5 loop
    begin
      select s.now, s.nos, s.states, s.tokens, s.e_row, s.e_id, s.e_state, s.e_group, s.e_own
        into now, nos, states, tokens, e_row, e_id, e_state, e_group, e_own
        from treadle.store(i_rank, i_owner, i_id, i_tenant, i_type, i_queue, i_lane, i_priority, i_attempts,
          i_run_at, i_delay, i_deadline, i_expires, i_parent, i_workflow, i_workflow_type, i_after, i_need,
          i_counting, i_key, i_scope, i_keep, i_keep_dead, i_input, i_options, i_skip, i_nonce, i_lease_to,
          i_grp, i_group_id, p_plain, p_check) s;
      if p_channel is not null then
        perform pg_notify(p_channel, '{"ready":true}');
      end if;
      return;
    exception
      when sqlstate 'TR001' or sqlstate 'TR002' then
        get stacked diagnostics refused = returned_sqlstate, detail = pg_exception_detail;
        return;
      when lock_not_available or serialization_failure then
        if try = 5 then
          raise;
        end if;
    end;
  end loop;
end $$;
