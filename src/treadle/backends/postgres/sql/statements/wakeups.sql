-- :name notify
select pg_notify(:channel, :payload)

-- Checks that a silent connection is alive.
-- :name probe
select 1
