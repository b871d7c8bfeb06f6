-- The walk through the turns reads the claim index from name to name: each of these is one step in it.

-- :name ready_queue
SELECT queue FROM treadle_job INDEXED BY treadle_job_ready
WHERE status = 2 AND queue >= ? ORDER BY queue LIMIT 1

-- :name ready_tenant
SELECT tenant FROM treadle_job INDEXED BY treadle_job_ready
WHERE status = 2 AND queue = ? AND tenant >= ? ORDER BY tenant LIMIT 1

-- A lane and its first row in one step.
-- :name ready_lane
SELECT lane, no, rank, seq, type, deadline FROM treadle_job INDEXED BY treadle_job_ready
WHERE status = 2 AND queue = ? AND tenant = ? AND lane >= ? ORDER BY lane, rank, seq LIMIT 1

-- :name ready_rows
SELECT no, rank, seq, type, deadline FROM treadle_job INDEXED BY treadle_job_ready
WHERE status = 2 AND queue = ? AND tenant = ? AND lane = ? AND (rank, seq) > (?, ?)
ORDER BY rank, seq LIMIT ?

-- :name parked_queue
SELECT queue FROM treadle_job INDEXED BY treadle_job_parked
WHERE status = 3 AND type = ? AND queue >= ? ORDER BY queue LIMIT 1

-- :name parked_tenant
SELECT tenant FROM treadle_job INDEXED BY treadle_job_parked
WHERE status = 3 AND type = ? AND queue = ? AND tenant >= ? ORDER BY tenant LIMIT 1

-- A lane and its first row in one step.
-- :name parked_lane
SELECT lane, no, rank, seq, type, deadline FROM treadle_job INDEXED BY treadle_job_parked
WHERE status = 3 AND type = ? AND queue = ? AND tenant = ? AND lane >= ? ORDER BY lane, rank, seq LIMIT 1

-- :name parked_rows
SELECT no, rank, seq, type, deadline FROM treadle_job INDEXED BY treadle_job_parked
WHERE status = 3 AND type = ? AND queue = ? AND tenant = ? AND lane = ? AND (rank, seq) > (?, ?)
ORDER BY rank, seq LIMIT ?

-- :name next_parked_type
SELECT type FROM treadle_job INDEXED BY treadle_job_parked
WHERE status = 3 AND type >= ? ORDER BY type LIMIT 1

-- :name parked_types_of
SELECT e.value FROM json_each(?) AS e
WHERE EXISTS (SELECT 1 FROM treadle_job INDEXED BY treadle_job_parked WHERE status = 3 AND type = e.value)

-- :name park
UPDATE treadle_job SET status = 3 WHERE no IN (SELECT value FROM json_each(?))

-- The tokens are given in the order of the list.
-- :name hand_out
UPDATE treadle_job SET status = 4, attempt = attempt + 1, token = ? + e.key, worker = ?, started = ?
FROM json_each(?) AS e WHERE treadle_job.no = e.value

-- Doomed: leased, its status is 4 minus what it was. The attempt is not counted, and it was not started.
-- :name hand_out_doomed
UPDATE treadle_job SET status = 4 - status, token = ? + e.key, worker = ?
FROM json_each(?) AS e WHERE treadle_job.no = e.value

-- What becomes due goes to the end of its line, unless it has kept its place.
-- :name due
SELECT no FROM treadle_job INDEXED BY treadle_job_scheduled WHERE status = 1 AND due <= ?
ORDER BY due LIMIT ?

-- :name promote
UPDATE treadle_job SET status = 2, since = ?, seq = CASE seq WHEN 0 THEN ? + e.key ELSE seq END
FROM json_each(?) AS e WHERE treadle_job.no = e.value

-- :name next_due
SELECT due, queue, tenant FROM treadle_job INDEXED BY treadle_job_scheduled WHERE status = 1
ORDER BY due LIMIT ?

-- :name overdue
SELECT no FROM treadle_job INDEXED BY treadle_job_deadline
WHERE deadline IS NOT NULL AND status >= 0 AND status < 4 AND deadline <= ? ORDER BY deadline LIMIT ?

-- Parked is ready; ready is -3, scheduled -2, blocked -1.
-- :name doom
UPDATE treadle_job SET status = -1 - min(status, 2), verdict = ?
WHERE no IN (SELECT value FROM json_each(?)) AND status >= 0 AND status < 4

-- :name next_doomed_type
SELECT type FROM treadle_job INDEXED BY treadle_job_doomed WHERE status < 0 AND type >= ? ORDER BY type LIMIT 1

-- :name doomed
SELECT no FROM treadle_job INDEXED BY treadle_job_doomed WHERE status < 0 AND type = ?
LIMIT ?

-- :name doomed_in_queue
SELECT no FROM treadle_job INDEXED BY treadle_job_doomed
WHERE status < 0 AND type = ? AND queue = ? LIMIT ?

-- :name doomed_in_tenant
SELECT no FROM treadle_job INDEXED BY treadle_job_doomed
WHERE status < 0 AND type = ? AND queue = ? AND tenant = ? LIMIT ?

-- :name next_doomed_queue
SELECT queue FROM treadle_job INDEXED BY treadle_job_doomed
WHERE status < 0 AND type = ? AND queue >= ? ORDER BY queue LIMIT 1

-- :name forgotten
SELECT type, since FROM treadle_forgotten

-- :name next_waiting_type
SELECT type FROM treadle_job INDEXED BY treadle_job_waiting
WHERE status >= 2 AND status < 4 AND type >= ? ORDER BY type LIMIT 1

-- :name waited
SELECT no FROM treadle_job INDEXED BY treadle_job_waiting
WHERE status >= 2 AND status < 4 AND type = ? AND since < ? ORDER BY since LIMIT ?

-- :name paused
SELECT queue, tenant FROM treadle_pause
