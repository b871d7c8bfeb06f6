-- The columns are those of schedules._schedule, in this order.
-- :name schedule
SELECT name, next_at, spec, paused, last_at, seen_at FROM treadle_schedule WHERE name = ?

-- :name schedules
SELECT name, next_at, spec, paused, last_at, seen_at FROM treadle_schedule ORDER BY name

-- :name set_schedule
INSERT OR REPLACE INTO treadle_schedule (name, next_at, spec, paused, last_at, seen_at)
VALUES (?, ?, ?, ?, ?, ?)

-- :name removal
SELECT 1 FROM treadle_removed_schedule WHERE name = ?

-- :name note_removal
INSERT OR REPLACE INTO treadle_removed_schedule (name, at) VALUES (?, ?)

-- :name forget_removal
DELETE FROM treadle_removed_schedule WHERE name = ?

-- :name drop_schedule
DELETE FROM treadle_schedule WHERE name = ?

-- :name pause_schedule
UPDATE treadle_schedule SET paused = ? WHERE name = ?

-- :name set_fired
UPDATE treadle_schedule SET next_at = ?, last_at = ? WHERE name = ?

-- An occurrence may come again: in a schedule that was changed.
-- :name add_run
INSERT OR REPLACE INTO treadle_schedule_run (name, at, fired_at, id, tenant, error)
VALUES (?, ?, ?, ?, ?, ?)

-- :name drop_old_runs
DELETE FROM treadle_schedule_run WHERE name = ?1
    AND at <= (SELECT at FROM treadle_schedule_run WHERE name = ?1 ORDER BY at DESC LIMIT 1 OFFSET ?2)

-- :name drop_runs
DELETE FROM treadle_schedule_run WHERE name = ?

-- The last runs of each schedule, with the status of their items.
-- :name runs
SELECT r.name, r.at, r.fired_at, r.id, r.tenant, coalesce(o.status, d.outcome), r.error
FROM treadle_schedule AS s
CROSS JOIN treadle_schedule_run AS r ON r.name = s.name AND r.at >= coalesce(
    (SELECT at FROM treadle_schedule_run WHERE name = s.name ORDER BY at DESC LIMIT 1 OFFSET ?1 - 1), -9e999)
LEFT JOIN treadle_item AS i ON i.id = r.id AND i.tenant = r.tenant
LEFT JOIN treadle_open AS o ON o.no = i.no
LEFT JOIN treadle_done AS d ON d.no = i.no
ORDER BY r.name, r.at DESC
