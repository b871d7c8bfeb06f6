-- :name mark
SELECT state, move, other, content FROM main.treadle_part WHERE part = '*'

-- The place of a mark. Only a marked file has this table.
-- state: 2 moved  3 importing
-- :name create_part
CREATE TABLE IF NOT EXISTS treadle_part (
    part TEXT PRIMARY KEY,
    state INTEGER NOT NULL,
    move TEXT NOT NULL,
    other TEXT NOT NULL,
    content TEXT NOT NULL
) WITHOUT ROWID

-- :name set_mark
INSERT OR REPLACE INTO treadle_part (part, state, move, other, content) VALUES ('*', ?, ?, ?, ?)

-- The last move that the file owned.
-- :name owned
SELECT value FROM treadle_meta WHERE name = 'owned'

-- :name set_owned
INSERT OR REPLACE INTO treadle_meta (name, value) VALUES ('owned', ?)

-- :name drop_part
DROP TABLE IF EXISTS treadle_part

-- Triggers and views are not rewritten when a table gets another name: they are right again when it is back.
-- :name keep_references
PRAGMA legacy_alter_table = ON

-- :name ours
SELECT type, name FROM main.sqlite_schema
WHERE type IN ('table', 'view') AND name GLOB 'treadle_*' ORDER BY type DESC, name

-- What processes that have the file open, or open it, find in place of the tables.
-- :name keep_meta
CREATE TABLE treadle_meta AS SELECT * FROM treadle_parked_meta

-- -- what is in the way of an import -----------------------------------------------------------------------

-- :name in_the_way
SELECT CASE
    WHEN EXISTS (SELECT 1 FROM treadle_item) OR EXISTS (SELECT 1 FROM treadle_group) THEN 'items'
    WHEN EXISTS (SELECT 1 FROM treadle_worker WHERE lease_until > ? AND removed = 0) THEN 'live workers'
    WHEN EXISTS (SELECT 1 FROM treadle_schedule) OR EXISTS (SELECT 1 FROM treadle_removed_schedule) THEN 'schedules'
    WHEN EXISTS (SELECT 1 FROM treadle_orders) THEN 'orders'
    WHEN EXISTS (SELECT 1 FROM treadle_audit) THEN 'audit entries'
    WHEN EXISTS (SELECT 1 FROM treadle_stat) THEN 'statistics'
    WHEN EXISTS (SELECT 1 FROM treadle_claimed_key) THEN 'claimed keys'
    END

-- :name tenant_in_the_way
SELECT CASE
    WHEN EXISTS (SELECT 1 FROM treadle_item WHERE tenant = ?1) OR EXISTS (SELECT 1 FROM treadle_group WHERE tenant = ?1)
        THEN 'items'
    WHEN EXISTS (SELECT 1 FROM treadle_claimed_key WHERE tenant = ?1) THEN 'claimed keys'
    END

-- :name last_audit
SELECT coalesce(max(no), 0) FROM treadle_audit

-- -- reading -----------------------------------------------------------------------------------------------

-- :name head
SELECT no, seq, token, orders FROM treadle_counter WHERE one = 1

-- :name live_workers
SELECT id FROM treadle_worker WHERE lease_until > ? AND removed = 0

-- Those that have leases of a tenant, as they are here.
-- :name workers_of
SELECT id, lease_until, lease, types, info, release FROM treadle_worker
WHERE no IN (SELECT worker FROM treadle_open INDEXED BY treadle_open_worker WHERE worker IS NOT NULL AND tenant = ?)

-- Whether a tenant has ever come into the file while it was in use.
-- :name has_arriving
SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'treadle_arriving')

-- :name arriving_tenant
SELECT tenant FROM treadle_arriving LIMIT 1

-- :name next_items
SELECT no FROM treadle_item WHERE no > ?1 AND (?3 IS NULL OR tenant = ?3) ORDER BY no LIMIT ?2

