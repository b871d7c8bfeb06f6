-- Whether a table has many dead rows, for its size.
-- :name is_due
select pg_catalog.pg_stat_get_dead_tuples('treadle.open_item'::pg_catalog.regclass)
    >= (:dead::bigint + (pg_catalog.pg_stat_get_live_tuples('treadle.open_item'::pg_catalog.regclass) / 20::bigint))

-- It does not wait for a vacuum that is under way, and does not make the file shorter, for which it would have to lock
-- out everyone. Without the right to vacuum the table it does nothing, and the server's autovacuum does it later.
-- :name vacuum
vacuum (skip_locked, truncate off, index_cleanup on) treadle.open_item
