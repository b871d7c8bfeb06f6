-- :name begin_pinned
begin; {pin_search_path}

-- :name pin_search_path
set local search_path to pg_catalog, pg_temp

-- One column for each type of array in our statements and their answers.
-- :name array_types
select null::smallint[], null::int[], null::bigint[], null::float8[], null::text[], null::bytea[], null::boolean[]

-- :name commit
commit

-- The commit of a statement with this in its FROM waits neither for the disk nor for replicas. It is for its transaction only:
-- a pooler may give the connection to others.
-- :name unflushed
pg_catalog.set_config('synchronous_commit', 'off', true) unflushed,

-- As `discard all`, but prepared statements stay. The settings that the driver sent when it connected are what
-- `reset all` goes back to. The role first: another one may not be allowed the rest.
-- :name reset_session
reset session authorization; reset role; close all; unlisten *;
select pg_catalog.pg_advisory_unlock_all();
reset all; discard temp; discard sequences
