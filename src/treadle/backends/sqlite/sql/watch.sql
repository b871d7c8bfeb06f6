-- The columns are those of watch._OpenRow, in this order.
-- :name open_item
SELECT status, verdict, need, met, pending, any_end_counts, rank, seq, begun FROM treadle_open WHERE no = ?

-- :name prerequisites
SELECT i.id, coalesce(o.status, d.outcome), i.type
FROM json_each(?) AS e
CROSS JOIN treadle_item AS i ON i.id = e.value AND i.tenant = ?
LEFT JOIN treadle_open AS o ON o.no = i.no
LEFT JOIN treadle_done AS d ON d.no = i.no

-- :name prerequisite_group
SELECT type, ended, failed, cancelled FROM treadle_group WHERE no = ?

-- The group of an item that is alone.
-- :name prerequisite_alone
SELECT i.type, d.ended, d.failed_group IS NOT NULL, coalesce(d.outcome = 12, 0)
FROM treadle_item AS i LEFT JOIN treadle_done AS d ON d.no = i.no WHERE i.no = ?

-- :name lost_types
SELECT type, since FROM treadle_unknown_type

-- :name ready_ahead
SELECT count(*) FROM (SELECT 1 FROM treadle_open INDEXED BY treadle_open_ready
    WHERE status = 2 AND queue = ? AND tenant = ? AND lane = ? AND (rank, seq) < (?, ?) LIMIT ?)

-- :name parked_ahead
SELECT count(*) FROM (SELECT 1 FROM treadle_open INDEXED BY treadle_open_parked
    WHERE status = 3 AND type = ? AND queue = ? AND tenant = ? AND lane = ? AND (rank, seq) < (?, ?) LIMIT ?)

-- :name lane_holder
SELECT i.id FROM treadle_open AS o INDEXED BY treadle_open_holder CROSS JOIN treadle_item AS i ON i.no = o.no
WHERE o.holds_lane = 1 AND o.type = ? AND o.tenant = ? AND o.lane = ? AND o.no <> ? LIMIT 1

-- The lines of a queue and the first item of each: one step in the index each. Tenants from ?2 to ?3. A blob is greater
-- than every text.
-- :name ready_lines
WITH RECURSIVE line (no) AS (
    SELECT (SELECT n.no FROM treadle_open AS n INDEXED BY treadle_open_ready
            WHERE n.status = 2 AND n.queue = ?1 AND n.tenant >= ?2 AND n.tenant <= ?3
            ORDER BY n.tenant, n.lane, n.rank, n.seq LIMIT 1)
    UNION ALL
    SELECT coalesce(
        (SELECT n.no FROM treadle_open AS n INDEXED BY treadle_open_ready
            WHERE n.status = 2 AND n.queue = ?1 AND n.tenant = o.tenant AND n.lane > o.lane
            ORDER BY n.lane, n.rank, n.seq LIMIT 1),
        (SELECT n.no FROM treadle_open AS n INDEXED BY treadle_open_ready
            WHERE n.status = 2 AND n.queue = ?1 AND n.tenant > o.tenant AND n.tenant <= ?3
            ORDER BY n.tenant, n.lane, n.rank, n.seq LIMIT 1))
    FROM line CROSS JOIN treadle_open AS o ON o.no = line.no
)
SELECT o.tenant, o.lane, o.ready_since, o.rank, o.seq, o.no FROM line CROSS JOIN treadle_open AS o ON o.no = line.no LIMIT ?4

-- The same for the items that are parked under one type.
-- :name parked_lines
WITH RECURSIVE line (no) AS (
    SELECT (SELECT n.no FROM treadle_open AS n INDEXED BY treadle_open_parked
            WHERE n.status = 3 AND n.type = ?5 AND n.queue = ?1 AND n.tenant >= ?2 AND n.tenant <= ?3
            ORDER BY n.tenant, n.lane, n.rank, n.seq LIMIT 1)
    UNION ALL
    SELECT coalesce(
        (SELECT n.no FROM treadle_open AS n INDEXED BY treadle_open_parked
            WHERE n.status = 3 AND n.type = ?5 AND n.queue = ?1 AND n.tenant = o.tenant AND n.lane > o.lane
            ORDER BY n.lane, n.rank, n.seq LIMIT 1),
        (SELECT n.no FROM treadle_open AS n INDEXED BY treadle_open_parked
            WHERE n.status = 3 AND n.type = ?5 AND n.queue = ?1 AND n.tenant > o.tenant AND n.tenant <= ?3
            ORDER BY n.tenant, n.lane, n.rank, n.seq LIMIT 1))
    FROM line CROSS JOIN treadle_open AS o ON o.no = line.no
)
SELECT o.tenant, o.lane, o.ready_since, o.rank, o.seq, o.no FROM line CROSS JOIN treadle_open AS o ON o.no = line.no LIMIT ?4

