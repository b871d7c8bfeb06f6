-- uses: clock demand hand_out next_due
-- flags: allow-oom
-- beside stages
-- Claim ready rows, if there is nothing else to do: see claim_all.lua, which does all. Answers nothing if there is.
-- ARGV: see demand.lua.
-- Answers: alive, now(8), next_due(8 or ''), number of the first token, whether it was cut
-- short, kinds, numbers, items, general rows, extras (see hand_out.lua). Or 3 and the version of the orders, if the worker
-- knows another one.

local worker = call('HGET', K.workers, demand.worker)
local lapses = call('ZRANGE', K.workers_until, 0, 0, 'WITHSCORES')[2]
if lapses and tonumber(lapses) <= now then return {} end
local first
if unusual then
  first = first_due()
  local deadline = call('ZRANGE', K.deadlines, 0, 0, 'WITHSCORES')[2]
  if (first and first <= now) or (deadline and tonumber(deadline) <= now) or call('EXISTS', K.doomed) == 1 then
    return {}
  end
end
if not worker then return {0} end
local other = other_orders()
if other then return {3, other} end

local function time_until(due)
  return due and struct.pack('>d', math.max(due - now, 0)) or ''
end

local ring = ready_ring()
if #ring == 0 then return {1, now8, time_until(next_due(first)), 1, 0, {}, '', {}, {}, {}} end
local HandOut = new_hand_out()
HandOut.decide(HandOut.limit(), ring)
local due = next_due(first)
if HandOut.cut_short then due = now end
HandOut.write(sub(worker, 9, 12))
return {
  1, now8, time_until(due), HandOut.tokens + 1,
  HandOut.cut_short and 1 or 0, HandOut.kinds, concat(HandOut.numbers), HandOut.items, HandOut.general, HandOut.extras,
}