-- What `states` in rows.sql does not say. The columns are read by moving._more.
-- :name more
SELECT i.no, i.group_no, i.keep, i.keep_dead, coalesce(o.contributes, d.contributes), coalesce(o.need, d.need),
       coalesce(o.any_end_counts, d.any_end_counts), o.met, d.met, o.status, o.seq, coalesce(o.due, d.due),
       o.ready_since, coalesce(o.redrives, d.redrives), o.holds_lane, o.verdict, w.id, w.release, o.begun, o.began,
       d.contributed, d.failed_group IS NOT NULL, k.no = i.no, k.changed_by, coalesce(o.records, d.records),
       g.no IS NOT NULL, g.outer_no IS NOT NULL, o.token
FROM json_each(?) AS e
CROSS JOIN treadle_item AS i ON i.no = e.value
LEFT JOIN treadle_open AS o ON o.no = i.no
LEFT JOIN treadle_done AS d ON d.no = i.no
LEFT JOIN treadle_worker AS w ON w.no = o.worker
LEFT JOIN treadle_key AS k ON k.key = i.key AND k.tenant = i.tenant AND k.type = i.type
LEFT JOIN treadle_group AS g ON g.no = i.no

-- The names that blocked items still wait for.
-- :name pending
SELECT x.dependent, CASE WHEN x.prerequisite < 0 THEN char(30) || coalesce(g.id, p.id) ELSE p.id END
FROM json_each(?1) AS e
CROSS JOIN treadle_open AS o ON o.no = e.value AND o.status = 0
CROSS JOIN treadle_dependency AS x ON x.dependent = o.no AND x.counted = 0
LEFT JOIN treadle_item AS p ON p.no = abs(x.prerequisite)
LEFT JOIN treadle_group AS g ON g.no = -x.prerequisite
UNION ALL
SELECT m.dependent, m.id
FROM json_each(?1) AS e
CROSS JOIN treadle_open AS o ON o.no = e.value AND o.status = 0
CROSS JOIN treadle_missing AS m ON m.dependent = o.no

-- :name mail
SELECT m.no, m.name, m.key, m.taken, m.value FROM json_each(?) AS e CROSS JOIN treadle_mail AS m ON m.no = e.value
ORDER BY m.no, m.seq

-- :name progress
SELECT p.no, p.value, p.at FROM json_each(?) AS e CROSS JOIN treadle_progress AS p ON p.no = e.value

-- :name chunks
SELECT c.no, c.number, c.at, c.value FROM json_each(?) AS e CROSS JOIN treadle_chunk AS c ON c.no = e.value
ORDER BY c.no, c.number

-- :name logs
SELECT l.no, l.value FROM json_each(?) AS e CROSS JOIN treadle_log AS l ON l.no = e.value ORDER BY l.no, l.at, l.token

-- Groups with a row. And roots that are alone, and whose final value is that of their group: other stores have a row for
-- these.
-- :name groups
SELECT * FROM (
    SELECT no, id, tenant, type, open, total, failed, cancelled, version, final, keep, ended, outer_no, value
    FROM treadle_group WHERE no > ?1
    UNION ALL
    SELECT i.no, i.id, i.tenant, i.type, 0, 1, 0, 0, 1, 1, min(i.keep, coalesce(i.keep_dead, i.keep)), d.ended, NULL, d.result
    FROM treadle_done AS d CROSS JOIN treadle_item AS i ON i.no = d.no
    WHERE d.no > ?1 AND d.contributed = 3 AND NOT EXISTS (SELECT 1 FROM treadle_group AS g WHERE g.no = d.no)
) ORDER BY no LIMIT ?2

-- :name orders
SELECT body, at FROM treadle_orders WHERE until IS NULL OR until > ?

-- :name schedules
SELECT name, next_at, spec, paused, last_at, seen_at FROM treadle_schedule

-- :name removals
SELECT name, at FROM treadle_removed_schedule

-- :name runs
SELECT name, at, fired_at, id, tenant, coalesce(error, '') FROM treadle_schedule_run

-- :name limits
SELECT name, algorithm, at, used, before, limit_, window_ FROM treadle_limit

-- :name claimed_keys
SELECT key, tenant, owner, until FROM treadle_claimed_key WHERE until > ?

-- :name releases
SELECT name, began FROM treadle_release ORDER BY began

-- :name stats
SELECT step, at, type, queue, started, succeeded, failed, retried, dead, cancelled, lost, wait, run FROM treadle_stat

