-- A listing is one of the `from_` statements, the conditions that the filter asks for, and an order.
-- The `from_` statements read the narrowest table that holds all items asked for, in the order of their numbers.

-- :name from_open
SELECT s.no FROM treadle_open AS s LEFT JOIN treadle_done AS d ON d.no = s.no WHERE 1

-- Few of the open ones have a lease: they are sorted.
-- :name from_leased
SELECT s.no FROM treadle_open AS s INDEXED BY treadle_open_worker LEFT JOIN treadle_done AS d ON d.no = s.no
WHERE s.worker IS NOT NULL

-- :name from_killing
SELECT s.no FROM treadle_open AS s INDEXED BY treadle_open_killing LEFT JOIN treadle_done AS d ON d.no = s.no
WHERE s.losses >= 3

-- Those that have ended, by one outcome.
-- :name from_success
SELECT s.no FROM treadle_done AS d CROSS JOIN treadle_item AS s ON s.no = d.no WHERE d.outcome = 10

-- :name from_cancelled
SELECT s.no FROM treadle_done AS d INDEXED BY treadle_done_cancelled CROSS JOIN treadle_item AS s ON s.no = d.no
WHERE d.outcome = 12

-- :name from_dead
SELECT s.no FROM treadle_dead AS s CROSS JOIN treadle_done AS d ON d.no = s.no WHERE 1

-- :name from_all
SELECT s.no FROM treadle_item AS s LEFT JOIN treadle_open AS o ON o.no = s.no
LEFT JOIN treadle_done AS d ON d.no = s.no WHERE 1

-- :name tenant
AND s.tenant = ?

-- :name type
AND s.type = ?

-- :name queue
AND s.queue = ?

-- :name mark
AND s.mark = ?

-- :name release
AND (SELECT a.release FROM treadle_attempt AS a WHERE a.no = s.no ORDER BY a.place DESC LIMIT 1) = ?

-- :name workflow
AND s.workflow = ?

-- :name key
AND s.key = ?

-- :name reason
AND s.reason = ?

-- :name all_reason
AND d.reason = ?

-- :name failed_group
AND d.failed_group IS NOT NULL

-- :name all_killing
AND o.losses >= 3

-- See treadle.store.rules.times.
-- :name held
AND s.status = 1 AND s.due >= 18446744073709551616.0

-- :name all_held
AND o.status = 1 AND o.due >= 18446744073709551616.0

-- :name since
AND (SELECT i.queued_at FROM treadle_item AS i WHERE i.no = s.no) >= ?

-- :name until
AND (SELECT i.queued_at FROM treadle_item AS i WHERE i.no = s.no) < ?

-- :name all_since
AND s.queued_at >= ?

-- :name all_until
AND s.queued_at < ?

-- :name all_mark
AND (SELECT m.mark FROM treadle_dead AS m WHERE m.no = s.no) = ?

-- :name open_status
AND s.status IN (SELECT value FROM json_each(?))

-- :name all_status
AND coalesce(o.status, d.outcome) IN (SELECT value FROM json_each(?))

-- :name group
AND s.no IN (SELECT no FROM treadle_item WHERE no = ? AND group_no = no UNION ALL SELECT no FROM treadle_item WHERE group_no = ? AND queued_by IS NOT NULL)

-- :name redrives
AND d.redrives < ?

-- :name older
AND s.no < ?

-- :name newer
AND s.no > ?

-- :name newest_first
ORDER BY s.no DESC LIMIT ?

-- :name oldest_first
ORDER BY s.no LIMIT ?

-- :name ended_older
AND d.no < ?

-- :name ended_newer
AND d.no > ?

-- :name ended_newest_first
ORDER BY d.no DESC LIMIT ?

-- :name ended_oldest_first
ORDER BY d.no LIMIT ?

-- :name last_number
SELECT max(no) FROM treadle_item

-- :name next_number
SELECT no, queued_at FROM treadle_item WHERE no >= ? ORDER BY no LIMIT 1

-- Where a walk along a table ends: one of these, the bounds of the numbers, and an order.
-- :name walk_open
SELECT s.no FROM treadle_open AS s WHERE 1

-- :name walk_leased
SELECT s.no FROM treadle_open AS s WHERE 1

-- :name walk_killing
SELECT s.no FROM treadle_open AS s INDEXED BY treadle_open_killing WHERE s.losses >= 3

-- :name count_leased
SELECT count(*) FROM (SELECT 1 FROM treadle_open INDEXED BY treadle_open_worker WHERE worker IS NOT NULL LIMIT ?)

