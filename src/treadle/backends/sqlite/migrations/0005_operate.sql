-- Version 5: what operators read.

-- info: what the worker says about itself, for operators.
ALTER TABLE treadle_worker ADD COLUMN info BLOB;

-- `limit` and `window` of the last request. NULL: there was none since version 5.
ALTER TABLE treadle_limit ADD COLUMN limit_ INTEGER;
ALTER TABLE treadle_limit ADD COLUMN window_ REAL;

-- Dead items, in a narrow table of their own: what an operator looks for first. A row is written and deleted together
-- with that of treadle_done. Items that do not die cost nothing.
--
-- A process of version 4 that has the file open goes on, and knows nothing of this table. The triggers write and delete
-- the rows for it. (A trigger for each insert into treadle_done would take 3 us per item. So a death that fails no
-- group, one that a dependent tolerates, gets no row if such a process wrote it.)
CREATE TABLE treadle_dead (
    no INTEGER PRIMARY KEY,
    ended REAL NOT NULL,
    queue TEXT NOT NULL,
    tenant TEXT NOT NULL,
    type TEXT NOT NULL,
    reason TEXT,
    mark TEXT NOT NULL            -- the fingerprint of the death; empty: it has none. Before version 5: old:TYPE
);

INSERT INTO treadle_dead (no, ended, queue, tenant, type, reason, mark)
SELECT d.no, d.ended, i.queue, i.tenant, i.type, d.reason, 'old:' || i.type
FROM treadle_done AS d INDEXED BY treadle_done_dead CROSS JOIN treadle_item AS i ON i.no = d.no
WHERE d.outcome = 11;

CREATE TRIGGER treadle_dead_deleted AFTER DELETE ON treadle_done WHEN old.outcome = 11
BEGIN
    DELETE FROM treadle_dead WHERE no = old.no;
END;

CREATE TRIGGER treadle_dead_unmarked AFTER UPDATE OF failed_group ON treadle_done WHEN new.outcome = 11
BEGIN
    INSERT OR IGNORE INTO treadle_dead (no, ended, queue, tenant, type, reason, mark)
    SELECT i.no, new.ended, i.queue, i.tenant, i.type, new.reason, '' FROM treadle_item AS i WHERE i.no = new.no;
END;

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
--
-- Two indexes are left for statements of version 4, which name them: treadle_open_blocked and treadle_done_dead. They
-- hold only items that are blocked or dead. The next version drops them.
CREATE INDEX treadle_open_waiting ON treadle_open (status, queue, tenant, type) WHERE status < 2;

UPDATE treadle_meta SET value = 5 WHERE name = 'schema';
