-- uses: clock store kinds rows lines transitions workers worker_removal demand due doomed strict_lanes unknown_types
-- uses: hand_out next_due
-- flags: allow-oom
-- Claim: remove lapsed workers, make due rows ready, doom rows, lease doomed rows, then ready ones.
-- ARGV, and what it answers: as claim.lua. In addition: the rows that were leased before the others, whole. `alive`
-- is 2 if it did more than claim.lua does.

local _, more = Workers.remove_lapsed()
local worker = Workers.get(demand.worker)
if not worker or worker.until_ <= now then
  Store.flush()
  return {0}
end
local other = other_orders()
if other then
  Store.flush()
  return {3, other}
end
local due_rows, more_due = Due.make_ready()
local expired, more_expired = Due.expire()
more = more or more_due or more_expired
local oldest = UnknownTypes.meet(due_rows, demand.options.g)
if demand.options.g then more = UnknownTypes.doom(demand.options.g, oldest) or more end
local leased = Doomed.lease(worker)
local HandOut = new_hand_out()
local left = HandOut.limit()
local did_more = #due_rows + expired + #leased > 0
local holders = StrictLanes.lease_holders(worker, left)
for i = 1, #holders do leased[#leased + 1] = holders[i] end
for i = 1, #leased do leased[i] = Rows.raw(leased[i]) end
Store.flush()

-- What was done so far stays done. If the rest fails, the answer has at least that.
local due
local decided, problem = pcall(function()
  HandOut.decide(left - #holders, ready_ring())
  due = next_due(first_due())
end)
if not decided and #leased == 0 then error(problem) end
if decided then HandOut.write(worker.number) else HandOut.forget() end
if HandOut.cut_short or more or not decided then due = now end
local cut_short = HandOut.cut_short or (more and #HandOut.numbers < left - #holders)
return {
  did_more and 2 or 1, now8, due and struct.pack('>d', math.max(due - now, 0)) or '', HandOut.tokens + 1,
  cut_short and 1 or 0, HandOut.kinds, concat(HandOut.numbers), HandOut.items, HandOut.general, HandOut.extras, leased,
}
