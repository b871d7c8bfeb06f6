-- uses: submissions
-- Submit: many submissions, each stored as a whole or not at all.
--
-- ARGV: three random bytes, how many submissions, then for each its note and its items (see new_items.lua).
-- Answers now and, for each submission, what Submissions.store answers (submissions.lua).

local submissions, all, at = {}, {}, 3
for i = 1, tonumber(ARGV[2]) do
  local note, items = ARGV[at]
  items, at = NewItems.read(at + 1)
  submissions[i] = {note, items}
  for _, item in ipairs(items) do all[#all + 1] = item end
end
Plan.load(all)
local answers = {now8}
for i, submission in ipairs(submissions) do answers[i + 1] = Submissions.store(submission[2], submission[1]) end
Store.flush()
return answers
