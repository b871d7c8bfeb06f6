-- Version 9: orders of operators, releases of workers, lists of groups and of workflows, logs.

-- subject: item.Order.subject. queue and tenant: of pauses that claims obey (Order.paused_part), empty for all; NULL for
-- all other orders.
CREATE TABLE treadle_orders (
    subject TEXT PRIMARY KEY,
    queue TEXT,
    tenant TEXT,
    until REAL,
    at REAL NOT NULL,
    body BLOB NOT NULL
) WITHOUT ROWID;

INSERT INTO treadle_orders (subject, queue, tenant, at, body)
SELECT 'pause' || char(10) || queue || char(10) || char(10) || tenant || char(10) || char(10), queue, tenant, 0,
    CAST(CASE tenant WHEN '' THEN json_object('kind', 'pause', 'queue', queue)
        ELSE json_object('kind', 'pause', 'queue', queue, 'tenant', tenant) END AS BLOB)
FROM treadle_pause;

-- orders: the version of the orders.
ALTER TABLE treadle_counter ADD COLUMN orders INTEGER NOT NULL DEFAULT 0;
UPDATE treadle_counter SET orders = EXISTS (SELECT 1 FROM treadle_orders);

-- Processes of version 8 that are still open read it.
DROP TABLE treadle_pause;
CREATE VIEW treadle_pause AS SELECT queue, tenant FROM treadle_orders WHERE queue IS NOT NULL;

-- Releases of the code of workers. NULL: the worker has none. Processes of version 8 write none.
--
--   treadle_release  when the first worker of each release began
ALTER TABLE treadle_worker ADD COLUMN release TEXT;
ALTER TABLE treadle_attempt ADD COLUMN release TEXT;
ALTER TABLE treadle_dead ADD COLUMN release TEXT;

CREATE TABLE treadle_release (
    name TEXT PRIMARY KEY,
    began REAL NOT NULL
) WITHOUT ROWID;

-- total: members that it has had.
ALTER TABLE treadle_group ADD COLUMN total INTEGER NOT NULL DEFAULT 1;

UPDATE treadle_group SET total = (outermost IS NULL)
    + (SELECT count(*) FROM treadle_item AS i WHERE i.group_no = treadle_group.no AND i.queued_by IS NOT NULL);

-- outcome: 0 running, 1 succeeded, 2 failed, 3 cancelled: `outcome_of` in treadle.store.rules. NULL: lists of groups leave
-- it out.
ALTER TABLE treadle_group ADD COLUMN outcome INTEGER AS (CASE
    WHEN outermost IS NOT NULL OR total < 2 THEN NULL
    WHEN ended IS NULL THEN 0
    WHEN final AND version > 0 THEN 1
    WHEN failed > 0 THEN 2
    WHEN cancelled > 0 AND version = 0 THEN 3
    ELSE 1 END) VIRTUAL;

CREATE INDEX treadle_group_outcome ON treadle_group (outcome) WHERE outcome IS NOT NULL;

-- The roots of workflows, in the order of submission, and those of each workflow.
CREATE INDEX treadle_item_workflow_roots ON treadle_item (queued_by) WHERE workflow IS NOT NULL AND queued_by IS NULL;
CREATE INDEX treadle_item_workflow_root ON treadle_item (workflow, tenant) WHERE workflow IS NOT NULL AND queued_by IS NULL;

-- Samples of the backlog, by minute, quarter and hour: records.BacklogSample.
CREATE TABLE treadle_sample (
    step INTEGER NOT NULL,
    at REAL NOT NULL,
    queue TEXT NOT NULL,
    samples INTEGER NOT NULL,
    ready REAL NOT NULL,
    running REAL NOT NULL,
    oldest REAL NOT NULL,
    estimated INTEGER NOT NULL,
    PRIMARY KEY (step, at, queue)
) WITHOUT ROWID;

-- What attempts have logged, by the tokens of their leases. Rows go with the item.
CREATE TABLE treadle_log (
    no INTEGER NOT NULL,
    token INTEGER NOT NULL,
    at REAL NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (no, token)
);

UPDATE treadle_meta SET value = 9 WHERE name = 'schema';
