-- :name add
select treadle.add_stats(:step::int[], :at::float8[], :type::text[], :queue::text[], :started::bigint[],
  :succeeded::bigint[], :failed::bigint[], :retried::bigint[], :dead::bigint[], :cancelled::bigint[],
  :lost::bigint[], :wait::text[]::numeric[], :run::text[]::numeric[])

-- :name stats
select * from treadle.read_stats(:kept::int, :since::float8, :until::float8, :type::text, :queue::text,
  :step::int, :by::text)

-- :name put_samples
select treadle.put_samples(:step::int[], :at::float8[], :queue::text[], :samples::int[], :ready::float8[],
  :running::float8[], :oldest::float8[], :estimated::boolean[])

-- :name samples
select s.step, s.at, s.queue, s.samples, s.ready, s.running, s.oldest, s.estimated from treadle.sample s
where s.step = :step::int and s.at >= :since::float8 and s.at < coalesce(:until::float8, 'infinity')
  and (:queues::text[] is null or s.queue = any(:queues::text[]))
order by s.at, s.queue
