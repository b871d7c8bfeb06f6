-- :name known
SELECT body FROM treadle_orders WHERE subject = ? AND (until IS NULL OR until > ?)

-- :name put
INSERT OR REPLACE INTO treadle_orders (subject, queue, tenant, until, at, body) VALUES (?, ?, ?, ?, ?, ?)

-- :name withdraw
DELETE FROM treadle_orders WHERE subject = ?

-- :name version
SELECT orders FROM treadle_counter WHERE one = 1

-- :name set_version
UPDATE treadle_counter SET orders = ? WHERE one = 1

-- :name orders
SELECT body, at FROM treadle_orders

-- :name paused
SELECT queue, tenant FROM treadle_orders WHERE queue IS NOT NULL AND (until IS NULL OR until > ?)

-- :name delete_ended
DELETE FROM treadle_orders WHERE until <= ?
