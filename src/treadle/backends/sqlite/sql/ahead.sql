-- What has ended of a tenant that moves, copied before the freeze.

-- What was read of a tenant here. digest: NULL until it is known what was read. changed: read it again.
-- :name create_read_ahead
CREATE TABLE IF NOT EXISTS treadle_read_ahead (
    no INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    items INTEGER,
    records INTEGER,
    digest INTEGER,
    changed INTEGER NOT NULL DEFAULT 0
)

-- :name has_ahead
SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'treadle_read_ahead')

-- :name note
CREATE TRIGGER IF NOT EXISTS treadle_note_{table}_{name} AFTER {event} ON treadle_{table}
BEGIN
    UPDATE treadle_read_ahead SET changed = 1 WHERE no = {row}.no;
END

-- The holder of a key may change by an update, or be replaced, which calls no trigger for what was there.
-- :name note_old_holder
CREATE TRIGGER IF NOT EXISTS treadle_note_holder AFTER UPDATE ON treadle_key
BEGIN
    UPDATE treadle_read_ahead SET changed = 1 WHERE no = old.no;
END

-- :name note_replaced_holder
CREATE TRIGGER IF NOT EXISTS treadle_note_replaced BEFORE INSERT ON treadle_key
BEGIN
    UPDATE treadle_read_ahead SET changed = 1
    WHERE no = (SELECT k.no FROM treadle_key AS k WHERE k.key = new.key AND k.tenant = new.tenant AND k.type = new.type);
END

-- :name notes
SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name GLOB 'treadle_note_*'

-- :name any_ahead
SELECT EXISTS (SELECT 1 FROM treadle_read_ahead)

-- :name forget
DELETE FROM treadle_read_ahead WHERE tenant = ?

-- Items that have ended, and whose group of the same number has ended too.
-- :name next_ended
SELECT d.no FROM treadle_done AS d
CROSS JOIN treadle_item AS i ON i.no = d.no AND i.tenant = ?1
LEFT JOIN treadle_group AS g ON g.no = d.no
WHERE d.no > ?2 AND (g.no IS NULL OR g.ended IS NOT NULL)
    AND NOT EXISTS (SELECT 1 FROM treadle_read_ahead AS r WHERE r.no = d.no AND r.changed)
ORDER BY d.no LIMIT ?3

-- Ended groups without an item of their number.
-- :name next_rootless
SELECT g.no FROM treadle_group AS g
WHERE g.no > ?2 AND g.no <= ?3 AND g.tenant = ?1 AND g.ended IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM treadle_item AS i WHERE i.no = g.no)
    AND NOT EXISTS (SELECT 1 FROM treadle_read_ahead AS r WHERE r.no = g.no AND r.changed)

-- :name take
INSERT OR IGNORE INTO treadle_read_ahead (no, tenant) SELECT e.value, ? FROM json_each(?) AS e

-- :name note_read
UPDATE treadle_read_ahead SET items = ?, records = ?, digest = ? WHERE no = ?

-- :name unchanged
SELECT items, records, digest FROM treadle_read_ahead WHERE tenant = ? AND NOT changed AND digest IS NOT NULL

-- :name changed
SELECT no FROM treadle_read_ahead WHERE tenant = ? AND changed

-- :name rest_items
SELECT i.no FROM treadle_item AS i
WHERE i.no > ? AND i.tenant = ? AND NOT EXISTS
    (SELECT 1 FROM treadle_read_ahead AS r WHERE r.no = i.no AND NOT r.changed AND r.digest IS NOT NULL)
ORDER BY i.no LIMIT 1000

-- :name rest_groups
SELECT g.no FROM (
    SELECT no FROM treadle_group WHERE no > ?1 AND tenant = ?2
    UNION ALL
    SELECT d.no FROM treadle_done AS d CROSS JOIN treadle_item AS i ON i.no = d.no
    WHERE d.no > ?1 AND d.contributed = 3 AND i.tenant = ?2 AND NOT EXISTS (SELECT 1 FROM treadle_group AS g WHERE g.no = d.no)
) AS g
WHERE NOT EXISTS (SELECT 1 FROM treadle_read_ahead AS r WHERE r.no = g.no AND NOT r.changed AND r.digest IS NOT NULL)
ORDER BY g.no LIMIT 1000

-- The same columns as `groups` in moving.sql.
-- :name groups_of
SELECT * FROM (
    SELECT g.no, g.id, g.tenant, g.type, g.open, g.total, g.failed, g.cancelled, g.version, g.final, g.keep, g.ended,
           g.outer_no, g.value
    FROM json_each(?1) AS e CROSS JOIN treadle_group AS g ON g.no = e.value
    UNION ALL
    SELECT i.no, i.id, i.tenant, i.type, 0, 1, 0, 0, 1, 1, min(i.keep, coalesce(i.keep_dead, i.keep)), d.ended, NULL, d.result
    FROM json_each(?1) AS e CROSS JOIN treadle_done AS d ON d.no = e.value CROSS JOIN treadle_item AS i ON i.no = d.no
    WHERE d.contributed = 3 AND NOT EXISTS (SELECT 1 FROM treadle_group AS g WHERE g.no = d.no)
) ORDER BY no

-- What was staged of a tenant that comes.
-- :name stage
INSERT INTO treadle_arriving (tenant, number, data) VALUES (?, ?, ?)

-- :name unstage
DELETE FROM treadle_arriving WHERE tenant = ? AND number IN (SELECT value FROM json_each(?))

-- :name last_staged
SELECT coalesce(max(number), -1) FROM treadle_arriving WHERE tenant = ?
