-- :name workers
SELECT no, id, removed, release FROM treadle_worker

-- :name number_of
SELECT no FROM treadle_item WHERE id = ? AND tenant = ?

-- :name ended
SELECT outcome, token, settled_tokens FROM treadle_done WHERE no = ?

-- A handler does not begin before its item is claimed.
-- :name put_back
UPDATE treadle_open SET status = ?, attempt = ?, failures = ?, losses = ?, deferrals = deferrals + ?, due = ?,
    ready_since = coalesce(?, ready_since), seq = ?, verdict = ?,
    began = coalesce(max(?, started), began), settled_tokens = ?, token = NULL, worker = NULL
WHERE no = ?

-- An item that was alone has children now, and is open.
-- :name join_group
UPDATE treadle_open SET group_no = ? WHERE no = ? AND group_no IS NULL

-- The rows of the open items are copied inside SQLite. An item that is not plain, or that the token does not own, is
-- left out. The two parameters behind the rows are the time. INSERT stands first: only then the driver counts rows.
-- :name insert_done
INSERT INTO treadle_done (no, outcome, token, settled_tokens, attempt, failures, losses, redrives, due, deadline, started,
    ended, expires, contributed, worker, result, began, deferrals, records)
WITH v (no, token, id, tenant, contributed, result, began) AS (VALUES (?, ?, ?, ?, ?, ?, ?))
SELECT o.no, 10, o.token, o.settled_tokens, o.attempt, o.failures, o.losses, o.redrives, o.due, o.deadline, o.started,
    ?, ? + i.keep, v.contributed, w.id, nullif(v.result, ''), coalesce(max(nullif(v.began, ''), o.started), o.began),
    o.deferrals, o.records & 5
FROM v
CROSS JOIN treadle_open AS o ON o.no = v.no AND o.token = v.token AND o.verdict IS NULL AND o.group_no IS NULL
    AND o.has_dependencies = 0 AND o.contributes = 1
CROSS JOIN treadle_item AS i ON i.no = o.no AND +i.id = v.id AND +i.tenant = v.tenant
CROSS JOIN treadle_worker AS w ON w.no = o.worker AND w.removed = 0

-- An item is open or has ended. Those that are both were inserted a moment ago.
-- :name delete_inserted
DELETE FROM treadle_done
WHERE no IN (SELECT o.no FROM json_each(?) AS e CROSS JOIN treadle_open AS o ON o.no = e.value)

-- :name delete_open
DELETE FROM treadle_open WHERE no IN (SELECT value FROM json_each(?))
