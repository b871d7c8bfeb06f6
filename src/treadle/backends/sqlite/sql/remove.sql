-- :name jobs
DELETE FROM treadle_job WHERE no IN (SELECT value FROM json_each(?))

-- :name done
DELETE FROM treadle_done WHERE no IN (SELECT value FROM json_each(?))

-- :name attempts
DELETE FROM treadle_attempt WHERE no IN (SELECT value FROM json_each(?))

-- :name edges_from
DELETE FROM treadle_edge WHERE src IN (SELECT value FROM json_each(?))

-- :name edges_to
DELETE FROM treadle_edge WHERE dst IN (SELECT value FROM json_each(?))

-- :name awaited
DELETE FROM treadle_awaited WHERE dst IN (SELECT value FROM json_each(?))

-- A key is free when its holder goes, whoever had it before.
-- :name keys
DELETE FROM treadle_key WHERE (key, tenant, type) IN
    (SELECT i.key, i.tenant, i.type FROM json_each(?) AS e
        CROSS JOIN treadle_item AS i ON i.no = e.value AND i.key IS NOT NULL
        CROSS JOIN treadle_key AS k ON k.key = i.key AND k.tenant = i.tenant AND k.type = i.type AND k.no = i.no)

-- :name items
DELETE FROM treadle_item WHERE no IN (SELECT value FROM json_each(?))

-- A group goes with its last member.
-- :name groups
DELETE FROM treadle_grp WHERE no IN (SELECT value FROM json_each(?))
    AND NOT EXISTS (SELECT 1 FROM treadle_item AS i WHERE i.no = treadle_grp.no)
    AND NOT EXISTS (SELECT 1 FROM treadle_item AS i INDEXED BY treadle_item_member
        WHERE i.grp = treadle_grp.no AND i.origin IS NOT NULL)

-- :name groups_of
SELECT DISTINCT i.grp FROM json_each(?) AS e CROSS JOIN treadle_item AS i ON i.no = e.value

-- Alone in its group, and its time is over. Whether an open item refers to it is for the caller to heed.
-- :name expired
SELECT d.no, EXISTS (SELECT 1 FROM treadle_edge AS x WHERE x.src = d.no)
FROM treadle_done AS d INDEXED BY treadle_done_expires
WHERE d.expires IS NOT NULL AND d.expires <= ? ORDER BY d.expires LIMIT ?

-- :name retain
UPDATE treadle_done SET expires = NULL WHERE no IN (SELECT value FROM json_each(?))

-- :name groups_to_look_at
SELECT no, ended FROM treadle_grp INDEXED BY treadle_grp_look WHERE look IS NOT NULL AND look <= ?
ORDER BY look LIMIT ?

-- When each member of an ended group may be removed. The root is one, too, if it is still there.
-- :name members
SELECT i.no, CASE d.outcome WHEN 11 THEN i.keep_dead ELSE i.keep END,
       EXISTS (SELECT 1 FROM treadle_edge AS x WHERE x.src = i.no)
FROM treadle_item AS i CROSS JOIN treadle_done AS d ON d.no = i.no WHERE i.no = ?
UNION ALL
SELECT i.no, CASE d.outcome WHEN 11 THEN i.keep_dead ELSE i.keep END,
       EXISTS (SELECT 1 FROM treadle_edge AS x WHERE x.src = i.no)
FROM treadle_item AS i INDEXED BY treadle_item_member CROSS JOIN treadle_done AS d ON d.no = i.no
WHERE i.grp = ? AND i.origin IS NOT NULL

-- :name look_at
UPDATE treadle_grp SET look = ? WHERE no = ?

-- These will no longer refer to what they waited for: it may go when its time is over, or is over already.
-- :name let_go_items
UPDATE treadle_done SET expires = ended +
    (SELECT CASE treadle_done.outcome WHEN 11 THEN i.keep_dead ELSE i.keep END
     FROM treadle_item AS i WHERE i.no = treadle_done.no)
WHERE expires IS NULL
    AND no IN (SELECT x.src FROM json_each(?) AS e CROSS JOIN treadle_edge AS x ON x.dst = e.value)
    AND NOT EXISTS (SELECT 1 FROM treadle_item AS i CROSS JOIN treadle_grp AS g ON g.no = i.grp
        WHERE i.no = treadle_done.no)

-- :name let_go_groups
UPDATE treadle_grp SET look = ended + keep
WHERE ended IS NOT NULL AND no IN
    (SELECT i.grp FROM json_each(?) AS e CROSS JOIN treadle_edge AS x ON x.dst = e.value
        CROSS JOIN treadle_item AS i ON i.no = x.src)

-- :name once
DELETE FROM treadle_once WHERE (key, tenant) IN
    (SELECT key, tenant FROM treadle_once INDEXED BY treadle_once_until WHERE until <= ? LIMIT ?)

-- :name gauges
DELETE FROM treadle_gauge WHERE (name, algorithm) IN
    (SELECT name, algorithm FROM treadle_gauge INDEXED BY treadle_gauge_idle WHERE idle <= ? LIMIT ?)
