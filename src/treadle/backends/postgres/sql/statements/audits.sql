-- A change with its audit entry. The answer is that of the change.

-- A change of items: a row for each item, and others for what followed.
-- :name noted_items
with changed as materialized ({change}),
counted as (select treadle.clock() as now, pg_catalog.count(*)::int as count from changed where no is not null),
{noted}
select * from changed

-- A change of rows, each of which it answers.
-- :name noted_rows
with changed as ({change}),
{counted},
{noted}
select * from changed

-- :name counted
counted as (select treadle.clock() as now, pg_catalog.count(*)::int as count from changed)

-- :name noted
noted as (insert into treadle.audit ({columns}) select {values} from counted c)

-- :name noted_if_any
noted as (insert into treadle.audit ({columns}) select {values} from counted c where c.count > 0)

-- :name columns
at, actor, verb, tenant, ids, count, about, reason, address, bulk

-- :name values
c.now, :note_actor::text, :note_verb::text, :note_tenant::text, :note_ids::text[], c.count, :note_about::text,
:note_reason::text, :note_address::text, :note_bulk::text

-- :name audits
select no, {columns} from treadle.audit where bulk is null and no < :before::bigint order by no desc limit :limit::int

-- With the portions of bulk actions of all tenants.
-- :name audits_of_tenant
(select no, {columns} from treadle.audit where tenant = :tenant::text and bulk is null and no < :before::bigint
order by no desc limit :limit::int)
union all
(select no, {columns} from treadle.audit
where tenant = :tenant::text and bulk is not null and about <> '' and no < :before::bigint
order by no desc limit :limit::int)
order by no desc limit :limit::int

-- :name portions
select no, {columns} from treadle.audit where bulk = :bulk::text and no < :before::bigint
order by no desc limit :limit::int

-- :name portions_of_tenant
select no, {columns} from treadle.audit where tenant = :tenant::text and bulk = :bulk::text and no < :before::bigint
order by no desc limit :limit::int
