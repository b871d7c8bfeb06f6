-- uses: clock store kinds rows groups
-- flags: allow-oom
-- Store groups as another store had them. Their members are there. See moving.py.
-- ARGV: for each, its numbers and flags as in groups.lua (without the tenant's number and the members), members that it has
-- had(4), then id, tenant, type and value

for at = 1, #ARGV, 5 do
  local g, open, version, flags, failed, cancelled, ended, keep, outer, total = struct.unpack('>c6I4dBI4I4ddc6I4', ARGV[at])
  Groups.put(g, {
    open = open, version = version, flags = flags, failed = failed, cancelled = cancelled, ended = ended, keep = keep,
    outer = outer, total = total, id = ARGV[at + 1], tenant_name = ARGV[at + 2], type = ARGV[at + 3], value = ARGV[at + 4],
  })
end
Store.flush()
return 0
