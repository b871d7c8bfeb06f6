-- How many items a line has, up to a bound.
-- :name ready
SELECT count(*) FROM (SELECT 1 FROM treadle_open INDEXED BY treadle_open_ready
    WHERE status = 2 AND queue = ? AND tenant = ? AND lane = ? LIMIT ?)

-- :name parked
SELECT count(*) FROM (SELECT 1 FROM treadle_open INDEXED BY treadle_open_parked
    WHERE status = 3 AND type = ? AND queue = ? AND tenant = ? AND lane = ? LIMIT ?)

-- :name ids
SELECT i.no, i.id FROM json_each(?) AS e CROSS JOIN treadle_item AS i ON i.no = e.value
