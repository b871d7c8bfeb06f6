-- :name delete_open
DELETE FROM treadle_open WHERE no IN (SELECT value FROM json_each(?))

-- :name delete_done
DELETE FROM treadle_done WHERE no IN (SELECT value FROM json_each(?))

-- :name delete_attempts
DELETE FROM treadle_attempt WHERE no IN (SELECT value FROM json_each(?))

-- :name delete_logs
DELETE FROM treadle_log WHERE no IN (SELECT value FROM json_each(?))

-- :name delete_dependents
DELETE FROM treadle_dependency WHERE prerequisite IN (SELECT value FROM json_each(?))

-- :name delete_dependencies
DELETE FROM treadle_dependency WHERE dependent IN (SELECT value FROM json_each(?))

-- :name delete_missing
DELETE FROM treadle_missing WHERE dependent IN (SELECT value FROM json_each(?))

-- A key is free when its holder is removed. Earlier holders do not get it back.
-- :name delete_keys
DELETE FROM treadle_key WHERE (key, tenant, type) IN
    (SELECT i.key, i.tenant, i.type FROM json_each(?) AS e
        CROSS JOIN treadle_item AS i ON i.no = e.value AND i.key IS NOT NULL
        CROSS JOIN treadle_key AS k ON k.key = i.key AND k.tenant = i.tenant AND k.type = i.type AND k.no = i.no)

-- :name delete_items
DELETE FROM treadle_item WHERE no IN (SELECT value FROM json_each(?))

-- A group is removed with its last member.
-- :name delete_groups
DELETE FROM treadle_group WHERE no IN (SELECT value FROM json_each(?))
    AND NOT EXISTS (SELECT 1 FROM treadle_item AS i WHERE i.no = treadle_group.no)
    AND NOT EXISTS (SELECT 1 FROM treadle_item AS i INDEXED BY treadle_item_member
        WHERE i.group_no = treadle_group.no AND i.queued_by IS NOT NULL)

-- The groups of these items, and the nested groups that they close.
-- :name groups_of
SELECT i.group_no FROM json_each(?1) AS e CROSS JOIN treadle_item AS i ON i.no = e.value
UNION
SELECT g.no FROM json_each(?1) AS e CROSS JOIN treadle_group AS g ON g.no = e.value

-- An item is needed by an item that depends on it, or on its group, and is open or died for want of prerequisites: that
-- one may be blocked again.

-- Items that are alone in their group and may be pruned, and whether they are needed.
-- :name expired
SELECT d.no, EXISTS (SELECT 1 FROM treadle_dependency AS x LEFT JOIN treadle_done AS e ON e.no = x.dependent
    WHERE x.prerequisite IN (d.no, -d.no) AND (e.no IS NULL OR e.reason = 'unsatisfiable'))
FROM treadle_done AS d INDEXED BY treadle_done_expires
WHERE d.expires IS NOT NULL AND d.expires <= ? ORDER BY d.expires LIMIT ?

-- :name retain
UPDATE treadle_done SET expires = NULL WHERE no IN (SELECT value FROM json_each(?))

-- Groups whose members may be pruned, and whether all of them are needed.
-- :name groups_to_prune
SELECT g.no, g.ended, g.outer_no, EXISTS
    (SELECT 1 FROM treadle_dependency AS x LEFT JOIN treadle_done AS e ON e.no = x.dependent
        WHERE x.prerequisite = -g.no AND (e.no IS NULL OR e.reason = 'unsatisfiable'))
FROM treadle_group AS g INDEXED BY treadle_group_prune_at WHERE g.prune_at IS NOT NULL AND g.prune_at <= ?
ORDER BY g.prune_at LIMIT ?

-- For each member of an ended group: how long it is kept, and whether it is needed. The root is a member, if it still
-- exists.
-- :name members
SELECT i.no, CASE d.outcome WHEN 11 THEN i.keep_dead ELSE i.keep END,
       EXISTS (SELECT 1 FROM treadle_dependency AS x LEFT JOIN treadle_done AS e ON e.no = x.dependent
           WHERE x.prerequisite = i.no AND (e.no IS NULL OR e.reason = 'unsatisfiable'))
FROM treadle_item AS i CROSS JOIN treadle_done AS d ON d.no = i.no WHERE i.no = ?1 AND i.group_no = ?1
UNION ALL
SELECT i.no, CASE d.outcome WHEN 11 THEN i.keep_dead ELSE i.keep END,
       EXISTS (SELECT 1 FROM treadle_dependency AS x LEFT JOIN treadle_done AS e ON e.no = x.dependent
           WHERE x.prerequisite = i.no AND (e.no IS NULL OR e.reason = 'unsatisfiable'))
FROM treadle_item AS i INDEXED BY treadle_item_member CROSS JOIN treadle_done AS d ON d.no = i.no
WHERE i.group_no = ?1 AND i.queued_by IS NOT NULL

-- When the last of the groups around a group ended, and how many of them are open.
-- :name groups_around
WITH RECURSIVE around (outer_no, ended) AS
    (SELECT outer_no, ended FROM treadle_group WHERE no = ?
     UNION ALL
     SELECT g.outer_no, g.ended FROM around CROSS JOIN treadle_group AS g ON g.no = around.outer_no)
SELECT max(ended), count(*) - count(ended) FROM around

-- :name set_prune_at
UPDATE treadle_group SET prune_at = ? WHERE no = ?

-- The prerequisites of these items may be pruned when their time is over.
-- :name let_prerequisites_expire
UPDATE treadle_done SET expires = ended +
    (SELECT CASE treadle_done.outcome WHEN 11 THEN i.keep_dead ELSE i.keep END
     FROM treadle_item AS i WHERE i.no = treadle_done.no)
WHERE expires IS NULL
    AND no IN (SELECT abs(x.prerequisite) FROM json_each(?) AS e
        CROSS JOIN treadle_dependency AS x ON x.dependent = e.value)
    AND NOT EXISTS (SELECT 1 FROM treadle_item AS i CROSS JOIN treadle_group AS g ON g.no = i.group_no
        WHERE i.no = treadle_done.no)

-- :name let_prerequisite_groups_expire
UPDATE treadle_group SET prune_at = ended + keep
WHERE ended IS NOT NULL AND no IN
    (SELECT CASE WHEN x.prerequisite < 0 THEN -x.prerequisite ELSE i.group_no END
        FROM json_each(?) AS e CROSS JOIN treadle_dependency AS x ON x.dependent = e.value
        LEFT JOIN treadle_item AS i ON i.no = x.prerequisite)

-- :name delete_claimed_keys
DELETE FROM treadle_claimed_key WHERE (key, tenant) IN
    (SELECT key, tenant FROM treadle_claimed_key INDEXED BY treadle_claimed_key_until WHERE until <= ? LIMIT ?)

-- :name delete_limits
DELETE FROM treadle_limit WHERE (name, algorithm) IN
    (SELECT name, algorithm FROM treadle_limit INDEXED BY treadle_limit_idle_at WHERE idle_at <= ? LIMIT ?)

-- :name delete_removals
DELETE FROM treadle_removed_schedule WHERE at < ?

-- :name delete_audits
DELETE FROM treadle_audit WHERE no IN
    (SELECT no FROM treadle_audit INDEXED BY treadle_audit_at WHERE at < ? ORDER BY at LIMIT ?)
