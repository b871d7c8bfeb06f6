-- The inserts take many rows at once. For `nullif(?, '')` see statements.NULL.

-- :name insert_item
INSERT INTO treadle_item (no, id, tenant, type, queue, lane, priority, attempts, group_no, queued_by, parent,
    workflow, workflow_type, key, queued_at, keep, keep_dead, after, options, input)
VALUES (?, ?, ?, ?, ?, ?, ?, nullif(?, ''), ?, nullif(?, ''), nullif(?, ''), nullif(?, ''), nullif(?, ''), nullif(?, ''),
    ?, ?, nullif(?, ''), nullif(?, ''), ?, ?)
ON CONFLICT (id, tenant) DO NOTHING

-- :name delete_inserted
DELETE FROM treadle_item WHERE no >= ? AND no < ?

-- See counter.sql.
-- :name take_numbers
UPDATE treadle_counter SET no = no + ?, seq = seq + ?, token = token + ? WHERE one = 1

-- The last numbers taken, and whether an item waits for one that does not exist.
-- :name numbers_taken
SELECT no, seq, token, EXISTS (SELECT 1 FROM treadle_missing) FROM treadle_counter WHERE one = 1

-- :name insert_open
INSERT INTO treadle_open (no, status, queue, tenant, type, lane, rank, seq, due, ready_since, deadline,
    attempt, group_no, has_dependencies, need, met, pending, any_end_counts, contributes, verdict, token, worker, started)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, nullif(?, ''), nullif(?, ''), ?, nullif(?, ''), ?, ?, ?, ?, ?, ?,
    nullif(?, ''), nullif(?, ''), nullif(?, ''), nullif(?, ''))

-- The same for items that are ready at once and have nothing but the usual: their rows are copied inside SQLite. Through
-- Python, a new item would take a third longer. Those that wait for others are left out. The first parameter: how far the
-- place in the lane is ahead of the number.
-- :name open_usual
INSERT INTO treadle_open (no, status, queue, tenant, type, lane, rank, seq, due, ready_since, group_no)
SELECT no, 2, queue, tenant, type, lane, -priority, no + ?, queued_at, queued_at,
    CASE WHEN queued_by IS NOT NULL THEN group_no END
FROM treadle_item WHERE no >= ? AND no < ? AND after IS NULL

-- :name existing_ids
SELECT i.id FROM json_each(?) AS e CROSS JOIN treadle_item AS i ON i.id = e.value AND i.tenant = ?

-- The last columns: whether the group of the holder is open (an item that is alone is its own group), whether
-- it has not started, and what changed it.
-- :name key_holder
SELECT i.id, CASE WHEN i.group_no = i.no THEN i.id ELSE g.id END, i.queued_at, coalesce(o.status, d.outcome),
       CASE WHEN g.no IS NULL THEN o.no IS NOT NULL ELSE g.open > 0 END,
       coalesce(o.status >= 0 AND o.status < 4 AND o.attempt = 0 AND o.records & 1 = 0, 0), k.changed_by
FROM treadle_key AS k
CROSS JOIN treadle_item AS i ON i.no = k.no
LEFT JOIN treadle_open AS o ON o.no = i.no
LEFT JOIN treadle_done AS d ON d.no = i.no
LEFT JOIN treadle_group AS g ON g.no = i.group_no
WHERE k.key = ? AND k.tenant = ? AND k.type = ?

-- :name set_key_holder
INSERT OR REPLACE INTO treadle_key (key, tenant, type, no) VALUES (?, ?, ?, ?)

-- :name status_of
SELECT o.status FROM treadle_item AS i CROSS JOIN treadle_open AS o ON o.no = i.no WHERE i.id = ? AND i.tenant = ?

-- :name live_workers
SELECT id, no FROM treadle_worker WHERE removed = 0 AND lease_until > ?