-- :name samples
SELECT step, at, queue, samples, ready, running, oldest, estimated FROM treadle_sample

-- :name audits
SELECT no, at, actor, verb, tenant, ids, count, about, reason, address, bulk FROM treadle_audit ORDER BY no

-- -- writing -----------------------------------------------------------------------------------------------

-- :name set_counter
UPDATE treadle_counter SET no = ?, seq = ?, token = ?, orders = ? WHERE one = 1

-- :name raise_counter
UPDATE treadle_counter SET
    no = max(no, coalesce((SELECT max(no) FROM treadle_item), 0), coalesce((SELECT max(no) FROM treadle_group), 0)),
    seq = max(seq, coalesce((SELECT max(seq) FROM treadle_open), 0))
WHERE one = 1

-- What items wait for is written when all of them are here: an item may wait for a later one.
-- :name create_waiting
CREATE TEMP TABLE IF NOT EXISTS treadle_waiting (
    no INTEGER PRIMARY KEY, tenant TEXT, after TEXT, tolerant INTEGER, pending TEXT
)

-- :name next_waiting
SELECT no, tenant, after, tolerant, pending FROM temp.treadle_waiting WHERE no > ? ORDER BY no LIMIT ?

-- :name drop_waiting
DROP TABLE IF EXISTS temp.treadle_waiting

-- A group without members is kept as long as the item that closes it.
-- :name keep_of_closer
SELECT min(keep, coalesce(keep_dead, keep)) FROM treadle_item WHERE no = ?

-- Children of the settlement of their parent. A parent that is gone: the root stands for it.
-- :name queued_by
UPDATE treadle_item SET queued_by = p.no
FROM treadle_item AS p
WHERE treadle_item.no BETWEEN ? AND ? AND treadle_item.queued_by IS NOT NULL AND treadle_item.parent IS NOT NULL
    AND p.id = treadle_item.parent AND p.tenant = treadle_item.tenant AND p.no < treadle_item.no

-- From here on: only what has come in, which has higher numbers than ?1.

-- Roots that are not alone.
-- :name open_roots
UPDATE treadle_open SET group_no = no
WHERE no > ?1 AND group_no IS NULL AND no IN (SELECT g.no FROM treadle_group AS g WHERE g.outer_no IS NULL)

-- :name done_roots
UPDATE treadle_done SET expires = NULL
WHERE no > ?1 AND expires IS NOT NULL AND no IN (SELECT g.no FROM treadle_group AS g WHERE g.outer_no IS NULL)

-- :name failed_places
UPDATE treadle_done SET failed_place = v.place
FROM (SELECT no, row_number() OVER (PARTITION BY failed_group ORDER BY ended, no) AS place FROM treadle_done
      WHERE no > ?1 AND failed_group IS NOT NULL) AS v
WHERE treadle_done.no = v.no

-- :name deaths
UPDATE treadle_group SET deaths = max(failed, coalesce(
    (SELECT max(d.failed_place) FROM treadle_done AS d WHERE d.failed_group = treadle_group.no), 0))
WHERE no > ?1

-- :name outermost
WITH RECURSIVE around (no, outermost) AS (
    SELECT no, outer_no FROM treadle_group WHERE no > ?1 AND outer_no IS NOT NULL
    UNION ALL
    SELECT a.no, g.outer_no FROM around AS a CROSS JOIN treadle_group AS g ON g.no = a.outermost
    WHERE g.outer_no IS NOT NULL
)
UPDATE treadle_group SET nested = 1, outermost = v.outermost
FROM (SELECT a.no, a.outermost FROM around AS a CROSS JOIN treadle_group AS g ON g.no = a.outermost
      WHERE g.outer_no IS NULL) AS v
WHERE treadle_group.no = v.no

-- :name nested
UPDATE treadle_group SET nested = 1
WHERE no > ?1 AND no IN (SELECT outer_no FROM treadle_group WHERE outer_no IS NOT NULL
             UNION SELECT outermost FROM treadle_group WHERE outermost IS NOT NULL)

-- No worker has any type yet: the time begins anew after which items of unknown types die.
-- :name no_types
INSERT OR REPLACE INTO treadle_unknown_type (type, since) VALUES ('', ?)
