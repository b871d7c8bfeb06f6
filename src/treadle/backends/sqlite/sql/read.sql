-- :name root
SELECT no FROM treadle_item WHERE id = ? AND tenant = ? AND grp = no

-- :name first_root
SELECT no FROM treadle_item WHERE id = ? AND grp = no ORDER BY no LIMIT 1

-- A group whose root was removed before the rest.
-- :name rootless
SELECT no FROM treadle_grp WHERE id = ? AND tenant = coalesce(?, tenant) ORDER BY no DESC LIMIT 1

-- :name group
SELECT id, tenant, type, open, failed, version, final, ended, value FROM treadle_grp WHERE no = ?

-- :name alone
SELECT i.id, i.tenant, i.type, j.no IS NOT NULL, d.outcome, d.gave, d.ended, d.result
FROM treadle_item AS i
LEFT JOIN treadle_job AS j ON j.no = i.no
LEFT JOIN treadle_done AS d ON d.no = i.no
WHERE i.no = ?

-- :name failed_member
SELECT d.no FROM treadle_done AS d WHERE d.no = ? AND d.outcome = ?
UNION ALL
SELECT i.no FROM treadle_item AS i INDEXED BY treadle_item_member
CROSS JOIN treadle_done AS d ON d.no = i.no AND d.outcome = ?
WHERE i.grp = ? AND i.origin IS NOT NULL
LIMIT 1

-- :name ended_items
SELECT i.id, i.no, d.no IS NOT NULL
FROM json_each(?) AS e
CROSS JOIN treadle_item AS i ON i.id = e.value AND i.tenant = ?
LEFT JOIN treadle_done AS d ON d.no = i.no

-- Roots: a group with a row has ended if it says so; an item that is alone, if it has.
-- :name ended_groups
SELECT i.id, i.no, CASE WHEN g.no IS NULL THEN d.no IS NOT NULL ELSE g.ended IS NOT NULL END
FROM json_each(?) AS e
CROSS JOIN treadle_item AS i ON i.id = e.value AND i.tenant = ? AND i.grp = i.no
LEFT JOIN treadle_grp AS g ON g.no = i.no
LEFT JOIN treadle_done AS d ON d.no = i.no

-- :name counts_open
SELECT tenant, queue, type, status, count(*) FROM treadle_job WHERE tenant = coalesce(?, tenant)
GROUP BY tenant, queue, type, status

-- :name counts_dead
SELECT i.tenant, i.queue, i.type, d.outcome, count(*)
FROM treadle_done AS d INDEXED BY treadle_done_dead CROSS JOIN treadle_item AS i ON i.no = d.no
WHERE d.outcome = 11 AND i.tenant = coalesce(?, i.tenant)
GROUP BY i.tenant, i.queue, i.type

-- :name counts_ended
SELECT i.tenant, i.queue, i.type, d.outcome, count(*)
FROM treadle_done AS d CROSS JOIN treadle_item AS i ON i.no = d.no
WHERE i.tenant = coalesce(?, i.tenant)
GROUP BY i.tenant, i.queue, i.type, d.outcome
