-- :name beat
select b.* from {unflushed} treadle.beat(
  :worker, :lease, :types::text[], :keep_types, :no::bigint[], :token::bigint[], :tenant::text[],
  :info::bytea, :release) b

-- :name renew
select r.known from {unflushed} treadle.renew(:worker, :lease, :info::bytea) r(known)

-- :name drain
update treadle.worker set drain = true where id = :worker and not gone returning id

-- :name begin
select * from treadle.begin_attempts(:no::bigint[], :token::bigint[], :tenant::text[])

-- :name remove_worker
select treadle.remove_worker(:worker)

-- :name unknown_leases
select * from treadle.unknown_leases(:worker, :known::bigint[])

-- :name workers
select w.id, w.until, w.types,
  (select pg_catalog.count(*) from treadle.open_item o where o.worker = w.no and o.status = 5 and o.verdict is null),
  w.info
from treadle.worker w where not w.gone order by w.id
