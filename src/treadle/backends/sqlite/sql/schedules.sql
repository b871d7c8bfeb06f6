-- The columns are those of schedules._schedule, in this order.
-- :name schedule
SELECT name, next_at, spec, paused, last_at, seen_at FROM treadle_schedule WHERE name = ?

-- :name schedules
SELECT name, next_at, spec, paused, last_at, seen_at FROM treadle_schedule ORDER BY name

-- :name set_schedule
INSERT OR REPLACE INTO treadle_schedule (name, next_at, spec, paused, last_at, seen_at)
VALUES (?, ?, ?, ?, ?, ?)

-- :name drop_schedule
DELETE FROM treadle_schedule WHERE name = ?

-- :name pause_schedule
UPDATE treadle_schedule SET paused = ? WHERE name = ?

-- :name set_fired
UPDATE treadle_schedule SET next_at = ?, last_at = ? WHERE name = ?
