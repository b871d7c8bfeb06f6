-- uses: clock store schedules submissions
-- Fire one occurrence of a schedule.
-- ARGV: three random bytes, name, at(8), next_at(8) or empty, error or empty, items (new_items.lua)
-- Answers nothing if it is not the next one of a schedule that runs, else now(8) and what Submissions.store answers

local name, at, next_at, error = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if not Schedules.is_next(name, at) then return false end
local items = NewItems.read(6)
local answer = Submissions.store(items, '')
if answer[1] == 1 then
  local first = answer[2][1]
  local id = items[1] and items[1].id or ''
  if type(first) == 'table' and #first == 3 then id = first[1] end
  Schedules.move_on(name, at, next_at)
  Schedules.record_run(name, at, items[1] and items[1].names.tenant or '', id, error)
  Store.flush()
end
return {now8, answer}
