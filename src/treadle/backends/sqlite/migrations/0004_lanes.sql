-- holds_lane: a claim has handed it out, and its type has strict lanes. It holds its lane as long as it is open.
ALTER TABLE treadle_open ADD COLUMN holds_lane INTEGER NOT NULL DEFAULT 0;

CREATE INDEX treadle_open_holder ON treadle_open (type, tenant, lane) WHERE holds_lane = 1;

-- The leases that have a permit of a `slots` limit of their own. It is counted in treadle_permit too.
CREATE TABLE treadle_lease_permit (
    name TEXT NOT NULL,
    token INTEGER NOT NULL,
    worker INTEGER NOT NULL,
    no INTEGER NOT NULL,          -- the item
    PRIMARY KEY (name, token)
) WITHOUT ROWID;

CREATE INDEX treadle_lease_permit_worker ON treadle_lease_permit (worker);

UPDATE treadle_meta SET value = 4 WHERE name = 'schema';
