-- :name key_owner
SELECT owner FROM treadle_claimed_key WHERE key = ? AND tenant = ? AND until > ?

-- :name claim_key
INSERT OR REPLACE INTO treadle_claimed_key (key, tenant, owner, until) VALUES (?, ?, ?, ?)

-- The columns are those of rules.LimitState, in this order.
-- :name limit_state
SELECT at, used, before FROM treadle_limit WHERE name = ? AND algorithm = ?

-- :name set_limit_state
INSERT OR REPLACE INTO treadle_limit (name, algorithm, at, used, before, idle_at, limit_, window_)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- :name all_permits
SELECT coalesce(sum(count), 0) FROM treadle_permit WHERE name = ?

-- :name permits_of_worker
SELECT count FROM treadle_permit WHERE name = ? AND worker = ?

-- :name all_of_worker
SELECT coalesce(sum(count), 0) FROM treadle_permit WHERE worker = ?

-- :name delete_all_of_worker
DELETE FROM treadle_permit WHERE worker = ?

-- :name delete_leases_of_worker
DELETE FROM treadle_lease_permit WHERE worker = ?

-- :name set_permits
INSERT OR REPLACE INTO treadle_permit (name, worker, count) VALUES (?, ?, ?)

-- :name delete_permits
DELETE FROM treadle_permit WHERE name = ? AND worker = ?

-- :name worker_number
SELECT no FROM treadle_worker WHERE id = ? AND removed = 0

-- :name lease_permit
SELECT worker FROM treadle_lease_permit WHERE name = ? AND token = ?

-- :name leased_to
SELECT worker FROM treadle_open WHERE no = ? AND token = ?

-- :name add_lease_permit
INSERT INTO treadle_lease_permit (name, token, worker, no) VALUES (?, ?, ?, ?)

-- :name delete_lease_permit
DELETE FROM treadle_lease_permit WHERE name = ? AND token = ?

-- The items whose leases have permits, if the leases are valid.
-- :name permit_holders
SELECT i.id, i.tenant, o.due, o.no FROM treadle_lease_permit AS p
CROSS JOIN treadle_open AS o ON o.no = p.no AND o.token = p.token
CROSS JOIN treadle_item AS i ON i.no = o.no
WHERE p.name = ? ORDER BY o.due, o.no
