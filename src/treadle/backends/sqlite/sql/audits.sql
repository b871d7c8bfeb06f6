-- :name insert_audit
INSERT INTO treadle_audit (at, actor, verb, tenant, ids, count, about, reason, address, bulk)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- :name audits
SELECT no, at, actor, verb, tenant, ids, count, about, reason, address, bulk
FROM treadle_audit WHERE bulk IS ? AND no < ? ORDER BY no DESC LIMIT ?

-- :name portions_of_tenant
SELECT no, at, actor, verb, tenant, ids, count, about, reason, address, bulk
FROM treadle_audit WHERE tenant = ? AND bulk = ? AND no < ? ORDER BY no DESC LIMIT ?

-- With the portions of bulk actions of all tenants.
-- :name audits_of_tenant
SELECT no, at, actor, verb, tenant, ids, count, about, reason, address, bulk FROM (
    SELECT * FROM (
        SELECT * FROM treadle_audit WHERE tenant = ?1 AND bulk IS NULL AND no < ?2 ORDER BY no DESC LIMIT ?3
    )
    UNION ALL
    SELECT * FROM (
        SELECT * FROM treadle_audit WHERE tenant = ?1 AND bulk IS NOT NULL AND about <> '' AND no < ?2
        ORDER BY no DESC LIMIT ?3
    )
) ORDER BY no DESC LIMIT ?3
