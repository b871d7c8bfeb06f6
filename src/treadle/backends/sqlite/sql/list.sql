-- A listing is one of the `from_` statements, the conditions that the filter asks for, and an order.
-- The `from_` statements read the narrowest table that holds all items asked for, in the order of their numbers.

-- :name from_open
SELECT i.no FROM treadle_open AS o CROSS JOIN treadle_item AS i ON i.no = o.no
LEFT JOIN treadle_done AS d ON d.no = i.no WHERE 1

-- :name from_dead
SELECT i.no FROM treadle_done AS d INDEXED BY treadle_done_dead CROSS JOIN treadle_item AS i ON i.no = d.no
LEFT JOIN treadle_open AS o ON o.no = i.no WHERE d.outcome = 11

-- :name from_all
SELECT i.no FROM treadle_item AS i LEFT JOIN treadle_open AS o ON o.no = i.no
LEFT JOIN treadle_done AS d ON d.no = i.no WHERE 1

-- :name tenant
AND i.tenant = ?

-- :name type
AND i.type = ?

-- :name queue
AND i.queue = ?

-- :name workflow
AND i.workflow = ?

-- :name key
AND i.key = ?

-- :name reason
AND d.reason = ?

-- :name failed_group
AND d.failed_group IS NOT NULL

-- :name since
AND i.queued_at >= ?

-- :name until
AND i.queued_at < ?

-- :name status
AND coalesce(o.status, d.outcome) IN (SELECT value FROM json_each(?))

-- :name group
AND i.no IN (SELECT no FROM treadle_item WHERE no = ? AND group_no = no UNION ALL SELECT no FROM treadle_item WHERE group_no = ? AND queued_by IS NOT NULL)

-- :name redrives
AND d.redrives < ?

-- :name older
AND i.no < ?

-- :name newer
AND i.no > ?

-- :name newest_first
ORDER BY i.no DESC LIMIT ?

-- :name oldest_first
ORDER BY i.no LIMIT ?
