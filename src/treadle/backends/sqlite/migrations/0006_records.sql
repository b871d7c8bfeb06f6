-- Version 6: what operators look back at. No item costs more than before.

-- What workers counted: each minute and quarter of an hour for a day, each hour for 90 days.
-- step       60, 900 or 3600
-- wait, run  the counts of a histogram, as one number: see histograms.py
CREATE TABLE treadle_stat (
    step INTEGER NOT NULL,
    at INTEGER NOT NULL,
    type TEXT NOT NULL,
    queue TEXT NOT NULL,
    started INTEGER NOT NULL,
    succeeded INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    retried INTEGER NOT NULL,
    dead INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    wait BLOB NOT NULL,
    run BLOB NOT NULL,
    PRIMARY KEY (step, at, type, queue)
) WITHOUT ROWID;

-- What people changed. `tenant`: NULL for a change in all tenants. `ids`: an array of JSON.
CREATE TABLE treadle_audit (
    no INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    actor TEXT NOT NULL,
    verb TEXT NOT NULL,
    tenant TEXT,
    ids TEXT NOT NULL,
    count INTEGER NOT NULL,
    about TEXT NOT NULL,
    reason TEXT NOT NULL,
    address TEXT NOT NULL,
    bulk TEXT
);
CREATE INDEX treadle_audit_bulk ON treadle_audit (bulk, no);
CREATE INDEX treadle_audit_tenant ON treadle_audit (tenant, bulk, no);
CREATE INDEX treadle_audit_portions ON treadle_audit (tenant, no) WHERE bulk IS NOT NULL AND about <> '';
CREATE INDEX treadle_audit_at ON treadle_audit (at);

-- The last runs of schedules. `id`: NULL if the occurrence was skipped, or submitted nothing.
CREATE TABLE treadle_schedule_run (
    name TEXT NOT NULL,
    at REAL NOT NULL,
    fired_at REAL NOT NULL,
    id TEXT,
    tenant TEXT,
    PRIMARY KEY (name, at)
) WITHOUT ROWID;

-- Whether someone has asked the worker to stop.
ALTER TABLE treadle_worker ADD COLUMN drain INTEGER NOT NULL DEFAULT 0;

-- Roots that name a parent: what was submitted in place of another item. Children are found by their group.
CREATE INDEX treadle_item_parent ON treadle_item (parent, tenant) WHERE parent IS NOT NULL AND queued_by IS NULL;

-- Open items that have lost three workers in a row, or more: there are few of them.
CREATE INDEX treadle_open_killing ON treadle_open (no) WHERE losses >= 3;

UPDATE treadle_meta SET value = 6 WHERE name = 'schema';
