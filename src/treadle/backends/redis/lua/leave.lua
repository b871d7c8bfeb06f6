-- uses: clock store kinds rows trees removal tenant_marks portions
-- flags: allow-oom
-- Remove a portion of what a tenant had that has left. See tenant_moves.py.
-- ARGV: move, tenant, then 'items', a page and how many of them at most; or 'keys' and a cursor; or 'mark' and the mark
-- Answers nothing if it is not to be done. For items 1 if the page has more; for keys the next cursor.

local move, tenant, what = ARGV[1], ARGV[2], ARGV[3]
if not Portions.are_due('leaving', move) then return false end

-- The numbers of the items of the tenant in a page, at most `most`, and whether there are more.
local function of_page(page, most)
  local all, numbers, kinds, seen = {}, {}, {}, {}
  for i = 0, 999 do all[i + 1] = struct.pack('>I6', page * 1000 + i) end
  local items, wanted = call('HMGET', K.item, unpack(all)), Kinds.text(tenant)
  for i = 1, 1000 do
    local k = items[i] and sub(items[i], 2, 5)
    if k and not seen[k] then
      seen[k] = true
      kinds[#kinds + 1] = k
    end
  end
  Kinds.load(kinds)
  for i = 1, 1000 do
    if items[i] and Kinds.get(sub(items[i], 2, 5)).tenant == wanted then
      if #numbers == most then return numbers, true end
      numbers[#numbers + 1] = all[i]
    end
  end
  return numbers, false
end

local answer = 0
if what == 'items' then
  local numbers, has_more = of_page(tonumber(ARGV[4]), tonumber(ARGV[5]))
  Removal.delete_all(Trees.rows(numbers))
  answer = has_more and 1 or 0
elseif what == 'keys' then
  local found, prefix = call('HSCAN', K.claimed, ARGV[4], 'COUNT', 1000), tenant .. '\0'
  for i = 1, #found[2], 2 do
    local name = found[2][i]
    if sub(name, 1, #prefix) == prefix then
      Store.set(K.claimed, name)
      Store.score(K.claimed_until, name)
    end
  end
  answer = found[1]
else
  TenantMarks.put(tenant, ARGV[4])
  TenantMarks.shut(tenant)
end
Store.flush()
return answer
