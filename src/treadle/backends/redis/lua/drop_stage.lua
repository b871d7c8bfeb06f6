-- uses: stages
-- flags: allow-oom
-- Forget a portion of a stage: of the one that is named, or of one that was left behind.
-- ARGV: stage(8), or an empty text and how many seconds ago the last portion was written
-- Answers 1 if there may be more.

local stage = ARGV[1]
if stage == '' then
  local found = call('HSCAN', K.stages, 0, 'COUNT', 100)[2]
  for i = 1, #found, 2 do
    local _, at = struct.unpack('>c1d', found[i + 1])
    if #found[i] == 8 and at < now - tonumber(ARGV[2]) then stage = found[i] end
  end
  if stage == '' then return 0 end
end
local more = Stages.drop(stage)
Store.flush()
return (more or ARGV[1] == '') and 1 or 0
