-- :name children
SELECT i.no FROM json_each(?) AS e
CROSS JOIN treadle_item AS p ON p.no = e.value
CROSS JOIN treadle_item AS i INDEXED BY treadle_item_member ON i.group_no = p.group_no AND i.queued_by = p.no

-- The members of the nested groups that these items close.
-- :name closed_members
SELECT i.no FROM json_each(?) AS e
CROSS JOIN treadle_group AS g ON g.no = e.value AND g.outer_no IS NOT NULL
CROSS JOIN treadle_item AS i INDEXED BY treadle_item_member ON i.group_no = g.no AND i.queued_by IS NOT NULL

-- :name outcome
SELECT outcome FROM treadle_done WHERE no = ?

-- :name trigger
UPDATE treadle_open SET status = 2, due = ?, ready_since = ?, seq = ? + e.key
FROM json_each(?) AS e WHERE treadle_open.no = e.value AND treadle_open.status = 1

-- Those of these items that are scheduled or ready.
-- :name waiting
SELECT o.no, o.due FROM json_each(?) AS e CROSS JOIN treadle_open AS o ON o.no = e.value WHERE o.status IN (1, 2, 3)

-- :name hold
UPDATE treadle_open SET due = ?, status = ?, seq = ?, ready_since = ? WHERE no = ?

-- :name members
SELECT i.no FROM json_each(?) AS e
CROSS JOIN treadle_item AS i INDEXED BY treadle_item_member ON i.group_no = e.value AND i.queued_by IS NOT NULL

-- :name roots
SELECT i.no FROM json_each(?) AS e CROSS JOIN treadle_item AS i ON i.no = e.value AND i.group_no = e.value

-- :name names_waited_for
SELECT DISTINCT i.tenant, a.value FROM json_each(?) AS e
CROSS JOIN treadle_item AS i ON i.no = e.value AND i.after IS NOT NULL
CROSS JOIN json_each(i.after) AS a

-- :name groups_of
SELECT DISTINCT i.group_no FROM json_each(?) AS e CROSS JOIN treadle_item AS i ON i.no = e.value

-- A group that is not nested and contains no others has no nested groups around or inside it.
-- :name nested_groups
SELECT g.no FROM json_each(?) AS e
CROSS JOIN treadle_group AS o ON o.no = e.value AND o.nested = 1
CROSS JOIN treadle_group AS g INDEXED BY treadle_group_outermost
    ON g.outermost = coalesce(o.outermost, o.no) AND g.outer_no = o.no

-- :name references
SELECT coalesce(p.id, g.id), i.id, x.dependent FROM json_each(?) AS e
CROSS JOIN treadle_dependency AS x ON x.prerequisite = e.value
CROSS JOIN treadle_open AS o ON o.no = x.dependent
CROSS JOIN treadle_item AS i ON i.no = x.dependent
LEFT JOIN treadle_item AS p ON p.no = abs(x.prerequisite)
LEFT JOIN treadle_group AS g ON g.no = -x.prerequisite

-- The columns of the first three statements are those of operate._Ended, in this order.

-- :name ended_items
SELECT d.no, i.id, i.tenant, i.group_no, coalesce(g.id, i.id), g.no IS NOT NULL, d.outcome,
       d.failed_group IS NOT NULL, d.redrives, d.due, i.keep, i.keep_dead, d.need, d.met, d.any_end_counts, i.after, 0, d.records
FROM json_each(?) AS e
CROSS JOIN treadle_done AS d ON d.no = e.value AND d.outcome > 10
CROSS JOIN treadle_item AS i ON i.no = d.no
LEFT JOIN treadle_group AS g ON g.no = i.group_no

-- Items that died because of these items and groups, or of others.
-- :name dead_dependents
SELECT d.no, i.id, i.tenant, i.group_no, coalesce(g.id, i.id), g.no IS NOT NULL, d.outcome,
       d.failed_group IS NOT NULL, d.redrives, d.due, i.keep, i.keep_dead, d.need, d.met, d.any_end_counts, i.after,
       x.prerequisite, d.records
