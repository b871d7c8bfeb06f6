-- The tables of treadle. All names begin with treadle_, so that a user's own tables can live in the same file.
--
--   item      who and what: written once, never changed
--   job       one narrow row per item that has not ended: all that changes
--   done      one row per item that has ended: insert only (a requeue deletes it and makes a new job)
--   attempt   the failed attempts of an item, the last ten
--   edge      src is waited for by dst; kept until dst has ended
--   awaited   an id that is waited for by dst and does not exist yet
--   grp       a group, from its first child on: a lone item has none
--   key       who holds an idempotency key
--
-- Inside, items are named by `no`: given in the order of submission, never used twice.
-- Instants are epoch seconds by the store's clock.

CREATE TABLE treadle_meta (
    name TEXT PRIMARY KEY,
    value
) WITHOUT ROWID;

INSERT INTO treadle_meta VALUES ('schema', 1), ('epoch', lower(hex(randomblob(16))));

-- One row. A transaction that needs numbers takes them in one update.
-- `outside` counts the submits inside of users' own transactions: nobody can announce those when they commit.
CREATE TABLE treadle_counter (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    no INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    token INTEGER NOT NULL,
    outside INTEGER NOT NULL
);

INSERT INTO treadle_counter VALUES (1, 0, 0, 0, 0);

-- The wide columns come last: a row that spills into overflow pages is still read for its front without them.
CREATE TABLE treadle_item (
    no INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    type TEXT NOT NULL,
    queue TEXT NOT NULL,
    lane TEXT NOT NULL,
    priority INTEGER NOT NULL,
    attempts INTEGER,            -- NULL: without limit
    grp INTEGER NOT NULL,        -- the no of the root: its own for a root
    origin INTEGER,              -- the no of the item whose settlement queued it: NULL for a root
    parent TEXT,
    workflow TEXT,
    workflow_type TEXT,
    key TEXT,
    queued_at REAL NOT NULL,
    keep REAL NOT NULL,
    keep_dead REAL,
    after TEXT,                  -- a JSON array of ids: NULL if it waits for nothing
    options BLOB NOT NULL,
    input BLOB NOT NULL
);

CREATE UNIQUE INDEX treadle_item_id ON treadle_item (id, tenant);
CREATE INDEX treadle_item_member ON treadle_item (grp, origin) WHERE origin IS NOT NULL;
CREATE INDEX treadle_item_workflow ON treadle_item (workflow, tenant) WHERE workflow IS NOT NULL;
CREATE INDEX treadle_item_key ON treadle_item (key, tenant) WHERE key IS NOT NULL;

-- Who holds an idempotency key: the last one stored with it, as long as that exists.
CREATE TABLE treadle_key (
    key TEXT NOT NULL,
    tenant TEXT NOT NULL,
    type TEXT NOT NULL,
    no INTEGER NOT NULL,
    PRIMARY KEY (key, tenant, type)
) WITHOUT ROWID;

-- status: 0 blocked, 1 scheduled, 2 ready, 3 ready but parked under its type, 4 running;
--   doomed: -1 blocked, -2 scheduled, -3 ready; leased with its verdict: 5 blocked, 6 scheduled, 7 ready.
-- rank: the priority, negated, so that the whole line is read in ascending order.
CREATE TABLE treadle_job (
    no INTEGER PRIMARY KEY,
    status INTEGER NOT NULL,
    queue TEXT NOT NULL,
    tenant TEXT NOT NULL,
    type TEXT NOT NULL,
    lane TEXT NOT NULL,
    rank INTEGER NOT NULL,
    seq INTEGER NOT NULL,              -- the place in the line; 0: it will be given one
    due REAL NOT NULL,
    since REAL,                        -- when it became ready
    deadline REAL,
    attempts INTEGER,
    attempt INTEGER NOT NULL DEFAULT 0,
    losses INTEGER NOT NULL DEFAULT 0, -- in a row
    redrives INTEGER NOT NULL DEFAULT 0,
    grp INTEGER,                       -- the group that counts it; NULL: it is alone
    gated INTEGER NOT NULL DEFAULT 0,  -- it has rows in edge or awaited as dst
    need INTEGER NOT NULL DEFAULT 0,
    met INTEGER NOT NULL DEFAULT 0,
    open INTEGER NOT NULL DEFAULT 0,
    any_end INTEGER NOT NULL DEFAULT 0,-- every end of a prerequisite counts, not only success
    verdict TEXT,                      -- why it can only end dead
    token INTEGER,                     -- of the lease
    settled TEXT,                      -- a JSON array: the tokens of the last settlements that put it back
    worker INTEGER,                    -- who holds the lease
    started REAL                       -- when it was claimed last
);

-- Only what can be claimed is in the claim index, in the order of the turns.
CREATE INDEX treadle_job_ready ON treadle_job (queue, tenant, lane, rank, seq) WHERE status = 2;
CREATE INDEX treadle_job_parked ON treadle_job (type, queue, tenant, lane, rank, seq) WHERE status = 3;
-- By type: who waits for a worker that has it, and since when.
CREATE INDEX treadle_job_waiting ON treadle_job (type, since) WHERE status >= 2 AND status < 4;
CREATE INDEX treadle_job_scheduled ON treadle_job (due, queue, tenant) WHERE status = 1;
CREATE INDEX treadle_job_deadline ON treadle_job (deadline)
    WHERE deadline IS NOT NULL AND status >= 0 AND status < 4;
