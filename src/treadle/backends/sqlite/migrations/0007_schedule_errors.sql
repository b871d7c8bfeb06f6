-- Version 7: what the runs of schedules raised.

-- error  in a line; NULL: the run did not fail
ALTER TABLE treadle_schedule_run ADD COLUMN error TEXT;

UPDATE treadle_meta SET value = 7 WHERE name = 'schema';
