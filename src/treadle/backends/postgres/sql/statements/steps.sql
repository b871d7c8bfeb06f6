-- :name new_steps
row(:step_owner::text::int[], :step_name::text[], :step_kind::text::smallint[], :step_value::bytea[],
  :step_took::text::float8[], :step_undo::bytea[], :step_signal::text[], :step_over::text::boolean[],
  :step_delay::text::float8[], :step_until::text::float8[])::treadle.new_steps

-- :name record
select * from treadle.record(:no::text::bigint[], :token::text::bigint[], treadle.names(:tenant), {new_steps},
  :progress_owner::text::int[], :progress::bytea[], :chunk_owner::text::int[], :chunk_number::text::int[],
  :chunk::bytea[], :wait::boolean, {new_logs})

-- :name new_logs
row(:log_owner::text::int[], :log::bytea[], :trim_logs::boolean)::treadle.new_logs

-- :name steps
select * from treadle.read_steps(treadle.find_items(:ids::text[], :tenant))

-- :name stream
select c.number, c.value, c.at from treadle.chunk c
where c.no = (treadle.find_items(array[:id::text], :tenant))[1] and c.number > :since::int
order by c.number limit :limit::int

-- :name logs
select l.value from (
  select l.* from treadle.log l where l.no = (treadle.find_items(array[:id::text], :tenant))[1]
  order by l.at desc, l.token desc limit 10) l
order by l.at, l.token

-- :name signal_values
:ids::text[], :tenant::text, :names::text[], :values::bytea[], :keys::text[], :most::int

-- :name signal
select * from treadle.signal({signal_values})

-- See `submit_in_transaction`.
-- :name signal_in_transaction
select s.* from treadle.signal_in_transaction({signal_values}, :channel::text) s
where {store_identity} = :store::text

-- With an audit entry, if a signal was stored. Its count is that of those.
-- :name noted_signal
with changed as materialized ({signal}),
counted as (select treadle.clock() as now, s.stored as count from changed s),
{noted}
select * from changed
