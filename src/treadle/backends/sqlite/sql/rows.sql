-- The columns are read by rows._state, in this order.
-- :name states
SELECT i.no, i.id, i.tenant, i.type, i.queue, i.lane, i.priority, i.attempts,
       CASE WHEN i.group_no = i.no THEN i.id ELSE g.id END,
       i.parent, i.workflow, i.workflow_type, i.key, i.queued_at, i.after, i.options, i.input,
       coalesce(o.status, d.outcome), coalesce(o.attempt, d.attempt), coalesce(o.due, d.due),
       CASE WHEN o.no IS NULL THEN d.deadline ELSE o.deadline END,
       CASE WHEN o.no IS NULL THEN d.started ELSE o.started END,
       CASE WHEN o.no IS NULL THEN d.worker WHEN o.status = 4 THEN w.id END,
       d.ended, d.reason, d.result, a.error_type, a.message, coalesce(o.failures, d.failures),
       coalesce(o.losses, d.losses),
       CASE WHEN o.no IS NULL THEN d.began WHEN o.status = 4 THEN o.started ELSE o.began END,
       CASE WHEN d.outcome = 11 THEN (SELECT m.mark FROM treadle_dead AS m WHERE m.no = d.no) END
FROM json_each(?) AS e
CROSS JOIN treadle_item AS i ON i.no = e.value
LEFT JOIN treadle_open AS o ON o.no = i.no
LEFT JOIN treadle_done AS d ON d.no = i.no
LEFT JOIN treadle_group AS g ON g.no = i.group_no
LEFT JOIN treadle_worker AS w ON w.no = o.worker
LEFT JOIN treadle_attempt AS a
    ON a.no = i.no AND a.place = (SELECT max(place) FROM treadle_attempt WHERE no = i.no)

-- :name histories
SELECT a.no, a.attempt, a.error_type, a.message, a.traceback, a.at, a.worker
FROM json_each(?) AS e CROSS JOIN treadle_attempt AS a ON a.no = e.value
ORDER BY a.no, a.place

-- :name missing
SELECT m.dependent, m.id FROM json_each(?) AS e
CROSS JOIN treadle_missing AS m ON m.dependent = e.value
CROSS JOIN treadle_open AS o ON o.no = m.dependent

-- The first item submitted with that id, in any tenant.
-- :name numbers_of_ids
SELECT i.id, min(i.no) FROM json_each(?) AS e CROSS JOIN treadle_item AS i ON i.id = e.value GROUP BY i.id

-- :name numbers_of_ids_in_tenant
SELECT i.id, i.no FROM json_each(?) AS e CROSS JOIN treadle_item AS i ON i.id = e.value AND i.tenant = ?

-- The columns are those of item.Lease, in this order. The group id is NULL for an item that is alone.
-- :name leases
SELECT i.id, i.tenant, o.token, i.type, i.input, o.attempt + 1 - o.begun, g.id, i.queue, i.lane,
       i.priority, i.attempts, i.parent, i.workflow, i.workflow_type, i.after, i.options, i.queued_at,
       o.due, CASE WHEN o.verdict IS NULL THEN o.started ELSE ? END, o.deadline, o.verdict, o.no, o.failures, o.losses, o.begun,
       coalesce(o.ready_since, 0.0)
FROM json_each(?) AS e
CROSS JOIN treadle_open AS o ON o.no = e.value
CROSS JOIN treadle_item AS i ON i.no = o.no
LEFT JOIN treadle_group AS g ON g.no = o.group_no
