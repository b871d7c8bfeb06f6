-- :name begin_pinned
begin; {pin_search_path}

-- :name pin_search_path
set local search_path to pg_catalog, pg_temp

-- One column for each type of array in our statements and their answers.
-- :name array_types
select null::smallint[], null::int[], null::bigint[], null::float8[], null::text[], null::bytea[], null::boolean[]

-- :name commit
commit
