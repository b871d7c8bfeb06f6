-- :name notify
select pg_catalog.pg_notify(:channel, :payload)

-- :name notify_all
select pg_catalog.pg_notify(:channel, p.payload) from pg_catalog.unnest(:payloads::text[]) p(payload)

-- Checks that a silent connection is alive.
-- :name probe
select 1
