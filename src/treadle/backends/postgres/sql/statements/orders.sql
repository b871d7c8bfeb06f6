-- :name put
select 1 from treadle.put_order(:subject, :queue, :tenant, :until::float8, :body::bytea) changed where changed

-- :name withdraw
select 1 from treadle.withdraw_order(:subject) changed where changed

-- :name orders
select m.value::bigint as version, treadle.clock() as now, o.body, o.at
from treadle.meta m left join treadle.orders o on true where m.name = 'orders'
