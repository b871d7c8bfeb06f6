-- The tables of treadle. All names begin with treadle_, so that a user's own tables can live in the same file.
--
--   item         what was submitted: written once, never changed
--   open         one narrow row per item that has not ended: everything that changes
--   done         one row per item that has ended: insert only (a requeue deletes it and inserts into open)
--   attempt      the last ten failed attempts of an item
--   dependency   the dependent item waits for the prerequisite item; kept until the dependent has ended
--   missing      an id that the dependent item waits for and that does not exist yet
--   group        a group, from its first child on: an item that is alone has no row here
--   key          the item that holds an idempotency key
--
-- Inside the database an item is named by `no`. Numbers follow the order of submission and are never reused.
-- Times are epoch seconds by the store's clock.

CREATE TABLE treadle_meta (
    name TEXT PRIMARY KEY,
    value
) WITHOUT ROWID;

INSERT INTO treadle_meta VALUES ('schema', 1), ('epoch', lower(hex(randomblob(16))));

-- One row. A transaction that needs numbers takes them in one update.
-- `user_submits` counts the submits inside users' own transactions. No process can announce those when they
-- commit, so the other processes watch this count.
CREATE TABLE treadle_counter (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    no INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    token INTEGER NOT NULL,
    user_submits INTEGER NOT NULL
);

INSERT INTO treadle_counter VALUES (1, 0, 0, 0, 0);

