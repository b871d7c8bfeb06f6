-- uses: store kinds rows groups raw_rows
-- reads
-- List groups: a portion of a list of groups, newest first. The argument is a map, from lists.py: outcomes, bound, tenant,
-- type, since, until_, most. Answers 1 if there are no others, the last number that was looked at, how many groups that
-- were, when its root was submitted, and the groups.

local LOOKED = 200

local asked = cmsgpack.unpack(ARGV[1])
local bound = asked.bound and '(%s' .. struct.pack('>I6', asked.bound) or '[%s' .. string.rep('\255', 7)

-- The next numbers of groups, and the outcomes that they are listed with.
local numbers, outcomes, is_cut = {}, {}, false
for outcome in string.gmatch(asked.outcomes, '.') do
  local last = sub(bound, 1, 1) .. outcome .. sub(bound, 4)
  local members = call('ZREVRANGEBYLEX', K.listed, last, '[' .. outcome, 'LIMIT', 0, LOOKED)
  is_cut = is_cut or #members == LOOKED
  for _, member in ipairs(members) do
    numbers[#numbers + 1] = sub(member, 2)
    outcomes[sub(member, 2)] = outcome
  end
end
sort(numbers, function(a, b) return Store.before(b, a) end)
local some = {unpack(numbers, 1, math.min(#numbers, LOOKED))}
Store.load(K.groups, some)
Store.load(K.left, some)
local items = RawRows.fields(K.item, some)

local function queued_at(item) return item and (struct.unpack('>d', item, 12)) end

-- The listing may be older than the group.
local function matches(group, outcome, queued)
  return Groups.outcome(group) == outcome
    and (not asked.tenant or group.tenant_name == asked.tenant) and (not asked.type or group.type == asked.type)
    and not (queued and asked.since and queued < asked.since)
    and not (queued and asked.until_ and queued >= asked.until_)
end

local function double(value) return value and struct.pack('>d', value) or '' end

local found, looked, position, reached = {}, 0, '', nil
for i = 1, #some do
  if #found == asked.most or looked == asked.reach then break end
  local g, queued = some[i], queued_at(items[i])
  local group = Groups.get(g)
  looked, position, reached = looked + 1, g, queued
  if group and matches(group, outcomes[g], queued) then
    local death = group.failed > 0 and Store.list(K.deaths, g, 1)[1]
    found[#found + 1] = {
      g, group.id, group.tenant_name, group.type, outcomes[g], group.open, Groups.total(group), group.failed,
      double(queued), double(group.ended_at), death and RawRows.read({sub(death, 9, 14)}) or {}, 0,
    }
  end
end
return {looked == #numbers and not is_cut and 1 or 0, position, looked, double(reached), found}
