-- :name use_write_ahead_log
PRAGMA journal_mode = WAL

-- :name durability_full
PRAGMA synchronous = FULL

-- :name durability_normal
PRAGMA synchronous = NORMAL

-- A commit that finds this many pages (16 MB) in the write-ahead log moves them into the file.
-- :name checkpoint_pages
PRAGMA wal_autocheckpoint = 4000

-- :name no_checkpoint
PRAGMA wal_autocheckpoint = 0

-- The same as connection.LOG_LIMIT.
-- :name log_limit
PRAGMA journal_size_limit = 67108864

-- 32 MiB.
-- :name cache_size
PRAGMA cache_size = -32768

-- Savepoints keep the pages that they may have to restore: in memory, not in a file.
-- :name temporary_data
PRAGMA temp_store = MEMORY

-- Some builds overwrite deleted rows with zeros, which doubles the writing of a delete.
-- :name deleted_rows
PRAGMA secure_delete = OFF

-- :name foreign_keys
PRAGMA foreign_keys = OFF

-- :name only_read
PRAGMA query_only = ON

-- :name check_integrity
PRAGMA quick_check(1)

-- :name cut_log
PRAGMA wal_checkpoint(TRUNCATE)

-- :name files
PRAGMA database_list

-- :name journal_mode
PRAGMA journal_mode
