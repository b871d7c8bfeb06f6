-- :name has_meta
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'treadle_meta'

-- :name version
SELECT value FROM treadle_meta WHERE name = 'schema'
