-- Version 7: how often handlers have deferred items.
ALTER TABLE treadle_open ADD COLUMN deferrals INTEGER NOT NULL DEFAULT 0;
ALTER TABLE treadle_done ADD COLUMN deferrals INTEGER NOT NULL DEFAULT 0;

UPDATE treadle_meta SET value = 7 WHERE name = 'schema';
