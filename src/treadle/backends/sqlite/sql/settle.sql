-- :name workers
SELECT no, id, removed FROM treadle_worker

-- :name number_of
SELECT no FROM treadle_item WHERE id = ? AND tenant = ?

-- :name ended
SELECT outcome, token, settled_tokens FROM treadle_done WHERE no = ?

-- A handler does not begin before its item is claimed.
-- :name put_back
UPDATE treadle_open SET status = ?, attempt = ?, failures = ?, losses = ?, deferrals = deferrals + ?, due = ?,
    ready_since = coalesce(?, ready_since), seq = ?, verdict = ?,
    began = coalesce(max(?, started), began), settled_tokens = ?, token = NULL, worker = NULL
WHERE no = ?
