-- :name put
select 1 from treadle.put_order(:subject, :queue, :tenant, :until::float8, :body::bytea) changed where changed

-- :name withdraw
select 1 from treadle.withdraw_order(:subject) changed where changed

-- :name orders
select coalesce((select v.at::bigint from treadle.orders v where v.subject = ''), 0) as version, treadle.clock() as now,
  o.body, o.at
from (select 1) one left join treadle.orders o on o.subject <> ''
