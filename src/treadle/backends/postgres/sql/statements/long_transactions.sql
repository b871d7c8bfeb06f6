-- Transactions that keep vacuum from removing dead rows. The start of other roles' sessions is visible only to
-- members of pg_read_all_stats.
-- :name long_transactions
select 'pid ' || pid || coalesce(' (' || nullif(application_name, '') || ', ' || state || ')', '') as holder,
    pid, extract(epoch from clock_timestamp() - xact_start)::float8 as seconds,
    'select pg_terminate_backend(' || pid || ')' as advice
  from pg_stat_activity
  where coalesce(backend_xid, backend_xmin) is not null and pid <> pg_backend_pid()
    and datname = current_database() and backend_type = 'client backend'
    and xact_start < clock_timestamp() - :seconds * interval '1 second'
union all
select 'the prepared transaction ' || quote_literal(gid), null,
    extract(epoch from clock_timestamp() - prepared)::float8,
    'commit prepared or rollback prepared ' || quote_literal(gid)
  from pg_prepared_xacts
  where database = current_database() and prepared < clock_timestamp() - :seconds * interval '1 second'
order by seconds desc limit 10
