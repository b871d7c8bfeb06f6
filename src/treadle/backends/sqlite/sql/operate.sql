-- :name children
SELECT i.no FROM json_each(?) AS e
CROSS JOIN treadle_item AS p ON p.no = e.value
CROSS JOIN treadle_item AS i INDEXED BY treadle_item_member ON i.group_no = p.group_no AND i.queued_by = p.no

-- :name outcome
SELECT outcome FROM treadle_done WHERE no = ?

-- :name trigger
UPDATE treadle_open SET status = 2, due = ?, ready_since = ?, seq = ? + e.key
FROM json_each(?) AS e WHERE treadle_open.no = e.value AND treadle_open.status = 1

-- :name members
SELECT i.no FROM json_each(?) AS e
CROSS JOIN treadle_item AS i INDEXED BY treadle_item_member ON i.group_no = e.value AND i.queued_by IS NOT NULL

-- :name roots
SELECT i.no FROM json_each(?) AS e CROSS JOIN treadle_item AS i ON i.no = e.value AND i.group_no = e.value

-- The groups of the prerequisites of these items, ended ones too.
-- :name prerequisite_groups
SELECT DISTINCT p.group_no FROM json_each(?) AS e
CROSS JOIN treadle_item AS i ON i.no = e.value AND i.after IS NOT NULL
CROSS JOIN json_each(i.after) AS a
CROSS JOIN treadle_item AS p ON p.id = a.value AND p.tenant = i.tenant

-- :name references
SELECT p.id, i.id, x.dependent FROM json_each(?) AS e
CROSS JOIN treadle_dependency AS x ON x.prerequisite = e.value
CROSS JOIN treadle_open AS o ON o.no = x.dependent
CROSS JOIN treadle_item AS p ON p.no = x.prerequisite
CROSS JOIN treadle_item AS i ON i.no = x.dependent

-- :name pause
INSERT OR IGNORE INTO treadle_pause (queue, tenant) VALUES (?, ?)

-- :name resume
DELETE FROM treadle_pause WHERE queue = ? AND tenant = ?

-- :name paused
SELECT queue, tenant FROM treadle_pause ORDER BY queue, tenant