-- :name limits
SELECT name, algorithm, limit_, window_, at, used, before FROM treadle_limit
WHERE (name, algorithm) > (?, ?) ORDER BY name, algorithm LIMIT ?

-- :name named_limits
SELECT l.name, l.algorithm, l.limit_, l.window_, l.at, l.used, l.before
FROM json_each(?) AS e CROSS JOIN treadle_limit AS l ON l.name = e.value

-- :name next_slots
SELECT name FROM treadle_permit WHERE name >= ? ORDER BY name LIMIT 1

-- :name slots_holders
SELECT w.no, w.id, p.count FROM treadle_permit AS p CROSS JOIN treadle_worker AS w ON w.no = p.worker
WHERE p.name = ?

-- The items whose leases have permits, if the leases are valid.
-- :name slots_items
SELECT p.worker, i.id FROM treadle_lease_permit AS p
CROSS JOIN treadle_open AS o ON o.no = p.no AND o.token = p.token
CROSS JOIN treadle_item AS i ON i.no = o.no
WHERE p.name = ? ORDER BY p.token

-- All marks and the newest death of each: two steps in an index each.
-- :name marks
WITH RECURSIVE found (mark) AS (
    SELECT (SELECT mark FROM treadle_dead INDEXED BY treadle_dead_mark ORDER BY mark LIMIT 1)
    UNION ALL
    SELECT (SELECT d.mark FROM treadle_dead AS d INDEXED BY treadle_dead_mark WHERE d.mark > f.mark
            ORDER BY d.mark LIMIT 1)
    FROM found AS f WHERE f.mark IS NOT NULL
)
SELECT f.mark, (SELECT d.ended FROM treadle_dead AS d INDEXED BY treadle_dead_mark_ended WHERE d.mark = f.mark
                ORDER BY d.ended DESC LIMIT 1)
FROM found AS f WHERE f.mark IS NOT NULL LIMIT ?1

-- :name marks_of_tenant
WITH RECURSIVE found (mark) AS (
    SELECT (SELECT mark FROM treadle_dead INDEXED BY treadle_dead_tenant WHERE tenant = ?1 ORDER BY mark LIMIT 1)
    UNION ALL
    SELECT (SELECT d.mark FROM treadle_dead AS d INDEXED BY treadle_dead_tenant
            WHERE d.tenant = ?1 AND d.mark > f.mark ORDER BY d.mark LIMIT 1)
    FROM found AS f WHERE f.mark IS NOT NULL
)
SELECT f.mark, (SELECT d.ended FROM treadle_dead AS d INDEXED BY treadle_dead_tenant
                WHERE d.tenant = ?1 AND d.mark = f.mark ORDER BY d.ended DESC LIMIT 1)
FROM found AS f WHERE f.mark IS NOT NULL LIMIT ?2

-- The marks of the newest deaths. Tenants from ?1 to ?2: a blob is greater than every text.
-- :name newest_deaths
SELECT mark FROM (SELECT mark, tenant FROM treadle_dead INDEXED BY treadle_dead_ended
    ORDER BY ended DESC, tenant DESC, mark DESC LIMIT ?3)
WHERE tenant >= ?1 AND tenant <= ?2

-- :name next_mark
SELECT mark FROM treadle_dead INDEXED BY treadle_dead_mark WHERE mark >= ? ORDER BY mark LIMIT 1

-- :name next_mark_of_tenant
SELECT mark FROM treadle_dead INDEXED BY treadle_dead_tenant WHERE tenant = ? AND mark >= ? ORDER BY mark LIMIT 1

-- How many items of a mark are dead, the first and the one that died last.
-- :name mark
SELECT (SELECT count(*) FROM (SELECT 1 FROM treadle_dead INDEXED BY treadle_dead_mark WHERE mark = ?1 LIMIT ?2)),
       (SELECT no FROM treadle_dead INDEXED BY treadle_dead_mark WHERE mark = ?1 ORDER BY no LIMIT 1),
       (SELECT no FROM treadle_dead INDEXED BY treadle_dead_mark_ended WHERE mark = ?1
        ORDER BY ended DESC LIMIT 1)

