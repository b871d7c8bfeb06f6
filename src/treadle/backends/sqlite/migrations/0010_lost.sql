-- Version 10: statistics count lost attempts.

ALTER TABLE treadle_stat ADD COLUMN lost INTEGER NOT NULL DEFAULT 0;

UPDATE treadle_meta SET value = 10 WHERE name = 'schema';
