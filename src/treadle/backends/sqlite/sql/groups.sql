-- The columns are those of groups.SqliteGroup, in this order.
-- :name groups
SELECT g.no, g.id, g.tenant, g.type, g.open, g.failed, g.deaths, g.cancelled, g.version, g.final, g.keep, g.ended,
       g.outermost, g.value
FROM json_each(?) AS e CROSS JOIN treadle_group AS g ON g.no = e.value

-- :name insert_groups
INSERT INTO treadle_group (no, open, failed, deaths, cancelled, version, final, keep, ended, prune_at, value, id, tenant,
    type)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, nullif(?, ''), nullif(?, ''), nullif(?, ''), ?, ?, ?)

-- :name update_groups
WITH v (no, open, failed, deaths, cancelled, version, final, keep, ended, prune_at, value)
    AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, nullif(?, ''), nullif(?, ''), nullif(?, '')))
UPDATE treadle_group SET open = v.open, failed = v.failed, deaths = v.deaths, cancelled = v.cancelled,
    version = v.version, final = v.final, keep = v.keep, ended = v.ended, prune_at = v.prune_at, value = v.value
FROM v WHERE treadle_group.no = v.no
