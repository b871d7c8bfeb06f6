-- :name no_timeouts
set local lock_timeout = 0; set local statement_timeout = 0

-- :name lock
select pg_advisory_xact_lock(hashtextextended(:name, 0))

-- :name table_oid
select to_regclass(:name)::oid

-- :name schema_oid
select to_regnamespace(:name)::oid

-- :name create_schema
create schema "{schema}"

-- :name create_meta
create table if not exists treadle.meta (name text primary key, value text not null)

-- :name meta
select name, value from treadle.meta

-- :name set_meta
insert into treadle.meta values (:name, :value) on conflict (name) do update set value = excluded.value

-- :name functions_of
select p.oid::regprocedure::text from pg_proc p join pg_namespace n on n.oid = p.pronamespace
where n.nspname = :schema and p.proname = :function

-- :name drop_function
drop function {signature}

-- :name script
begin;
create schema if not exists "{schema}";
create table treadle.meta (name text primary key, value text not null);
insert into treadle.meta values ('version', '{version}'), ('functions', '{hash}');
{migrations}
{functions}
commit;
