-- The columns are read by steps._step, in this order.
-- :name steps
SELECT s.no, s.name, s.kind, s.value, s.took, s.undo, s.signal, s.over, s.until, s.at, s.attempt, s.times
FROM json_each(?) AS e CROSS JOIN treadle_step AS s ON s.no = e.value
ORDER BY s.no, s.seq

-- A step that was forgotten is recorded first now. `times` stays as it was.
-- :name put_step
INSERT INTO treadle_step (no, name, kind, value, took, undo, signal, over, until, at, attempt, times)
VALUES (?, ?, ?, nullif(?, ''), ?, nullif(?, ''), ?, ?, nullif(?, ''), ?, ?, ?)
ON CONFLICT (no, name) DO UPDATE SET
    seq = CASE kind WHEN 'forgotten' THEN (SELECT max(seq) + 1 FROM treadle_step) ELSE seq END,
    kind = excluded.kind, value = excluded.value, took = excluded.took, undo = excluded.undo, signal = excluded.signal,
    over = excluded.over, until = excluded.until, at = excluded.at, attempt = excluded.attempt

-- :name made_progress
UPDATE treadle_open SET attempt = 1, failures = 0, losses = 0, records = records | 1
WHERE no IN (SELECT value FROM json_each(?))

-- :name has_records
UPDATE treadle_open SET records = records | 4 WHERE no IN (SELECT value FROM json_each(?))

-- :name put_progress
INSERT INTO treadle_progress (no, at, value) VALUES (?, ?, ?)
ON CONFLICT (no) DO UPDATE SET at = excluded.at, value = excluded.value

-- :name put_chunk
INSERT OR IGNORE INTO treadle_chunk (no, number, at, value) VALUES (?, ?, ?, ?)

-- :name suspend
UPDATE treadle_open SET status = ?, attempt = 0, failures = 0, losses = 0, due = ?, ready_since = coalesce(?, ready_since),
    seq = ?, began = coalesce(max(?, started), began), settled_tokens = ?, token = NULL, worker = NULL,
    records = (records & 4) | 3
WHERE no = ?

-- Waits for signals that the item does not ask for any more.
-- :name forget_waits
DELETE FROM treadle_step
WHERE no = ? AND over = 0 AND signal <> '' AND name NOT IN (SELECT value FROM json_each(?))

-- :name unread_mail
SELECT seq, value FROM treadle_mail INDEXED BY treadle_mail_unread
WHERE no = ? AND name = ? AND taken = 0 ORDER BY seq LIMIT 1

-- :name take_mail
UPDATE treadle_mail SET taken = 1 WHERE seq = ?

-- :name answer_wait
UPDATE treadle_step SET over = 1, value = ? WHERE no = ? AND name = ?

-- The item of a signal: its number, its status, whether it is doomed, and its records.
-- :name item_of_signal
SELECT i.no, coalesce(o.status, d.outcome), o.verdict IS NOT NULL, o.records, i.type, i.queue,
    o.due
FROM treadle_item AS i
LEFT JOIN treadle_open AS o ON o.no = i.no
LEFT JOIN treadle_done AS d ON d.no = i.no
WHERE i.no = ?

-- :name has_key
SELECT 1 FROM treadle_mail INDEXED BY treadle_mail_key WHERE no = ? AND name = ? AND key = ? AND key IS NOT NULL

-- :name count_unread
SELECT count(*) FROM (SELECT 1 FROM treadle_mail INDEXED BY treadle_mail_unread WHERE no = ? AND taken = 0 LIMIT ?)

-- :name put_mail
INSERT INTO treadle_mail (no, name, key, taken, value) VALUES (?, ?, ?, ?, ?)

-- :name waits_for_signal
SELECT name FROM treadle_step
WHERE no = ? AND signal = ? AND over = 0 AND (until IS NULL OR until > ?) ORDER BY seq LIMIT 1

-- :name wake
UPDATE treadle_open SET status = 2, due = ?, ready_since = ?, seq = ? WHERE no = ?

-- :name wake_held
UPDATE treadle_open SET due = ? WHERE no = ?

-- The sleeps of suspended items that are not over.
-- :name sleeping
SELECT DISTINCT s.no FROM json_each(?) AS e CROSS JOIN treadle_step AS s ON s.no = e.value
WHERE s.kind = 'sleep' AND s.over = 0

-- :name end_sleeps
UPDATE treadle_step SET over = 1 WHERE kind = 'sleep' AND over = 0 AND no IN (SELECT value FROM json_each(?))

-- :name recorded
SELECT e.value, p.value, p.at,
    (SELECT json_group_object(m.name, m.count) FROM (
        SELECT m.name, count(*) AS count FROM treadle_mail AS m INDEXED BY treadle_mail_unread
        WHERE m.no = e.value AND m.taken = 0 GROUP BY m.name) AS m),
    (SELECT coalesce(max(c.number), 0) FROM treadle_chunk AS c WHERE c.no = e.value)
FROM json_each(?) AS e LEFT JOIN treadle_progress AS p ON p.no = e.value

-- :name stream
SELECT number, value, at FROM treadle_chunk WHERE no = ? AND number > ? ORDER BY number LIMIT ?

-- :name put_logs
INSERT INTO treadle_log (no, token, value, at)
WITH v (no, token, value) AS (VALUES (?, ?, ?))
SELECT o.no, o.token, v.value, ? FROM v
CROSS JOIN treadle_open AS o ON o.no = v.no AND o.token = v.token
CROSS JOIN treadle_worker AS w ON w.no = o.worker AND w.removed = 0
WHERE true
ON CONFLICT (no, token) DO UPDATE SET value = excluded.value, at = excluded.at

-- :name trim_logs
DELETE FROM treadle_log WHERE (no, token) IN
    (SELECT l.no, l.token FROM json_each(?) AS e CROSS JOIN treadle_log AS l ON l.no = e.value
     WHERE (SELECT count(*) FROM treadle_log AS x WHERE x.no = l.no AND (x.at, x.token) > (l.at, l.token)) >= ?)

-- :name logs
SELECT value FROM treadle_log WHERE no = ? ORDER BY at, token

-- The items among these that have rows here.
-- :name with_records
SELECT o.no FROM json_each(?1) AS e CROSS JOIN treadle_open AS o ON o.no = e.value AND o.records > 0
UNION ALL
SELECT d.no FROM json_each(?1) AS e CROSS JOIN treadle_done AS d ON d.no = e.value AND d.records > 0

-- :name remove_steps
DELETE FROM treadle_step WHERE no IN (SELECT value FROM json_each(?))

-- :name remove_mail
DELETE FROM treadle_mail WHERE no IN (SELECT value FROM json_each(?))

-- :name remove_chunks
DELETE FROM treadle_chunk WHERE no IN (SELECT value FROM json_each(?))

-- :name remove_progress
DELETE FROM treadle_progress WHERE no IN (SELECT value FROM json_each(?))
