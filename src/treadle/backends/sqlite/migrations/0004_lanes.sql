-- holds_lane: a claim has handed it out, and its type has strict lanes. It holds its lane as long as it is open.
ALTER TABLE treadle_open ADD COLUMN holds_lane INTEGER NOT NULL DEFAULT 0;

CREATE INDEX treadle_open_holder ON treadle_open (type, tenant, lane) WHERE holds_lane = 1;

UPDATE treadle_meta SET value = 4 WHERE name = 'schema';
