-- uses: store audits
-- reads
-- Audits: entries before a number, the newest first.
-- ARGV: the number ('' for the newest), how many, whether a tenant is asked for ('1'), the tenant, whether a
-- bulk action is asked for ('1'), the bulk action
-- Answers: the number before which to go on (0: there are no more), then numbers and entries in turn

local PORTION = 1000

local last = Store.last(K.audit_numbers)
if ARGV[1] ~= '' then last = math.min(last, tonumber(ARGV[1]) - 1) end
local most = tonumber(ARGV[2])
local tenant = ARGV[3] == '1' and ARGV[4]
local bulk = ARGV[5] == '1' and ARGV[6]
local first = Audits.first()
local from = math.max(first, last - PORTION + 1)
local keys, answer = {}, {0}
for number = last, from, -1 do keys[#keys + 1] = struct.pack('>I6', number) end
if #keys == 0 then return answer end
local entries = call('HMGET', K.audits, unpack(keys))
for i = 1, #keys do
  local number = last - i + 1
  if entries[i] and Audits.is_wanted(entries[i], tenant, bulk) then
    answer[#answer + 1] = number
    answer[#answer + 1] = entries[i]
    if #answer > 2 * most then
      answer[1] = number > first and number or 0
      return answer
    end
  end
end
answer[1] = from > first and from or 0
return answer
