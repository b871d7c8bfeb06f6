-- uses: clock store kinds rows groups dependencies effects trees removal audits
-- flags: allow-oom
-- Remove whole groups.
-- ARGV: note, tenant, cascade (1 or 0), ids of groups...
-- Answers the rows as they were; or pairs: an id, and the id of an open row outside that refers to it.

local tenant = Trees.tenant(ARGV[2])
local rows, seen = {}, {}

local function add_group(found)
  if found then Trees.add_group(found, rows, seen) end
end

-- Add the groups of all prerequisites of these rows, and of their prerequisites in turn.
local function add_prerequisites()
  local stack = {}
  for i = 1, #rows do stack[i] = rows[i] end
  while #stack > 0 do
    local row = stack[#stack]
    stack[#stack] = nil
    for _, name in ipairs(Rows.extra(row).a or {}) do
      local group
      if sub(name, 1, 1) == GROUP_MARK then
        group = Groups.find(row.kind.tenant, sub(name, 2))
      else
        local other = Rows.find(row.kind.tenant, name)
        group = other and (Groups.get(other.group) or other)
      end
      if group then
        for _, added in ipairs(Trees.add_group(group, rows, seen)) do stack[#stack + 1] = added end
      end
    end
  end
end

-- The open rows outside that refer to these rows, or to their groups.
local function references()
  local found, looked_at = {}, {}
  local function look(owner, name)
    local full = Dependencies.name(owner, name)
    if looked_at[full] then return end
    looked_at[full] = true
    for _, waiter in ipairs(Dependencies.waiters(owner, name)) do
      if not seen[waiter.n] then
        local id = sub(name, 1, 1) == GROUP_MARK and sub(name, 2) or name
        found[#found + 1] = {id, waiter.id}
      end
    end
  end
  for _, row in ipairs(rows) do
    local extra = Rows.extra(row)
    look(row.kind.tenant, row.id)
    look(row.kind.tenant, GROUP_MARK .. (extra.g or row.id))
    if extra.c then look(row.kind.tenant, GROUP_MARK .. row.id) end
  end
  return found
end

if tenant ~= false then
  Trees.named(tenant, 4)
  for i = 4, #ARGV do add_group(Groups.find(tenant, ARGV[i])) end
end
if ARGV[3] == '1' then add_prerequisites() end
if Store.any(K.waiters) then
  local found = references()
  if #found > 0 then return {{}, found} end
end
local before = Trees.raw(rows)
Removal.delete_all(rows)
Audits.record(1, #rows)
Store.flush()
return {before}
