-- The columns are those of groups.SqliteGroup, in this order.
-- :name groups
SELECT g.no, g.id, g.tenant, g.type, g.open, g.failed, g.deaths, g.cancelled, g.version, g.final, g.keep, g.ended,
       g.nested, g.outermost, g.total, g.value
FROM json_each(?) AS e CROSS JOIN treadle_group AS g ON g.no = e.value

-- :name insert_groups
INSERT INTO treadle_group (no, open, failed, deaths, cancelled, version, final, keep, ended, prune_at, total, value, id,
    tenant, type)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, nullif(?, ''), nullif(?, ''), ?, nullif(?, ''), ?, ?, ?)

-- :name update_groups
WITH v (no, open, failed, deaths, cancelled, version, final, keep, ended, prune_at, total, value)
    AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, nullif(?, ''), nullif(?, ''), ?, nullif(?, '')))
UPDATE treadle_group SET open = v.open, failed = v.failed, deaths = v.deaths, cancelled = v.cancelled,
    version = v.version, final = v.final, keep = v.keep, ended = v.ended, prune_at = v.prune_at, total = v.total,
    value = v.value
FROM v WHERE treadle_group.no = v.no

-- Nothing of a nested group is pruned before all groups around it have ended. When that is so, prune looks at all of
-- them again.
-- :name let_nested_expire
UPDATE treadle_group SET prune_at = ended + keep
WHERE ended IS NOT NULL AND outermost IN
    (SELECT g.no FROM json_each(?) AS e CROSS JOIN treadle_group AS g ON g.no = e.value AND g.ended IS NOT NULL)

-- A nested group without members has ended at once.
-- :name insert_nested
INSERT INTO treadle_group (no, id, tenant, type, open, total, failed, version, final, keep, ended, outer_no, outermost)
VALUES (?, ?, ?, ?, ?, ?, 0, 0, 0, ?, nullif(?, ''), ?, ?)

-- :name set_nested
UPDATE treadle_group SET nested = 1 WHERE nested = 0 AND no IN (SELECT value FROM json_each(?))
