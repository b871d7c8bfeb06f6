-- :name notify
select pg_notify(:channel, :payload)
