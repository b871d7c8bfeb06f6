-- :name item
SELECT group_no, tenant FROM treadle_item WHERE no = ?

-- :name queued
SELECT no FROM treadle_item INDEXED BY treadle_item_member WHERE group_no = ? AND queued_by = ? ORDER BY no LIMIT ?

-- The nested groups that items close have their numbers.
-- :name closed
SELECT g.no FROM json_each(?) AS e CROSS JOIN treadle_group AS g ON g.no = e.value AND g.outer_no IS NOT NULL

-- Roots that name a parent.
-- :name named
SELECT no FROM treadle_item INDEXED BY treadle_item_parent
WHERE parent = ? AND tenant = ? AND parent IS NOT NULL AND queued_by IS NULL ORDER BY no LIMIT ?

-- A negative prerequisite is a whole group.
-- :name dependents
SELECT dependent FROM treadle_dependency WHERE prerequisite = ? ORDER BY dependent LIMIT ?

-- :name in_short
SELECT i.id, i.type, coalesce(o.status, d.outcome)
FROM json_each(?) AS e
CROSS JOIN treadle_item AS i ON i.no = e.value
LEFT JOIN treadle_open AS o ON o.no = i.no
LEFT JOIN treadle_done AS d ON d.no = i.no
ORDER BY e.key
