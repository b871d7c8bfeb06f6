-- uses: clock store audits
-- Store or withdraw an order.
--
--   orders  subject -> at(8) until(8, infinite without an end) body; '' -> the version
--   paused  what claims obey: queue, queue \0 tenant, or \0 tenant -> until(8), or 1 without an end
--
-- ARGV: note, subject, the name in `paused` ('' for an order that workers obey), until(8), body ('' to withdraw it).
-- until is empty for an order without an end. Answers whether something has changed.

local subject, part, ends, body = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local stored, paused = Store.get(K.orders, subject), part ~= '' and Store.get(K.paused, part)

local function is_over(until_)
  return #until_ == 8 and struct.unpack('>d', until_) <= now
end

local known = part == '' and stored and not is_over(stored:sub(9, 16))
if paused then known = not is_over(paused) end
local changed = known
if body ~= '' then changed = not known or not stored or stored:sub(17) ~= body end
if body ~= '' and changed or body == '' then
  Store.set(K.orders, subject, body ~= '' and now8 .. (ends ~= '' and ends or struct.pack('>d', math.huge)) .. body)
  if part ~= '' then Store.set(K.paused, part, body ~= '' and (ends ~= '' and ends or '1')) end
end
if changed then
  local version = tonumber(Store.get(K.orders, '') or 0)
  Store.set(K.orders, '', string.format('%.0f', math.max(version + 1, math.floor(now * 1e6))))
end
Audits.record(1, changed and 1 or 0)
Store.flush()
return changed and 1 or 0
