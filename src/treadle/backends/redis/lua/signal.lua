-- uses: clock store kinds rows lines transitions trees audits mailboxes waits
-- Signal: send signals to open items.
-- ARGV: note, entry (see operate.py), tenant, the most unread signals of an item, how many signals, the id of each;
-- then for each its name, its value and its key, the last two empty or with one byte before them
-- Answers for each: the verb (n not found, e ended, x existing, f full, s stored) and the status of the item, in one
-- text; or if it was woken these, its type and its queue. Then the entry.

local most, count = tonumber(ARGV[4]), tonumber(ARGV[5])
local rows = Trees.named(Trees.tenant(ARGV[3]), 6, 5 + count)

local function given(text) return text ~= '' and sub(text, 2) or nil end

local function stored(row)
  if not row.has_records then
    row.has_records = true
    Rows.save(row)
  end
end

local function signal(row, name, value, key)
  if not row then return 'n' end
  if row.ended_at then return 'e' .. row.status end
  local n = row.n
  if key and row.has_records and Mailboxes.knows(n, name, key) then return 'x' .. row.status end
  local step = Waits.for_signal(row, name)
  if not step and row.has_records and Mailboxes.unread(n) >= most then return 'f' .. row.status end
  if key then Mailboxes.add_key(n, name, key) end
  if not step then Mailboxes.add(n, name, value) end
  if key or not step then stored(row) end
  local is_woken = step and Waits.answer(row, step, value)
  if is_woken then return {'s' .. row.status, row.kind.names.type, row.kind.names.queue} end
  return 's' .. row.status
end

local answers, count_stored = {}, 0
for i = 1, count do
  local at = 6 + count + 3 * (i - 1)
  answers[i] = signal(rows[i], ARGV[at], given(ARGV[at + 1]), given(ARGV[at + 2]))
  if type(answers[i]) == 'table' or sub(answers[i], 1, 1) == 's' then count_stored = count_stored + 1 end
end
local entry = count_stored > 0 and Audits.record(1, count_stored, ARGV[2]) or ARGV[2]
Store.flush()
return {answers, entry}
