-- uses: stages
-- flags: allow-oom
-- beside stages
-- Unfold the next portion of the stage that was decided.
-- Answers 1 if there is more.

local more = Stages.unfold()
Store.flush()
return more and 1 or 0
