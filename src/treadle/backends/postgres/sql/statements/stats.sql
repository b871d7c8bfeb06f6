-- :name add
select treadle.add_stats(:step::int[], :at::float8[], :type::text[], :queue::text[], :started::bigint[],
  :succeeded::bigint[], :failed::bigint[], :retried::bigint[], :dead::bigint[], :cancelled::bigint[],
  :wait::text[]::numeric[], :run::text[]::numeric[])

-- :name stats
select * from treadle.read_stats(:kept::int, :since::float8, :until::float8, :type::text, :queue::text,
  :step::int, :by::text)
