-- Tenants that move while they are in use.

-- :name mark
SELECT owner FROM treadle_claimed_key WHERE key = ? AND tenant = ?

-- :name any_mark
SELECT 1 FROM treadle_claimed_key WHERE tenant = ?1 AND substr(key, 1, length(?2)) = ?2 LIMIT 1

-- :name set_mark
INSERT OR REPLACE INTO treadle_claimed_key (key, tenant, owner, until) VALUES (?, ?, ?, ?)

-- What would be stored of a tenant that is not here. The message is looked for in connection.translated.
-- :name fence_items
CREATE TRIGGER IF NOT EXISTS treadle_fence_items BEFORE INSERT ON treadle_item
WHEN EXISTS (SELECT 1 FROM treadle_claimed_key WHERE key = 'mark.' || new.tenant AND tenant = 'treadle.stores'
    AND json_extract(owner, '$.state') IN ('away', 'importing'))
BEGIN
    SELECT RAISE(ABORT, 'treadle: the tenant is elsewhere');
END

-- :name fence_keys
CREATE TRIGGER IF NOT EXISTS treadle_fence_keys BEFORE INSERT ON treadle_claimed_key
WHEN EXISTS (SELECT 1 FROM treadle_claimed_key WHERE key = 'mark.' || new.tenant AND tenant = 'treadle.stores'
    AND json_extract(owner, '$.state') IN ('away', 'importing'))
BEGIN
    SELECT RAISE(ABORT, 'treadle: the tenant is elsewhere');
END

-- :name create_arriving
-- number: of what was copied before the freeze; NULL for the rest.
CREATE TABLE IF NOT EXISTS treadle_arriving (
    no INTEGER PRIMARY KEY, tenant TEXT NOT NULL, number INTEGER, data BLOB NOT NULL
)

-- :name create_arriving_number
CREATE INDEX IF NOT EXISTS treadle_arriving_number ON treadle_arriving (tenant, number)

-- :name drop_arriving
DELETE FROM treadle_arriving WHERE tenant = ?

-- :name drop_arriving_last
DELETE FROM treadle_arriving WHERE tenant = ? AND number IS NULL

-- :name staged
SELECT data FROM treadle_arriving WHERE tenant = ? ORDER BY no

-- :name in_the_way
SELECT CASE
    WHEN EXISTS (SELECT 1 FROM treadle_item WHERE tenant = ?1) OR EXISTS (SELECT 1 FROM treadle_group WHERE tenant = ?1)
        THEN 'items'
    WHEN EXISTS (SELECT 1 FROM treadle_claimed_key WHERE tenant = ?1) THEN 'claimed keys'
    END

-- -- a tenant leaves ---------------------------------------------------------------------------------------

-- :name next_items
SELECT no FROM treadle_item WHERE tenant = ? ORDER BY no LIMIT ?

-- :name delete_lease_permits
DELETE FROM treadle_lease_permit WHERE no IN (SELECT value FROM json_each(?))

-- :name delete_groups
DELETE FROM treadle_group WHERE tenant = ?

-- :name delete_missing
DELETE FROM treadle_missing WHERE tenant = ?

-- :name delete_keys
DELETE FROM treadle_claimed_key WHERE tenant = ?

-- -- a tenant comes ----------------------------------------------------------------------------------------

-- :name token_in_use
SELECT 1 FROM treadle_open WHERE token = ? LIMIT 1

-- A worker that is known here keeps what it has said here.
-- :name add_worker
INSERT INTO treadle_worker (id, lease_until, lease, types, info, release)
SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE NOT EXISTS (SELECT 1 FROM treadle_worker WHERE id = ?1 AND removed = 0)

-- :name lease
UPDATE treadle_open SET status = 4, token = ?,
    worker = (SELECT no FROM treadle_worker AS w WHERE w.id = ? AND w.removed = 0),
    begun = ?, began = ?, records = records | ?
WHERE no = ?
