-- reads
-- Answers when no stage is being unfolded: see stages.lua.

return 1
