-- Version 8: steps, signals and streams of items.
--
--   step      what an item has recorded, under a name; a row with over = 0 is what it waits for
--   mail      signals to an item; they stay after they were taken, for their keys
--   chunk     the stream of an item
--   progress  how far an item is

-- records: 1 there are steps, 2 it is suspended, 4 there are other rows of it in these tables, 8 it was suspended before
-- its lease.
ALTER TABLE treadle_open ADD COLUMN records INTEGER NOT NULL DEFAULT 0;
ALTER TABLE treadle_done ADD COLUMN records INTEGER NOT NULL DEFAULT 0;

-- The wide columns come last.
CREATE TABLE treadle_step (
    seq INTEGER PRIMARY KEY,      -- the order in which the steps of an item were recorded first
    no INTEGER NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,           -- of item.StepKind
    over INTEGER NOT NULL,
    signal TEXT NOT NULL,
    until REAL,
    took REAL NOT NULL,
    at REAL NOT NULL,
    attempt INTEGER NOT NULL,
    times INTEGER NOT NULL,
    undo BLOB,
    value BLOB
);

CREATE UNIQUE INDEX treadle_step_name ON treadle_step (no, name);

CREATE TABLE treadle_mail (
    seq INTEGER PRIMARY KEY,
    no INTEGER NOT NULL,
    name TEXT NOT NULL,
    key TEXT,
    taken INTEGER NOT NULL,
    value BLOB
);

CREATE INDEX treadle_mail_unread ON treadle_mail (no, name, seq) WHERE taken = 0;
CREATE UNIQUE INDEX treadle_mail_key ON treadle_mail (no, name, key) WHERE key IS NOT NULL;

CREATE TABLE treadle_chunk (
    no INTEGER NOT NULL,
    number INTEGER NOT NULL,
    at REAL NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (no, number)
);

CREATE TABLE treadle_progress (
    no INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    value BLOB NOT NULL
);

UPDATE treadle_meta SET value = 8 WHERE name = 'schema';