-- The first is the first of those counted.
-- :name mark_of_tenant
SELECT count(*), min(no),
       (SELECT no FROM treadle_dead INDEXED BY treadle_dead_tenant WHERE tenant = ?3 AND mark = ?1
        ORDER BY ended DESC LIMIT 1)
FROM (SELECT no FROM treadle_dead INDEXED BY treadle_dead_tenant WHERE tenant = ?3 AND mark = ?1 LIMIT ?2)

-- Under which releases the first of them died. Of one tenant: the first of its deaths.
-- :name mark_releases
SELECT release, count(*), min(ended), (SELECT r.began FROM treadle_release AS r WHERE r.name = release) FROM (
    SELECT release, ended FROM treadle_dead INDEXED BY treadle_dead_mark WHERE mark = ?1 ORDER BY no LIMIT ?2)
WHERE release IS NOT NULL GROUP BY release

-- :name mark_releases_of_tenant
SELECT release, count(*), min(ended), (SELECT r.began FROM treadle_release AS r WHERE r.name = release) FROM (
    SELECT release, ended FROM treadle_dead INDEXED BY treadle_dead_tenant WHERE tenant = ?3 AND mark = ?1 LIMIT ?2)
WHERE release IS NOT NULL GROUP BY release

-- :name deaths
SELECT m.no, m.type, m.tenant, m.ended, i.id, a.error_type, a.message
FROM json_each(?) AS e
CROSS JOIN treadle_dead AS m ON m.no = e.value
CROSS JOIN treadle_item AS i ON i.no = m.no
LEFT JOIN treadle_attempt AS a
    ON a.no = m.no AND a.place = (SELECT max(place) FROM treadle_attempt WHERE no = m.no)

-- :name queued_at
SELECT no, queued_at FROM treadle_item WHERE no IN (SELECT value FROM json_each(?))

-- How many items a line has, up to a bound.
-- :name size_ready
SELECT count(*) FROM (SELECT 1 FROM treadle_open INDEXED BY treadle_open_ready
    WHERE status = 2 AND queue = ? AND tenant = ? AND lane = ? LIMIT ?)

-- :name size_parked
SELECT count(*) FROM (SELECT 1 FROM treadle_open INDEXED BY treadle_open_parked
    WHERE status = 3 AND type = ? AND queue = ? AND tenant = ? AND lane = ? LIMIT ?)

-- :name ids
SELECT i.no, i.id FROM json_each(?) AS e CROSS JOIN treadle_item AS i ON i.no = e.value

-- Tenants are those from a least to a greatest name: a blob is greater than every text.

-- :name open_numbers
SELECT (SELECT min(no) FROM treadle_open), (SELECT max(no) FROM treadle_open)

-- :name open
SELECT queue, status, tenant, type, count(*) FROM treadle_open NOT INDEXED
WHERE no >= ? AND no <= ? AND tenant >= ? AND tenant <= ? GROUP BY 4, 3, 1, 2

-- :name dead_numbers
SELECT (SELECT min(no) FROM treadle_dead), (SELECT max(no) FROM treadle_dead)

-- :name dead
SELECT queue, 11, tenant, type, count(*) FROM treadle_dead NOT INDEXED
WHERE no >= ? AND no <= ? AND tenant >= ? AND tenant <= ? GROUP BY 4, 3, 1

-- Items that are blocked, scheduled or doomed, by their status. The index is in the order of the groups, so nothing is
-- sorted.

-- :name next_waiting_queue
SELECT queue FROM treadle_open INDEXED BY treadle_open_waiting
WHERE status = ? AND status < 2 AND queue >= ? ORDER BY queue LIMIT 1

-- The first kind of which not all items are counted. `_before`: those in front of it.
-- :name waiting_bound
SELECT tenant, type FROM treadle_open INDEXED BY treadle_open_waiting
WHERE status = ? AND status < 2 AND queue = ? AND tenant >= ? AND tenant <= ? ORDER BY tenant, type LIMIT 1 OFFSET ?

-- :name waiting
SELECT tenant, type, count(*) FROM treadle_open INDEXED BY treadle_open_waiting
WHERE status = ? AND status < 2 AND queue = ? AND tenant >= ? AND tenant <= ? GROUP BY tenant, type

