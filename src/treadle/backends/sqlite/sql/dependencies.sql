-- :name insert_dependency
INSERT INTO treadle_dependency (prerequisite, dependent, counted, weight, tolerant) VALUES (?, ?, ?, ?, ?)

-- :name insert_missing
INSERT INTO treadle_missing (id, tenant, dependent, tolerant) VALUES (?, ?, ?, ?)

-- The prerequisites that exist, and the outcomes of those that have ended.
-- :name prerequisites
SELECT i.id, i.no, d.outcome
FROM json_each(?) AS e
CROSS JOIN treadle_item AS i ON i.id = e.value AND i.tenant = ?
LEFT JOIN treadle_done AS d ON d.no = i.no

-- The same for whole groups. A nested group, or one whose root was removed, has a row and no root. An outcome: 10 if no
-- death failed the group and no member is cancelled, else 11.
-- :name prerequisite_groups
SELECT g.id, -g.no, CASE WHEN g.ended IS NULL THEN NULL WHEN g.failed OR g.cancelled THEN 11 ELSE 10 END
FROM json_each(?1) AS e
CROSS JOIN treadle_group AS g ON g.id = e.value AND g.tenant = ?2
UNION ALL
SELECT i.id, -i.no, CASE WHEN d.no IS NULL THEN NULL WHEN d.failed_group OR d.outcome = 12 THEN 11 ELSE 10 END
FROM json_each(?1) AS e
CROSS JOIN treadle_item AS i ON i.id = e.value AND i.tenant = ?2 AND i.group_no = i.no
LEFT JOIN treadle_done AS d ON d.no = i.no
WHERE NOT EXISTS (SELECT 1 FROM treadle_group AS g WHERE g.no = i.no)

-- :name waiting_for_missing
SELECT m.id, m.tenant, m.dependent, m.tolerant
FROM json_each(?) AS e CROSS JOIN treadle_missing AS m ON m.id = e.value

-- :name delete_missing
DELETE FROM treadle_missing WHERE id = ? AND tenant = ?

-- What a blocked item waits for: items and groups that exist, and names that do not.
-- :name waits_for
SELECT CASE WHEN x.prerequisite < 0 THEN char(30) || coalesce(p.id, g.id) ELSE p.id END
FROM treadle_item AS i
CROSS JOIN treadle_open AS o ON o.no = i.no AND o.status = 0
CROSS JOIN treadle_dependency AS x ON x.dependent = i.no AND x.counted = 0
LEFT JOIN treadle_item AS p ON p.no = abs(x.prerequisite)
LEFT JOIN treadle_group AS g ON g.no = -x.prerequisite
WHERE i.id = ?1 AND i.tenant = ?2
UNION ALL
SELECT m.id
FROM treadle_item AS i
CROSS JOIN treadle_open AS o ON o.no = i.no AND o.status = 0
CROSS JOIN treadle_missing AS m ON m.dependent = i.no
WHERE i.id = ?1 AND i.tenant = ?2

-- The members of a group that wait for others.
-- :name blocked_members
SELECT i.id FROM treadle_item AS i CROSS JOIN treadle_open AS o ON o.no = i.no AND o.status = 0
WHERE i.no = ?1 AND i.group_no = ?1
UNION ALL
SELECT i.id FROM treadle_item AS i INDEXED BY treadle_item_member
CROSS JOIN treadle_open AS o ON o.no = i.no AND o.status = 0
WHERE i.group_no = ?1 AND i.queued_by IS NOT NULL

-- Those of these items and groups that an open item depends on.
-- :name awaited
SELECT e.value FROM json_each(?) AS e
WHERE EXISTS (SELECT 1 FROM treadle_dependency AS x CROSS JOIN treadle_open AS o ON o.no = x.dependent
    WHERE x.prerequisite = e.value)

-- :name any_blocked
SELECT 1 FROM treadle_open INDEXED BY treadle_open_waiting WHERE status = 0 AND status < 2 LIMIT 1

-- The dependents of items that end. The end is counted only for those that are still blocked.
-- :name dependents
SELECT x.prerequisite, x.dependent, x.weight, o.need, o.met, o.pending, o.any_end_counts, o.due
FROM json_each(?) AS e
CROSS JOIN treadle_dependency AS x ON x.prerequisite = e.value AND x.counted = 0
CROSS JOIN treadle_open AS o ON o.no = x.dependent AND o.status = 0

-- :name mark_counted
UPDATE treadle_dependency SET counted = 1 WHERE counted = 0 AND prerequisite IN (SELECT value FROM json_each(?))

-- :name update_dependents
WITH v (no, met, pending, status, seq, ready_since, verdict)
    AS (VALUES (?, ?, ?, ?, ?, nullif(?, ''), nullif(?, '')))
UPDATE treadle_open SET met = v.met, pending = v.pending, status = v.status, seq = v.seq,
    ready_since = v.ready_since, verdict = v.verdict
FROM v WHERE treadle_open.no = v.no

-- :name released
SELECT i.id, i.tenant, i.type, CASE WHEN i.group_no = i.no THEN i.id ELSE g.id END, i.queue, i.parent, i.after
FROM json_each(?) AS e
CROSS JOIN treadle_item AS i ON i.no = e.value
LEFT JOIN treadle_group AS g ON g.no = i.group_no

-- Those of these items that an item depends on which can run although they are dead.
-- :name tolerated
SELECT e.value FROM json_each(?) AS e
WHERE EXISTS (SELECT 1 FROM treadle_dependency AS x WHERE x.prerequisite = e.value AND x.tolerant = 1)

-- :name delete_dependencies
DELETE FROM treadle_dependency WHERE dependent IN (SELECT value FROM json_each(?))

-- :name delete_missing_of
DELETE FROM treadle_missing WHERE dependent IN (SELECT value FROM json_each(?))
