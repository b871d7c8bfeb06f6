-- info: what the worker says about itself, for operators.
ALTER TABLE treadle_worker ADD COLUMN info BLOB;

UPDATE treadle_meta SET value = 5 WHERE name = 'schema';
