-- :name root
SELECT no FROM treadle_item WHERE id = ? AND tenant = ? AND group_no = no

-- :name first_root
SELECT no FROM treadle_item WHERE id = ? AND group_no = no ORDER BY no LIMIT 1

-- A group whose root was removed before its other members.
-- :name group_without_root
SELECT no FROM treadle_group WHERE id = ? AND tenant = coalesce(?, tenant) ORDER BY no DESC LIMIT 1

-- :name group
SELECT g.id, g.tenant, g.type, g.open, g.failed, g.cancelled, g.version, g.final, g.ended, g.value, o.id,
       g.total
FROM treadle_group AS g LEFT JOIN treadle_group AS o ON o.no = g.outer_no
WHERE g.no = ?

-- :name lone_item
SELECT i.id, i.tenant, i.type, o.no IS NOT NULL, d.failed_group IS NOT NULL,
       coalesce(d.outcome = 12, 0), coalesce(d.contributed, 0), d.ended, d.result
FROM treadle_item AS i
LEFT JOIN treadle_open AS o ON o.no = i.no
LEFT JOIN treadle_done AS d ON d.no = i.no
WHERE i.no = ?

-- The first deaths that failed a group.
-- :name deaths
SELECT no FROM treadle_done INDEXED BY treadle_done_failed_group WHERE failed_group = ?
ORDER BY failed_place LIMIT ?

-- :name cancelled_member
SELECT d.no FROM treadle_done AS d CROSS JOIN treadle_item AS i ON i.no = d.no AND i.group_no = d.no
WHERE d.no = ? AND d.outcome = 12
UNION ALL
SELECT i.no FROM treadle_item AS i INDEXED BY treadle_item_member
CROSS JOIN treadle_done AS d ON d.no = i.no AND d.outcome = 12
WHERE i.group_no = ? AND i.queued_by IS NOT NULL
LIMIT 1

-- :name ended_items
SELECT i.id, i.no, d.no IS NOT NULL
FROM json_each(?) AS e
CROSS JOIN treadle_item AS i ON i.id = e.value AND i.tenant = ?
LEFT JOIN treadle_done AS d ON d.no = i.no

-- Roots, and whether their groups have ended. A group without a row ends with its only item.
-- :name ended_groups
SELECT i.id, i.no, CASE WHEN g.no IS NULL THEN d.no IS NOT NULL ELSE g.ended IS NOT NULL END
FROM json_each(?) AS e
CROSS JOIN treadle_item AS i ON i.id = e.value AND i.tenant = ? AND i.group_no = i.no
LEFT JOIN treadle_group AS g ON g.no = i.no
LEFT JOIN treadle_done AS d ON d.no = i.no

-- Items that wait are counted along their index. The others are sorted, which takes ten times as long.
-- :name counts_open
SELECT tenant, queue, type, status, count(*) FROM treadle_open INDEXED BY treadle_open_waiting
WHERE status < 2 AND tenant = coalesce(?1, tenant) GROUP BY status, queue, tenant, type
UNION ALL
SELECT tenant, queue, type, status, count(*) FROM treadle_open NOT INDEXED
WHERE status >= 2 AND tenant = coalesce(?1, tenant) GROUP BY type, tenant, queue, status

-- :name counts_dead
SELECT tenant, queue, type, 11, count(*) FROM treadle_dead INDEXED BY treadle_dead_queue
WHERE tenant = coalesce(?, tenant) GROUP BY queue, tenant, type

-- :name counts_ended
SELECT i.tenant, i.queue, i.type, d.outcome, count(*)
FROM treadle_done AS d CROSS JOIN treadle_item AS i ON i.no = d.no
WHERE i.tenant = coalesce(?, i.tenant)
GROUP BY i.tenant, i.queue, i.type, d.outcome
