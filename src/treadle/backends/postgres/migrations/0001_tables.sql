-- The tables. `treadle` stands for whatever schema was chosen.
--
--   item     what was submitted; never changes. The number `no` is the order of submission, and what the
--            other tables refer to. A row without a type is a placeholder: somebody waits for that id
--            before it was submitted.
--   job      one narrow row per item that has not ended: all that changes. Its indexes hold just the rows
--            that each question is about, so that their size does not depend on what waits elsewhere.
--   done     one row per item that has ended; inserted once (a requeue deletes it).
--   attempt  failed attempts, the last ten of an item.
--   edge     dst waits for src. Gone as soon as src has ended, or is no longer awaited.
--   grp      one row per group with a second member (or a value of its own): a lone item has none.
--
-- Instants are epoch seconds. Text is compared by its bytes, here as in Python.
--
-- status   0 blocked  1 scheduled  2 ready  3 parked (ready, set aside under its type)  4 doomed (waits to
--          be handed out with its verdict)  5 running  6 success  7 dead  8 cancelled
-- reason   and verdict: 1 exhausted 2 aborted 3 expired 4 lease_lost 5 unsatisfiable 6 undecodable
--          7 bad_result 8 unknown_type

create sequence treadle.number;
create sequence treadle.token;

-- What decides what is due. A function of its own, so that a test can move time.
create function treadle.clock() returns float8 language sql volatile as
  $$ select extract(epoch from clock_timestamp())::float8 $$;

