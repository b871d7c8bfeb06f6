-- A claim reads the claim index from name to name: each of these statements is one step in it.

-- :name ready_queue
SELECT queue FROM treadle_open INDEXED BY treadle_open_ready
WHERE status = 2 AND queue >= ? ORDER BY queue LIMIT 1

-- :name ready_tenant
SELECT tenant FROM treadle_open INDEXED BY treadle_open_ready
WHERE status = 2 AND queue = ? AND tenant >= ? ORDER BY tenant LIMIT 1

-- A lane and its first row in one step.
-- :name ready_lane
SELECT lane, no, rank, seq, type, deadline FROM treadle_open INDEXED BY treadle_open_ready
WHERE status = 2 AND queue = ? AND tenant = ? AND lane >= ? ORDER BY lane, rank, seq LIMIT 1

-- :name ready_rows
SELECT no, rank, seq, type, deadline FROM treadle_open INDEXED BY treadle_open_ready
WHERE status = 2 AND queue = ? AND tenant = ? AND lane = ? AND (rank, seq) > (?, ?)
ORDER BY rank, seq LIMIT ?

-- As ready_rows, with what a lease needs of the item. The last column is as in `leases` of rows.sql.
-- :name ready_items
SELECT o.no, o.rank, o.seq, o.type, o.deadline, i.id, i.input, o.attempt + 1, i.priority, i.attempts, i.options, i.queued_at,
       o.due, o.ready_since,
       CASE WHEN coalesce(o.group_no, i.parent, i.workflow, i.workflow_type, i.after) IS NOT NULL
                OR o.failures > 0 OR o.losses > 0 OR o.deferrals > 0 OR o.records > 0
           THEN json_array(g.id, i.parent, i.workflow, i.workflow_type, json(i.after), NULL, o.failures, o.losses,
                           o.losses = 0, o.deferrals, o.records & 1, o.records & 2)
       END
FROM treadle_open AS o INDEXED BY treadle_open_ready
CROSS JOIN treadle_item AS i ON i.no = o.no
LEFT JOIN treadle_group AS g ON g.no = o.group_no
WHERE o.status = 2 AND o.queue = ? AND o.tenant = ? AND o.lane = ? AND (o.rank, o.seq) > (?, ?)
ORDER BY o.rank, o.seq LIMIT ?

-- :name parked_queue
SELECT queue FROM treadle_open INDEXED BY treadle_open_parked
WHERE status = 3 AND type = ? AND queue >= ? ORDER BY queue LIMIT 1

-- :name parked_tenant
SELECT tenant FROM treadle_open INDEXED BY treadle_open_parked
WHERE status = 3 AND type = ? AND queue = ? AND tenant >= ? ORDER BY tenant LIMIT 1

-- A lane and its first row in one step.
-- :name parked_lane
SELECT lane, no, rank, seq, type, deadline FROM treadle_open INDEXED BY treadle_open_parked
WHERE status = 3 AND type = ? AND queue = ? AND tenant = ? AND lane >= ? ORDER BY lane, rank, seq LIMIT 1

-- The next lanes, and a null behind the last of them: one step in the index each, without the rows between.
-- :name parked_lanes
WITH RECURSIVE next(lane) AS (
  SELECT (SELECT lane FROM treadle_open INDEXED BY treadle_open_parked
          WHERE status = 3 AND type = ?1 AND queue = ?2 AND tenant = ?3 AND lane >= ?4 ORDER BY lane LIMIT 1)
  UNION ALL
  SELECT (SELECT lane FROM treadle_open INDEXED BY treadle_open_parked
          WHERE status = 3 AND type = ?1 AND queue = ?2 AND tenant = ?3 AND lane > next.lane
          ORDER BY lane LIMIT 1)
  FROM next WHERE next.lane IS NOT NULL
)
SELECT lane FROM next LIMIT ?5

-- :name parked_rows
SELECT no, rank, seq, type, deadline FROM treadle_open INDEXED BY treadle_open_parked
WHERE status = 3 AND type = ? AND queue = ? AND tenant = ? AND lane = ? AND (rank, seq) > (?, ?)
ORDER BY rank, seq LIMIT ?

-- :name next_parked_type
SELECT type FROM treadle_open INDEXED BY treadle_open_parked
WHERE status = 3 AND type >= ? ORDER BY type LIMIT 1

-- Those of the types that have parked items.
-- :name parked_types
SELECT e.value FROM json_each(?) AS e
WHERE EXISTS (SELECT 1 FROM treadle_open INDEXED BY treadle_open_parked WHERE status = 3 AND type = e.value)

-- The items that hold their lanes, and whether they are ready.
-- :name lane_holders
SELECT no, status IN (2, 3), queue, tenant, lane, type, deadline
FROM treadle_open INDEXED BY treadle_open_holder
WHERE holds_lane = 1 AND type IN (SELECT value FROM json_each(?)) ORDER BY seq

-- :name park
UPDATE treadle_open SET status = 3 WHERE no IN (SELECT value FROM json_each(?))