FROM json_each(?) AS e
CROSS JOIN treadle_dependency AS x ON x.prerequisite = e.value
CROSS JOIN treadle_done AS d ON d.no = x.dependent AND d.outcome = 11 AND d.reason = 'unsatisfiable'
CROSS JOIN treadle_item AS i ON i.no = d.no
LEFT JOIN treadle_group AS g ON g.no = i.group_no

-- Items that are doomed because of these items and groups, or of others. They may be leased with their verdict.
-- :name doomed_dependents
SELECT o.no, i.id, i.tenant, i.group_no, coalesce(g.id, i.id), g.no IS NOT NULL, 0, 0, o.redrives, o.due, i.keep,
       i.keep_dead, o.need, o.met, o.any_end_counts, i.after, x.prerequisite, o.records
FROM json_each(?) AS e
CROSS JOIN treadle_dependency AS x ON x.prerequisite = e.value
CROSS JOIN treadle_open AS o ON o.no = x.dependent AND o.status IN (-1, 5) AND o.verdict = 'unsatisfiable'
CROSS JOIN treadle_item AS i ON i.no = o.no
LEFT JOIN treadle_group AS g ON g.no = i.group_no

-- An item that is alone stays alone. A group that has a row counts the item again.
-- :name open_again
WITH v (no, status, seq, due, ready_since, redrives, has_dependencies, met, pending)
    AS (VALUES (?, ?, ?, ?, nullif(?, ''), ?, ?, ?, ?))
INSERT INTO treadle_open (no, status, queue, tenant, type, lane, rank, seq, due, ready_since, redrives,
    group_no, has_dependencies, need, met, pending, any_end_counts, contributes, settled_tokens,
    records)
SELECT i.no, v.status, i.queue, i.tenant, i.type, i.lane, -i.priority, v.seq, v.due, v.ready_since,
    v.redrives, g.no, v.has_dependencies, d.need, v.met, v.pending, d.any_end_counts, d.contributes,
    CASE WHEN d.token IS NULL THEN d.settled_tokens
        ELSE json_insert(coalesce(d.settled_tokens, '[]'), '$[#]', d.token) END,
    d.records
FROM v
CROSS JOIN treadle_item AS i ON i.no = v.no
CROSS JOIN treadle_done AS d ON d.no = i.no
LEFT JOIN treadle_group AS g ON g.no = i.group_no

-- :name block_again
WITH v (no, met, pending) AS (VALUES (?, ?, ?))
UPDATE treadle_open SET status = 0, met = v.met, pending = v.pending, verdict = NULL, token = NULL, worker = NULL
FROM v WHERE treadle_open.no = v.no

-- :name delete_done
DELETE FROM treadle_done WHERE no IN (SELECT value FROM json_each(?))

-- Blocked items for which the ends of these items and groups were counted without being met.
-- :name counted_in_vain
SELECT x.dependent, x.weight
FROM json_each(?) AS e
CROSS JOIN treadle_dependency AS x ON x.prerequisite = e.value AND x.counted = 1
CROSS JOIN treadle_open AS o ON o.no = x.dependent AND o.status = 0 AND o.any_end_counts = 0

-- :name uncount
UPDATE treadle_dependency SET counted = 0
WHERE counted = 1 AND prerequisite IN (SELECT value FROM json_each(?))
    AND dependent IN (SELECT o.no FROM treadle_open AS o WHERE o.no = treadle_dependency.dependent AND o.status = 0
        AND o.any_end_counts = 0)

-- :name add_pending
WITH v (no, pending) AS (VALUES (?, ?))
UPDATE treadle_open SET pending = treadle_open.pending + v.pending FROM v WHERE treadle_open.no = v.no

-- Those of these items that have not started. The columns are those of operate.UnstartedItem, in this order.
-- :name unstarted
SELECT o.no, o.status, i.queued_at, i.queue, i.lane, i.priority, o.due, o.deadline,
    CASE WHEN o.status IN (2, 3) THEN o.ready_since END
FROM json_each(?) AS e
CROSS JOIN treadle_open AS o ON o.no = e.value
CROSS JOIN treadle_item AS i ON i.no = o.no
WHERE o.status >= 0 AND o.status < 4 AND o.attempt = 0 AND o.records & 1 = 0

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
