-- Version 7: what a store needs that may forget its last changes.

-- The schedules that were removed, each until it is stored again. One that is in neither table is lost.
CREATE TABLE treadle_removed_schedule (
    name TEXT PRIMARY KEY,
    at REAL NOT NULL
) WITHOUT ROWID;

UPDATE treadle_meta SET value = 7 WHERE name = 'schema';