create table treadle.item (
  no            bigint primary key,
  nonce         bigint,
  queued        float8,
  due           float8,
  deadline      float8,
  keep          float8,
  keep_dead     float8,
  grp           bigint,           -- the root's number; null for a root
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
-- By id first: without a tenant an id is looked for in all of them.
create unique index item_id on treadle.item (id, tenant);
create index item_group on treadle.item (grp, no) where grp is not null;
create index item_parent on treadle.item (parent, tenant) where parent is not null;
create index item_workflow on treadle.item (workflow, no) where workflow is not null;
create index item_key on treadle.item (key, no) where key is not null;
create index item_placeholder on treadle.item (no) where type is null;
-- Who waits, or waited, for an id.
create index item_after on treadle.item using gin (after) with (gin_pending_list_limit = 256)
  where after is not null;

create table treadle.job (
  no        bigint primary key,
  seq       bigint not null,              -- its place in the line; negative: it keeps that when it is due
  due       float8 not null,
  since     float8 not null,              -- since when it is ready
  deadline  float8,
  claimed   float8,
  token     bigint,
  last      bigint,                       -- the token that settled it last without ending it
  worker    bigint,
  grp       bigint,                       -- its row in grp, if there is one
  keep      float8,                       -- null: a day, as almost always
  keep_dead float8,                       -- null: for ever
  status    smallint not null,
  was       smallint,                     -- the status shown while there is a verdict
  verdict   smallint,
  counting  smallint not null default 0,  -- 0: only success counts  1: any end  2: nothing any more
  priority  int not null,
  attempt   int not null default 0,
  budget    int,
  losses    int not null default 0,
  redrives  int not null default 0,
  need      int not null default 0,
  met       int not null default 0,
  open      int not null default 0,
  queue     text collate "C" not null,
  tenant    text collate "C" not null,
  lane      text collate "C" not null,
  type      text collate "C" not null
) with (fillfactor = 70);
create index job_ready on treadle.job (queue, tenant, lane, priority desc, seq) where status = 2;
create index job_parked on treadle.job (type, queue, tenant, lane, priority desc, seq) where status = 3;
create index job_due on treadle.job (due, queue, tenant) where status = 1;
create index job_deadline on treadle.job (deadline) where deadline is not null and status < 4;
create index job_doomed on treadle.job (type, queue, tenant, no) where status = 4;
create index job_worker on treadle.job (worker) where status = 5;

create table treadle.done (
  no        bigint primary key,
  ended     float8 not null,
  started   float8,
  due       float8 not null,
  prune     float8,                       -- for a lone item; groups have their own
  token     bigint,                       -- null: an operator ended it
  last      bigint,
  attempt   int not null,
  redrives  int not null default 0,
  outcome   smallint not null,
  reason    smallint,
  flags     smallint not null default 0,  -- 1 contributed its result  2 as the final value  4 deadline lifted
  worker    text,
  result    bytea
);
create index done_prune on treadle.done (prune) where prune is not null;
create index done_dead on treadle.done (no) where outcome = 7;

-- Texts as bytes: they come from anywhere, NUL and halves of surrogate pairs included.
create table treadle.attempt (
  no      bigint not null,
  seq     bigint not null default nextval('treadle.number'),
  attempt int not null,
  token   bigint,
  at      float8 not null,
  worker  text not null,
  type    bytea not null,
  message bytea not null,
  trace   bytea not null,
  primary key (no, seq)
);

create table treadle.edge (
  src   bigint not null,
  dst   bigint not null,
  times int not null default 1,           -- how often dst names it
  primary key (src, dst)
);

create table treadle.grp (
  no          bigint primary key,         -- the root's
  open        int not null,
  dead        int not null default 0,
  cancelled   int not null default 0,
  version     int not null default 0,
  contributed boolean not null default false,
  final       boolean not null default false,
  ended       float8,
  keep        float8 not null,            -- the shortest that a member is kept
  prune       float8,                     -- when the first member's time is over
  value       bytea
) with (fillfactor = 50);
create index grp_prune on treadle.grp (prune) where prune is not null;

create table treadle.key (
  no     bigint,                          -- who holds it
  tenant text collate "C" not null,
  type   text collate "C" not null,
  key    text collate "C" not null,
  primary key (key, type, tenant)
);
create index key_no on treadle.key (no);

-- A worker that was buried while somebody held one of its rows stays, gone, until the last one is free.
create table treadle.worker (
  no    bigint primary key default nextval('treadle.number'),
  until float8 not null,
  gone  boolean not null default false,
  id    text collate "C" not null,
  types text[] collate "C"
) with (fillfactor = 20);
create unique index worker_id on treadle.worker (id) where not gone;

-- When the last worker that had a type was buried. An empty type: one that had them all.
create table treadle.skill (
  type text collate "C" primary key,
  lost float8 not null
);

create table treadle.pause (
  queue  text collate "C" not null,
  tenant text collate "C" not null,       -- empty: all of them
  primary key (queue, tenant)
);

create table treadle.once (
  key    text collate "C" not null,
  tenant text collate "C" not null,
  owner  text not null,
  until  float8 not null,
  primary key (key, tenant)
);
create index once_until on treadle.once (until);

create table treadle.bucket (
  name   text collate "C" primary key,    -- the kind of limit, a colon, its name
  at     float8 not null,                 -- see `Gauge` in treadle.rules
  used   float8 not null,
  before float8 not null,
  until  float8 not null                  -- from when on it says nothing any more; infinity: it never did
) with (fillfactor = 50);
create index bucket_until on treadle.bucket (until);

create table treadle.slot (
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

-- An item as it is shown.
create type treadle.shown as (
  no bigint, id text, tenant text, type text, queue text, lane text, priority int, attempts int, queued float8,
  due float8, deadline float8, started float8, ended float8, state smallint, reason smallint, attempt int,
  group_id text, parent text, workflow text, workflow_type text, after text[], key text, worker text,
  result bytea, input bytea, options bytea, error_type bytea, error bytea, waiting_for text[],
  h_attempt int[], h_type bytea[], h_message bytea[], h_trace bytea[], h_at float8[], h_worker text[]
);

-- What followed when items ended: dependents released, groups ended, how many gates were doomed.
create type treadle.effects as (
  r_id text[], r_tenant text[], r_type text[], r_group text[], r_queue text[], r_parent text[], r_after text[],
  c_id text[], c_tenant text[], c_type text[], c_value bytea[], doomed int
);

-- A group as it is shown; `failed` is the number of a member that says why there may be no value.
create type treadle.shown_group as (
  no bigint, id text, tenant text, type text, open int, value bytea, contributed boolean, final boolean,
  version int, ended float8, failed bigint
);

-- What is claimed and settled leaves dead rows behind at the very place where the next claim looks:
-- they must go sooner than by default, and without pauses.
do $$
declare name text;
begin
  foreach name in array array['item', 'job', 'done', 'attempt', 'edge', 'grp', 'key', 'worker', 'bucket'] loop
    execute format(
      'alter table treadle.%I set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,
         autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)', name);
  end loop;
end $$;
