-- Transactions that keep vacuum from removing dead rows. The start of other roles' sessions is visible only to
-- members of pg_read_all_stats.
-- :name long_transactions
select 'pid ' || pid
      || coalesce(case when application_name <> '' then ' (' || application_name || ', ' || state || ')' end, '')
      as holder,
    pid, extract(epoch from pg_catalog.clock_timestamp() - xact_start)::float8 as seconds,
    'select pg_terminate_backend(' || pid || ')' as advice
  from pg_catalog.pg_stat_activity
  where coalesce(backend_xid, backend_xmin) is not null and pid <> pg_catalog.pg_backend_pid()
    and datname = pg_catalog.current_database() and backend_type = 'client backend'
    and xact_start < (pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => :seconds))
union all
select 'the prepared transaction ' || pg_catalog.quote_literal(gid), null,
    extract(epoch from pg_catalog.clock_timestamp() - prepared)::float8,
    'commit prepared or rollback prepared ' || pg_catalog.quote_literal(gid)
  from pg_catalog.pg_prepared_xacts
  where database = pg_catalog.current_database()
    and prepared < (pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => :seconds))
order by seconds desc limit 10
