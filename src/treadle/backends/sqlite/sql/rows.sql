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
       CASE WHEN d.outcome = 11 THEN (SELECT m.mark FROM treadle_dead AS m WHERE m.no = d.no) END,
       coalesce(o.deferrals, d.deferrals), coalesce(o.records, d.records), a.release
FROM json_each(?) AS e
CROSS JOIN treadle_item AS i ON i.no = e.value
LEFT JOIN treadle_open AS o ON o.no = i.no
LEFT JOIN treadle_done AS d ON d.no = i.no
LEFT JOIN treadle_group AS g ON g.no = i.group_no
LEFT JOIN treadle_worker AS w ON w.no = o.worker
LEFT JOIN treadle_attempt AS a
    ON a.no = i.no AND a.place = (SELECT max(place) FROM treadle_attempt WHERE no = i.no)

-- :name histories
SELECT a.no, a.attempt, a.error_type, a.message, a.traceback, a.at, a.worker, a.release
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

-- The columns are read by rows.leases, in this order. The last one is NULL for most items: what few have is in one column,
-- since each column costs 0.1 to 0.2 us. It holds the fields of rows.RareFields.
-- :name leases
SELECT i.id, i.tenant, o.token, i.type, i.input, o.attempt + 1 - o.begun, i.queue, i.lane, i.priority, i.attempts,
       i.options, i.queued_at, o.due, CASE WHEN o.verdict IS NULL THEN o.started ELSE ? END, o.deadline, o.no, o.ready_since,
       CASE WHEN coalesce(o.group_no, i.parent, i.workflow, i.workflow_type, i.after, o.verdict) IS NOT NULL
                OR o.failures > 0 OR o.losses > 0 OR o.begun = 0 OR o.deferrals > 0 OR o.records > 0
           THEN json_array(g.id, i.parent, i.workflow, i.workflow_type, json(i.after), o.verdict, o.failures, o.losses, o.begun,
                           o.deferrals, o.records & 1, o.records & 8)
       END
FROM json_each(?) AS e
CROSS JOIN treadle_open AS o ON o.no = e.value
CROSS JOIN treadle_item AS i ON i.no = o.no
LEFT JOIN treadle_group AS g ON g.no = o.group_no