-- The wide columns come last: the front of a row that spills into overflow pages is read without them.
CREATE TABLE treadle_item (
    no INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    type TEXT NOT NULL,
    queue TEXT NOT NULL,
    lane TEXT NOT NULL,
    priority INTEGER NOT NULL,
    attempts INTEGER,            -- NULL: without limit
    group_no INTEGER NOT NULL,   -- the no of the root: its own for a root
    queued_by INTEGER,           -- the no of the item whose settlement queued it: NULL for a root
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
CREATE INDEX treadle_item_member ON treadle_item (group_no, queued_by) WHERE queued_by IS NOT NULL;
CREATE INDEX treadle_item_workflow ON treadle_item (workflow, tenant) WHERE workflow IS NOT NULL;
CREATE INDEX treadle_item_key ON treadle_item (key, tenant) WHERE key IS NOT NULL;

-- The holder of an idempotency key: the last item stored with it, as long as that item exists.
CREATE TABLE treadle_key (
    key TEXT NOT NULL,
    tenant TEXT NOT NULL,
    type TEXT NOT NULL,
    no INTEGER NOT NULL,
    PRIMARY KEY (key, tenant, type)
) WITHOUT ROWID;

-- status: 0 blocked, 1 scheduled, 2 ready, 3 ready but parked under its type, 4 running;
--   doomed: -1 blocked, -2 scheduled, -3 ready; leased with its verdict: 5 blocked, 6 scheduled, 7 ready.
-- rank: the negated priority, so that a lane is read in ascending order.
CREATE TABLE treadle_open (
    no INTEGER PRIMARY KEY,
    status INTEGER NOT NULL,
    queue TEXT NOT NULL,
    tenant TEXT NOT NULL,
    type TEXT NOT NULL,
    lane TEXT NOT NULL,
    rank INTEGER NOT NULL,
    seq INTEGER NOT NULL,              -- the place in the lane; 0: assigned when it becomes ready
    due REAL NOT NULL,
    ready_since REAL,
    deadline REAL,
    attempt INTEGER NOT NULL DEFAULT 0,          -- attempts that have begun
    failures INTEGER NOT NULL DEFAULT 0,         -- attempts that have failed
    losses INTEGER NOT NULL DEFAULT 0,           -- leases lost in a row
    begun INTEGER NOT NULL DEFAULT 1,            -- the attempt of the current lease has begun
    redrives INTEGER NOT NULL DEFAULT 0,
    group_no INTEGER,                  -- the group that counts it; NULL: it is alone
    has_dependencies INTEGER NOT NULL DEFAULT 0, -- it is the dependent of rows in dependency or missing
    need INTEGER NOT NULL DEFAULT 0,
    met INTEGER NOT NULL DEFAULT 0,
    pending INTEGER NOT NULL DEFAULT 0,          -- prerequisites that have not ended
    any_end_counts INTEGER NOT NULL DEFAULT 0,   -- every end of a prerequisite counts, not only success
    verdict TEXT,                      -- why it can only end dead
    token INTEGER,                     -- of the lease
    settled_tokens TEXT,               -- a JSON array: the tokens of the last settlements that put it back
    worker INTEGER,                    -- the holder of the lease
    started REAL                       -- when it was claimed last
);

-- The claim index holds only what can be claimed, in the order of fairness.
CREATE INDEX treadle_open_ready ON treadle_open (queue, tenant, lane, rank, seq) WHERE status = 2;
CREATE INDEX treadle_open_parked ON treadle_open (type, queue, tenant, lane, rank, seq) WHERE status = 3;
-- Ready items by type: what waits for a worker that has the type, and since when.
CREATE INDEX treadle_open_type ON treadle_open (type, ready_since) WHERE status >= 2 AND status < 4;
CREATE INDEX treadle_open_scheduled ON treadle_open (due, queue, tenant) WHERE status = 1;
CREATE INDEX treadle_open_deadline ON treadle_open (deadline)
    WHERE deadline IS NOT NULL AND status >= 0 AND status < 4;
CREATE INDEX treadle_open_doomed ON treadle_open (type, queue, tenant) WHERE status < 0;
CREATE INDEX treadle_open_worker ON treadle_open (worker) WHERE worker IS NOT NULL;

-- outcome: 10 success, 11 dead, 12 cancelled.
CREATE TABLE treadle_done (
    no INTEGER PRIMARY KEY,
    outcome INTEGER NOT NULL,
    reason TEXT,
    token INTEGER,                -- of the settlement that ended it; NULL: an operator did
    settled_tokens TEXT,          -- a JSON array: the tokens of the settlements before that
    attempt INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    losses INTEGER NOT NULL,
    redrives INTEGER NOT NULL,
    due REAL NOT NULL,
    deadline REAL,
    started REAL,
    ended REAL NOT NULL,
    expires REAL,                 -- when it may be pruned; NULL: never, or its group says when
    contributed INTEGER NOT NULL, -- for an item that is alone: 1 its result is the group's value, 3 and final
    worker TEXT,
    result BLOB
);

CREATE INDEX treadle_done_expires ON treadle_done (expires) WHERE expires IS NOT NULL;
CREATE INDEX treadle_done_dead ON treadle_done (outcome) WHERE outcome = 11;

-- Texts are stored as bytes: an error message may not be valid text.
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

-- counted: the end of the prerequisite was counted, or no longer matters to the dependent.
-- weight: how often the dependent names the prerequisite.
CREATE TABLE treadle_dependency (
    prerequisite INTEGER NOT NULL,
    dependent INTEGER NOT NULL,
    counted INTEGER NOT NULL,
    weight INTEGER NOT NULL,
    PRIMARY KEY (prerequisite, dependent)
) WITHOUT ROWID;

CREATE INDEX treadle_dependency_dependent ON treadle_dependency (dependent);

CREATE TABLE treadle_missing (
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    dependent INTEGER NOT NULL,
    PRIMARY KEY (id, tenant, dependent)
) WITHOUT ROWID;

CREATE INDEX treadle_missing_dependent ON treadle_missing (dependent);

CREATE TABLE treadle_group (
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
    prune_at REAL,                -- when the next member may be pruned; NULL: not before something changes
    value BLOB
);

CREATE INDEX treadle_group_id ON treadle_group (id, tenant);
CREATE INDEX treadle_group_prune_at ON treadle_group (prune_at) WHERE prune_at IS NOT NULL;

-- removed: it is dead, and the items that it held are being freed.
CREATE TABLE treadle_worker (
    no INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    lease_until REAL NOT NULL,
    removed INTEGER NOT NULL DEFAULT 0,
    lock_file TEXT,               -- of the process that claims for it
    types TEXT                    -- a JSON array; NULL: every type
);

CREATE UNIQUE INDEX treadle_worker_id ON treadle_worker (id) WHERE removed = 0;

-- Since when no live worker has had a type.
CREATE TABLE treadle_unknown_type (
    type TEXT PRIMARY KEY,        -- empty: there was a worker that had every type
    since REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE treadle_pause (
    queue TEXT NOT NULL,
    tenant TEXT NOT NULL,         -- empty: all tenants
    PRIMARY KEY (queue, tenant)
) WITHOUT ROWID;

CREATE TABLE treadle_claimed_key (
    key TEXT NOT NULL,
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    until REAL NOT NULL,
    PRIMARY KEY (key, tenant)
) WITHOUT ROWID;

CREATE INDEX treadle_claimed_key_until ON treadle_claimed_key (until);

CREATE TABLE treadle_schedule (
    name TEXT PRIMARY KEY,
    next_at REAL,
    last_at REAL,
    seen_at REAL NOT NULL,
    paused INTEGER NOT NULL,
    spec BLOB NOT NULL
) WITHOUT ROWID;

-- The state of a limit: see rules.LimitState. Limits of one name share a state only if their algorithm is the same.
CREATE TABLE treadle_limit (
    name TEXT NOT NULL,
    algorithm TEXT NOT NULL,
    at REAL NOT NULL,
    used REAL NOT NULL,
    before REAL NOT NULL,
    idle_at REAL NOT NULL,        -- from then on the state equals that of an unused limit
    PRIMARY KEY (name, algorithm)
) WITHOUT ROWID;

CREATE INDEX treadle_limit_idle_at ON treadle_limit (idle_at);

-- How many permits of a `slots` limit a worker has.
CREATE TABLE treadle_permit (
    name TEXT NOT NULL,
    worker INTEGER NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (name, worker)
) WITHOUT ROWID;

CREATE INDEX treadle_permit_worker ON treadle_permit (worker);
