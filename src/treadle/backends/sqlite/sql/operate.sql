-- :name children
SELECT i.no FROM json_each(?) AS e
CROSS JOIN treadle_item AS p ON p.no = e.value
CROSS JOIN treadle_item AS i INDEXED BY treadle_item_member ON i.grp = p.grp AND i.origin = p.no

-- :name outcome
SELECT outcome FROM treadle_done WHERE no = ?

-- :name dead
SELECT d.no, d.redrives, i.keep, i.keep_dead, g.no
FROM json_each(?) AS e
CROSS JOIN treadle_done AS d ON d.no = e.value AND d.outcome = 11
CROSS JOIN treadle_item AS i ON i.no = d.no
LEFT JOIN treadle_grp AS g ON g.no = i.grp

-- An item that is alone stays so; one whose group has a row is counted there again.
-- :name requeue
WITH v (no, status, seq, due, since, redrives) AS (VALUES (?, ?, ?, ?, nullif(?, ''), ?))
INSERT INTO treadle_job (no, status, queue, tenant, type, lane, rank, seq, due, since, attempts, redrives, grp,
    settled)
SELECT i.no, v.status, i.queue, i.tenant, i.type, i.lane, -i.priority, v.seq, v.due, v.since, i.attempts,
    v.redrives, g.no,
    CASE WHEN d.token IS NULL THEN d.settled ELSE json_insert(coalesce(d.settled, '[]'), '$[#]', d.token) END
FROM v
CROSS JOIN treadle_item AS i ON i.no = v.no
CROSS JOIN treadle_done AS d ON d.no = i.no
LEFT JOIN treadle_grp AS g ON g.no = i.grp

-- :name delete_done
DELETE FROM treadle_done WHERE no IN (SELECT value FROM json_each(?))

-- :name trigger
UPDATE treadle_job SET status = 2, due = ?, since = ?, seq = ? + e.key
FROM json_each(?) AS e WHERE treadle_job.no = e.value AND treadle_job.status = 1

-- :name members
SELECT i.no FROM json_each(?) AS e
CROSS JOIN treadle_item AS i INDEXED BY treadle_item_member ON i.grp = e.value AND i.origin IS NOT NULL

-- :name existing
SELECT i.no FROM json_each(?) AS e CROSS JOIN treadle_item AS i ON i.no = e.value

-- The groups of what these items wait or waited for.
-- :name waited_groups
SELECT DISTINCT s.grp FROM json_each(?) AS e
CROSS JOIN treadle_item AS i ON i.no = e.value AND i.after IS NOT NULL
CROSS JOIN json_each(i.after) AS a
CROSS JOIN treadle_item AS s ON s.id = a.value AND s.tenant = i.tenant

-- :name references
SELECT s.id, w.id, x.dst FROM json_each(?) AS e
CROSS JOIN treadle_edge AS x ON x.src = e.value
CROSS JOIN treadle_item AS s ON s.no = x.src
CROSS JOIN treadle_item AS w ON w.no = x.dst

-- :name pause
INSERT OR IGNORE INTO treadle_pause (queue, tenant) VALUES (?, ?)

-- :name resume
DELETE FROM treadle_pause WHERE queue = ? AND tenant = ?

-- :name paused
SELECT queue, tenant FROM treadle_pause ORDER BY queue, tenant
