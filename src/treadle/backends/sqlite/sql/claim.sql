-- What a claim has to know before it begins, in one step: the columns of fairness.ClaimFacts. A line is the queue, the
-- tenant and the lane of ready items. If the first row of the claim index is in the same line as the last row, there is
-- no other line.
-- :name facts
SELECT w.no, w.lock_file,
       EXISTS (SELECT 1 FROM treadle_worker WHERE removed = 1 OR lease_until <= ?1 OR lease_until > ?2 + 2 * lease),
       (SELECT due FROM treadle_open INDEXED BY treadle_open_scheduled WHERE status = 1 ORDER BY due LIMIT 1),
       (SELECT deadline FROM treadle_open INDEXED BY treadle_open_deadline
           WHERE deadline IS NOT NULL AND status >= 0 AND status < 4 ORDER BY deadline LIMIT 1),
       EXISTS (SELECT 1 FROM treadle_orders WHERE queue IS NOT NULL),
       EXISTS (SELECT 1 FROM treadle_open INDEXED BY treadle_open_parked WHERE status = 3),
       EXISTS (SELECT 1 FROM treadle_open INDEXED BY treadle_open_doomed WHERE status < 0),
       (SELECT queue || char(0) || tenant || char(0) || lane FROM treadle_open INDEXED BY treadle_open_ready
           WHERE status = 2 ORDER BY queue, tenant, lane LIMIT 1),
       (SELECT queue || char(0) || tenant || char(0) || lane FROM treadle_open INDEXED BY treadle_open_ready
           WHERE status = 2 ORDER BY queue DESC, tenant DESC, lane DESC LIMIT 1),
       c.token, c.orders
FROM treadle_counter AS c LEFT JOIN treadle_worker AS w ON w.id = ?3 AND w.removed = 0 WHERE c.one = 1

-- :name take_tokens
UPDATE treadle_counter SET token = ? WHERE one = 1

-- Tokens are assigned in the order of the list.
-- :name lease
UPDATE treadle_open SET status = 4, attempt = attempt + (losses = 0), begun = (losses = 0), token = ? + e.key,
    worker = ?, started = ?, records = (records & 5) + (records & 2) * 4
FROM json_each(?) AS e WHERE treadle_open.no = e.value

-- The attempts of buffered types begin later.
-- :name lease_buffered
UPDATE treadle_open SET begun = 0, attempt = attempt - 1
WHERE no IN (SELECT value FROM json_each(?)) AND begun = 1 AND type IN (SELECT value FROM json_each(?))

-- :name hold_lanes
UPDATE treadle_open SET holds_lane = 1
WHERE no IN (SELECT value FROM json_each(?)) AND type IN (SELECT value FROM json_each(?))

-- While a doomed item is leased, its status is 4 minus what it was. The attempt is not counted, nor a start.
-- :name lease_doomed
UPDATE treadle_open SET status = 4 - status, begun = 1, token = ? + e.key, worker = ?
FROM json_each(?) AS e WHERE treadle_open.no = e.value

-- :name due
SELECT no FROM treadle_open INDEXED BY treadle_open_scheduled WHERE status = 1 AND due <= ?
ORDER BY due LIMIT ?

-- An item that becomes due goes to the end of its lane, unless it has kept its place.
-- :name make_ready
UPDATE treadle_open SET status = 2, ready_since = due, seq = CASE seq WHEN 0 THEN ? + e.key ELSE seq END
FROM json_each(?) AS e WHERE treadle_open.no = e.value

-- :name next_due
SELECT due, queue, tenant FROM treadle_open INDEXED BY treadle_open_scheduled WHERE status = 1
ORDER BY due LIMIT ?

-- :name overdue
SELECT no FROM treadle_open INDEXED BY treadle_open_deadline
WHERE deadline IS NOT NULL AND status >= 0 AND status < 4 AND deadline <= ? ORDER BY deadline LIMIT ?

-- A parked item is ready. Doomed, ready is -3, scheduled -2, blocked -1.
-- :name doom
UPDATE treadle_open SET status = -1 - min(status, 2), verdict = ?
WHERE no IN (SELECT value FROM json_each(?)) AND status >= 0 AND status < 4

-- :name next_doomed_type
SELECT type FROM treadle_open INDEXED BY treadle_open_doomed WHERE status < 0 AND type >= ? ORDER BY type LIMIT 1

-- :name doomed
SELECT no FROM treadle_open INDEXED BY treadle_open_doomed WHERE status < 0 AND type = ?
LIMIT ?

-- :name doomed_in_queue
SELECT no FROM treadle_open INDEXED BY treadle_open_doomed
WHERE status < 0 AND type = ? AND queue = ? LIMIT ?

-- :name doomed_in_tenant
SELECT no FROM treadle_open INDEXED BY treadle_open_doomed
WHERE status < 0 AND type = ? AND queue = ? AND tenant = ? LIMIT ?

-- :name next_doomed_queue
SELECT queue FROM treadle_open INDEXED BY treadle_open_doomed
WHERE status < 0 AND type = ? AND queue >= ? ORDER BY queue LIMIT 1

-- :name unknown_types
SELECT type, since FROM treadle_unknown_type

-- :name next_ready_type
SELECT type FROM treadle_open INDEXED BY treadle_open_type
WHERE status >= 2 AND status < 4 AND type >= ? ORDER BY type LIMIT 1

-- :name ready_too_long
SELECT no FROM treadle_open INDEXED BY treadle_open_type
WHERE status >= 2 AND status < 4 AND type = ? AND ready_since < ? ORDER BY ready_since LIMIT ?
