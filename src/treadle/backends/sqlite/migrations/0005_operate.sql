-- Version 5: what operators read.

-- info: what the worker says about itself, for operators.
ALTER TABLE treadle_worker ADD COLUMN info BLOB;

-- What the last request said: so many permits in so many seconds. NULL: nobody has asked since version 5.
ALTER TABLE treadle_limit ADD COLUMN permits INTEGER;
ALTER TABLE treadle_limit ADD COLUMN seconds REAL;

-- Dead items, in a narrow table of their own: what an operator looks for first. A row is written and deleted together
-- with that of treadle_done. Items that do not die cost nothing.
CREATE TABLE treadle_dead (
    no INTEGER PRIMARY KEY,
    ended REAL NOT NULL,
    queue TEXT NOT NULL,
    tenant TEXT NOT NULL,
    type TEXT NOT NULL,
    reason TEXT,
    mark TEXT NOT NULL            -- the fingerprint of the death; empty: it has none
);

INSERT INTO treadle_dead (no, ended, queue, tenant, type, reason, mark)
SELECT d.no, d.ended, i.queue, i.tenant, i.type, d.reason, ''
FROM treadle_done AS d INDEXED BY treadle_done_dead CROSS JOIN treadle_item AS i ON i.no = d.no
WHERE d.outcome = 11;

DROP INDEX treadle_done_dead;

CREATE INDEX treadle_dead_queue ON treadle_dead (queue, tenant, type);
CREATE INDEX treadle_dead_type ON treadle_dead (type);
-- The items of a mark in the order of submission, and in that of their deaths.
CREATE INDEX treadle_dead_mark ON treadle_dead (mark);
CREATE INDEX treadle_dead_mark_ended ON treadle_dead (mark, ended);
CREATE INDEX treadle_dead_tenant ON treadle_dead (tenant, mark, ended);
CREATE INDEX treadle_dead_ended ON treadle_dead (ended, tenant, mark);

-- Cancelled items, to list them.
CREATE INDEX treadle_done_cancelled ON treadle_done (outcome) WHERE outcome = 12;

-- Items that are blocked, scheduled or doomed, to count them, and to see whether any is blocked. An item that is ready
-- from the start is in as many indexes as before.
DROP INDEX treadle_open_blocked;
CREATE INDEX treadle_open_waiting ON treadle_open (status, queue, tenant, type) WHERE status < 2;

UPDATE treadle_meta SET value = 5 WHERE name = 'schema';
