-- The last one is new in version 17.
-- :name no_timeouts
select pg_catalog.set_config(s.name, '0', true) from pg_catalog.pg_settings s
where s.name in ('lock_timeout', 'statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')

-- :name lock
select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(:name, 0))

-- :name table_oid
select pg_catalog.to_regclass(:name)::oid

-- :name schema_oid
select pg_catalog.to_regnamespace(:name)::oid

-- :name create_schema
create schema "{schema}"

-- Roles that could change what the schema's functions and tables do, and are not trusted. Trusted are the role
-- that is connected, the roles it inherits from, superusers, and the given owner. (Every role counts as one that a
-- superuser inherits from, so for a superuser none does.)
-- :name untrusted_roles
with schema as (select * from pg_catalog.pg_namespace n where n.nspname = :schema::text),
me as (select r.oid, r.rolsuper from pg_catalog.pg_roles r where r.rolname = current_user),
power as (
  select s.nspowner as role, 'owns it' as what from schema s
  union all
  select a.grantee, 'may create in it' from schema s, pg_catalog.aclexplode(s.nspacl) a
    where a.privilege_type = 'CREATE'
  union all
  select p.proowner, 'owns the function ' || p.proname || ' in it'
    from schema s, pg_catalog.pg_proc p where p.pronamespace = s.oid
  union all
  select c.relowner, 'owns ' || c.relname || ' in it'
    from schema s, pg_catalog.pg_class c where c.relnamespace = s.oid
  union all
  select a.grantee, 'may attach triggers to ' || c.relname || ' in it'
    from schema s, pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) a
    where c.relnamespace = s.oid and a.privilege_type = 'TRIGGER'
  union all
  select t.typowner, 'owns the type ' || t.typname || ' in it'
    from schema s, pg_catalog.pg_type t where t.typnamespace = s.oid
)
select coalesce(r.rolname, 'every role') as role, p.what
from me, power p left join pg_catalog.pg_roles r on r.oid = p.role
where r.oid is null
  or not (r.rolsuper or r.oid = me.oid or (not me.rolsuper and pg_catalog.pg_has_role(r.oid, 'usage')))
    and (:owner::text is null or r.rolname <> :owner::text)
limit 1

-- :name create_meta
create table if not exists treadle.meta (name text primary key, value text not null)

-- :name meta
select name, value from treadle.meta

-- :name set_meta
insert into treadle.meta values (:name, :value) on conflict (name) do update set value = excluded.value

-- :name functions_of
select p.oid::regprocedure::text from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace
where n.nspname = :schema and p.proname = :function

-- :name drop_function
drop function {signature}

-- :name script
begin;
set local search_path to pg_catalog, pg_temp;
create schema if not exists "{schema}";
do $$ begin
  if (select nspowner <> current_user::regrole from pg_namespace where nspname = '{schema}') then
    raise exception 'another role owns the schema {schema}: create it first, as the role that runs this script';
  end if;
end $$;
create table treadle.meta (name text primary key, value text not null);
insert into treadle.meta values ('version', '{version}'), ('functions', '{hash}');
{migrations}
{functions}
commit;
