-- The columns are those of endings.OpenItem, in this order.
-- :name open_items
SELECT o.no, i.id, i.tenant, i.type, o.status, o.token, o.settled_tokens, o.worker, o.attempt, o.failures, o.losses,
       o.begun, o.group_no, o.has_dependencies, o.due, o.deadline, o.seq, i.keep, i.keep_dead,
       o.contributes, o.verdict
FROM json_each(?) AS e
CROSS JOIN treadle_open AS o ON o.no = e.value
CROSS JOIN treadle_item AS i ON i.no = o.no

-- The values of the open row are copied inside SQLite: through Python, ending an item would take 2 us longer.
-- :name insert_done
WITH v (no, outcome, reason, token, ended, expires, contributed, worker, result, failed, began)
    AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
INSERT INTO treadle_done (no, outcome, reason, token, settled_tokens, attempt, failures, losses, redrives, due,
    deadline, started, ended, expires, contributed, worker, result, began, deferrals, records)
SELECT v.no, v.outcome, nullif(v.reason, ''), nullif(v.token, ''), o.settled_tokens, o.attempt,
    o.failures + v.failed, o.losses, o.redrives, o.due, o.deadline, o.started, v.ended, nullif(v.expires, ''),
    v.contributed, nullif(v.worker, ''), nullif(v.result, ''),
    coalesce(max(nullif(v.began, ''), o.started), o.began), o.deferrals, o.records & 5
FROM v CROSS JOIN treadle_open AS o ON o.no = v.no

-- :name insert_dead
WITH v (no, ended, reason, mark, release) AS (VALUES (?, ?, ?, ?, ?))
INSERT INTO treadle_dead (no, ended, queue, tenant, type, reason, mark, release)
SELECT v.no, v.ended, o.queue, o.tenant, o.type, nullif(v.reason, ''), v.mark, nullif(v.release, '')
FROM v CROSS JOIN treadle_open AS o ON o.no = v.no

-- :name delete_open
DELETE FROM treadle_open WHERE no IN (SELECT value FROM json_each(?))

-- Only for items that wait for others, or add nothing to the value of their group: a requeue needs these.
-- :name keep_conditions
UPDATE treadle_done SET contributes = o.contributes, need = o.need, met = o.met, any_end_counts = o.any_end_counts
FROM treadle_open AS o WHERE o.no = treadle_done.no AND treadle_done.no IN (SELECT value FROM json_each(?))

-- :name fail_groups
WITH v (no, failed_group, failed_place) AS (VALUES (?, ?, ?))
UPDATE treadle_done SET failed_group = v.failed_group, failed_place = v.failed_place
FROM v WHERE treadle_done.no = v.no

-- :name insert_attempt
INSERT INTO treadle_attempt (no, place, attempt, at, worker, release, error_type, message, traceback)
VALUES (?, (SELECT coalesce(max(place), 0) + 1 FROM treadle_attempt WHERE no = ?), ?, ?, ?, ?, ?, ?, ?)

-- :name trim_attempts
DELETE FROM treadle_attempt WHERE no = ? AND place <= (SELECT max(place) FROM treadle_attempt WHERE no = ?) - ?
