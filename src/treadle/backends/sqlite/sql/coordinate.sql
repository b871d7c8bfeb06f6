-- :name owner
SELECT owner FROM treadle_once WHERE key = ? AND tenant = ? AND until > ?

-- :name own
INSERT OR REPLACE INTO treadle_once (key, tenant, owner, until) VALUES (?, ?, ?, ?)

-- :name gauge
SELECT at, used, before FROM treadle_gauge WHERE name = ? AND algorithm = ?

-- :name set_gauge
INSERT OR REPLACE INTO treadle_gauge (name, algorithm, at, used, before, idle) VALUES (?, ?, ?, ?, ?, ?)

-- :name slots_used
SELECT coalesce(sum(count), 0) FROM treadle_slot WHERE name = ?

-- :name slots_held
SELECT count FROM treadle_slot WHERE name = ? AND worker = ?

-- :name set_slots
INSERT OR REPLACE INTO treadle_slot (name, worker, count) VALUES (?, ?, ?)

-- :name drop_slots
DELETE FROM treadle_slot WHERE name = ? AND worker = ?

-- :name worker
SELECT no FROM treadle_worker WHERE id = ? AND gone = 0

-- The columns are those of coordinate._schedule, in this order.
-- :name schedule
SELECT name, next_at, spec, paused, last_at, seen_at FROM treadle_schedule WHERE name = ?

-- :name schedules
SELECT name, next_at, spec, paused, last_at, seen_at FROM treadle_schedule ORDER BY name

-- :name set_schedule
INSERT OR REPLACE INTO treadle_schedule (name, next_at, spec, paused, last_at, seen_at)
VALUES (?, ?, ?, ?, ?, ?)

-- :name seen
UPDATE treadle_schedule SET seen_at = ? WHERE name = ?

-- :name drop_schedule
DELETE FROM treadle_schedule WHERE name = ?

-- :name pause_schedule
UPDATE treadle_schedule SET paused = ? WHERE name = ?

-- :name fire
UPDATE treadle_schedule SET next_at = ?, last_at = ? WHERE name = ?
