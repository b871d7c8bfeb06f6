-- :name worker
SELECT no, lease_until, lock_file, types, drain, release FROM treadle_worker WHERE id = ? AND removed = 0

-- What a heartbeat compares: how many permits the worker has, and the tokens of its leases.
-- :name worker_to_renew
SELECT w.no, w.types, w.drain,
       (SELECT coalesce(sum(p.count), 0) FROM treadle_permit AS p WHERE p.worker = w.no),
       (SELECT group_concat(o.token) FROM treadle_open AS o INDEXED BY treadle_open_worker WHERE o.worker = w.no)
FROM treadle_worker AS w WHERE w.id = ? AND w.removed = 0

-- :name register
INSERT INTO treadle_worker (id, lease_until, lease, lock_file, types, info, release) VALUES (?, ?, ?, ?, ?, ?, ?)

-- :name note_release
INSERT OR IGNORE INTO treadle_release (name, began) VALUES (?, ?)

-- :name forget_releases
DELETE FROM treadle_release WHERE name IN (SELECT name FROM treadle_release ORDER BY began DESC, name DESC LIMIT -1 OFFSET ?)

-- :name releases
SELECT name, began FROM treadle_release ORDER BY began DESC, name DESC

-- :name renew
UPDATE treadle_worker SET lease_until = ?, lease = ?, types = ?, info = coalesce(?, info) WHERE no = ?

-- :name drain
UPDATE treadle_worker SET drain = 1 WHERE id = ? AND removed = 0

-- :name set_lock_file
UPDATE treadle_worker SET lock_file = ? WHERE no = ?

-- :name lock_files
SELECT DISTINCT lock_file FROM treadle_worker WHERE removed = 0 AND lock_file IS NOT NULL

-- :name end_leases
UPDATE treadle_worker SET lease_until = ? WHERE removed = 0 AND lock_file IN (SELECT value FROM json_each(?))

-- :name lapsed_or_removed
SELECT no, id, types, removed, lease_until - lease, release FROM treadle_worker
WHERE removed = 1 OR lease_until <= ?1 OR lease_until > ?2 + 2 * lease ORDER BY no

-- :name shorten_lease
UPDATE treadle_worker SET lease_until = ? + lease WHERE no = ?

-- :name removed
SELECT no FROM treadle_worker WHERE removed = 1

-- :name mark_removed
UPDATE treadle_worker SET removed = 1 WHERE no = ?

-- :name delete_worker
DELETE FROM treadle_worker WHERE no = ?

-- :name delete_permits
DELETE FROM treadle_permit WHERE worker = ?

-- :name delete_lease_permits
DELETE FROM treadle_lease_permit WHERE worker = ?

-- :name live_types
SELECT types FROM treadle_worker WHERE removed = 0

-- :name set_unknown_type
INSERT OR REPLACE INTO treadle_unknown_type (type, since) VALUES (?, ?)

-- :name items_of
SELECT no FROM treadle_open INDEXED BY treadle_open_worker WHERE worker = ? ORDER BY no LIMIT ?

-- :name leased
SELECT no, status, attempt, failures, losses, begun, due, seq, deadline, verdict FROM treadle_open
WHERE no IN (SELECT value FROM json_each(?)) ORDER BY no

-- :name begin
UPDATE treadle_open SET begun = 1, attempt = attempt + 1
WHERE no IN (SELECT value FROM json_each(?)) AND begun = 0 AND status = 4

-- :name free
WITH v (no, status, losses, due, ready_since, seq, verdict)
    AS (VALUES (?, ?, ?, ?, nullif(?, ''), ?, nullif(?, '')))
UPDATE treadle_open SET status = v.status, losses = v.losses, due = v.due,
    ready_since = coalesce(v.ready_since, treadle_open.ready_since), seq = v.seq, verdict = v.verdict, token = NULL,
    worker = NULL,
    began = CASE WHEN begun = 1 AND treadle_open.status = 4 THEN started ELSE began END
FROM v WHERE treadle_open.no = v.no

-- :name leases_of
SELECT no, token FROM treadle_open INDEXED BY treadle_open_worker WHERE worker = ? ORDER BY token

-- :name workers
SELECT w.id, w.lease_until, w.types,
       (SELECT count(*) FROM treadle_open AS o WHERE o.worker = w.no AND o.status = 4), w.info
FROM treadle_worker AS w WHERE w.removed = 0 ORDER BY w.id
