-- Rows come many at once; `nullif(?, '')`: see tx.NULL.

-- :name insert_item
INSERT INTO treadle_item (no, id, tenant, type, queue, lane, priority, attempts, grp, origin, parent, workflow,
    workflow_type, key, queued_at, keep, keep_dead, after, options, input)
VALUES (?, ?, ?, ?, ?, ?, ?, nullif(?, ''), ?, nullif(?, ''), nullif(?, ''), nullif(?, ''), nullif(?, ''), nullif(?, ''),
    ?, ?, nullif(?, ''), nullif(?, ''), ?, ?)

-- :name insert_job
INSERT INTO treadle_job (no, status, queue, tenant, type, lane, rank, seq, due, since, deadline, attempts, attempt,
    grp, gated, need, met, open, any_end, verdict, token, worker, started)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, nullif(?, ''), nullif(?, ''), nullif(?, ''), ?, nullif(?, ''), ?, ?, ?, ?, ?,
    nullif(?, ''), nullif(?, ''), nullif(?, ''), nullif(?, ''))

-- :name insert_edge
INSERT INTO treadle_edge (src, dst, counted, weight) VALUES (?, ?, ?, ?)

-- :name insert_awaited
INSERT INTO treadle_awaited (id, tenant, dst) VALUES (?, ?, ?)

-- :name existing
SELECT i.id FROM json_each(?) AS e CROSS JOIN treadle_item AS i ON i.id = e.value AND i.tenant = ?

-- Who holds a key. Its group is open if it says so; a lone item's, if it is.
-- :name key_holder
SELECT i.id, CASE WHEN i.grp = i.no THEN i.id ELSE g.id END, i.queued_at, coalesce(j.status, d.outcome),
       CASE WHEN g.no IS NULL THEN j.no IS NOT NULL ELSE g.open > 0 END
FROM treadle_key AS k
CROSS JOIN treadle_item AS i ON i.no = k.no
LEFT JOIN treadle_job AS j ON j.no = i.no
LEFT JOIN treadle_done AS d ON d.no = i.no
LEFT JOIN treadle_grp AS g ON g.no = i.grp
WHERE k.key = ? AND k.tenant = ? AND k.type = ?

-- :name hold_key
INSERT OR REPLACE INTO treadle_key (key, tenant, type, no) VALUES (?, ?, ?, ?)

-- :name prerequisites
SELECT i.id, i.no, d.outcome
FROM json_each(?) AS e
CROSS JOIN treadle_item AS i ON i.id = e.value AND i.tenant = ?
LEFT JOIN treadle_done AS d ON d.no = i.no

-- :name any_awaited
SELECT 1 FROM treadle_awaited LIMIT 1

-- :name awaiting
SELECT a.id, a.tenant, a.dst FROM json_each(?) AS e CROSS JOIN treadle_awaited AS a ON a.id = e.value

-- :name drop_awaited
DELETE FROM treadle_awaited WHERE id = ? AND tenant = ?

-- What a blocked item waits for: what exists, and what does not.
-- :name waits_for
SELECT s.id
FROM treadle_item AS i
CROSS JOIN treadle_job AS j ON j.no = i.no AND j.status = 0
CROSS JOIN treadle_edge AS e ON e.dst = i.no AND e.counted = 0
CROSS JOIN treadle_item AS s ON s.no = e.src
WHERE i.id = ? AND i.tenant = ?
UNION ALL
SELECT a.id
FROM treadle_item AS i
CROSS JOIN treadle_job AS j ON j.no = i.no AND j.status = 0
CROSS JOIN treadle_awaited AS a ON a.dst = i.no
WHERE i.id = ? AND i.tenant = ?

-- :name live_workers
SELECT id, no FROM treadle_worker WHERE gone = 0 AND until > ?
