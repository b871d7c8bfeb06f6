-- :name settle
select {answer}
{settled}) s

-- :name suspend
select s.ready_row, {answer}
{settled}, {new_steps}) s

-- :name logged
select s.ready_row, {answer}
{settled}, {new_steps}, {new_logs}) s

-- :name answer
s.settled_at, s.ended_row, s.ended_group, s.moved_row, s.moved_version, s.moved_value, s.moved_final,
  s.contributed_row, s.lost_row, s.lost_code, s.silent_row, s.existing_row, s.existing_id, (s.effects).*

-- :name settled
from treadle.settle(
  row(:no::text::bigint[], :token::text::bigint[], treadle.names(:lease_tenant), :kind::text::smallint[],
    :flags::text::smallint[], :reason::text::smallint[], :result::bytea[], :return_at::text::float8[],
    :return_delay::text::float8[], :version::text::bigint[], :group_index::text::int[], :value::bytea[],
    :failed_row::text::int[], :error_type::bytea[], :error_message::bytea[], :traceback::bytea[],
    :ran::text::float8[]
  )::treadle.settlements,
  row({item_columns}, null, null, null, treadle.names(:group_id), null, :contributes::text::boolean[],
    :closes::text::boolean[], {policy_columns})::treadle.new_items,
  :folds::boolean, :returns::boolean, :plain::boolean, :cycles::boolean, :marks::text[]

-- :name unlocked_items
select treadle.unlocked_items(:nos::bigint[])
