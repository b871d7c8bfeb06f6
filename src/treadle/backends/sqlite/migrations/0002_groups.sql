-- Version 2: groups that fail, items that wait for whole groups, groups inside groups.
--
--   dependency   now kept until the dependent is removed. A negative prerequisite is a whole group: its number, negated
--   missing      the same. The name of a whole group begins with char(30)
--   group        a nested group has the number of the item that closes it, which is no member of it

ALTER TABLE treadle_open ADD COLUMN contributes INTEGER NOT NULL DEFAULT 1; -- it may add to its group's value

-- Blocked items: whether the end of an item can matter to another.
CREATE INDEX treadle_open_blocked ON treadle_open (status) WHERE status = 0;

ALTER TABLE treadle_done ADD COLUMN contributes INTEGER NOT NULL DEFAULT 1;
ALTER TABLE treadle_done ADD COLUMN need INTEGER NOT NULL DEFAULT 0;
ALTER TABLE treadle_done ADD COLUMN met INTEGER NOT NULL DEFAULT 0;
ALTER TABLE treadle_done ADD COLUMN any_end_counts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE treadle_done ADD COLUMN failed_group INTEGER; -- the group that its death failed; NULL: it failed none
ALTER TABLE treadle_done ADD COLUMN failed_place INTEGER; -- 1, 2, 3, ... among the deaths of that group

CREATE INDEX treadle_done_failed_group ON treadle_done (failed_group, failed_place) WHERE failed_group IS NOT NULL;

-- tolerant: the dependent can run although the prerequisite is dead.
ALTER TABLE treadle_dependency ADD COLUMN tolerant INTEGER NOT NULL DEFAULT 0;
ALTER TABLE treadle_missing ADD COLUMN tolerant INTEGER NOT NULL DEFAULT 0;

-- `failed` now counts the deaths that failed the group.
ALTER TABLE treadle_group ADD COLUMN cancelled INTEGER NOT NULL DEFAULT 0; -- members that are cancelled
ALTER TABLE treadle_group ADD COLUMN deaths INTEGER NOT NULL DEFAULT 0;    -- how many deaths have ever failed it
ALTER TABLE treadle_group ADD COLUMN nested INTEGER NOT NULL DEFAULT 0;    -- it contains, or contained, nested groups
ALTER TABLE treadle_group ADD COLUMN outer_no INTEGER;                     -- the group that contains it; NULL: none does
ALTER TABLE treadle_group ADD COLUMN outermost INTEGER;                    -- the outermost of these

CREATE INDEX treadle_group_outermost ON treadle_group (outermost) WHERE outermost IS NOT NULL;

-- What version 1 did not keep is derived from what it kept. The dependencies of ended items:
INSERT OR IGNORE INTO treadle_dependency (prerequisite, dependent, counted, weight)
SELECT p.no, i.no, 1, count(*)
FROM treadle_done AS d
CROSS JOIN treadle_item AS i ON i.no = d.no AND i.after IS NOT NULL
CROSS JOIN json_each(i.after) AS a
CROSS JOIN treadle_item AS p ON p.id = a.value AND p.tenant = i.tenant
GROUP BY p.no, i.no;

-- An open item says what it needs.
UPDATE treadle_dependency SET tolerant = 1 WHERE dependent IN
    (SELECT o.no FROM treadle_open AS o CROSS JOIN treadle_item AS i ON i.no = o.no
        WHERE o.has_dependencies = 1 AND (o.any_end_counts = 1 OR o.need < json_array_length(i.after)));

UPDATE treadle_missing SET tolerant = 1 WHERE dependent IN
    (SELECT o.no FROM treadle_open AS o CROSS JOIN treadle_item AS i ON i.no = o.no
        WHERE o.has_dependencies = 1 AND (o.any_end_counts = 1 OR o.need < json_array_length(i.after)));

-- An ended item that ran although a prerequisite had not succeeded was tolerant.
UPDATE treadle_dependency SET tolerant = 1 WHERE dependent IN
    (SELECT x.dependent FROM treadle_done AS d
        CROSS JOIN treadle_dependency AS x ON x.dependent = d.no
        CROSS JOIN treadle_done AS p ON p.no = x.prerequisite AND p.outcome <> 10
        WHERE d.started IS NOT NULL);

-- An item that died because of its prerequisites needs them all. Others had what they needed.
UPDATE treadle_done SET need =
    coalesce((SELECT json_array_length(i.after) FROM treadle_item AS i WHERE i.no = treadle_done.no), 0)
WHERE outcome = 11 AND reason = 'unsatisfiable';

UPDATE treadle_done SET failed_group = v.group_no, failed_place = v.place
FROM (SELECT d.no, i.group_no, row_number() OVER (PARTITION BY i.group_no ORDER BY d.ended, d.no) AS place
      FROM treadle_done AS d CROSS JOIN treadle_item AS i ON i.no = d.no
      WHERE d.outcome = 11 AND NOT EXISTS
          (SELECT 1 FROM treadle_dependency AS x WHERE x.prerequisite = d.no AND x.tolerant = 1)) AS v
WHERE treadle_done.no = v.no;

UPDATE treadle_group SET failed = 0;

UPDATE treadle_group SET failed = v.deaths, deaths = v.deaths
FROM (SELECT failed_group, count(*) AS deaths FROM treadle_done WHERE failed_group IS NOT NULL
      GROUP BY failed_group) AS v
WHERE treadle_group.no = v.failed_group;

UPDATE treadle_group SET cancelled = v.cancelled
FROM (SELECT i.group_no, count(*) AS cancelled
      FROM treadle_done AS d CROSS JOIN treadle_item AS i ON i.no = d.no WHERE d.outcome = 12
      GROUP BY i.group_no) AS v
WHERE treadle_group.no = v.group_no;

UPDATE treadle_meta SET value = 2 WHERE name = 'schema';
