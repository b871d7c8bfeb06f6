-- :name insert_audit
INSERT INTO treadle_audit (at, actor, verb, tenant, ids, count, about, reason, address, bulk)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- :name audits
SELECT no, at, actor, verb, tenant, ids, count, about, reason, address, bulk
FROM treadle_audit WHERE bulk IS ? AND no < ? ORDER BY no DESC LIMIT ?

-- :name portions_of_tenant
SELECT no, at, actor, verb, tenant, ids, count, about, reason, address, bulk
FROM treadle_audit WHERE tenant = ? AND bulk = ? AND no < ? ORDER BY no DESC LIMIT ?

-- With the portions of bulk actions of all tenants.
-- :name audits_of_tenant
SELECT no, at, actor, verb, tenant, ids, count, about, reason, address, bulk FROM (
    SELECT * FROM (
        SELECT * FROM treadle_audit WHERE tenant = ?1 AND bulk IS NULL AND no < ?2 ORDER BY no DESC LIMIT ?3
    )
    UNION ALL
    SELECT * FROM (
        SELECT * FROM treadle_audit WHERE tenant = ?1 AND bulk IS NOT NULL AND about <> '' AND no < ?2
        ORDER BY no DESC LIMIT ?3
    )
) ORDER BY no DESC LIMIT ?3

-- What workers counted. The functions treadle_add and treadle_sum are those of records.py.

-- :name add
INSERT INTO treadle_stat AS s
    (step, at, type, queue, started, succeeded, failed, retried, dead, cancelled, lost, wait, run)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (step, at, type, queue) DO UPDATE SET
    started = s.started + excluded.started, succeeded = s.succeeded + excluded.succeeded,
    failed = s.failed + excluded.failed, retried = s.retried + excluded.retried,
    dead = s.dead + excluded.dead, cancelled = s.cancelled + excluded.cancelled,
    lost = s.lost + excluded.lost,
    wait = treadle_add(s.wait, excluded.wait), run = treadle_add(s.run, excluded.run)

-- Parameters: rows of which step, since, until, type, queue, step of the groups. The table is in the order of the
-- instants, so only types and queues are sorted.
-- :name by_time
SELECT at / ?6 * ?6, '', sum(started), sum(succeeded), sum(failed), sum(retried), sum(dead), sum(cancelled),
    sum(lost), treadle_sum(wait), treadle_sum(run)
FROM treadle_stat
WHERE step = ?1 AND at >= ?2 AND at < coalesce(?3, 9e999)
    AND (?4 IS NULL OR type = ?4) AND (?5 IS NULL OR queue = ?5)
GROUP BY 1 ORDER BY 1

-- :name by_type
SELECT ?6, type, sum(started), sum(succeeded), sum(failed), sum(retried), sum(dead), sum(cancelled),
    sum(lost), treadle_sum(wait), treadle_sum(run)
FROM treadle_stat
WHERE step = ?1 AND at >= ?2 AND at < coalesce(?3, 9e999)
    AND (?4 IS NULL OR type = ?4) AND (?5 IS NULL OR queue = ?5)
GROUP BY type ORDER BY type

-- :name by_queue
SELECT ?6, queue, sum(started), sum(succeeded), sum(failed), sum(retried), sum(dead), sum(cancelled),
    sum(lost), treadle_sum(wait), treadle_sum(run)
FROM treadle_stat
WHERE step = ?1 AND at >= ?2 AND at < coalesce(?3, 9e999)
    AND (?4 IS NULL OR type = ?4) AND (?5 IS NULL OR queue = ?5)
GROUP BY queue ORDER BY queue

-- :name prune
DELETE FROM treadle_stat WHERE (step, at, type, queue) IN
    (SELECT step, at, type, queue FROM treadle_stat WHERE step = ? AND at < ? LIMIT ?)

-- :name put_sample
INSERT OR REPLACE INTO treadle_sample (step, at, queue, samples, ready, running, oldest, estimated)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- :name samples
SELECT step, at, queue, samples, ready, running, oldest, estimated FROM treadle_sample
WHERE step = ?1 AND at >= ?2 AND at < coalesce(?3, 9e999) AND (?4 IS NULL OR queue IN (SELECT value FROM json_each(?4)))
ORDER BY at, queue

-- :name prune_samples
DELETE FROM treadle_sample WHERE (step, at, queue) IN
    (SELECT step, at, queue FROM treadle_sample WHERE step = ? AND at < ? LIMIT ?)
