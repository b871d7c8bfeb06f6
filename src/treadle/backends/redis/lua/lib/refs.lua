-- uses: store kinds dependencies
-- Refs: names of items and groups, for plans: those of a tenant that may have none stored yet.

-- The number of a tenant. One that no item has: the highest.
local function tenant_number(tenant) return Kinds.text(tenant) or '\255\255\255\255' end

local function ref_of(tenant, name) return tenant .. '\0' .. name end

-- The id in the name of an item or a group.
local function bare(name)
  return sub(name, 1, 1) == GROUP_MARK and sub(name, 2) or name
end
