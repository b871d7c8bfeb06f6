-- :name insert_audit
INSERT INTO treadle_audit (at, actor, verb, tenant, ids, count, about, reason, address, bulk)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- :name audits
SELECT no, at, actor, verb, tenant, ids, count, about, reason, address, bulk
FROM treadle_audit WHERE bulk IS ? AND no < ? ORDER BY no DESC LIMIT ?

-- :name audits_of_tenant
SELECT no, at, actor, verb, tenant, ids, count, about, reason, address, bulk
FROM treadle_audit WHERE tenant = ? AND bulk IS ? AND no < ? ORDER BY no DESC LIMIT ?
