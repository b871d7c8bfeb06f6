-- :name children
SELECT i.no FROM json_each(?) AS e
CROSS JOIN treadle_item AS p ON p.no = e.value
CROSS JOIN treadle_item AS i INDEXED BY treadle_item_member ON i.group_no = p.group_no AND i.queued_by = p.no

-- The members of the nested groups that these items close.
-- :name closed_members
SELECT i.no FROM json_each(?) AS e
CROSS JOIN treadle_group AS g ON g.no = e.value AND g.outer_no IS NOT NULL
CROSS JOIN treadle_item AS i INDEXED BY treadle_item_member ON i.group_no = g.no AND i.queued_by IS NOT NULL

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

-- :name names_waited_for
SELECT DISTINCT i.tenant, a.value FROM json_each(?) AS e
CROSS JOIN treadle_item AS i ON i.no = e.value AND i.after IS NOT NULL
CROSS JOIN json_each(i.after) AS a

-- :name groups_of
SELECT DISTINCT i.group_no FROM json_each(?) AS e CROSS JOIN treadle_item AS i ON i.no = e.value

-- A group that is not nested and contains no others has no nested groups around or inside it.
-- :name nested_groups
SELECT g.no FROM json_each(?) AS e
CROSS JOIN treadle_group AS o ON o.no = e.value AND o.nested = 1
CROSS JOIN treadle_group AS g INDEXED BY treadle_group_outermost
    ON g.outermost = coalesce(o.outermost, o.no) AND g.outer_no = o.no

-- :name references
SELECT coalesce(p.id, g.id), i.id, x.dependent FROM json_each(?) AS e
CROSS JOIN treadle_dependency AS x ON x.prerequisite = e.value
CROSS JOIN treadle_open AS o ON o.no = x.dependent
CROSS JOIN treadle_item AS i ON i.no = x.dependent
LEFT JOIN treadle_item AS p ON p.no = abs(x.prerequisite)
LEFT JOIN treadle_group AS g ON g.no = -x.prerequisite

-- :name pause
INSERT OR IGNORE INTO treadle_pause (queue, tenant) VALUES (?, ?)

-- :name resume
DELETE FROM treadle_pause WHERE queue = ? AND tenant = ?

-- :name paused
SELECT queue, tenant FROM treadle_pause ORDER BY queue, tenant
