-- When the handler of the last attempt began. (`started`: when it was claimed last.)
ALTER TABLE treadle_open ADD COLUMN began REAL;
ALTER TABLE treadle_done ADD COLUMN began REAL;

-- A JSON array: the ids of the last submitted items that the holder of the key took something over from.
ALTER TABLE treadle_key ADD COLUMN changed_by TEXT;

UPDATE treadle_meta SET value = 3 WHERE name = 'schema';