-- :name waiting_before
SELECT tenant, type, count(*) FROM treadle_open INDEXED BY treadle_open_waiting
WHERE status = ?1 AND status < 2 AND queue = ?2 AND tenant >= ?3 AND tenant < ?5 GROUP BY tenant, type
UNION ALL
SELECT tenant, type, count(*) FROM treadle_open INDEXED BY treadle_open_waiting
WHERE status = ?1 AND status < 2 AND queue = ?2 AND tenant = ?5 AND type < ?6 GROUP BY type

-- :name next_dead_queue
SELECT queue FROM treadle_dead INDEXED BY treadle_dead_queue WHERE queue >= ? ORDER BY queue LIMIT 1

-- :name first_dead_bound
SELECT tenant, type FROM treadle_dead INDEXED BY treadle_dead_queue
WHERE queue = ? AND tenant >= ? AND tenant <= ? ORDER BY tenant, type LIMIT 1 OFFSET ?

-- :name first_dead
SELECT tenant, type, count(*) FROM treadle_dead INDEXED BY treadle_dead_queue
WHERE queue = ? AND tenant >= ? AND tenant <= ? GROUP BY tenant, type

-- :name first_dead_before
SELECT tenant, type, count(*) FROM treadle_dead INDEXED BY treadle_dead_queue
WHERE queue = ?1 AND tenant >= ?2 AND tenant < ?4 GROUP BY tenant, type
UNION ALL
SELECT tenant, type, count(*) FROM treadle_dead INDEXED BY treadle_dead_queue
WHERE queue = ?1 AND tenant = ?4 AND type < ?5 GROUP BY type

-- :name ready
SELECT tenant, type, count(*) FROM
    (SELECT tenant, type FROM treadle_open INDEXED BY treadle_open_ready
        WHERE status = 2 AND queue = ? AND tenant >= ? AND tenant <= ? LIMIT ?)
GROUP BY tenant, type

-- :name parked_bound
SELECT tenant, type FROM treadle_open INDEXED BY treadle_open_parked
WHERE status = 3 AND type = ? AND queue = ? AND tenant >= ? AND tenant <= ? ORDER BY tenant LIMIT 1 OFFSET ?

-- :name parked
SELECT tenant, type, count(*) FROM treadle_open INDEXED BY treadle_open_parked
WHERE status = 3 AND type = ? AND queue = ? AND tenant >= ? AND tenant <= ? GROUP BY tenant

-- :name parked_before
SELECT tenant, type, count(*) FROM treadle_open INDEXED BY treadle_open_parked
WHERE status = 3 AND type = ?1 AND queue = ?2 AND tenant >= ?3 AND tenant < ?5 AND type <= ?6
GROUP BY tenant

-- Running items, and doomed ones that are leased with their verdicts.
-- :name leased
SELECT queue, tenant, type, status FROM treadle_open INDEXED BY treadle_open_worker WHERE worker IS NOT NULL LIMIT ?

-- :name next_ready_type
SELECT type FROM treadle_open INDEXED BY treadle_open_type
WHERE status >= 2 AND status < 4 AND type >= ? ORDER BY type LIMIT 1

-- :name ready_of_type
SELECT count(*) FROM (SELECT 1 FROM treadle_open INDEXED BY treadle_open_type
    WHERE status >= 2 AND status < 4 AND type = ? LIMIT ?)

-- :name item
SELECT group_no, tenant FROM treadle_item WHERE no = ?

-- :name queued
SELECT no FROM treadle_item INDEXED BY treadle_item_member WHERE group_no = ? AND queued_by = ? ORDER BY no LIMIT ?

-- The nested groups that items close have their numbers.
-- :name closed
SELECT g.no FROM json_each(?) AS e CROSS JOIN treadle_group AS g ON g.no = e.value AND g.outer_no IS NOT NULL

-- Roots that name a parent.
-- :name named
SELECT no FROM treadle_item INDEXED BY treadle_item_parent
WHERE parent = ? AND tenant = ? AND parent IS NOT NULL AND queued_by IS NULL ORDER BY no LIMIT ?

-- A negative prerequisite is a whole group.
-- :name dependents
SELECT dependent FROM treadle_dependency WHERE prerequisite = ? ORDER BY dependent LIMIT ?

-- :name in_short
SELECT i.id, i.type, coalesce(o.status, d.outcome)
FROM json_each(?) AS e
CROSS JOIN treadle_item AS i ON i.no = e.value
LEFT JOIN treadle_open AS o ON o.no = i.no
LEFT JOIN treadle_done AS d ON d.no = i.no
ORDER BY e.key
