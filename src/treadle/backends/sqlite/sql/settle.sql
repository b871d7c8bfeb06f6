-- :name gone_workers
SELECT no FROM treadle_worker WHERE gone = 1

-- :name worker_ids
SELECT no, id FROM treadle_worker

-- :name number_of
SELECT no FROM treadle_item WHERE id = ? AND tenant = ?

-- :name ended
SELECT outcome, token, settled FROM treadle_done WHERE no = ?

-- :name put_back
UPDATE treadle_job SET status = ?, attempt = ?, due = ?, since = ?, seq = ?, verdict = ?, settled = ?, losses = 0,
    token = NULL, worker = NULL
WHERE no = ?
