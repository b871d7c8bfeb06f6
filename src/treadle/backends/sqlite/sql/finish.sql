-- The columns are those of finish.Live, in this order.
-- :name live
SELECT j.no, i.id, i.tenant, i.type, j.status, j.token, j.settled, j.worker, j.attempt, j.grp, j.gated,
       j.due, j.deadline, j.seq, i.keep, i.keep_dead, j.verdict
FROM json_each(?) AS e
CROSS JOIN treadle_job AS j ON j.no = e.value
CROSS JOIN treadle_item AS i ON i.no = j.no

-- What the item's live row says goes from row to row: through Python, ending it would take 2 us longer.
-- :name insert_done
WITH v (no, outcome, reason, token, ended, expires, gave, worker, result) AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?))
INSERT INTO treadle_done (no, outcome, reason, token, settled, attempt, redrives, due, deadline, started, ended,
    expires, gave, worker, result)
SELECT v.no, v.outcome, nullif(v.reason, ''), nullif(v.token, ''), j.settled, j.attempt, j.redrives, j.due,
    j.deadline, j.started, v.ended, nullif(v.expires, ''), v.gave, nullif(v.worker, ''), nullif(v.result, '')
FROM v CROSS JOIN treadle_job AS j ON j.no = v.no

-- :name delete_jobs
DELETE FROM treadle_job WHERE no IN (SELECT value FROM json_each(?))

-- What an ended item waited for may be removed now, as far as it is concerned.
-- :name delete_edges_to
DELETE FROM treadle_edge WHERE dst IN (SELECT value FROM json_each(?))

-- :name delete_awaited_by
DELETE FROM treadle_awaited WHERE dst IN (SELECT value FROM json_each(?))

-- Whom these ends concern. Only a blocked one still counts.
-- :name dependents
SELECT x.src, x.dst, x.weight, j.need, j.met, j.open, j.any_end, j.due
FROM json_each(?) AS e
CROSS JOIN treadle_edge AS x ON x.src = e.value AND x.counted = 0
CROSS JOIN treadle_job AS j ON j.no = x.dst AND j.status = 0

-- :name any_edge
SELECT 1 FROM treadle_edge LIMIT 1

-- :name count_edges
UPDATE treadle_edge SET counted = 1 WHERE counted = 0 AND src IN (SELECT value FROM json_each(?))

-- :name update_gates
WITH v (no, met, open, status, seq, since, verdict) AS (VALUES (?, ?, ?, ?, ?, nullif(?, ''), nullif(?, '')))
UPDATE treadle_job SET met = v.met, open = v.open, status = v.status, seq = v.seq, since = v.since,
    verdict = v.verdict
FROM v WHERE treadle_job.no = v.no

-- :name released
SELECT i.id, i.tenant, i.type, CASE WHEN i.grp = i.no THEN i.id ELSE g.id END, i.queue, i.parent, i.after
FROM json_each(?) AS e
CROSS JOIN treadle_item AS i ON i.no = e.value
LEFT JOIN treadle_grp AS g ON g.no = i.grp

-- The columns are those of groups.Group, in this order.
-- :name groups
SELECT g.no, g.id, g.tenant, g.type, g.open, g.failed, g.version, g.final, g.keep, g.ended, g.value
FROM json_each(?) AS e CROSS JOIN treadle_grp AS g ON g.no = e.value

-- :name insert_groups
INSERT INTO treadle_grp (no, open, failed, version, final, keep, ended, look, value, id, tenant, type)
VALUES (?, ?, ?, ?, ?, ?, nullif(?, ''), nullif(?, ''), nullif(?, ''), ?, ?, ?)

-- :name update_groups
WITH v (no, open, failed, version, final, keep, ended, look, value)
    AS (VALUES (?, ?, ?, ?, ?, ?, nullif(?, ''), nullif(?, ''), nullif(?, '')))
UPDATE treadle_grp SET open = v.open, failed = v.failed, version = v.version, final = v.final, keep = v.keep,
    ended = v.ended, look = v.look, value = v.value
FROM v WHERE treadle_grp.no = v.no

-- :name insert_attempt
INSERT INTO treadle_attempt (no, place, attempt, at, worker, error_type, message, traceback)
VALUES (?, (SELECT coalesce(max(place), 0) + 1 FROM treadle_attempt WHERE no = ?), ?, ?, ?, ?, ?, ?)

-- :name trim_attempts
DELETE FROM treadle_attempt WHERE no = ? AND place <= (SELECT max(place) FROM treadle_attempt WHERE no = ?) - ?