-- :name walk_success
SELECT d.no FROM treadle_done AS d WHERE 1

-- :name walk_cancelled
SELECT d.no FROM treadle_done AS d INDEXED BY treadle_done_cancelled WHERE d.outcome = 12

-- :name walk_dead
SELECT s.no FROM treadle_dead AS s WHERE 1

-- :name walk_mark
SELECT s.no FROM treadle_dead AS s INDEXED BY treadle_dead_mark WHERE s.mark = ?

-- :name walk_all
SELECT s.no FROM treadle_item AS s WHERE 1

-- :name queued_at
SELECT queued_at FROM treadle_item WHERE no = ?

-- How many items an index finds, up to a bound.
-- :name count_group_id
SELECT count(*) FROM (SELECT 1 FROM treadle_item INDEXED BY treadle_item_member
    WHERE group_no = ? AND queued_by IS NOT NULL LIMIT ?)

-- :name count_workflow
SELECT count(*) FROM (SELECT 1 FROM treadle_item INDEXED BY treadle_item_workflow WHERE workflow = ? LIMIT ?)

-- :name count_key
SELECT count(*) FROM (SELECT 1 FROM treadle_item INDEXED BY treadle_item_key WHERE key = ? LIMIT ?)

-- The same conditions as above. The plus keeps SQLite from using the index.
-- :name unindexed_workflow
AND +s.workflow = ?

-- :name unindexed_key
AND +s.key = ?

-- :name unindexed_group
AND +s.group_no = ?

-- Groups of one outcome, before a number and from another one on, newest first.
-- :name walk_groups
SELECT g.no FROM treadle_group AS g INDEXED BY treadle_group_outcome
WHERE g.outcome IS NOT NULL AND g.outcome = ? AND g.no < ? AND g.no >= ? ORDER BY g.no DESC LIMIT ?

-- :name groups
SELECT g.no, g.id, g.tenant, g.type, g.open, g.total, g.failed, i.queued_at, g.ended
FROM treadle_group AS g INDEXED BY treadle_group_outcome LEFT JOIN treadle_item AS i ON i.no = g.no
WHERE g.outcome IS NOT NULL AND g.outcome = ?1 AND g.no < ?2 AND g.no >= ?3
    AND g.tenant = coalesce(?5, g.tenant) AND g.type = coalesce(?6, g.type)
    AND (?7 IS NULL OR i.no IS NULL OR i.queued_at >= ?7) AND (?8 IS NULL OR i.no IS NULL OR i.queued_at < ?8)
ORDER BY g.no DESC LIMIT ?4

-- The roots of workflows, newest first, and whether a newer one is of the same workflow.
-- :name workflow_roots
SELECT i.no, i.workflow, i.tenant, i.type, i.queued_at,
       EXISTS (SELECT 1 FROM treadle_item AS n INDEXED BY treadle_item_workflow_root WHERE n.workflow IS NOT NULL
           AND n.queued_by IS NULL AND n.workflow = i.workflow AND n.tenant = i.tenant AND n.no > i.no)
FROM treadle_item AS i INDEXED BY treadle_item_workflow_roots
WHERE i.workflow IS NOT NULL AND i.queued_by IS NULL AND i.no < ? AND i.no >= ? ORDER BY i.no DESC LIMIT ?

-- The newest items of a workflow: how many, how many have not ended, how many failed groups, how many were cancelled.
-- :name newest_of_workflow
SELECT count(*), count(*) - count(outcome), count(failed_group), coalesce(sum(outcome = 12), 0), min(no), max(ended)
FROM (SELECT i.no, d.outcome, d.failed_group, d.ended FROM treadle_item AS i INDEXED BY treadle_item_workflow
    LEFT JOIN treadle_done AS d ON d.no = i.no
    WHERE i.workflow IS NOT NULL AND i.workflow = ? AND i.tenant = ? ORDER BY i.no DESC LIMIT ?)

-- :name workflow_has_more
SELECT 1 FROM treadle_item AS i INDEXED BY treadle_item_workflow
WHERE i.workflow IS NOT NULL AND i.workflow = ? AND i.tenant = ? AND i.no < ? LIMIT 1

-- :name workflow_death
SELECT d.no FROM treadle_item AS i INDEXED BY treadle_item_workflow CROSS JOIN treadle_done AS d ON d.no = i.no
WHERE i.workflow IS NOT NULL AND i.workflow = ? AND i.tenant = ? AND i.no >= ? AND d.failed_group IS NOT NULL
ORDER BY d.ended, d.no LIMIT 1
