-- :name known
SELECT no, until, lock, types FROM treadle_worker WHERE id = ? AND gone = 0

-- :name register
INSERT INTO treadle_worker (id, until, lock, types) VALUES (?, ?, ?, ?)

-- :name keep
UPDATE treadle_worker SET until = ?, types = ? WHERE no = ?

-- :name set_lock
UPDATE treadle_worker SET lock = ? WHERE no = ?

-- :name locks
SELECT DISTINCT lock FROM treadle_worker WHERE gone = 0 AND lock IS NOT NULL

-- :name lapse
UPDATE treadle_worker SET until = ? WHERE gone = 0 AND lock IN (SELECT value FROM json_each(?))

-- :name lapsed
SELECT no, id, types FROM treadle_worker WHERE gone = 0 AND until <= ?

-- :name gone
SELECT no, id FROM treadle_worker WHERE gone = 1 ORDER BY no

-- :name mark_gone
UPDATE treadle_worker SET gone = 1 WHERE no = ?

-- :name forget
DELETE FROM treadle_worker WHERE no = ?

-- :name drop_slots
DELETE FROM treadle_slot WHERE worker = ?

-- :name live_types
SELECT types FROM treadle_worker WHERE gone = 0

-- :name forget_type
INSERT OR REPLACE INTO treadle_forgotten (type, since) VALUES (?, ?)

-- :name held
SELECT no FROM treadle_job INDEXED BY treadle_job_leased WHERE worker = ? ORDER BY no LIMIT ?

-- :name leased
SELECT no, status, attempt, attempts, losses, verdict, seq, deadline FROM treadle_job
WHERE no IN (SELECT value FROM json_each(?)) ORDER BY no

-- :name free
WITH v (no, status, losses, due, since, seq, verdict) AS (VALUES (?, ?, ?, nullif(?, ''), nullif(?, ''), ?, nullif(?, '')))
UPDATE treadle_job SET status = v.status, losses = v.losses, due = coalesce(v.due, treadle_job.due),
    since = v.since, seq = v.seq, verdict = v.verdict, token = NULL, worker = NULL
FROM v WHERE treadle_job.no = v.no

-- :name unknown_leases
SELECT no, token FROM treadle_job INDEXED BY treadle_job_leased WHERE worker = ? ORDER BY token

-- :name workers
SELECT w.id, w.until, w.types,
       (SELECT count(*) FROM treadle_job AS j WHERE j.worker = w.no AND j.status = 4)
FROM treadle_worker AS w WHERE w.gone = 0 ORDER BY w.id
