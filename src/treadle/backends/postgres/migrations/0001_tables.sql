-- The tables and row types. `treadle` is replaced by the name of the schema in use.
--
--   item        what was submitted; never changes. The number `no` is the order of submission, and the
--               other tables refer to it. A row without a type is a placeholder: an item waits for that id,
--               which has not been submitted yet.
--   open_item   one narrow row per item that has not ended: everything that changes. Each index holds only
--               the rows that one query needs, so its size does not depend on the other rows.
--   ended_item  one row per item that has ended; inserted once (a requeue deletes it).
--   attempt     failed attempts, the last ten of an item.
--   dependency  `dependent` waits for `prerequisite`. Deleted when the prerequisite ends, or when it is no
--               longer waited for.
--   item_group  one row per group with a second member (or with a value that is not the root's result).
--               A group of one item has no row.
--
-- Instants are epoch seconds. Text is compared by its bytes, as in Python.
--
-- status   0 blocked  1 scheduled  2 ready  3 parked (ready, but no worker that claimed has its type)
--          4 doomed (the next claim hands it out with its verdict)  5 running  6 success  7 dead  8 cancelled
-- reason   and verdict: 1 exhausted 2 aborted 3 expired 4 lease_lost 5 unsatisfiable 6 undecodable
--          7 bad_result 8 unknown_type

-- The channel of the wake-ups is named after it: every role of the database can listen to one that it can name.
insert into treadle.meta values ('wake_key', gen_random_uuid()::text || gen_random_uuid()::text);

create sequence treadle.number;
create sequence treadle.token;

-- The store's clock. It is a function so that a test can replace it.
create function treadle.clock() returns float8 language sql volatile
  return extract(epoch from clock_timestamp())::float8;

create table treadle.item (
  no            bigint primary key,
  nonce         bigint,           -- identifies the call that stored it, so that a repeated call is recognised
  queued        float8,
  due           float8,
  deadline      float8,
  keep          float8,
  keep_dead     float8,
  group_no      bigint,           -- the root's number; null for a root
  priority      int,
  attempts      int,
  need          int,
  id            text collate "C" not null,
  tenant        text collate "C" not null,
  type          text collate "C",
  queue         text collate "C",
  lane          text collate "C",
  group_id      text collate "C", -- the root's id; null for a root
  parent        text collate "C",
  workflow      text collate "C",
  workflow_type text collate "C",
  key           text collate "C",
  after         text[] collate "C",
  input         bytea,
  options       bytea
);
-- The id comes first: a lookup without a tenant searches all tenants.
create unique index item_id on treadle.item (id, tenant);
create index item_group_no on treadle.item (group_no, no) where group_no is not null;
create index item_parent on treadle.item (parent, tenant) where parent is not null;
create index item_workflow on treadle.item (workflow, no) where workflow is not null;
create index item_key on treadle.item (key, no) where key is not null;
create index item_placeholder on treadle.item (no) where type is null;
-- The items that wait, or waited, for an id. Without a list of pending entries: each lookup would read all of it,
-- which took 0.6 s for a thousand ids; and inserting is not faster with it.
create index item_after on treadle.item using gin (after) with (fastupdate = off)
  where after is not null;

create table treadle.open_item (
  no           bigint primary key,
  seq          bigint not null,              -- place in its lane; negative: it keeps that place when it is due
  due          float8 not null,
  ready_since  float8 not null,
  deadline     float8,
  claimed      float8,
  token        bigint,
  last_token   bigint,                       -- the token that last settled it without ending it
  worker       bigint,
  group_no     bigint,                       -- its row in item_group, if there is one
  keep         float8,                       -- null: a day, the default
  keep_dead    float8,                       -- null: for ever
  status       smallint not null,
  shown_status smallint,                     -- the status that readers see while there is a verdict
  verdict      smallint,
  counting     smallint not null default 0,  -- prerequisites count on 0: success  1: any end  2: (requeued) never
  priority     int not null,
  attempt      int not null default 0,       -- attempts that have begun
  failures     int not null default 0,       -- attempts that have failed
  losses       int not null default 0,       -- leases lost in a row
  redrives     int not null default 0,
  need         int not null default 0,       -- prerequisites that must count before it is released
  met          int not null default 0,       -- prerequisites that have counted
  pending      int not null default 0,       -- prerequisites that have not ended
  queue        text collate "C" not null,
  tenant       text collate "C" not null,
  lane         text collate "C" not null,
  type         text collate "C" not null,
  begun        boolean not null default true -- the attempt of the current lease has begun
) with (fillfactor = 70);
create index open_item_ready on treadle.open_item (queue, tenant, lane, priority desc, seq) where status = 2;
create index open_item_parked on treadle.open_item (type, queue, tenant, lane, priority desc, seq)
  where status = 3;
create index open_item_due on treadle.open_item (due, queue, tenant) where status = 1;
create index open_item_deadline on treadle.open_item (deadline) where deadline is not null and status < 4;
create index open_item_doomed on treadle.open_item (type, queue, tenant, no) where status = 4;
create index open_item_worker on treadle.open_item (worker) where status = 5;

create table treadle.ended_item (
  no         bigint primary key,
  ended      float8 not null,
  started    float8,
  due        float8 not null,
  prune_at   float8,                       -- for an item without a group row; groups have their own
  token      bigint,                       -- null: an operator ended it
  last_token bigint,
  attempt    int not null,
  failures   int,                          -- null: none
  losses     int,                          -- null: none
  redrives   int not null default 0,
  outcome    smallint not null,
  reason     smallint,
  flags      smallint not null default 0,  -- 1 contributed its result  2 as the final value  4 deadline lifted
  worker     text,
  result     bytea
);
create index ended_item_prune on treadle.ended_item (prune_at) where prune_at is not null;
create index ended_item_dead on treadle.ended_item (no) where outcome = 7;

-- Error texts are bytes: they may contain NUL and unpaired surrogates.
create table treadle.attempt (
  no        bigint not null,
  seq       bigint not null default nextval('treadle.number'),
  attempt   int not null,
  token     bigint,
  at        float8 not null,
  worker    text not null,
  type      bytea not null,
  message   bytea not null,
  traceback bytea not null,
  primary key (no, seq)
);

create table treadle.dependency (
  prerequisite bigint not null,
  dependent    bigint not null,
  times        int not null default 1,      -- how often the dependent names the prerequisite
  primary key (prerequisite, dependent)
);

create table treadle.item_group (
  no          bigint primary key,         -- the root's
  open        int not null,
  dead        int not null default 0,
  cancelled   int not null default 0,
  version     int not null default 0,
  contributed boolean not null default false,
  final       boolean not null default false,
  ended       float8,
  keep        float8 not null,            -- the shortest retention of a member
  prune_at    float8,                     -- when the first member may be pruned
  value       bytea
) with (fillfactor = 50);
create index item_group_prune on treadle.item_group (prune_at) where prune_at is not null;

create table treadle.key (
  no     bigint,                          -- the item that holds it
  tenant text collate "C" not null,
  type   text collate "C" not null,
  key    text collate "C" not null,
  primary key (key, type, tenant)
);
create index key_no on treadle.key (no);

-- If another transaction holds an item of a removed worker, the worker's row stays, marked gone, until the
-- last of its items is free.
create table treadle.worker (
  no    bigint primary key default nextval('treadle.number'),
  until float8 not null,
  gone  boolean not null default false,
  id    text collate "C" not null,
  types text[] collate "C"
) with (fillfactor = 20);
create unique index worker_id on treadle.worker (id) where not gone;

-- When the last worker that had a type was removed. An empty type stands for a worker that had every type.
create table treadle.lost_type (
  type text collate "C" primary key,
  lost float8 not null
);

create table treadle.pause (
  queue  text collate "C" not null,
  tenant text collate "C" not null,       -- empty: every tenant
  primary key (queue, tenant)
);

create table treadle.claimed_key (
  key    text collate "C" not null,
  tenant text collate "C" not null,
  owner  text not null,
  until  float8 not null,
  primary key (key, tenant)
);
create index claimed_key_until on treadle.claimed_key (until);

create table treadle.limit_state (
  name   text collate "C" primary key,    -- the algorithm's code, a colon, the limit's name
  at     float8 not null,                 -- at, used, before: see `LimitState` in treadle.rules
  used   float8 not null,
  before float8 not null,
  until  float8 not null                  -- when the row may be pruned; infinity: no permit was taken yet
) with (fillfactor = 50);
create index limit_state_until on treadle.limit_state (until);

create table treadle.permit (
  name   text collate "C" not null,
  worker text collate "C" not null,
  held   int not null,
  primary key (name, worker)
) with (fillfactor = 50);

create table treadle.schedule (
  name    text collate "C" primary key,
  next_at float8,
  last_at float8,
  seen_at float8 not null,
  paused  boolean not null,
  spec    bytea not null
);

-- Row types of the functions. A type whose fields are arrays holds one column per field, one element per row;
-- a column that is the same in every row may have a single element, and null if that is null.

-- Items to store, sorted by id and tenant. A row without a type is an id that another row waits for.
create type treadle.new_items as (
  rank int[],             -- the place of each row in the order of submission; null: the rows are in order
  owner int[],            -- the submission or settlement that each row belongs to; -1 for a placeholder
  id text[], tenant text[], type text[], queue text[], lane text[], priority int[], attempts int[],
  run_at float8[], delay float8[], deadline float8[], expires_in float8[], parent text[], workflow text[],
  workflow_type text[],
  after text[],           -- the ids within one element are separated by chr(31)
  need int[],
  counting smallint[],    -- 0 success  1 any end
  key text[],
  key_scope float8[],     -- -1 while the group is open  -2 while the item is kept  else seconds
  keep float8[], keep_dead float8[], input bytea[], options bytea[],
  nonce bigint[], lease_to text[], group_no bigint[], group_id text[],
  skip boolean[]          -- rows that are not to be stored
);

-- What became of them. `existing` are the rows that were not stored: an earlier item has the same key, or an
-- earlier try of the same call stored them (`own`).
create type treadle.stored_items as (
  now float8, nos bigint[], states smallint[], tokens bigint[],
  existing_row int[], existing_id text[], existing_state smallint[], existing_group text[],
  existing_own boolean[]
);

-- How attempts end.
create type treadle.settlements as (
  no bigint[], token bigint[], tenant text[],
  kind smallint[],        -- 1 retry  2 defer  3 release  6 success  7 dead  8 cancelled
  flags smallint[],       -- 1 contributes  2 as the final value  4 with `value`, not `result`  8 needs a group row
  reason smallint[], result bytea[], run_at float8[], delay float8[],
  version int[],          -- the version of the group's value that a fold started from
  group_index int[],      -- equal for settlements of the same group; only for folds
  value bytea[],
  failed_row int[], error_type bytea[], error_message bytea[], traceback bytea[]
);

-- The items that settlements have ended; `row` is the settlement.
create type treadle.ended_rows as (
  row int[], no bigint[], group_no bigint[], kind smallint[], flags smallint[], keep float8[], attempt int[],
  worker text[]
);

-- What a claim asks for: see `Demand` in treadle.item. Null stands for all, or for none to avoid.
--
-- avoid  the keys of an object: a type, with the number of its set of lanes as value; that number and a tenant;
--        that number, a tenant and a lane (see `treadle.avoids`). So a look-up takes a few comparisons, however
--        many lanes there are.
-- shared        for each type, the place of its room in `shared_rooms`, or null
-- shared_rooms  the rooms that types share
create type treadle.demand as (
  types text[], rooms int[], queues text[], tenants text[], avoid jsonb, buffered text[], shared int[],
  shared_rooms int[]
);

-- What the claim before served last: the queue, the tenant of each queue, the lane of each queue and tenant.
create type treadle.last_served as (
  queue text, tenant_queue text[], tenant text[], lane_queue text[], lane_tenant text[], lane text[]
);

-- The lines that a claim comes to, what they served last, and their shares: see `fair_lines`.
create type treadle.lines as (
  type text[], queue text[], tenant text[], lane text[], last_tenant text[], last_lane text[],
  per_queue int[], per_tenant int[], per_lane int[]
);

-- What happened to other items and groups when items ended. `doomed` counts dependents that cannot be met.
create type treadle.effects as (
  released_id text[], released_tenant text[], released_type text[], released_group text[],
  released_queue text[], released_parent text[], released_after text[],
  ended_group_id text[], ended_group_tenant text[], ended_group_type text[], ended_group_value bytea[],
  doomed int
);

-- An item as readers see it.
create type treadle.item_state as (
  no bigint, id text, tenant text, type text, queue text, lane text, priority int, attempts int, queued float8,
  due float8, deadline float8, started float8, ended float8, state smallint, reason smallint, attempt int,
  group_id text, parent text, workflow text, workflow_type text, after text[], key text, worker text,
  result bytea, input bytea, options bytea, error_type bytea, error bytea, waiting_for text[],
  failures int, losses int,
  history_attempt int[], history_type bytea[], history_message bytea[], history_traceback bytea[],
  history_at float8[], history_worker text[]
);

-- A group as readers see it. `failed` is the number of a member that explains why there may be no value.
create type treadle.group_state as (
  no bigint, id text, tenant text, type text, open int, value bytea, contributed boolean, final boolean,
  version int, ended float8, failed bigint
);

-- Claims and settlements leave dead rows at the place where the next claim looks. Vacuum must remove them
-- sooner than by default, and without pauses.
do $$
declare name text;
begin
  foreach name in array array['item', 'open_item', 'ended_item', 'attempt', 'dependency', 'item_group', 'key',
                              'worker', 'limit_state'] loop
    execute format(
      'alter table treadle.%I set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,
         autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)', name);
  end loop;
end $$;
