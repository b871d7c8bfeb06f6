-- Version 9: orders of operators, releases of workers.

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

UPDATE treadle_meta SET value = 9 WHERE name = 'schema';
