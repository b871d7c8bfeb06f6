-- The columns are read by rows.state, in this order.

-- :name states
SELECT i.no, i.id, i.tenant, i.type, i.queue, i.lane, i.priority, i.attempts,
       CASE WHEN i.grp = i.no THEN i.id ELSE g.id END,
       i.parent, i.workflow, i.workflow_type, i.key, i.queued_at, i.after, i.options, i.input,
       coalesce(j.status, d.outcome), coalesce(j.attempt, d.attempt), coalesce(j.due, d.due),
       CASE WHEN j.no IS NULL THEN d.deadline ELSE j.deadline END,
       CASE WHEN j.no IS NULL THEN d.started ELSE j.started END,
       CASE WHEN j.no IS NULL THEN d.worker WHEN j.status = 4 THEN w.id END,
       d.ended, d.reason, d.result, a.error_type, a.message
FROM json_each(?) AS e
CROSS JOIN treadle_item AS i ON i.no = e.value
LEFT JOIN treadle_job AS j ON j.no = i.no
LEFT JOIN treadle_done AS d ON d.no = i.no
LEFT JOIN treadle_grp AS g ON g.no = i.grp
LEFT JOIN treadle_worker AS w ON w.no = j.worker
LEFT JOIN treadle_attempt AS a
    ON a.no = i.no AND a.place = (SELECT max(place) FROM treadle_attempt WHERE no = i.no)

-- :name histories
SELECT a.no, a.attempt, a.error_type, a.message, a.traceback, a.at, a.worker
FROM json_each(?) AS e CROSS JOIN treadle_attempt AS a ON a.no = e.value
ORDER BY a.no, a.place

-- :name awaited
SELECT a.dst, a.id FROM json_each(?) AS e CROSS JOIN treadle_awaited AS a ON a.dst = e.value

-- The first one submitted of that id, in any tenant.
-- :name numbers_of_ids
SELECT i.id, min(i.no) FROM json_each(?) AS e CROSS JOIN treadle_item AS i ON i.id = e.value GROUP BY i.id

-- :name numbers_of_ids_in_tenant
SELECT i.id, i.no FROM json_each(?) AS e CROSS JOIN treadle_item AS i ON i.id = e.value AND i.tenant = ?

-- The columns are read by rows.lease, in this order. One that is alone has no group but itself.
-- :name leases
SELECT i.id, i.tenant, j.token, i.type, i.input, j.attempt, g.id, i.queue, i.lane,
       i.priority, i.attempts, i.parent, i.workflow, i.workflow_type, i.after, i.options, i.queued_at,
       j.due, CASE WHEN j.verdict IS NULL THEN j.started ELSE ? END, j.deadline, j.verdict, j.no
FROM json_each(?) AS e
CROSS JOIN treadle_job AS j ON j.no = e.value
CROSS JOIN treadle_item AS i ON i.no = j.no
LEFT JOIN treadle_grp AS g ON g.no = j.grp