CREATE INDEX treadle_job_doomed ON treadle_job (type, queue, tenant) WHERE status < 0;
CREATE INDEX treadle_job_leased ON treadle_job (worker) WHERE worker IS NOT NULL;

-- outcome: 10 success, 11 dead, 12 cancelled.
CREATE TABLE treadle_done (
    no INTEGER PRIMARY KEY,
    outcome INTEGER NOT NULL,
    reason TEXT,
    token INTEGER,                -- that settled it; NULL: an operator did
    settled TEXT,                 -- a JSON array: the tokens of the settlements before that
    attempt INTEGER NOT NULL,
    redrives INTEGER NOT NULL,
    due REAL NOT NULL,
    deadline REAL,
    started REAL,
    ended REAL NOT NULL,
    expires REAL,                 -- when it may be removed; NULL: never, or its group says when
    gave INTEGER NOT NULL,        -- of a lone item: 1 its result is the group's value, 3 finally
    worker TEXT,
    result BLOB
);

CREATE INDEX treadle_done_expires ON treadle_done (expires) WHERE expires IS NOT NULL;
CREATE INDEX treadle_done_dead ON treadle_done (outcome) WHERE outcome = 11;

-- Texts are bytes: an error message may hold what is no valid text.
CREATE TABLE treadle_attempt (
    no INTEGER NOT NULL,
    place INTEGER NOT NULL,       -- 1, 2, 3, ... within its item
    attempt INTEGER NOT NULL,
    at REAL NOT NULL,
    worker TEXT NOT NULL,
    error_type BLOB NOT NULL,
    message BLOB NOT NULL,
    traceback BLOB NOT NULL
);

CREATE UNIQUE INDEX treadle_attempt_place ON treadle_attempt (no, place);

-- counted: the end of src was counted by dst, or dst no longer cares. weight: how often dst names src.
CREATE TABLE treadle_edge (
    src INTEGER NOT NULL,
    dst INTEGER NOT NULL,
    counted INTEGER NOT NULL,
    weight INTEGER NOT NULL,
    PRIMARY KEY (src, dst)
) WITHOUT ROWID;

CREATE INDEX treadle_edge_dst ON treadle_edge (dst);

CREATE TABLE treadle_awaited (
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    dst INTEGER NOT NULL,
    PRIMARY KEY (id, tenant, dst)
) WITHOUT ROWID;

CREATE INDEX treadle_awaited_dst ON treadle_awaited (dst);

CREATE TABLE treadle_grp (
    no INTEGER PRIMARY KEY,       -- of the root
    id TEXT NOT NULL,             -- the root may be removed before the last member
    tenant TEXT NOT NULL,
    type TEXT NOT NULL,
    open INTEGER NOT NULL,
    failed INTEGER NOT NULL,      -- members that are dead or cancelled
    version INTEGER NOT NULL,     -- how many contributions were applied
    final INTEGER NOT NULL,
    keep REAL NOT NULL,           -- the shortest of its members
    ended REAL,
    look REAL,                    -- when a member may be removed; NULL: not before something happens
    value BLOB
);

CREATE INDEX treadle_grp_id ON treadle_grp (id, tenant);
CREATE INDEX treadle_grp_look ON treadle_grp (look) WHERE look IS NOT NULL;

-- gone: it is dead, and what it held is being freed.
CREATE TABLE treadle_worker (
    no INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    until REAL NOT NULL,
    gone INTEGER NOT NULL DEFAULT 0,
    lock TEXT,                    -- the lock file of the process that claims for it
    types TEXT                    -- a JSON array; NULL: every type
);

CREATE UNIQUE INDEX treadle_worker_id ON treadle_worker (id) WHERE gone = 0;

-- Since when no live worker has had a type.
CREATE TABLE treadle_forgotten (
    type TEXT PRIMARY KEY,        -- empty: there was a worker that had every type
    since REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE treadle_pause (
    queue TEXT NOT NULL,
    tenant TEXT NOT NULL,         -- empty: all of them
    PRIMARY KEY (queue, tenant)
) WITHOUT ROWID;

CREATE TABLE treadle_once (
    key TEXT NOT NULL,
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    until REAL NOT NULL,
    PRIMARY KEY (key, tenant)
) WITHOUT ROWID;

CREATE INDEX treadle_once_until ON treadle_once (until);

CREATE TABLE treadle_schedule (
    name TEXT PRIMARY KEY,
    next_at REAL,
    last_at REAL,
    seen_at REAL NOT NULL,
    paused INTEGER NOT NULL,
    spec BLOB NOT NULL
) WITHOUT ROWID;

-- Where a limit stands: see rules.Gauge. Limits of one name count together only if they count the same way.
CREATE TABLE treadle_gauge (
    name TEXT NOT NULL,
    algorithm TEXT NOT NULL,
    at REAL NOT NULL,
    used REAL NOT NULL,
    before REAL NOT NULL,
    idle REAL NOT NULL,           -- when it is like new
    PRIMARY KEY (name, algorithm)
) WITHOUT ROWID;

CREATE INDEX treadle_gauge_idle ON treadle_gauge (idle);

CREATE TABLE treadle_slot (
    name TEXT NOT NULL,
    worker INTEGER NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (name, worker)
) WITHOUT ROWID;

CREATE INDEX treadle_slot_worker ON treadle_slot (worker);
