-- :name notify
select pg_catalog.pg_notify(:channel, :payload)

-- Checks that a silent connection is alive.
-- :name probe
select 1
