-- Tenants are those from a least to a greatest name: a blob is greater than every text.

-- :name open_numbers
SELECT (SELECT min(no) FROM treadle_open), (SELECT max(no) FROM treadle_open)

-- :name open
SELECT queue, status, tenant, type, count(*) FROM treadle_open NOT INDEXED
WHERE no >= ? AND no <= ? AND tenant >= ? AND tenant <= ? GROUP BY 1, 2, 3, 4

-- :name dead_numbers
SELECT (SELECT min(no) FROM treadle_dead), (SELECT max(no) FROM treadle_dead)

-- :name dead
SELECT queue, 11, tenant, type, count(*) FROM treadle_dead NOT INDEXED
WHERE no >= ? AND no <= ? AND tenant >= ? AND tenant <= ? GROUP BY 1, 3, 4

-- Items that are blocked, scheduled or doomed, by their status. The index is in the order of the groups, so nothing is
-- sorted.

-- :name next_waiting_queue
SELECT queue FROM treadle_open INDEXED BY treadle_open_waiting
WHERE status = ? AND status < 2 AND queue >= ? ORDER BY queue LIMIT 1

-- The first kind of which not all items are counted. `_before`: those in front of it.
-- :name waiting_bound
SELECT tenant, type FROM treadle_open INDEXED BY treadle_open_waiting
WHERE status = ? AND status < 2 AND queue = ? AND tenant >= ? AND tenant <= ? ORDER BY tenant, type LIMIT 1 OFFSET ?

-- :name waiting
SELECT tenant, type, count(*) FROM treadle_open INDEXED BY treadle_open_waiting
WHERE status = ? AND status < 2 AND queue = ? AND tenant >= ? AND tenant <= ? GROUP BY tenant, type

-- :name waiting_before
SELECT tenant, type, count(*) FROM treadle_open INDEXED BY treadle_open_waiting
WHERE status = ?1 AND status < 2 AND queue = ?2 AND tenant >= ?3 AND tenant < ?5 GROUP BY tenant, type
UNION ALL
SELECT tenant, type, count(*) FROM treadle_open INDEXED BY treadle_open_waiting
WHERE status = ?1 AND status < 2 AND queue = ?2 AND tenant = ?5 AND type < ?6 GROUP BY type

-- :name next_dead_queue
SELECT queue FROM treadle_dead INDEXED BY treadle_dead_queue WHERE queue >= ? ORDER BY queue LIMIT 1

-- :name first_dead_bound
SELECT tenant, type FROM treadle_dead INDEXED BY treadle_dead_queue
WHERE queue = ? AND tenant >= ? AND tenant <= ? ORDER BY tenant, type LIMIT 1 OFFSET ?

-- :name first_dead
SELECT tenant, type, count(*) FROM treadle_dead INDEXED BY treadle_dead_queue
WHERE queue = ? AND tenant >= ? AND tenant <= ? GROUP BY tenant, type

-- :name first_dead_before
SELECT tenant, type, count(*) FROM treadle_dead INDEXED BY treadle_dead_queue
WHERE queue = ?1 AND tenant >= ?2 AND tenant < ?4 GROUP BY tenant, type
UNION ALL
SELECT tenant, type, count(*) FROM treadle_dead INDEXED BY treadle_dead_queue
WHERE queue = ?1 AND tenant = ?4 AND type < ?5 GROUP BY type

-- :name ready
SELECT tenant, type, count(*) FROM
    (SELECT tenant, type FROM treadle_open INDEXED BY treadle_open_ready
        WHERE status = 2 AND queue = ? AND tenant >= ? AND tenant <= ? LIMIT ?)
GROUP BY tenant, type

-- :name parked_bound
SELECT tenant, type FROM treadle_open INDEXED BY treadle_open_parked
WHERE status = 3 AND type = ? AND queue = ? AND tenant >= ? AND tenant <= ? ORDER BY tenant LIMIT 1 OFFSET ?

-- :name parked
SELECT tenant, type, count(*) FROM treadle_open INDEXED BY treadle_open_parked
WHERE status = 3 AND type = ? AND queue = ? AND tenant >= ? AND tenant <= ? GROUP BY tenant

-- :name parked_before
SELECT tenant, type, count(*) FROM treadle_open INDEXED BY treadle_open_parked
WHERE status = 3 AND type = ?1 AND queue = ?2 AND tenant >= ?3 AND tenant < ?5 AND type <= ?6
GROUP BY tenant

-- Running items, and doomed ones that are leased with their verdicts.
-- :name leased
SELECT queue, tenant, type, status FROM treadle_open INDEXED BY treadle_open_worker WHERE worker IS NOT NULL LIMIT ?

-- :name next_ready_type
SELECT type FROM treadle_open INDEXED BY treadle_open_type
WHERE status >= 2 AND status < 4 AND type >= ? ORDER BY type LIMIT 1

-- :name ready_of_type
SELECT count(*) FROM (SELECT 1 FROM treadle_open INDEXED BY treadle_open_type
    WHERE status >= 2 AND status < 4 AND type = ? LIMIT ?)
