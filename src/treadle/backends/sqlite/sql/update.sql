-- Those of these items that have not started. The columns are those of update.UnstartedItem, in this order.
-- :name unstarted
SELECT o.no, o.status, i.queued_at, i.queue, i.lane, i.priority, o.due, o.deadline
FROM json_each(?) AS e
CROSS JOIN treadle_open AS o ON o.no = e.value
CROSS JOIN treadle_item AS i ON i.no = o.no
WHERE o.status >= 0 AND o.status < 4 AND o.attempt = 0

-- :name update_open
UPDATE treadle_open SET status = ?, queue = ?, lane = ?, rank = ?, due = ?, deadline = ?, seq = ?, ready_since = ?,
    holds_lane = 0
WHERE no = ?

-- :name set_deadline
UPDATE treadle_open SET deadline = ? WHERE no = ?

-- :name update_item
UPDATE treadle_item SET queue = ?, lane = ?, priority = ? WHERE no = ?

-- :name take_over
UPDATE treadle_item SET queue = ?, lane = ?, priority = ?, attempts = ?, keep = ?, keep_dead = ?, options = ?,
    input = ?
WHERE no = ?

-- :name changed_by
SELECT changed_by FROM treadle_key WHERE key = ? AND tenant = ? AND type = ?

-- :name set_changed_by
UPDATE treadle_key SET changed_by = ? WHERE key = ? AND tenant = ? AND type = ?
