-- Version 7: stores that forget their last changes, runs of schedules that fail, deferrals that count.

-- The schedules that were removed, each until it is stored again. One that is in neither table is lost.
CREATE TABLE treadle_removed_schedule (
    name TEXT PRIMARY KEY,
    at REAL NOT NULL
) WITHOUT ROWID;

-- error  in a line; NULL: the run did not fail
ALTER TABLE treadle_schedule_run ADD COLUMN error TEXT;

-- Seconds for which a heartbeat renews its lease. NULL: it has sent none since version 7.
ALTER TABLE treadle_worker ADD COLUMN lease REAL;

-- deferrals  how often a handler has deferred it
ALTER TABLE treadle_open ADD COLUMN deferrals INTEGER NOT NULL DEFAULT 0;
ALTER TABLE treadle_done ADD COLUMN deferrals INTEGER NOT NULL DEFAULT 0;

UPDATE treadle_meta SET value = 7 WHERE name = 'schema';
